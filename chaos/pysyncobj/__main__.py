"""`python -m raftmq.chaos.pysyncobj -c broker.conf`: `mqbroker` over pysyncobj instead of Raft.

The same broker with the same options, over the fault layer (chaos.faults.faulty_broker). Its
configuration needs `frameSizeMax=32768`: SyncObj sends an entry above 64 KiB in pieces, and raises
an exception over each of them but the last (docs/pysyncobj.md, fault 7).
"""

from __future__ import annotations

from dataclasses import replace

from raftmq.broker.cli import main
from raftmq.broker.process import Machine

from ..faults.faulty_broker import steerable_machine
from .member import PYSYNCOBJ


def machine(root: str) -> Machine:
    """Return the machine of the broker with the store at `root`."""
    return replace(steerable_machine(root), replication=PYSYNCOBJ)


if __name__ == "__main__":
    main(obj=machine)
