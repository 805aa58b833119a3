"""The workload `scaled`: clients that know nothing of broker groups, while these join and leave.

Messages go where the route leads, at once, after a delay level or at a time; others have a key, by
which their queue in an ordered topic is chosen. They are in the history as the harness's delayed
messages, and its checks say what was lost, came early or was stored again (chaos.checks.delayed).
`wrong` says which keys have been in more than one queue.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from random import Random
from typing import NamedTuple
from zlib import crc32

from raftmq.chaos.history.events import Outcome
from raftmq.chaos.workloads.base import Environment, Tally, Tasks, leader_of
from raftmq.chaos.workloads.consumers import ConsumerGroup
from raftmq.chaos.workloads.deferred import Deliveries, Paced, PostedConfig, Posting
from raftmq.chaos.workloads.delayed import SETTINGS, delay_levels
from raftmq.client import Admin, ClientError, Message, MessageQueue, Producer, SendResult
from raftmq.remoting.admin_headers import TopicHeader
from tests.simulator.cluster import programs

ORDERED, ORDERED_GROUP = "ScaledOrdered", "scaled-ordered"
ORDERED_QUEUES = 2
KEYS = 5
TIMER_MS_MAX = 6_000  # some wait while their group is drained
SEND_TIMEOUT_MS = 5_000
LEVELS = delay_levels(SETTINGS["messageDelayLevel"])


class Placed(NamedTuple):
    """A message that was acknowledged; `key` is "" if it has none."""

    began_s: float
    queue: MessageQueue
    key: str


class ScaledWorkload:
    """See the module's docstring, and chaos.workloads.base for the order of calls."""

    name = "scaled"

    def __init__(self, config: PostedConfig) -> None:
        self.placed: list[Placed] = []
        self._posting = Posting(config)
        self._loops: list[Paced] = []
        self._tasks = Tasks()

    @property
    def topics(self) -> tuple[str, ...]:
        return (self._posting.config.topic, ORDERED)

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        return ((self._posting.config.topic, self._posting.config.group), (ORDERED, ORDERED_GROUP))

    @property
    def tally(self) -> Tally:
        return self._posting.tally

    async def prepare(self, env: Environment) -> None:
        """Create the topics, the ordered one in the first group only."""
        async with Admin(env.namesrv) as admin:
            await self._posting.prepare(env, admin)
            header = TopicHeader(ORDERED, ORDERED_QUEUES, ORDERED_QUEUES, 6, order=True)
            await admin.topic.put(await leader_of(admin, programs.GROUP), header)

    async def start(self, stack: AsyncExitStack) -> None:
        """Begin to send and to consume."""
        posting, config = self._posting, self._posting.config
        env, enter = posting.env, stack.enter_async_context
        for topic, group in self.groups:
            seen = Deliveries(env.history, posting.name, group, posting.arrived)
            members = ConsumerGroup(env.namesrv, env.history, topic, group, listener=seen.listener)
            await enter(members)
            for number in range(config.consumers):
                await members.join(f"{group}-{number}")
        stack.push_async_callback(self._tasks.cancel)
        for number in range(config.producers):
            producer = await posting.start_producer(stack)
            one = _Sender(self, posting, producer, f"scaled-{number}", Random(env.rng.random()))
            loop = Paced(config.rate_per_s / config.producers, config.window, self.tally, one.send)
            self._loops.append(loop)
            self._tasks.spawn(loop.run(), one.name)

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()

    async def drain(self) -> bool:
        """Wait until every message that was acknowledged has come, from whatever group."""
        await self._tasks.finish()
        posting, env = self._posting, self._posting.env
        arrived = await posting.wait_arrived(time.monotonic() + env.drain_timeout_s)
        topic, group = self.groups[0]
        op = env.history.next_op()
        env.history.event("ok", "drain", "runner", op, topic=topic, group=group, complete=True)
        return arrived

    def failure(self) -> BaseException | None:
        return self._tasks.failure()

    def wrong(self) -> list[str]:
        """Return in words which keys have been in several queues."""
        queues: dict[str, set[MessageQueue]] = defaultdict(set)
        for one in self.placed:
            if one.key:
                queues[one.key].add(one.queue)
        return [f"{key} is in {sorted(them)}" for key, them in queues.items() if len(them) > 1]


class _Sender:
    """A producer of the workload, and its operation."""

    def __init__(
        self,
        workload: ScaledWorkload,
        posting: Posting,
        producer: Producer,
        name: str,
        rng: Random,
    ) -> None:
        self.name = name
        self._workload = workload
        self._posting = posting
        self._producer = producer
        self._rng = rng

    async def send(self, _: int) -> None:
        """Send a message of any kind."""
        posting, rng, began_s = self._posting, self._rng, time.monotonic()
        kind = rng.choice(("plain", "ordered", "level", "timer"))
        level = rng.choice(sorted(LEVELS)) if kind == "level" else 0
        delay_ms = LEVELS.get(level, rng.randint(1, TIMER_MS_MAX) if kind == "timer" else 0)
        key = f"{self.name}-{rng.randrange(KEYS)}" if kind == "ordered" else ""
        op, name = posting.starts(self.name, delay_ms)
        message = posting.message(name, rng)
        if key:
            message.topic = ORDERED
        elif level:
            message.delay_level = level
        elif delay_ms:
            message.delay_time = timedelta(milliseconds=delay_ms)
        posting.awaited.add(name)
        answer: SendResult | ClientError
        try:
            selector = by_key if key else None
            answer = await self._producer.send(message, SEND_TIMEOUT_MS, selector=selector, arg=key)
            self._workload.placed.append(Placed(began_s, answer.queue, key))
        except ClientError as error:
            answer = error
        if posting.ends(self.name, op, name, answer, delay_ms) is not Outcome.OK:
            posting.awaited.discard(name)


def by_key(queues: Sequence[MessageQueue], _: Message, key: str) -> MessageQueue:
    """Choose the queue of a key, as clients do."""
    return queues[crc32(key.encode()) % len(queues)]
