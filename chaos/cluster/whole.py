"""When a cluster is whole again: every group serves and every replica has what was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from chaos.cluster.cluster import Cluster
from chaos.cluster.clusterfile import ClusterError
from chaos.cluster.probe import ReplicaView

WHOLE_TIMEOUT_S = 60.0
POLL_S = 0.05


async def wait_whole(cluster: Cluster, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
    """Return once every group has a ready leader and every replica of it answers and has applied
    what its group had committed when this was called. Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    await cluster.wait_serving(timeout_s)
    goals: dict[str, int] = {}
    while True:
        statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
        views = [status.view for status in statuses]
        goals = goals or _committed(views)
        if all(view is not None and _has(view, goals) for view in views):
            return
        if time.monotonic() > deadline:
            states = ", ".join(
                f"{s.node.name} {s.view.applied_index if s.view else 'does not answer'}"
                for s in statuses
            )
            raise ClusterError(f"not whole after {timeout_s:g} s: goal {goals}, applied {states}")
        await asyncio.sleep(POLL_S)


def _committed(views: Sequence[ReplicaView | None]) -> dict[str, int]:
    """Group → the highest commit index that any of its replicas knows."""
    goals: dict[str, int] = {}
    for view in views:
        if view is not None:
            goals[view.group] = max(goals.get(view.group, 0), view.commit_index)
    return goals


def _has(view: ReplicaView, goals: dict[str, int]) -> bool:
    return view.applied_index >= goals.get(view.group, 0)
