"""audit: compare the files of a broker group with the answers its clients got.

Reads CommitLogs, the files beside them, and histories with Spark; `api.py` has the entry points.
Of what it audits it shares only the frame header's layout, and the commands of the tables under
config/, which it makes again from the log.
"""
