"""The same group over stock pysyncobj: for comparison, and to prove that a chaos run can fail.

`PySyncMember` (member.py) has RaftMember's interface and drives pysyncobj's SyncObj, unchanged,
through its extension points: our Journal (journal.py: an entry is a frame of the CommitLog), our
Transport (transport.py: asyncio, one connection per directed link), `doTick`. Nothing here repairs
SyncObj's faults. See docs/pysyncobj.md; messages answered SEND_OK can be lost.

Nothing is re-exported, so that importing the package does not load pysyncobj.
"""
