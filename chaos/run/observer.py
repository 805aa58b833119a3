"""Watches a cluster while it is tormented, and writes what changes into the history.

Two light polls: every replica's role and term (28), and what the leader holds as the group's
consumer offsets (14). The second is written as `fetch`: an offset that once was answered and later
is smaller went back, whoever was told. One request at a time per poll, so answers are in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from chaos.cluster.cluster import Cluster
from chaos.cluster.probe import RemotingProbe, leader_of, replicas
from chaos.history.files import HistoryWriter

PROCESS = "observer"
ROLES_EVERY_S = 0.05
OFFSETS_EVERY_S = 0.5


@dataclass(slots=True)
class Watched:
    """A group's consumption of a topic."""

    topic: str
    group: str
    queue_count: int
    last: dict[int, int] = field(default_factory=dict)  # queue → offset last written


class Observer:
    """`async with Observer(…):` polls until left; its tasks end with it."""

    def __init__(
        self, cluster: Cluster, history: HistoryWriter, watched: Watched | None = None
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._watched = watched
        self._probe = RemotingProbe()
        self._seen: set[tuple[str, int]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.leader_address: str | None = None

    async def __aenter__(self) -> Observer:
        self._tasks.append(asyncio.create_task(self._watch_roles(), name="watch roles"))
        if self._watched is not None:
            self._tasks.append(
                asyncio.create_task(self._watch_offsets(self._watched), name="watch offsets")
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

    async def lag(self) -> int | None:
        """Messages that the group has not committed yet; None while nobody can say."""
        watched, address = self._watched, self.leader_address
        if watched is None or address is None:
            return None
        lag = 0
        for queue in range(watched.queue_count):
            end = await self._probe.max_offset(address, watched.topic, queue)
            if end is None:
                return None
            done = await self._probe.consumer_offset(address, watched.group, watched.topic, queue)
            lag += end - (done or 0)
        return lag

    async def _watch_roles(self) -> None:
        state = self._cluster.state()
        brokers = state.brokers
        while True:
            views = await replicas(self._probe, brokers)
            for view in views:
                if view is not None and view.leads and (view.node, view.term) not in self._seen:
                    self._seen.add((view.node, view.term))
                    op = self._history.next_op()
                    self._history.event(
                        "ok",
                        "leader",
                        PROCESS,
                        op,
                        node=view.node,
                        term=view.term,
                        group=view.group,
                    )
            leader = leader_of(views, state.groups[0])
            self.leader_address = next(
                (n.address for n in brokers if leader is not None and n.name == leader.node), None
            )
            await asyncio.sleep(ROLES_EVERY_S)

    async def _watch_offsets(self, watched: Watched) -> None:
        while True:
            for queue in range(watched.queue_count):
                address = self.leader_address
                if address is None:
                    break
                await self._watch_offset(watched, queue, address)
            await asyncio.sleep(OFFSETS_EVERY_S)

    async def _watch_offset(self, watched: Watched, queue: int, address: str) -> None:
        offset = await self._probe.consumer_offset(address, watched.group, watched.topic, queue)
        if offset is None or watched.last.get(queue) == offset:
            return
        watched.last[queue] = offset
        self._history.event(
            "ok",
            "fetch",
            PROCESS,
            self._history.next_op(),
            topic=watched.topic,
            group=watched.group,
            queue=queue,
            offset=offset,
        )
