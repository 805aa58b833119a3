"""Waits until a cluster has recovered, that is, replicas have the log and proxies accept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from .cluster import Cluster, NodeStatus, slaves_missing
from .clusterfile import ClusterError
from .probe import ReplicaView

RECOVERY_TIMEOUT_S = 120.0
POLL_S = 0.05

Repair = Callable[[ReplicaView], Awaitable[bool]]  # → whether anything was done about it


async def wait_recovered(
    cluster: Cluster, timeout_s: float = RECOVERY_TIMEOUT_S, repair: Repair | None = None
) -> None:
    """Return once every group has a ready leader, every replica answers, follows it and has applied
    the log committed at the time of the call, and every gRPC proxy accepts connections. `repair` is
    called with each replica that rejects its leader; if it returns True, the time-out restarts.
    Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    await cluster.wait_serving(timeout_s)
    goals: dict[str, int] = {}
    while True:
        statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
        views = [status.view for status in statuses]
        goals = goals or _committed(views)
        if all(view is not None and _has(view, goals) for view in views):
            if slaves_missing(cluster.state(), views) is None:
                if not await cluster.silent_proxies():
                    return
        for view in views:
            if repair is not None and view is not None and view.refuses and await repair(view):
                deadline, goals = time.monotonic() + timeout_s, {}
        if time.monotonic() > deadline:
            states = ", ".join(f"{s.node.name} {_text(s)}" for s in statuses)
            states += "".join(f"; {name} is silent" for name in await cluster.silent_proxies())
            raise ClusterError(f"not whole after {timeout_s:g} s: goal {goals}, applied {states}")
        await asyncio.sleep(POLL_S)


def _committed(views: Sequence[ReplicaView | None]) -> dict[str, int]:
    """Return by group the highest commit index of its replicas. A classic slave that does not
    follow its master does not count, because its extra messages are not the group's."""
    goals: dict[str, int] = {}
    for view in views:
        if view is not None and view.follows:
            goals[view.group] = max(goals.get(view.group, 0), view.commit_index)
    return goals


def _text(status: NodeStatus) -> str:
    view = status.view
    if view is None:
        return f"does not tell: {status.refusal}" if status.refusal else "does not answer"
    if not view.follows:
        return f"{view.applied_index} and does not follow{': ' * bool(view.refuses)}{view.refuses}"
    return str(view.applied_index)


def _has(view: ReplicaView, goals: dict[str, int]) -> bool:
    return view.follows and view.applied_index >= goals.get(view.group, 0)
