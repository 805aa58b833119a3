"""The system that a run breaks: how its cluster is made and watched, how its faults are made, and
what is left for the judge. `OURS` is this project's; chaos.nats has another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checks.logs import write_findings
from ..checks.stores import write_replicas
from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterState
from ..cluster.probe import Probe
from ..cluster.topology import flush_of
from ..faults import catalogue
from ..faults.base import Context, Fault, Planned
from ..history.files import HistoryWriter

Stop = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class System:
    """One kind of cluster, in a directory.

    `evidence` looks at the running cluster, stops it by the third argument, and records what its
    nodes leave; the last says when the run began, on the history's clock. `meta` says for the
    history what it is. `roles` makes the probe that is asked who leads; None: brokers are asked as
    ours are.
    """

    cluster: Callable[[Path], Cluster]
    make: Callable[[Planned, Context], Fault]
    evidence: Callable[[Cluster, HistoryWriter, Stop, int], Awaitable[None]]
    meta: Callable[[ClusterState], Mapping[str, str]]
    roles: Callable[[Path], Probe] | None = None


async def our_evidence(cluster: Cluster, history: HistoryWriter, stop: Stop, began_ns: int) -> None:
    """Search logs, compare each group's stores."""
    committed = await _committed(cluster)
    await stop()
    await asyncio.to_thread(_write_evidence, cluster, history, committed, began_ns)


async def _committed(cluster: Cluster) -> dict[str, int]:
    """Return group → the Raft index that all its replicas have committed; none for a group without
    Raft or with a replica that does not answer."""
    found: dict[str, int] = {}
    statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
    for group in cluster.state().groups:
        views = [s.view for s in statuses if s.node.group == group]
        known = [v.commit_index for v in views if v is not None and v.term > 0]
        if len(known) == len(views):
            found[group] = min(known)
    return found


def _write_evidence(
    cluster: Cluster, history: HistoryWriter, committed: Mapping[str, int], began_ns: int
) -> None:
    """Record what the nodes left behind. Blocking."""
    state = cluster.state()
    write_findings(history, cluster.collect_logs(), cluster.log_zone, began_ns)
    for group in state.groups:
        members = state.members(group)
        if len(members) > 1:
            stores = {n.name: cluster.store_of(n) for n in members}
            write_replicas(history, group, stores, committed.get(group))


def _our_meta(state: ClusterState) -> dict[str, str]:
    return {"mode": state.mode, "flush": flush_of(state)}


OURS = System(Cluster, catalogue.make, our_evidence, _our_meta)
