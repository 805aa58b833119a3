"""One power cut, and a majority whose other members slept meanwhile.

A minority is frozen; the rest goes on, and acknowledges. Then one of the rest loses its power, the
others of the rest are frozen, and the first ones go on. So the node that lost its power and those
that slept are a majority: what it forgot, nobody awake knows. Healing lets all go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raftmq.chaos.cluster.clusterfile import Node
from raftmq.chaos.faults.base import Context, Hit, Kind, Planned, Table, injected
from raftmq.chaos.faults.disk import store_of
from raftmq.chaos.faults.power import LoopDisk
from raftmq.chaos.faults.process import Kill, Pause
from raftmq.chaos.faults.select import leaders, pick_some

ALONE_S = 5.0  # in which the rest acknowledges what the sleepers do not get


class MajoritySwap:
    """Freezes, cuts the power of the node that is hit, and swaps those that are frozen."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._context = context
        self._kill = Kill(context.cluster)
        self._first = Pause(planned, context)
        self._second = Pause(planned, context)
        self._sleepers: Sequence[Node] = ()
        self._others: Sequence[Node] = ()

    async def do(self, hit: Hit) -> None:
        (crashed,) = hit.nodes
        disk = LoopDisk.of_store(store_of(self._context, crashed))
        cluster = self._context.cluster
        members = cluster.state().members(crashed.group)
        leading = {crashed, *leaders(await cluster.status())}
        followers = [node for node in members if node not in leading]
        self._sleepers = pick_some(followers, (len(members) - 1) // 2, self._planned.choice)
        self._others = [n for n in members if n != crashed and n not in self._sleepers]
        await self._first.do(Hit(tuple(self._sleepers)))
        await asyncio.sleep(ALONE_S)
        await self._kill.do(hit)
        await asyncio.to_thread(disk.cut)
        await self._second.do(Hit(tuple(self._others)))
        await self._first.undo(Hit(tuple(self._sleepers)))
        await self._kill.undo(hit)

    async def undo(self, hit: Hit) -> None:
        await self._first.undo(Hit(tuple(self._sleepers)))
        await self._second.undo(Hit(tuple(self._others)))
        await self._kill.undo(hit)

    def describe(self, targets: str) -> str:
        slept = ", ".join(node.name for node in self._sleepers)
        sleep = ", ".join(node.name for node in self._others)
        return f"power cut of {targets} while {slept or 'a minority'} slept; now {sleep} sleep"


KINDS: Table = {
    "majority-swap": (
        Kind(
            "majority-swap",
            "disk",
            "a minority sleeps, one of the others loses its power (by the kernel), and is a "
            "majority with those that slept while the rest sleeps",
            ("follower",),
            frozenset({"loop-device", "copies"}),
            lasts_s=(4.0, 12.0),
        ),
        injected(MajoritySwap),
    ),
}
