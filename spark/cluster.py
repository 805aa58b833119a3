"""Blocking access to a cluster for Spark's processes, on an event loop of its own.

Nothing is registered, no consumer group, no heartbeat. Requests go to the
leader of a broker group (a master, for classic and Apache's brokers) and are retried through a
failover for `timeout_ms`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from raftmq.client.consumer.remote_offset_store import (
    OffsetStore,
    max_offset,
    min_offset,
    offset_for,
)
from raftmq.client.errors import BrokerRefused, NoRoute
from raftmq.client.instance import ClientInstance, InstanceConfig, successful
from raftmq.client.message import MessageQueue
from raftmq.client.retry import CONTROL, RetryPolicy
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.headers import PULL_SUBSCRIPTION, PullHeader, PullResponseHeader
from raftmq.remoting.names import SYSTEM_TOPICS

from . import offset_ranges as positions
from .errors import DataLost
from .offset_ranges import Queue, QueueRange
from .options import Connection

T = TypeVar("T")
REQUESTS_AT_ONCE_MAX = 64
PULL_COUNT_MAX = 1024  # the maximum of our brokers; Apache's limit is 32
PULL_BYTES_MAX = 4 << 20
PULL_TIMEOUT_MS = 10_000
BLOCK_BYTES = 8 << 20  # of answers per block
_OF_GROUPS = ("%RETRY%", "%DLQ%")
_INTERNAL = ("RMQ_SYS_", "rmq_sys_", "%SYS%")
RANGES_AT_ONCE = 8  # of a partition, each with a pull under way
FAIL_HINT = "failOnDataLoss=false reads what is there"
EMPTY_PAUSE_S = 0.05  # after an empty answer from a lagging replica


@dataclass(frozen=True, slots=True)
class Block:
    """A queue's records [start, end). A missing record is lost data if `strict`."""

    queue: Queue
    start: int
    end: int
    records: bytes
    strict: bool

    def check(self, count: int) -> None:
        """Raise DataLost if `count` records are not all. Only retention makes holes in a queue,
        until the queue's first offset is corrected."""
        if self.strict and count < self.end - self.start:
            raise DataLost(
                f"{named(self.queue)} has {count} messages from {self.start} to {self.end}; "
                f"{FAIL_HINT}"
            )


def instance_config(connection: Connection) -> InstanceConfig:
    """Return the configuration of a client."""
    return InstanceConfig(
        credentials=connection.credentials, tls=connection.tls, reached_at=connection.reached_at
    )


def named(queue: Queue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker}"


class Cluster:
    """Use as `with Cluster(connection) as cluster`. Every method raises ClientError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._instance = ClientInstance(connection.namesrv, instance_config(connection))
        self._policy = replace(CONTROL, time_ms_max=connection.timeout_ms)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Cluster:
        try:
            self._run(self._instance.start())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._instance.stop())
        finally:
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def topics(self, pattern: str) -> tuple[str, ...]:
        """Return the topics with a matching name, without system topics, and with retry or
        dead-letter topics only if the pattern begins with their prefix."""
        listed = (
            self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).get("topicList")
            or ()
        )
        info = self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = info.get("clusterAddrTable") or {}
        own = {*SYSTEM_TOPICS, *clusters, *(info.get("brokerAddrTable") or {})}
        own |= {f"{name}_REPLY_TOPIC" for name in clusters}
        matching = re.compile(pattern)
        names = (name for name in listed if matching.fullmatch(name) and name not in own)
        hidden = (*_INTERNAL, *(prefix for prefix in _OF_GROUPS if not pattern.startswith(prefix)))
        return tuple(sorted(name for name in names if not name.startswith(hidden)))

    def _ask_name_server(self, code: RequestCode) -> dict[str, Any]:
        async def ask() -> RemotingCommand:
            command = RemotingCommand.request(code, None)
            return await self._instance.name_servers.invoke(command)

        return loads_object(successful(self._run(ask()), "name server").body)

    def queues(self, topics: Iterable[str], *, all_exist: bool = True) -> list[Queue]:
        """Return the topics' readable queues. Raises NoRoute, if `all_exist`."""

        async def ask() -> list[Queue]:
            queues = []
            for topic in topics:
                try:
                    route = await self._instance.directory.refresh(topic)
                except NoRoute:
                    if all_exist:
                        raise
                    continue
                queues += [
                    Queue(q.topic, q.broker_name, q.queue_id) for q in route.read_queues(topic)
                ]
            return queues

        return self._run(ask())

    def earliest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return self._of_each(queues, lambda queue: min_offset(self._instance, queue))

    def latest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return self._of_each(queues, lambda queue: max_offset(self._instance, queue))

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> dict[Queue, int]:
        """Return the first offsets stored at or after a time."""
        return self._of_each(queues, lambda q: offset_for(self._instance, q, timestamp_ms))

    def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Commit offsets of the connection's group, without joining it."""
        self.queues({queue.topic for queue in offsets}, all_exist=False)  # finds the brokers

        async def one(queue: MessageQueue) -> int:
            offset = offsets[Queue(queue.topic, queue.broker_name, queue.queue_id)]
            await OffsetStore(self._connection.group, self._instance).write(queue, offset)
            return offset

        self._of_each(list(offsets), one)

    def _of_each(
        self, queues: Sequence[Queue], ask: Callable[[MessageQueue], Coroutine[Any, Any, int]]
    ) -> dict[Queue, int]:
        room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)

        async def one(queue: Queue) -> int:
            async with room:
                return await ask(MessageQueue(queue.topic, queue.broker, queue.queue_id))

        async def every() -> list[int]:
            return await asyncio.gather(*map(one, queues))

        return dict(zip(queues, self._run(every()), strict=True))

    def blocks(self, ranges: Sequence[QueueRange], fail_on_data_loss: bool) -> Iterator[Block]:
        """Yield the blocks of ranges, each of some megabytes, in the ranges' order. Raises DataLost
        if `fail_on_data_loss`."""
        waiting, running = deque(self._existing(ranges, fail_on_data_loss)), deque[RangePulls]()
        try:
            while waiting or running:
                while waiting and len(running) < RANGES_AT_ONCE:
                    pulls = RangePulls(
                        self._instance,
                        self._connection,
                        waiting.popleft(),
                        self._policy,
                        fail_on_data_loss,
                    )
                    running.append(pulls)
                    self._run(pulls.start_pull())
                while not running[0].ended:
                    yield self._run(running[0].block())
                running.popleft()
        finally:
            for pulls in running:
                self._run(pulls.stop())  # the reader may stop early

    def _existing(self, ranges: Sequence[QueueRange], fail: bool) -> list[QueueRange]:
        topics = sorted({each.queue.topic for each in ranges})
        there = set(self.queues(topics, all_exist=fail))  # finds the brokers, too
        gone = set(positions.gone((each.queue for each in ranges), there))
        if gone and fail:
            raise DataLost(f"{named(min(gone))} no longer exists; {FAIL_HINT}")
        return [each for each in ranges if each.queue not in gone]

    def copies(self, queue: Queue, offset: int) -> Iterator[bytes]:
        """Yield a message's record from each replica that has it and answers, the leader first."""
        header = _pull_header(self._connection.group, queue, offset, 1)

        async def ask(address: str) -> RemotingCommand:
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
            return await self._instance.remoting.invoke(address, request, PULL_TIMEOUT_MS)

        async def replicas() -> tuple[str, ...]:
            return self._instance.directory.group(queue.broker).candidates()

        for address in self._run(replicas()):
            try:
                answer = self._run(ask(address))
            except RemotingError:
                continue  # the replica is away
            if answer.code == ResponseCode.SUCCESS:
                yield bytes(answer.body)


class RangePulls:
    """The pulls of a range; the next pull runs while a block is processed."""

    def __init__(
        self,
        instance: ClientInstance,
        connection: Connection,
        queue_range: QueueRange,
        policy: RetryPolicy,
        fail_on_data_loss: bool,
    ) -> None:
        self._instance = instance
        self._connection = connection
        self._range = queue_range
        self._policy = policy
        self._strict = fail_on_data_loss and queue_range.strict
        self._offset = queue_range.start
        self._ahead: asyncio.Task[RemotingCommand] | None = None

    @property
    def ended(self) -> bool:
        return self._offset >= self._range.end

    async def start_pull(self) -> None:
        """Send the next pull, unless the range ends."""
        if not self.ended:
            self._ahead = asyncio.ensure_future(self._pull())
            await asyncio.sleep(0)  # lets the request be written

    async def block(self) -> Block:
        start, parts = self._offset, list[bytes]()
        size, waited_s = 0, 0.0
        while not self.ended and size < BLOCK_BYTES:
            answer = await (self._ahead or self._pull())
            self._ahead = None
            before, data = self._offset, self._take(answer)
            if data:
                parts.append(data)
                size += len(data)
                waited_s = 0.0
            elif self._offset == before:
                waited_s += EMPTY_PAUSE_S
                if waited_s * 1000 > self._connection.timeout_ms:
                    self._ended()
                await asyncio.sleep(EMPTY_PAUSE_S)
            await self.start_pull()
        end = min(self._offset, self._range.end)
        return Block(self._range.queue, start, end, b"".join(parts), self._strict)

    async def stop(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait([self._ahead])

    def _take(self, answer: RemotingCommand) -> bytes:
        """Advance by an answer; return its records."""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._ended()
            return b""
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise BrokerRefused(answer.code, answer.remark or "", self._range.queue.broker)
        header = PullResponseHeader.parse(answer.ext)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return b""
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._strict:
            return b""  # retention is running, or a non-leading replica answered
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(header)
            return b""
        if header.next_offset <= self._offset:
            remark = f"the offset after {self._offset} is said to be {header.next_offset}"
            raise BrokerRefused(answer.code, remark, self._range.queue.broker)
        self._offset = header.next_offset
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""

    def _ended(self) -> None:
        if self._strict:
            raise DataLost(f"{named(self._range.queue)} has nothing at {self._offset} any more")
        self._offset = self._range.end

    def _moved(self, header: PullResponseHeader) -> None:
        name = named(self._range.queue)
        problem = f"{name} has {header.offset_min} to {header.offset_max}, not {self._offset}"
        if self._strict:
            raise DataLost(f"{problem}; {FAIL_HINT}")
        if self._offset >= header.offset_max:
            self._offset = self._range.end
        else:
            self._offset = max(self._offset + 1, header.offset_min)

    async def _pull(self) -> RemotingCommand:
        queue = self._range.queue
        count = min(PULL_COUNT_MAX, self._range.end - self._offset)
        ext = _pull_header(self._connection.group, queue, self._offset, count).to_ext()
        return await self._instance.invoke_leader(
            queue.broker,
            lambda: RemotingCommand.request(RequestCode.PULL_MESSAGE, dict(ext)),
            PULL_TIMEOUT_MS,
            policy=self._policy,
        )


def _pull_header(group: str, queue: Queue, offset: int, count: int) -> PullHeader:
    return PullHeader(
        group, queue.topic, queue.queue_id, offset, count, PULL_SUBSCRIPTION,
        0, 0, "*", 0, "TAG", PULL_BYTES_MAX, queue.broker,
    )  # fmt: skip
