"""Evidence that a cluster leaves when a run ends, its logs and its replicas' stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from ..checks.logs import write_findings
from ..checks.stores import write_replicas
from ..cluster.cluster import Cluster
from ..history.files import HistoryWriter


async def record_evidence(
    cluster: Cluster, history: HistoryWriter, stop: Callable[[], Awaitable[None]], began_ns: int
) -> None:
    """Stop the cluster; record findings of its logs and the content of its stores.

    `began_ns` is the start of the run on the history's clock.
    """
    committed = await _committed(cluster)
    await stop()
    await asyncio.to_thread(_write_evidence, cluster, history, committed, began_ns)


async def _committed(cluster: Cluster) -> dict[str, int]:
    """Return group → Raft index that all replicas have committed, if all answer."""
    result: dict[str, int] = {}
    statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
    for group in cluster.state().groups:
        views = [s.view for s in statuses if s.node.group == group]
        known = [v.commit_index for v in views if v is not None and v.term > 0]
        if len(known) == len(views):
            result[group] = min(known)
    return result


def _write_evidence(
    cluster: Cluster, history: HistoryWriter, committed: Mapping[str, int], began_ns: int
) -> None:
    """Record the nodes' logs and stores. Blocking."""
    state = cluster.state()
    write_findings(history, cluster.collect_logs(), cluster.log_zone, began_ns)
    for group in state.groups:
        members = state.members(group)
        if len(members) > 1:
            stores = {n.name: cluster.store_of(n) for n in members}
            write_replicas(history, group, stores, committed.get(group))
