"""Replacement of a member of a Raft group for good, during other faults.

A new node joins, then the hit node leaves. The change starts with the injection and continues by
itself, so a fault in the same wish happens during it. Healing waits for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..cluster import members
from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError, ClusterState, Node
from .base import Context, Hit, Kind, Need, Planned, Table, injected

Add = Callable[[Cluster, str, Callable[[str], None]], Awaitable[Node]]
Remove = Callable[[Cluster, str], Awaitable[object]]


class Replacement:
    """A change of members that is under way between `do` and `undo`."""

    def __init__(
        self,
        planned: Planned,
        context: Context,
        add: Add = members.add,
        remove: Remove = members.remove,
    ) -> None:
        self._context = context
        self._add = add
        self._remove = remove
        self._task: asyncio.Task[None] | None = None
        self._new = ""

    async def do(self, hit: Hit) -> None:
        (old,) = hit.nodes
        self._task = asyncio.create_task(self._replace(old), name="replace a member")

    async def undo(self, hit: Hit) -> None:
        """Wait until it is done. Raises ClusterError if it could not be."""
        if self._task is not None:
            await self._task

    async def _replace(self, old: Node) -> None:
        new = await self._add(self._context.cluster, old.group, self._context.say)
        self._new = new.name
        await self._remove(self._context.cluster, old.name)

    def describe(self, targets: str) -> str:
        return f"{targets} replaced" + (f" by {self._new}" if self._new else " by a new member")


def _needs_changeable(state: ClusterState | None) -> str | None:
    try:
        if state is not None:
            members.changeable(state)
    except ClusterError as error:
        return str(error)
    return None


KINDS: Table = {
    "replace-member": (
        Kind(
            "replace-member",
            "process",
            "a new broker joins the Raft group, then this one leaves it for good",
            ("follower", "leader", "most-behind"),
            frozenset({"changeable"}),
            lasts_s=(2.0, 6.0),
        ),
        injected(Replacement),
    ),
}
NEEDS: dict[str, Need] = {"changeable": _needs_changeable}
