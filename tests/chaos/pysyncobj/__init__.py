"""Mode pysyncobj, and faults of stock pysyncobj 0.3.17 that our core does not have.

worlds.py          one schedule, two worlds: SyncObj as shipped, RaftCore
test_log.py        schedules that lose entries
test_elections.py  schedules about who leads
test_disk.py       what a disk holds after kills, power cuts, flipped bits
test_seams.py      our journal, meta file, framing and settings
test_broker.py     whole brokers over it, and the slow link that makes it lose what it acknowledged

Only SyncObj's clock function is replaced, by a number. Some known faults are not shown, because
that would take more changes.

disk full, SIGBUS in mmap (issue 164)      kills the process that shows it
members disagree after a dump (131, 133)   needs dynamic membership and dumps: off in this engine
exception ends the tick thread (121)       0.3.17 catches it
port in use: retries for ever              its constructor does not return
two holders of a lock (108)                in pysyncobj.batteries, used by nothing here
terms restart at 0 (201, 202)              repaired in 0.3.17; what is left, no fsync, is shown

docs/pysyncobj.md has the table of fault, test and outcome.
"""
