"""A power cut of a node that acknowledged while the rest of its next majority was down.

A minority is killed; the rest continues and acknowledges. Then a node of the rest loses its power,
the remaining nodes are killed, and the minority restarts with the first node. So the node without
its unsynced data and the stale nodes are a majority, which has lost the acknowledged data. Healing
starts the rest. (Frozen nodes would find the missing data in their sockets.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..cluster.clusterfile import Node
from .base import Context, Hit, Kind, Planned, Table, in_thread, injected
from .disk import store_of
from .power import LoopDisk
from .process import Kill
from .select import leaders, pick_some

ALONE_S = 5.0  # in which the rest acknowledges messages that the minority misses


class MajoritySwap:
    """Cuts the power of the node that is hit, and swaps those that are down."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._context = context
        self._first = Kill(context.cluster)
        self._crash = Kill(context.cluster)
        self._second = Kill(context.cluster)
        self._minority: Sequence[Node] = ()
        self._rest: Sequence[Node] = ()

    async def do(self, hit: Hit) -> None:
        (crashed,) = hit.nodes
        disk = LoopDisk.of_store(store_of(self._context, crashed))
        cluster = self._context.cluster
        members = cluster.state().members(crashed.group)
        leading = {crashed, *leaders(await cluster.status())}
        followers = [node for node in members if node not in leading]
        self._minority = pick_some(followers, (len(members) - 1) // 2, self._planned.choice)
        self._rest = [n for n in members if n != crashed and n not in self._minority]
        await self._first.do(Hit(tuple(self._minority)))
        await asyncio.sleep(ALONE_S)
        await self._crash.do(hit)
        await in_thread(disk.cut)
        await self._second.do(Hit(tuple(self._rest)))
        await self._first.undo(hit)
        await self._crash.undo(hit)

    async def undo(self, hit: Hit) -> None:
        for kill in (self._first, self._crash, self._second):
            await kill.undo(hit)

    def describe(self, targets: str) -> str:
        first = ", ".join(node.name for node in self._minority) or "a minority"
        then = ", ".join(node.name for node in self._rest) or "the rest"
        return f"{first} down, then a power cut of {targets}, and {then} down in their place"


KINDS: Table = {
    "majority-swap": (
        Kind(
            "majority-swap",
            "disk",
            "a minority is down, one of the others loses its power (by the kernel), and comes back "
            "with those that were down, while the rest is down",
            ("follower",),
            frozenset({"loop-device", "copies"}),
            lasts_s=(4.0, 12.0),
        ),
        injected(MajoritySwap),
    ),
}
