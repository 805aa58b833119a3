"""Workloads of messages: `log`, `ordered`, `group`, `idempotent`. Each has a topic and a group.

log         ordered sends of several producers, open loop; a group that consumes them
ordered     many keys, several producers, consumers that promise the order of each queue
idempotent  as log, at a low rate; a send that is retried is stored only once
group       a little traffic, consumers that leave and come back, commits, and reads of offsets
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from raftmq.client import Admin, ClientError, MessageQueue, Producer, SendConfig

from ..cluster.credentials import signing
from ..history.files import HistoryWriter
from .base import Environment, Tally, Tasks, is_set_within, sum_tallies
from .consumers import ConsumerGroup, drain_group
from .contention import Contention
from .load import LOG, MessagesConfig
from .log import KeyedSender, random_items

ROUTE_POLL_S = 0.05
READ_EVERY_S = 0.2  # pause between two rounds of reading the group's offsets


def plain_group(config: MessagesConfig, env: Environment) -> ConsumerGroup:
    """Make consumers that accept everything at once."""
    return ConsumerGroup(
        env.namesrv, env.history, config.topic, config.group, orderly=config.orderly
    )


class Churn:
    """Lets members of a group leave and return under new names, and reads the group's offsets."""

    def __init__(self, *, restart_every_s: float = 5.0) -> None:
        self.restarts = 0
        self._restart_every_s = restart_every_s
        self._stopping = asyncio.Event()

    def start(
        self,
        tasks: Tasks,
        name: str,
        env: Environment,
        admin: Admin,
        consumers: ConsumerGroup,
        queues: Sequence[MessageQueue],
    ) -> None:
        """Start two of `tasks`, for the workload `name`; they end after `stop`."""
        rng = random.Random(env.rng.random())
        tasks.spawn(self._restart_members(consumers, rng), "restart consumers")
        read = partial(_read_offset, env.history, admin, f"{name}-reader", consumers.group)
        tasks.spawn(self._read_offsets(queues, read), "read offsets")

    def stop(self) -> None:
        self._stopping.set()

    async def _restart_members(self, consumers: ConsumerGroup, rng: random.Random) -> None:
        while not await is_set_within(self._stopping, self._pause_s(rng)):
            name = rng.choice(consumers.members)
            await consumers.leave(name)
            await is_set_within(self._stopping, rng.uniform(0.1, 1.0))
            self.restarts += 1
            await consumers.join(f"{name.partition('.')[0]}.{self.restarts}")

    async def _read_offsets(
        self, queues: Sequence[MessageQueue], read: Callable[[MessageQueue], Awaitable[None]]
    ) -> None:
        while not await is_set_within(self._stopping, READ_EVERY_S):
            for queue in queues:
                await read(queue)
                if self._stopping.is_set():
                    return

    def _pause_s(self, rng: random.Random) -> float:
        return self._restart_every_s * rng.uniform(0.5, 1.5)


async def _read_offset(
    history: HistoryWriter, admin: Admin, process: str, group: str, queue: MessageQueue
) -> None:
    invoked_ns = time.monotonic_ns()
    try:
        offset = await admin.offset.committed(group, queue)
    except ClientError:
        return  # unanswered, so nothing is recorded
    history.record(
        "fetch",
        process,
        topic=queue.topic,
        group=group,
        broker=queue.broker_name,
        queue=queue.queue_id,
        offset=offset,
        invoked_ns=invoked_ns,
    )


class MessagesWorkload:
    """Sends and consumes; see chaos.workloads.base for the order of calls."""

    def __init__(
        self,
        config: MessagesConfig = LOG,
        *,
        make_group: Callable[[MessagesConfig, Environment], ConsumerGroup] = plain_group,
        churn: Churn | None = None,
        contention: Contention | None = None,
    ) -> None:
        """`make_group` makes the consumers; without `churn` they stay until the end. With
        `contention` further clients request locks of the queues."""
        self.config = config
        self.name = config.name
        self.consumers: ConsumerGroup | None = None
        self.queues: tuple[MessageQueue, ...] = ()
        self._env: Environment | None = None
        self._admin: Admin | None = None
        self._senders: list[KeyedSender] = []
        self._make_group = make_group
        self._churn = churn
        self._contention = contention
        self._loads = Tasks()
        self._followers = Tasks()

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.config.topic,)

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        return ((self.config.topic, self.config.group),)

    @property
    def tally(self) -> Tally:
        return sum_tallies(sender.tally for sender in self._senders)

    @property
    def env(self) -> Environment:
        assert self._env is not None, "prepare comes first"
        return self._env

    @property
    def admin(self) -> Admin:
        assert self._admin is not None, "start comes first"
        return self._admin

    async def prepare(self, env: Environment) -> None:
        self._env = env
        async with Admin(env.namesrv, instance_config=signing()) as admin:
            fixed = env.groups_change and self.config.orderly  # further groups leave it out
            await admin.topic.create(
                self.config.topic, self.config.queues, message_type="FIFO" if fixed else ""
            )
            self.queues = await all_queues(
                admin, self.config.topic, self.config.queues, env.join_timeout_s
            )

    async def start(self, stack: AsyncExitStack) -> None:
        config, env = self.config, self.env
        self._admin = await stack.enter_async_context(Admin(env.namesrv, instance_config=signing()))
        self.consumers = group = await stack.enter_async_context(self.make_consumers())
        for number in range(config.consumers):
            await group.join(f"{config.name}-consumer-{number}")
        await group.wait_shared_out(self.queues, env.join_timeout_s)
        stack.push_async_callback(self._loads.cancel)
        stack.push_async_callback(self._followers.cancel)
        for number in range(config.producers):
            await self._start_sender(stack, f"{config.name}-producer-{number}")
        if self._churn is not None:
            self._churn.start(self._loads, self.name, env, self.admin, group, self.queues)
        if self._contention is not None:
            await self._contention.start(stack, self._loads, self.name, env, self.queues)

    def make_consumers(self) -> ConsumerGroup:
        """Make consumers of the group, without a member yet. Call `prepare` first."""
        return self._make_group(self.config, self.env)

    async def _start_sender(self, stack: AsyncExitStack, name: str) -> None:
        config, env = self.config, self.env
        send_config = SendConfig(idempotent=config.once)
        producer = Producer(
            f"{config.name}-producers",
            env.namesrv,
            config=send_config,
            instance_config=signing(),
            audit_topic=env.audit_topic,
        )
        await stack.enter_async_context(producer)
        sender = KeyedSender(
            producer,
            env.history,
            name,
            self.queues,
            window=config.window,
            timeout_ms=config.send_timeout_ms,
            rate_per_s=config.rate_per_s / config.producers or None,
            once=config.once,
            follows=(follows := env.groups_change and not config.orderly),
        )
        self._senders.append(sender)
        if follows:
            self._followers.spawn(self._follow(sender, producer), f"{name} follows the route")
        rng = random.Random(env.rng.random())
        items = random_items(config.topic, name, config.keys, config.body_bytes, rng)
        self._loads.spawn(sender.run(items), name)

    async def _follow(self, sender: KeyedSender, producer: Producer) -> None:
        while True:
            await asyncio.sleep(ROUTE_POLL_S)
            try:
                sender.use(await producer.queues(self.config.topic))
            except ClientError:
                pass  # no queue can be written to at the moment

    def stop(self) -> None:
        for sender in self._senders:
            sender.stop()
        if self._churn is not None:
            self._churn.stop()
        if self._contention is not None:
            self._contention.stop()

    async def drain(self) -> bool:
        await self._loads.finish()  # members that left rejoin first
        assert self.consumers is not None
        return await drain_group(
            self.admin, self.env.history, self.consumers, self.queues, self.env.drain_timeout_s
        )

    def failure(self) -> BaseException | None:
        return self._loads.failure() or self._followers.failure()


async def all_queues(
    admin: Admin, topic: str, queues: int, timeout_s: float
) -> tuple[MessageQueue, ...]:
    """Return the topic's queues once every broker group has them. Raises ClientError after
    `timeout_s`.

    A name server learns a new topic from each group's own registration in turn.
    """
    deadline = time.monotonic() + timeout_s
    groups = (await admin.cluster.info()).brokers
    while True:
        try:
            result = tuple(sorted((await admin.cluster.route(topic)).write_queues(topic)))
            if len(result) >= queues * len(groups) or time.monotonic() > deadline:
                return result
        except ClientError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(ROUTE_POLL_S)
