"""audit: compare the files of a broker group with the answers its clients got.

Reads CommitLogs, ConsumeQueues and histories with Spark; `api.py` has the entry points. The only
code it shares with the store it audits is the frame header's layout.
"""
