"""The workload `log` on a JetStream stream: the same senders, keys, rate and records.

A topic is a stream with one subject, and is one queue; a message's queue offset is its sequence.
While it runs there are only senders. At the end every replica is read from the first message to the
last, each by a consumer that lives on it and has no copy elsewhere: what replicas have in common is
judged by the record `replicas`, one digest for each.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from raftmq.client import ClientError, Message, MessageQueue, SendResult, SendStatus

from ..cluster.clusterfile import ClusterError, load_state
from ..history.files import HistoryWriter
from ..workloads.base import Environment, Tally, Tasks, sum_tallies
from ..workloads.load import MessagesConfig
from ..workloads.log import KeyedSender, random_items
from .client import NOT_STORED, WRONG, connect

ID = "Nats-Msg-Id"  # the header by which a stream knows a message again
RETRY_S = 0.1
READ_BATCH = 500
READ_TIMEOUT_S = 5.0
CREATE_TIMEOUT_S = 60.0
TRIES_PER_REPLICA = 20  # a consumer's server is drawn by the cluster, not asked for

Decided = Callable[[SendResult | None, ClientError | None], None]


class PublishFailed(ClientError):
    """A publish was not acknowledged; `outcome_unknown` unless nobody can have taken it."""

    def __init__(self, error: Exception, *, outcome_unknown: bool) -> None:
        super().__init__(0, f"{type(error).__name__}: {error}")
        self.outcome_unknown = outcome_unknown
        self.attempts = 1


class Publisher:
    """Publishes as KeyedSender's producer. `close` cancels what is still undecided. `failure` is an
    error that no outcome is made of: a mistake of ours or of the client's."""

    def __init__(self, context: Any) -> None:
        self.failure: BaseException | None = None
        self._context = context
        self._open: set[asyncio.Task[None]] = set()

    def send_nowait(
        self, message: Message, callback: Decided, timeout_ms: int, queue: MessageQueue
    ) -> None:
        """Publish; `callback` is called with the outcome."""
        task = asyncio.create_task(self._send(message, callback, timeout_ms / 1000, queue))
        self._open.add(task)
        task.add_done_callback(partial(self._ended, callback))

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _ended(self, decided: Decided, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.failure = error
            decided(None, PublishFailed(error, outcome_unknown=True))

    async def _send(
        self, message: Message, decided: Decided, timeout_s: float, queue: MessageQueue
    ) -> None:
        assert message.unique_key is not None
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                ack = await self._context.publish(
                    message.topic, message.body, timeout=left_s, headers={ID: message.unique_key}
                )
            except NOT_STORED as error:
                if time.monotonic() + RETRY_S < deadline:
                    await asyncio.sleep(RETRY_S)
                    continue
                decided(None, PublishFailed(error, outcome_unknown=False))
            except WRONG as error:
                decided(None, PublishFailed(error, outcome_unknown=True))
            else:
                where = f"{ack.stream}@{ack.seq}"
                decided(
                    SendResult(SendStatus.OK, message.unique_key, where, queue, ack.seq, 1), None
                )
            return


class StreamWorkload:
    """Sends to a stream with a replica on every server of the cluster in `directory`, and reads it
    at the end; see chaos.workloads.base for the order of calls."""

    def __init__(self, directory: Path, config: MessagesConfig) -> None:
        self.name = config.name
        self._directory = directory
        self._config = config
        self._env: Environment | None = None
        self._publishers: list[Publisher] = []
        self._senders: list[KeyedSender] = []
        self._loads = Tasks()

    @property
    def topics(self) -> tuple[str, ...]:
        return (self._config.topic,)

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        return ()

    @property
    def tally(self) -> Tally:
        return sum_tallies(sender.tally for sender in self._senders)

    @property
    def env(self) -> Environment:
        assert self._env is not None, "prepare comes first"
        return self._env

    async def prepare(self, env: Environment) -> None:
        """Create the stream, and let the machine write to its disks what there is: a stream that
        has served for some minutes is not lost as a whole. Raises ClusterError."""
        self._env = env
        replicas = len(load_state(self._directory).brokers)
        client = await connect(self._directory)
        try:
            await _created(client.jetstream(), self._config.topic, replicas)
        finally:
            await client.close()
        await asyncio.to_thread(os.sync)

    async def start(self, stack: AsyncExitStack) -> None:
        config, env = self._config, self.env
        queue = MessageQueue(config.topic, "", 0)
        for _ in range(config.producers):
            client = await connect(self._directory)
            stack.push_async_callback(client.close)
            publisher = Publisher(client.jetstream())
            stack.push_async_callback(publisher.close)
            self._publishers.append(publisher)
        stack.push_async_callback(self._loads.cancel)
        for number, publisher in enumerate(self._publishers):
            name = f"{config.name}-producer-{number}"
            sender = KeyedSender(
                publisher,
                env.history,
                name,
                [queue],
                window=config.window,
                timeout_ms=config.send_timeout_ms,
                rate_per_s=config.rate_per_s / config.producers or None,
            )
            self._senders.append(sender)
            rng = random.Random(env.rng.random())
            items = random_items(config.topic, name, config.keys, config.body_bytes, rng)
            self._loads.spawn(sender.run(items), name)

    def stop(self) -> None:
        for sender in self._senders:
            sender.stop()

    async def drain(self) -> bool:
        """Wait for the last outcomes, then read what each replica holds."""
        await self._loads.finish()
        if (error := self.failure()) is not None:
            raise error
        found = await read_replicas(
            self._directory, self.env.history, self._config.topic, self.env.drain_timeout_s
        )
        complete = len(found) == len(load_state(self._directory).brokers)
        history = self.env.history
        history.event(
            "ok",
            "drain",
            "runner",
            history.next_op(),
            topic=self._config.topic,
            group="readers",
            complete=complete,
        )
        return complete

    def failure(self) -> BaseException | None:
        failed = (publisher.failure for publisher in self._publishers)
        return next((error for error in failed if error is not None), self._loads.failure())


async def _created(context: Any, name: str, replicas: int) -> None:
    """Create a stream; return once each replica has it. Raises ClusterError."""
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    why = "not every replica follows"
    while time.monotonic() < deadline:  # a new cluster knows no peers that could hold it
        try:
            found = await context.add_stream(name=name, subjects=[name], num_replicas=replicas)
            peers = found.cluster.replicas or () if found.cluster is not None else ()
            if sum(peer.current for peer in peers) == replicas - 1:
                return
        except WRONG as error:
            why = repr(error)
        await asyncio.sleep(RETRY_S)
    raise ClusterError(f"no stream: {why}")


async def read_replicas(
    directory: Path, history: HistoryWriter, topic: str, timeout_s: float
) -> dict[str, str]:
    """Read the stream by every replica, record what was read and the `replicas`; return server →
    digest of all that it showed. Servers without a consumer in time are missing."""
    names = {node.name for node in load_state(directory).brokers}
    found: dict[str, str] = {}
    errors: dict[str, str] = {}
    client = await connect(directory)
    try:
        async with asyncio.timeout(timeout_s):
            context = client.jetstream()
            for _ in range(len(names) * TRIES_PER_REPLICA):
                if len(found) == len(names):
                    break
                await _read_one(context, history, topic, found, errors)
    except TimeoutError:
        errors["reading"] = f"not all replicas could be read within {timeout_s:g} s"
    finally:
        await client.close()
    for name in names - found.keys():
        errors.setdefault(name, "no consumer came to be there")
    history.event(
        "ok",
        "replicas",
        "runner",
        history.next_op(),
        group=topic,
        begin=0,
        end=1,
        parts={name: {"0": digest} for name, digest in found.items()},
        errors={name: why for name, why in errors.items() if name not in found},
    )
    return found


async def _read_one(
    context: Any,
    history: HistoryWriter,
    topic: str,
    found: dict[str, str],
    errors: dict[str, str],
) -> None:
    """Make a consumer and read by it, unless its server was read already."""
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.ALL,
        num_replicas=1,
        mem_storage=True,
        inactive_threshold=60.0,
    )
    server = ""
    try:
        subscription = await context.pull_subscribe(topic, stream=topic, config=config)
        info = await subscription.consumer_info()
        server = info.cluster.leader if info.cluster is not None else ""
        try:
            if server and server not in found:
                found[server] = await _read(subscription, history, topic, server)
        finally:
            await context.delete_consumer(topic, info.name)
    except WRONG as error:
        errors[server or "reading"] = f"{type(error).__name__}: {error}"
        await asyncio.sleep(RETRY_S)


async def _read(subscription: Any, history: HistoryWriter, topic: str, server: str) -> str:
    """Read to the end, record it, return the digest. Raises WRONG."""
    digest = hashlib.sha256()
    while True:
        if (await subscription.consumer_info()).num_pending == 0:
            return digest.hexdigest()
        messages = await subscription.fetch(READ_BATCH, timeout=READ_TIMEOUT_S)
        offsets = [message.metadata.sequence.stream for message in messages]
        ids = [(message.headers or {}).get(ID, "") for message in messages]
        for message, offset in zip(messages, offsets, strict=True):
            digest.update(b"%d:%d|" % (offset, len(message.data)))
            digest.update(message.data)
        history.event(
            "ok",
            "consume",
            f"reader-{server}",
            history.next_op(),
            topic=topic,
            broker="",
            queue=0,
            offsets=offsets,
            ids=ids,
        )
