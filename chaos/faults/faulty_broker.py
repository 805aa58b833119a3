"""`python -m raftmq.chaos.faults.faulty_broker -c broker.conf`: `mqbroker` over the fault layer.

The same broker with the same options; the harness can steer its disk and its time of day. The
directory of faults lies beside the store: DIR/<node>/store, DIR/<node>/faults.
"""

from __future__ import annotations

from pathlib import Path

from raftmq.broker.cli import main
from raftmq.broker.process import Machine

from .fault_control import Control
from .fault_disk import FaultDisk
from .http_control import HttpDoor
from .power import FAULTS


def steerable_machine(root: str) -> Machine:
    """Return the machine of the broker whose store is at `root`."""
    home = Path(root).absolute().parent / FAULTS
    control = Control(home)
    return Machine(FaultDisk(root, home, control), control.wall_ms, HttpDoor(home))


if __name__ == "__main__":
    main(obj=steerable_machine)
