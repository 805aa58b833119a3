"""Settings of all tests.

How full the machine's own disk is decides nothing: brokers that tests start as processes, and do
not fill themselves, take sends to the last byte. (Brokers of the tests' own process stand on a
tests.steadydisk.)
"""

import os

os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_LEVEL_RATIO", "100")
os.environ.setdefault("RAFTMQ_DISK_SPACE_WARNING_FREE_BYTES", "1")
