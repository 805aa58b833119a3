"""audit: what the files of a broker group say, against what its clients were told.

Reads CommitLogs, ConsumeQueues and histories with Spark; see `api.py` for the entry points. It
shares no code with the store it audits except the frame header's layout.
"""
