"""`python -m tests.broker.node -c broker.conf`: `mqbroker` over a SteadyDisk; tests kill it.

kill -9 takes nothing from the page cache, so a sync adds nothing to what they see; and one that
takes seconds, on a busy machine, would cost a leader its office. NODE_DURATIONS has durations other
than the default, as JSON; senders wait long for an outcome or the disk.
"""

from __future__ import annotations

import json
import os
import time

from raftmq.broker.cli import main
from raftmq.broker.durations import Durations
from raftmq.broker.process import Machine
from tests.steadydisk import SteadyDisk


def steady_machine(root: str) -> Machine:
    durations = {"outcome": 60_000, "sync_flush": 60_000} | json.loads(
        os.environ.get("NODE_DURATIONS", "{}")
    )
    disk, wall_ms = SteadyDisk(root), lambda: time.time_ns() // 1_000_000
    return Machine(disk, wall_ms, durations=Durations(**durations))


if __name__ == "__main__":
    main(obj=steady_machine)
