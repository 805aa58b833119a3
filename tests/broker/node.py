"""`python -m tests.broker.node -c broker.conf`: `mqbroker` over a SteadyDisk; tests kill it.

kill -9 takes nothing from the page cache, so a sync adds nothing to what they see; and one that
takes seconds, on a busy machine, would cost a leader its office.
"""

from __future__ import annotations

import time

from raftmq.broker.cli import main
from raftmq.broker.process import Machine
from tests.steadydisk import SteadyDisk


def steady_machine(root: str) -> Machine:
    return Machine(SteadyDisk(root), lambda: time.time_ns() // 1_000_000)


if __name__ == "__main__":
    main(obj=steady_machine)
