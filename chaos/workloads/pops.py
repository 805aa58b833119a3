"""The workload `pop`: consumers that pop messages and acknowledge them, or do not.

The fate of a message is drawn when it is sent. Most are acknowledged at once; some late, some near
the end of their time, some are forgotten the first time, some get a changed time, and some are
hopeless. Hopeless messages are never acknowledged and become dead letters, which a second group
consumes. Every pop is recorded with its start, every acknowledgement and changed time before and
after. It is drained when the group has nothing left to read and nothing in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from raftmq.client import (
    Admin,
    BrokerRefused,
    ClientError,
    ConsumeFrom,
    MessageExt,
    MessageQueue,
    NoRoute,
    SimpleConsumer,
)
from raftmq.client.consumer.simple_consumer import LEFT_SHARE, SLICE_MS
from raftmq.client.message import RETRY_PREFIX
from raftmq.remoting.codes import ResponseCode

from ..checks.pops import ACK, CHANGE
from ..cluster.credentials import signing
from ..history.events import Outcome
from .base import Tasks
from .consumers import POLL_S
from .deferred import PostedConfig, Posting

POP = PostedConfig("pop", "ChaosPop", "chaos-pop", consumers=3, rate_per_s=100.0, dead_letters=True)
INVISIBLE_MS = 4_000  # a failover is shorter
# The brokers of a group that joins slow the others down. A client drops a late pop with less than
# LEFT_SHARE of its time left, so with 4 s consumers got nothing for minutes.
CHANGING_INVISIBLE_MS = 12_000
AWAIT_MS = 1_000
RETRIES_MAX = 2  # then it is a dead letter
SOON_MS = 300
LATE_S = 1.5
LAST_S = 0.1  # before the end of its time, or after it
AT_ONCE, LATE, LAST = "at once", "late", "at the last moment"
FORGOTTEN, SOONER, HOPELESS = "forgotten", "sooner", "hopeless"
FATES = (
    (72, AT_ONCE), (8, LATE), (6, LAST), (6, FORGOTTEN), (6, SOONER), (2, HOPELESS)
)  # fmt: skip  # out of a hundred


def earlier_ns_of(invisible_ms: int) -> int:
    """Return the longest time between a pop and the call that returns its messages. With several
    groups a call may return the messages of an earlier call's pop. Its client has only the limits
    of the wait in which they were popped."""
    return round(((1 - LEFT_SHARE) * invisible_ms + SLICE_MS) * 1_000_000)


class Pops:
    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self.fates: dict[str, str] = {}

    async def prepare(self, admin: Admin) -> None:
        """Create the group, with few retries. A broker group can pop only after all replicas have
        announced the feature, so the group pops once before any fault."""
        config, env = self._posting.config, self._posting.env
        bean = {"groupName": config.group, "retryMaxTimes": RETRIES_MAX}
        deadline_s = time.monotonic() + env.join_timeout_s
        for address in (await admin.cluster.leaders_of(config.topic)).values():
            await admin.group.put(address, bean)
            while True:
                try:
                    await admin.group.set_mode(address, config.group, config.topic, "POP")
                    break
                except BrokerRefused as refused:
                    if refused.code != ResponseCode.SYSTEM_BUSY or time.monotonic() > deadline_s:
                        raise
                    await asyncio.sleep(POLL_S)

    def consumers(self) -> Poppers:
        return Poppers(self._posting, self.fates)

    async def evidence(self, deadline_s: float) -> None:
        """Record nothing, because the broker's own topics have no further evidence."""

    async def producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        posting = self._posting
        producer = await posting.start_producer(stack)
        weights, fates = [weight for weight, _ in FATES], [fate for _, fate in FATES]

        async def one(number: int) -> None:
            op, key = posting.starts(name)
            (self.fates[key],) = rng.choices(fates, weights)
            message = posting.message(key, rng)
            await posting.send_awaited(producer, name, op, key, message)

        return one


class Poppers:
    """The consumers; each pops in a task of its own. Use as `async with`: all leave at its end."""

    def __init__(self, posting: Posting, fates: dict[str, str]) -> None:
        self.topic, self.group = posting.config.topic, posting.config.group
        self._posting = posting
        self._fates = fates
        self._stack = AsyncExitStack()
        self._tasks = Tasks()
        self._seen: dict[str, int] = {}  # how often each was popped

    async def __aenter__(self) -> Poppers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.cancel()
        await self._stack.aclose()

    async def join(self, name: str) -> None:
        consumer = SimpleConsumer(
            self.group,
            self._posting.env.namesrv,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            instance_config=signing(),
        )
        await self._stack.enter_async_context(consumer)
        self._tasks.spawn(self._pop(name, consumer), name)

    async def wait_shared_out(self, queues: Sequence[MessageQueue], timeout_s: float) -> None:
        """Return at once, because no consumer has queues of its own."""

    async def lag(self, admin: Admin, queues: Sequence[MessageQueue]) -> int | None:
        """Return the messages that are not done with; None while somebody does not answer."""
        if (error := self._tasks.failure()) is not None:
            raise error
        behind = 0
        for topic in (self.topic, f"{RETRY_PREFIX}{self.group}_{self.topic}"):
            try:
                stats = await admin.group.stats(self.group, topic)
            except NoRoute:
                if topic == self.topic:
                    return None
                continue  # no redelivery yet
            except ClientError:
                return None
            if stats.headless:
                return None
            behind += sum(queue_stats.behind for queue_stats in stats.queues.values())
        return behind

    async def _pop(self, process: str, consumer: SimpleConsumer) -> None:
        history, name = self._posting.history, self._posting.name
        rng = random.Random(process)
        await self._subscribe(consumer)
        several = len({queue.broker_name for queue in self._posting.queues}) > 1
        changing = self._posting.env.groups_change
        invisible_ms = CHANGING_INVISIBLE_MS if changing else INVISIBLE_MS
        earlier_ns = earlier_ns_of(invisible_ms) if several or changing else 0
        async with asyncio.TaskGroup() as late:
            while True:
                began_ns = time.monotonic_ns()
                try:
                    messages = await consumer.receive(invisible_ms=invisible_ms, await_ms=AWAIT_MS)
                except ClientError:
                    await asyncio.sleep(POLL_S)
                    continue
                for message in messages:
                    history.record(
                        "pop",
                        process,
                        work=name,
                        group=self.group,
                        topic=self.topic,
                        id=message.msg_id,
                        began_ns=began_ns - earlier_ns,
                        invisible_ms=invisible_ms,
                        times=message.reconsume_times,
                    )
                at_once: list[MessageExt] = []
                for message in messages:
                    seen = self._seen[message.msg_id] = self._seen.get(message.msg_id, 0) + 1
                    fate = self._fates.get(message.msg_id, AT_ONCE)
                    if fate == HOPELESS or (fate == FORGOTTEN and seen == 1):
                        self._posting.news()
                    elif fate == SOONER and seen == 1:
                        await self._change(process, consumer, message)
                    elif fate in (LATE, LAST):
                        pause_s = LATE_S
                        if fate == LAST and seen == 1:
                            gone_s = (time.monotonic_ns() - began_ns) / 1e9
                            last_s = rng.uniform(-LAST_S, LAST_S)
                            pause_s = max(0, invisible_ms / 1000 - gone_s + last_s)
                        late.create_task(self._late(process, consumer, message, pause_s))
                    else:
                        at_once.append(message)
                if at_once:
                    await self._ack(process, consumer, at_once)

    async def _subscribe(self, consumer: SimpleConsumer) -> None:
        while True:
            try:
                await consumer.subscribe(self.topic)
                return
            except ClientError:
                await asyncio.sleep(POLL_S)

    async def _late(
        self, process: str, consumer: SimpleConsumer, message: MessageExt, pause_s: float
    ) -> None:
        await asyncio.sleep(pause_s)
        await self._ack(process, consumer, [message])

    async def _ack(
        self, process: str, consumer: SimpleConsumer, messages: list[MessageExt]
    ) -> None:
        ops = [self._record_start(process, message, ACK) for message in messages]
        gone: list[MessageExt] = []
        outcome = Outcome.OK
        try:
            gone = await consumer.ack(messages)
        except ClientError:
            outcome = Outcome.UNKNOWN
        for op, message in zip(ops, messages, strict=True):
            ended = Outcome.FAIL if message in gone else outcome
            self._record(ended.value, process, op, message, ACK)
            if ended is not Outcome.FAIL:  # a void acknowledgement, so the message is redelivered
                self._posting.arrived(message.msg_id)

    async def _change(self, process: str, consumer: SimpleConsumer, message: MessageExt) -> None:
        op = self._record_start(process, message, CHANGE, SOON_MS)
        try:
            done = await consumer.change_invisible(message, SOON_MS)
            outcome = Outcome.OK if done else Outcome.FAIL
        except ClientError:
            outcome = Outcome.UNKNOWN
        self._record(outcome.value, process, op, message, CHANGE, SOON_MS)

    def _record_start(
        self, process: str, message: MessageExt, what: str, invisible_ms: int = 0
    ) -> int:
        op = self._posting.history.next_op()
        self._record("invoke", process, op, message, what, invisible_ms)
        return op

    def _record(
        self,
        kind: str,
        process: str,
        op: int,
        message: MessageExt,
        what: str,
        invisible_ms: int = 0,
    ) -> None:
        fields = {"id": message.msg_id, "what": what, "invisible_ms": invisible_ms}
        history = self._posting.history
        history.event(kind, "pop_end", process, op, work=self._posting.name, **fields)
