"""The common base of workloads with deferred messages (transactions, delays, retries).

It is an open loop of operations. Each is due at its time, at most `window` run at once, and an
operation that could not start within LATE_S is shed. It has a topic, and a group with deliveries
recorded by position and store time. It ends when all operations are decided, every awaited message
has arrived (or none for QUIET_S; the rest is lost), the broker's own topics have been read, and the
group has no lag.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from raftmq.client import (
    Admin,
    ClientError,
    ConsumeResult,
    Later,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    SendResult,
    SendStatus,
)
from raftmq.client.consumer.consume_service import Listener
from raftmq.client.instance import local_address
from raftmq.client.message import RETRY_PREFIX, process_unique_keys

from ..cluster.credentials import signing
from ..history.events import Outcome
from ..history.files import HistoryWriter
from .base import Environment, Tally, Tasks, is_set_within, outcome_of
from .consumers import POLL_S, ConsumerGroup, Consumers, drain_group
from .log import NS_PER_S
from .messages import all_queues

DLQ_PREFIX = "%DLQ%"
LATE_S = 10.0
QUIET_S = 30.0
SCAN_BATCH = 512
AGAIN_DELAY_LEVEL = 1  # for messages that a listener does not accept


@dataclass(frozen=True, slots=True)
class PostedConfig:
    """Options of a workload; `rate_per_s` of all producers together, `window` of each."""

    name: str
    topic: str
    group: str
    queues: int = 4  # in each broker group
    producers: int = 2
    consumers: int = 2
    rate_per_s: float = 200.0
    window: int = 128
    body_bytes: int = 64
    quiet_s: float = QUIET_S
    dead_letters: bool = False  # has a consumer of the group's dead letters


class Paced:
    """Calls `work(number)` at a rate, at most `window` at once; `run` ends after `stop`."""

    def __init__(
        self,
        rate_per_s: float,
        window: int,
        tally: Tally,
        work: Callable[[int], Awaitable[None]],
    ) -> None:
        self._pause_ns = NS_PER_S / rate_per_s
        self._window = window
        self._tally = tally
        self._work = work
        self._number = 0
        self._start_ns = 0
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        self._start_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._window):
                workers.create_task(self._worker())

    def stop(self) -> None:
        self._stopping.set()

    async def _worker(self) -> None:
        while not self._stopping.is_set():
            number = self._number
            self._number += 1
            due_ns = self._start_ns + int(number * self._pause_ns)
            early_s = (due_ns - time.monotonic_ns()) / NS_PER_S
            if early_s < -LATE_S:
                self._tally.invoked += 1
                self._tally.shed += 1
                continue
            if early_s > 0 and await is_set_within(self._stopping, early_s):
                return
            await self._work(number)


class Deliveries:
    """The deliveries to a group's consumers, recorded as `deliver`. If `refuses(id, times)`, the
    listener sends the message back. `news` is called with the id of each accepted message."""

    def __init__(
        self,
        history: HistoryWriter,
        work: str,
        group: str,
        news: Callable[[str], None],
        refuses: Callable[[str, int], bool] = lambda name, times: False,
    ) -> None:
        self._history = history
        self._work = work
        self._group = group
        self._news = news
        self._refuses = refuses
        self._stored_times: dict[tuple[str, str, int, int], int] = {}

    def times_of(self, message: MessageExt) -> int:
        """Return how often it was given back when stored; a client counts on by itself."""
        position = (*real_queue(message, self._group), message.queue_offset)
        return self._stored_times.setdefault(position, message.reconsume_times)

    def listener(self, process: str) -> Listener:
        """Return a listener for the consumer called `process`."""

        def listen(messages: list[MessageExt]) -> ConsumeResult | Later:
            for done, message in enumerate(messages):
                times = self.times_of(message)
                accepted = not self._refuses(message.msg_id, times)
                self._write(process, message, times, accepted)
                if not accepted:
                    return Later(done, AGAIN_DELAY_LEVEL)
                self._news(message.msg_id)
            return ConsumeResult.SUCCESS

        return listen

    def _write(self, process: str, message: MessageExt, times: int, accepted: bool) -> None:
        topic, broker, queue = real_queue(message, self._group)
        self._history.record(
            "deliver",
            process,
            work=self._work,
            group=self._group,
            topic=topic,
            broker=broker,
            queue=queue,
            offset=message.queue_offset,
            id=message.msg_id,
            store_ms=message.store_timestamp_ms,
            times=times,
            accepted=accepted,
        )


def real_queue(message: MessageExt, group: str) -> MessageQueue:
    """Return the storing queue, because clients show a retry's original topic."""
    topic = message.topic
    if "RETRY_TOPIC" in message.properties and not topic.startswith(DLQ_PREFIX):
        topic = RETRY_PREFIX + group
    return MessageQueue(topic, message.broker_name, message.queue_id)


class Posting:
    """The operations of a workload, from start to end in the history; each may await a message.

    `awaited`: ids that have to arrive yet. `env` and `queues` are there once it is prepared."""

    def __init__(self, config: PostedConfig) -> None:
        self.config = config
        self.name = config.name
        self.queues: tuple[MessageQueue, ...] = ()
        self.awaited: set[str] = set()
        self.tally = Tally()
        self._last_news_s = 0.0
        self._env: Environment | None = None
        self._ids = process_unique_keys(local_address())

    @property
    def env(self) -> Environment:
        assert self._env is not None, "prepare comes first"
        return self._env

    @property
    def history(self) -> HistoryWriter:
        return self.env.history

    async def prepare(self, env: Environment, admin: Admin) -> None:
        self._env = env
        config = self.config
        await admin.topic.create(config.topic, config.queues)
        self.queues = await all_queues(admin, config.topic, config.queues, env.join_timeout_s)

    def consumers(self) -> ConsumerGroup:
        """Make consumers that accept everything at once."""
        config, env = self.config, self.env
        seen = Deliveries(env.history, self.name, config.group, self.arrived)
        return ConsumerGroup(
            env.namesrv, env.history, config.topic, config.group, listener=seen.listener
        )

    def undertakers(self) -> ConsumerGroup:
        """Make consumers of the group's dead letters."""
        env, group = self.env, f"{self.config.group}-dead"
        seen = Deliveries(env.history, self.name, group, self.arrived)
        topic = DLQ_PREFIX + self.config.group
        return ConsumerGroup(env.namesrv, env.history, topic, group, listener=seen.listener)

    async def start_producer(self, stack: AsyncExitStack) -> Producer:
        group = f"{self.config.group}-producers"
        env = self.env
        producer = Producer(
            group, env.namesrv, instance_config=signing(), audit_topic=env.audit_topic
        )
        return await stack.enter_async_context(producer)

    def message(self, name: str, rng: random.Random) -> Message:
        """Make the message of an operation; its id and its key are `name`."""
        head = name.encode()
        body = head + rng.randbytes(max(0, self.config.body_bytes - len(head)))
        return Message(self.config.topic, body, keys=name, unique_key=name)

    # ---- awaited messages

    def news(self) -> None:
        """Restart the quiet period."""
        self._last_news_s = time.monotonic()

    def arrived(self, name: str) -> None:
        self.news()
        self.awaited.discard(name)

    async def wait_arrived(self, deadline_s: float) -> bool:
        """Wait until nothing is awaited (True) or it has become quiet (False)."""
        self.news()
        while self.awaited:
            if self.is_quiet(deadline_s):
                return False
            await asyncio.sleep(POLL_S)
        return True

    def is_quiet(self, deadline_s: float) -> bool:
        """Return whether nothing has happened for QUIET_S, or the deadline is over."""
        now_s = time.monotonic()
        return now_s > deadline_s or now_s - self._last_news_s > self.config.quiet_s

    # ---- operations

    async def send_awaited(
        self,
        producer: Producer,
        process: str,
        op: int,
        name: str,
        message: Message,
        delay_ms: int = 0,
    ) -> None:
        """Send the message of a started operation; await its arrival unless the send fails."""
        self.awaited.add(name)  # it may arrive before its send is answered
        answer: SendResult | ClientError
        try:
            answer = await producer.send(message)
        except ClientError as error:
            answer = error
        if self.ends(process, op, name, answer, delay_ms) is not Outcome.OK:
            self.awaited.discard(name)

    def starts(self, process: str, delay_ms: int = 0) -> tuple[int, str]:
        """Record the start of an operation; return its number and message id."""
        op, name = self.history.next_op(), self._ids.next()
        self.tally.invoked += 1
        self._post("invoke", process, op, name, delay_ms)
        return op, name

    def ends(
        self,
        process: str,
        op: int,
        name: str,
        answer: SendResult | ClientError,
        delay_ms: int = 0,
    ) -> Outcome:
        """Record how it ended. Stored with less than promised counts as unknown."""
        if isinstance(answer, ClientError):
            outcome = outcome_of(answer)
            attempts, error = getattr(answer, "attempts", 0), str(answer)
        else:
            outcome = Outcome.OK if answer.status is SendStatus.OK else Outcome.UNKNOWN
            attempts, error = answer.attempts, "" if outcome is Outcome.OK else str(answer.status)
        self.tally.count(outcome)
        self._post(outcome.value, process, op, name, delay_ms, attempts, error)
        return outcome

    def _post(
        self,
        kind: str,
        process: str,
        op: int,
        name: str,
        delay_ms: int,
        attempts: int = 0,
        error: str = "",
    ) -> None:
        more = {"error": error} if error else {}
        self.history.event(
            kind,
            "post",
            process,
            op,
            work=self.name,
            id=name,
            topic=self.config.topic,
            delay_ms=delay_ms,
            attempts=attempts,
            **more,
        )

    @asynccontextmanager
    async def scanner(self) -> AsyncIterator[Scanner]:
        """Yield a reader of the brokers' own topics, in every broker group that there is or was.
        Raises ClientError."""
        group = f"{self.config.group}-scanner"
        async with PullConsumer(group, self.env.namesrv, instance_config=signing()) as consumer:
            present = await consumer.queues(self.config.topic)
            brokers = sorted({queue.broker_name for queue in (*self.queues, *present)})
            yield Scanner(consumer, brokers)

    def write_stored(self, message: MessageExt) -> None:
        """Record a message that was found in a topic of the broker's own."""
        self.history.record(
            "stored",
            "scanner",
            work=self.name,
            id=message.msg_id,
            broker=message.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            store_ms=message.store_timestamp_ms,
        )

    def write_scanned(self, records: int) -> None:
        """Record that such topics were read to their end."""
        history = self.history
        history.record("scan", "scanner", work=self.name, records=records)


class Work(Protocol):
    """The part in which these workloads differ."""

    async def prepare(self, admin: Admin) -> None:
        """Find out or create more than the topic."""

    def consumers(self) -> Consumers:
        """Make the consumers."""
        ...

    async def producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        """Start a producer; return the operation it repeats."""
        ...

    async def evidence(self, deadline_s: float) -> None:
        """Record the content of the broker's own topics."""


class PostedWorkload:
    """A workload of this kind; chaos.workloads.base defines the order of the calls."""

    def __init__(self, config: PostedConfig, make_work: Callable[[Posting], Work]) -> None:
        self.posting = Posting(config)
        self.config = config
        self.name = config.name
        self.work = make_work(self.posting)
        self._admin: Admin | None = None
        self._consumers: Consumers | None = None
        self._loops: list[Paced] = []
        self._tasks = Tasks()

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.config.topic,)

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        return ((self.config.topic, self.config.group),)

    @property
    def tally(self) -> Tally:
        return self.posting.tally

    async def prepare(self, env: Environment) -> None:
        """Create topics and groups."""
        async with Admin(env.namesrv, instance_config=signing()) as admin:
            await self.posting.prepare(env, admin)
            await self.work.prepare(admin)

    async def start(self, stack: AsyncExitStack) -> None:
        config, posting = self.config, self.posting
        env = posting.env
        if config.dead_letters:  # before there are any
            await stack.enter_async_context(dead := posting.undertakers())
            await dead.join(f"{config.name}-undertaker")
        self._admin = await stack.enter_async_context(Admin(env.namesrv, instance_config=signing()))
        self._consumers = await stack.enter_async_context(self.make_consumers())
        for number in range(config.consumers):
            await self._consumers.join(f"{config.name}-consumer-{number}")
        await self._consumers.wait_shared_out(posting.queues, env.join_timeout_s)
        stack.push_async_callback(self._tasks.cancel)
        for number in range(config.producers):
            name = f"{config.name}-producer-{number}"
            work = await self.work.producer(stack, name, random.Random(env.rng.random()))
            loop = Paced(config.rate_per_s / config.producers, config.window, self.tally, work)
            self._loops.append(loop)
            self._tasks.spawn(loop.run(), name)

    def make_consumers(self) -> Consumers:
        """Make consumers of the group, without a member yet. Call `prepare` first."""
        return self.work.consumers()

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()

    async def drain(self) -> bool:
        await self._tasks.finish()
        posting = self.posting
        env = posting.env
        deadline_s = time.monotonic() + env.drain_timeout_s
        arrived = await posting.wait_arrived(deadline_s)
        if not arrived:
            env.say(f"{self.name}: {len(posting.awaited)} messages have not come")
        await self.work.evidence(deadline_s)
        assert self._admin is not None
        assert self._consumers is not None
        drained = await drain_group(
            self._admin, env.history, self._consumers, posting.queues, env.drain_timeout_s
        )
        return arrived and drained

    def failure(self) -> BaseException | None:
        return self._tasks.failure()


class Scanner:
    """Reads queues of brokers' own topics from where it stopped the last time."""

    def __init__(self, consumer: PullConsumer, brokers: Sequence[str]) -> None:
        self.brokers = brokers
        self._consumer = consumer
        self._next: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> list[MessageExt]:
        """Return the new messages. Raises ClientError."""
        matches: list[MessageExt] = []
        consumer = self._consumer
        end = await consumer.max_offset(queue)
        offset = self._next.get(queue, 0)
        while offset < end:
            result = await consumer.pull(queue, offset, SCAN_BATCH)
            matches += result.messages
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            self._next[queue] = offset
        return matches
