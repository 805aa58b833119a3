"""Consumers of a run that join and leave a group, and the group's lag."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from raftmq.client import (
    Admin,
    CacheLimits,
    ClientError,
    ConsumeFrom,
    ConsumerConfig,
    MessageQueue,
    PullConfig,
    PushConsumer,
)
from raftmq.client.consumer.consume_service import Listener

from ..cluster.clusterfile import ClusterError
from ..cluster.credentials import signing
from ..history.files import HistoryWriter
from .log import Commits, Consumption

COMMIT_INTERVAL_MS = 500
CONSUME_BATCH = 256
REBALANCE_INTERVAL_MS = 5_000  # a notice lost with a leader is made up for within this time
POLL_S = 0.1
LAG_AT_ONCE = 8  # queues asked for at the same time


def consumer_config(*, orderly: bool = False) -> ConsumerConfig:
    """Return a configuration from the first offset on, with frequent, awaited commits."""
    return ConsumerConfig(
        orderly=orderly,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        rebalance_interval_ms=REBALANCE_INTERVAL_MS,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        confirm_commits=True,
        pull=PullConfig(consume_batch_size=CONSUME_BATCH, limits=CacheLimits(messages_max=4096)),
    )


class ConsumerGroup:
    """The consumers of a group on a topic. A consumer that leaves and returns has a new name in the
    history. Use as `async with`: all leave at its end."""

    def __init__(
        self,
        namesrv: str,
        history: HistoryWriter,
        topic: str,
        group: str,
        *,
        orderly: bool = False,
        listener: Callable[[str], Listener] | None = None,
        config: ConsumerConfig | None = None,
        kind: type[PushConsumer] = PushConsumer,
    ) -> None:
        """`listener` makes a consumer's, by name; `config` and `kind` are the consumers'."""
        self.topic = topic
        self.group = group
        self._listener = listener or Consumption(history, group, orderly=orderly).listener
        self._commits = Commits(history)
        self._namesrv = namesrv
        self._history = history
        self._config = config or consumer_config(orderly=orderly)
        self._kind = kind
        self._members: dict[str, PushConsumer] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The members, in the order of joining."""
        return tuple(self._members)

    async def __aenter__(self) -> ConsumerGroup:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.leave(name) for name in self.members))

    async def join(self, name: str) -> None:
        """Let a consumer with that new name join. Does not wait for any server."""
        assert name not in self._members, f"{name} is in already"
        consumer = self._kind(
            self.group,
            self._namesrv,
            self._listener(name),
            config=self._config,
            instance_config=signing(),
            on_commit=self._commits.committer(name, self.group),
            on_committing=self._commits.committing(name, self.group),
        )
        consumer.subscribe(self.topic)
        self._note("join", name)
        await consumer.start()
        self._members[name] = consumer

    async def leave(self, name: str) -> None:
        """Let a member commit its finished offsets and leave."""
        await self._members.pop(name).stop()
        self._note("leave", name)

    async def lag(self, admin: Admin, queues: Sequence[MessageQueue]) -> int | None:
        """Return the messages not committed by the group; None if somebody is silent."""
        return await group_lag(admin, self.group, queues)

    async def wait_shared_out(self, queues: Sequence[MessageQueue], timeout_s: float) -> None:
        """Return once these queues are shared out. Raises ClusterError after `timeout_s`."""
        await wait_until(
            lambda: fairly_shared(self._held(), queues),
            timeout_s,
            lambda: f"group {self.group} did not share its queues: {list(map(len, self._held()))}",
        )

    def _held(self) -> list[list[MessageQueue]]:
        return [
            [queue for queue in consumer.queues if queue.topic == self.topic]
            for consumer in self._members.values()
        ]

    def _note(self, function: str, name: str) -> None:
        self._history.record(function, name, group=self.group)


def fairly_shared(held: Sequence[Sequence[MessageQueue]], queues: Sequence[MessageQueue]) -> bool:
    """Return whether every queue has one consumer, and every consumer its share."""
    everything = sorted(queue for queues in held for queue in queues)
    fewest = min(map(len, held), default=0)
    return everything == sorted(queues) and fewest >= len(queues) // len(held)


async def wait_until(
    holds: Callable[[], bool], timeout_s: float, complaint: Callable[[], str]
) -> None:
    """Poll until `holds`. Raises ClusterError with the complaint after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{complaint()} after {timeout_s:g} s")
        await asyncio.sleep(POLL_S)


class Consumers(Protocol):
    """Consumers of a group on a topic, for workloads."""

    topic: str
    group: str

    async def __aenter__(self) -> Consumers: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def join(self, name: str) -> None:
        """Let a consumer with that new name join."""

    async def wait_shared_out(self, queues: Sequence[MessageQueue], timeout_s: float) -> None:
        """Return once all consume. Raises ClusterError after `timeout_s`."""

    async def lag(self, admin: Admin, queues: Sequence[MessageQueue]) -> int | None:
        """Return the messages that are not consumed; None while somebody does not answer."""


async def group_lag(admin: Admin, group: str, queues: Sequence[MessageQueue]) -> int | None:
    """Return the messages the group has not committed yet; None while somebody does not answer."""
    at_once = asyncio.Semaphore(LAG_AT_ONCE)

    async def of(queue: MessageQueue) -> int:
        async with at_once:
            end = await admin.offset.max(queue)
            # A queue may end before its committed offset if the broker lost its log's end.
            return max(0, end - (await admin.offset.committed(group, queue) or 0))

    try:
        return sum(await asyncio.gather(*(of(queue) for queue in queues)))
    except ClientError:
        return None


async def drain_group(
    admin: Admin,
    history: HistoryWriter,
    group: Consumers,
    queues: Sequence[MessageQueue],
    timeout_s: float,
) -> bool:
    """Wait until the group has consumed all of `queues` and of the queues that were added since;
    record whether it did."""
    deadline = time.monotonic() + timeout_s
    complete = False
    while not complete and time.monotonic() < deadline:
        try:
            present = (await admin.cluster.route(group.topic)).read_queues(group.topic)
            complete = await group.lag(admin, sorted({*queues, *present})) == 0
        except ClientError:
            pass  # the route is not known now
        if not complete:
            await asyncio.sleep(POLL_S)
    where = {"topic": group.topic, "group": group.group}
    history.record("drain", "runner", **where, complete=complete)
    return complete
