"""A broker over stock pysyncobj, the negative control of chaos runs.

`PySyncMember` (member.py) has RaftMember's interface and drives pysyncobj's SyncObj, unchanged,
through its extension points. These are our Journal (journal.py, an entry is a frame of the
CommitLog), our Transport (transport.py, one asyncio connection per directed link) and `doTick`. No
code here repairs SyncObj's faults. Messages answered SEND_OK can be lost (docs/pysyncobj.md).

Nothing is re-exported, so that importing the package does not load pysyncobj.
"""
