"""The same group over stock pysyncobj: to compare with, and to prove that a chaos run can fail.

`PySyncMember` (member.py) has RaftMember's face and drives pysyncobj's SyncObj, unchanged, through
its seams: our Journal (journal.py: an entry is a frame of the CommitLog), our Transport
(transport.py: asyncio, one connection per directed link), `doTick`. SyncObj's faults stay its own:
nothing here repairs them. See docs/pysyncobj.md; messages answered SEND_OK can be lost.

Nothing is re-exported, so that importing the package does not load pysyncobj.
"""
