"""Broker groups that join a running cluster, and groups that are drained and removed.

The change starts with the injection and continues by itself, so a fault in the same wish happens
during it. Healing waits for its end. A joining group that another fault stops is started again by
the nemesis, as an operator would start it. The first group stays, because ordered topics do not
move (docs/scaling.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from raftmq.client.admin import drain_options

from ..cluster import groups
from ..cluster.clusterfile import ClusterError, ClusterState
from ..cluster.topology import MODES, RAFT
from .base import Context, Hit, Kind, Need, Planned, Table, chosen
from .select import pick

ADD, REMOVE = "add-group", "remove-group"
EMPTY_TIMEOUT_S = 180.0  # to drain a group through failovers
RETRY_S = 0.5
MOVES = drain_options(move_timers=True, move_dead_letters=True)


class GroupChange:
    """A change of the broker groups that is under way between `do` and `undo`."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._done = ""

    async def choose(self) -> Hit:
        """Choose a group other than the first for removal. Raises ClusterError if there is none."""
        if self._planned.kind == ADD:
            return Hit(())
        state = self._context.cluster.state()
        names = state.groups[1:]
        if not names:
            raise ClusterError("the cluster has a single group")
        first = [state.members(name)[0] for name in names]
        return Hit(state.members(pick(first, self._planned.choice).group))

    async def do(self, hit: Hit) -> None:
        work = self._add() if self._planned.kind == ADD else self._remove(hit)
        self._task = asyncio.create_task(work, name="change the groups")

    async def undo(self, hit: Hit) -> None:
        """Wait until it is done. Raises ClusterError if it could not be."""
        if self._task is not None:
            await self._task

    async def _add(self) -> None:
        cluster = self._context.cluster
        state = cluster.state()
        replicas = len(state.members(state.groups[0]))
        try:
            added = await groups.add(cluster, None, replicas, self._context.say)
        except ClusterError:
            added = cluster.state().members(cluster.state().groups[-1])
            if added[0].group in state.groups:
                raise
        self._done = f"{added[0].group} joined"

    async def _remove(self, hit: Hit) -> None:
        cluster, say = self._context.cluster, self._context.say
        name = hit.nodes[0].group
        end_s = time.monotonic() + EMPTY_TIMEOUT_S
        await _repeated(lambda _: groups.drain(cluster, name, MOVES), end_s)
        await _repeated(lambda rest_s: groups.remove(cluster, name, say, wait_s=rest_s), end_s)
        self._context.left.extend(hit.nodes)
        self._done = f"{name} removed"

    def describe(self, targets: str) -> str:
        if self._planned.kind == ADD:
            return self._done or "a group joins"
        return self._done or f"{targets}: drained, then removed"


async def _repeated(command: Callable[[float], Awaitable[object]], end_s: float) -> None:
    """Repeat a command until it succeeds, as its operator would during a failover. The command gets
    the remaining seconds. Raises ClusterError at `end_s`."""
    while (rest_s := end_s - time.monotonic()) > 0:
        with suppress(ClusterError):
            await command(rest_s)
            return
        await asyncio.sleep(RETRY_S)
    await command(0.0)


def _needs_raft_groups(state: ClusterState | None) -> str | None:
    if state is None or MODES[state.mode].engine == RAFT:
        return None
    return f"groups are added to Raft clusters only, and this cluster is {state.mode}"


NEEDS: dict[str, Need] = {"raft-groups": _needs_raft_groups}
_ENTRIES = (
    Kind(ADD, "process", "a further broker group joins the cluster", ("group",),
        frozenset(NEEDS), lasts_s=(4.0, 8.0)),
    Kind(REMOVE, "process",
        "a broker group other than the first is drained, its timers and dead letters move to"
        " another group, and it is removed once it is empty", ("group",), frozenset(NEEDS),
        lasts_s=(4.0, 8.0)),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, chosen(GroupChange)) for kind in _ENTRIES}
