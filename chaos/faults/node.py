"""`python -m chaos.faults.node -c broker.conf`: `mqbroker` over the fault layer.

The same broker with the same options; its disk and its time of day are the ones that the harness
can steer. The directory of faults lies beside the store: DIR/<node>/store, DIR/<node>/faults.
"""

from __future__ import annotations

from pathlib import Path

from broker.cli import Machine, main
from chaos.faults.door import HttpDoor
from chaos.faults.faultdisk import FaultDisk
from chaos.faults.power import FAULTS
from chaos.faults.steering import Control


def steerable_machine(root: str) -> Machine:
    """The machine of the broker whose store is at `root`."""
    home = Path(root).absolute().parent / FAULTS
    control = Control(home)
    return Machine(FaultDisk(root, home, control), control.wall_ms, HttpDoor(home))


if __name__ == "__main__":
    main(obj=steerable_machine)
