"""The observer of a run, which records changes of leaders and consumer offsets in the history.

It polls every broker's role and term (28), and the consumer offsets of each group's leader (14). An
offset is recorded as `fetch`: a smaller later answer means that the offset went back, for any
reader. There is a single request at a time for each queue, so answers are in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..cluster.cluster import Cluster
from ..cluster.probe import RemotingProbe, ReplicaView, leader_of, replicas
from ..history.files import HistoryWriter

PROCESS = "observer"
ROLES_EVERY_S = 0.05
OFFSETS_EVERY_S = 0.5


@dataclass(slots=True)
class Watched:
    """A group's consumption of a topic, of `queue_count` queues per broker group."""

    topic: str
    group: str
    queue_count: int
    last: dict[tuple[str, int], int] = field(default_factory=dict)  # broker, queue → last written


class Observer:
    """Watches while inside `async with Observer(…):`; its tasks end with it."""

    def __init__(
        self,
        cluster: Cluster,
        history: HistoryWriter,
        watched: Sequence[Watched] = (),
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._watched = tuple(watched)
        self._probe = RemotingProbe()
        self._seen: set[tuple[str, int]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        # broker group → its leader's address, while there is a leader
        self.leaders: dict[str, str] = {}

    async def __aenter__(self) -> Observer:
        self._tasks.append(asyncio.create_task(self._watch_roles(), name="watch roles"))
        for watched in self._watched:
            self._tasks.append(
                asyncio.create_task(self._watch_offsets(watched), name="watch offsets")
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probe.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def lag(self, watched: Watched) -> int | None:
        """Return the number of messages that the group has not committed; None without a leader."""
        groups = self._cluster.state().groups
        if any(group not in self.leaders for group in groups):
            return None
        lag = 0
        for address in (self.leaders[group] for group in groups):
            for queue in range(watched.queue_count):
                end = await self._probe.max_offset(address, watched.topic, queue)
                if end is None:
                    return None
                done = await self._probe.consumer_offset(
                    address, watched.group, watched.topic, queue
                )
                lag += end - (done or 0)
        return lag

    async def _watch_roles(self) -> None:
        while True:
            state = self._cluster.state()  # members may have changed
            views = await replicas(self._probe, state.brokers)
            for view in views:
                if view is not None and view.leads:
                    self._led(view)
            leading = {group: leader_of(views, group) for group in state.groups}
            self.leaders = {
                group: state.node(view.node).address
                for group, view in leading.items()
                if view is not None
            }
            await asyncio.sleep(ROLES_EVERY_S)

    def _led(self, view: ReplicaView) -> None:
        if (view.node, view.term) in self._seen:
            return
        self._seen.add((view.node, view.term))
        op = self._history.next_op()
        self._history.event(
            "ok", "leader", PROCESS, op, node=view.node, term=view.term, group=view.group
        )

    async def _watch_offsets(self, watched: Watched) -> None:
        while True:
            for broker, address in list(self.leaders.items()):
                for queue in range(watched.queue_count):
                    await self._watch_offset(watched, broker, queue, address)
            await asyncio.sleep(OFFSETS_EVERY_S)

    async def _watch_offset(self, watched: Watched, broker: str, queue: int, address: str) -> None:
        invoked_ns = time.monotonic_ns()
        offset = await self._probe.consumer_offset(address, watched.group, watched.topic, queue)
        if offset is None or watched.last.get((broker, queue)) == offset:
            return
        watched.last[broker, queue] = offset
        self._history.record(
            "fetch",
            PROCESS,
            topic=watched.topic,
            group=watched.group,
            broker=broker,
            queue=queue,
            offset=offset,
            invoked_ns=invoked_ns,
        )
