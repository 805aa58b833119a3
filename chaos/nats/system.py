"""A JetStream cluster as a run sees it.

Damage to files and changes of members are made JetStream's own way; all other faults are made as
they are for our brokers.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..cluster.cluster import Cluster
from ..faults import catalogue
from ..faults.base import Context, Factory, Fault, Planned, injected
from ..faults.damage import Damage, Harm
from ..faults.members import Replacement
from ..history.files import HistoryWriter
from ..run.system import Stop, System
from .damage import bit_rot, snapshot_rot, torn_snapshot
from .members import add, remove
from .probe import NatsProbe
from .servers import Servers

FATAL = "[FTL]"  # the last line of a server that cannot start


def _damage(harm: Harm, number: signal.Signals) -> Factory:
    return injected(lambda planned, context: Damage(planned, context, harm, number, [FATAL]))


MADE_BY: Mapping[str, Factory] = {
    "bit-rot": _damage(bit_rot, signal.SIGKILL),
    "snapshot-rot": _damage(snapshot_rot, signal.SIGTERM),
    "torn-snapshot": _damage(torn_snapshot, signal.SIGTERM),
    "replace-member": injected(partial(Replacement, add=add, remove=remove)),
}


def jetstream(program: Path, words: str, sync: str = "") -> System:
    """Return the system of servers that `program` runs; `words` are the mode in the history."""

    def cluster(directory: Path) -> Cluster:
        return Cluster(directory, NatsProbe(directory), Servers(program, sync))

    return System(cluster, make, evidence, lambda state: {"mode": words}, NatsProbe)


def make(planned: Planned, context: Context) -> Fault:
    """Make a planned fault. Raises ClusterError where it cannot be done."""
    made = MADE_BY.get(planned.kind)
    return made(planned, context) if made is not None else catalogue.make(planned, context)


async def evidence(cluster: Cluster, history: HistoryWriter, stop: Stop, began_ns: int) -> None:
    """Record what every server says of its own health. Replicas are compared by what they show
    (chaos.nats.workload), not by their files."""
    probe = NatsProbe(cluster.directory)
    try:
        for node in cluster.state().brokers:
            words = f"{node.name} says of its health: {await probe.health(node)}"
            history.event("ok", "note", "runner", history.next_op(), text=words)
    finally:
        await probe.close()
    await stop()
