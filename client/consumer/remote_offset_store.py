"""Consumed offsets on the broker, read for a new queue and written as they move."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from raftmq.remoting import fields
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingError
from raftmq.remoting.headers import ConsumerOffsetHeader, QueueOffsetHeader

from ..errors import BrokerRefused, ClientError
from ..instance import ClientInstance, successful
from ..message import RETRY_PREFIX, MessageQueue
from .offsets import ConsumeFrom, OffsetTable

logger = logging.getLogger(__name__)

# A late request of the queue's previous consumer may set an offset back. All offsets are therefore
# resent periodically, even unchanged offsets (Java clients do so at every commit).
REPEAT_S = 30.0
CONFIRMED_AT_ONCE_MAX = 64  # concurrent confirmed commits per broker group

OnCommit = Callable[[MessageQueue, int], None]


class OffsetStore:
    """Reads and commits a group's offsets. `table` is this consumer's view; the broker's state is
    authoritative."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        on_commit: OnCommit | None = None,
        on_committing: OnCommit | None = None,
        *,
        consumes: bool = True,
    ) -> None:
        """With `consumes` False commits are an administrator's, which brokers accept in place of a
        reset that no consumer has followed yet."""
        self.table = OffsetTable()
        self._group = group
        self._instance = instance
        self._consumes = consumes
        self._on_commit = on_commit
        self._on_committing = on_committing
        self._at_once: dict[str, asyncio.Semaphore] = defaultdict(
            partial(asyncio.Semaphore, CONFIRMED_AT_ONCE_MAX)
        )
        self._under_way: dict[MessageQueue, asyncio.Event] = {}  # set at the end of the commit
        self._repeat_s = 0.0  # loop time; 0 before the first commit

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None. Raises ClientError. Without the flag a
        broker answers 0 for a young queue, regardless of `consume_from`."""
        header = ConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, zero_if_not_found=False
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        response = await ask_queue(self._instance, queue, code, header.to_ext())
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return offset_of(response, queue)

    async def write(self, queue: MessageQueue, offset: int) -> None:
        """Commit this offset now, regardless of the table. Raises ClientError."""
        response = await self._instance.invoke_leader(
            queue.broker_name, lambda: self._command(queue, offset), leader_only=True
        )
        successful(response, queue.broker_name)

    async def commit_oneway(self) -> None:
        """Send changed offsets to the leaders without waiting. Commits lost with a leader are
        resent to the next leader (OffsetTable.forget_sent)."""
        self._repeat()
        leaderless: list[MessageQueue] = []
        for queue, offset in self.table.dirty().items():
            leader = self._instance.directory.group(queue.broker_name).leader
            if leader is None:
                leaderless.append(queue)
                continue
            try:
                await self._instance.remoting.invoke_oneway(leader, self._command(queue, offset))
            except RemotingError as error:
                logger.info("commit_failed queue=%s error=%s", queue, error)
                continue
            self.table.sent(queue, offset)
        if leaderless:  # a one-way request needs a known leader; a confirmed request searches it
            await self.commit_confirmed(leaderless)

    async def commit_confirmed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Write the changed offsets, wait for the answers, and return the confirmed offsets. After
        a failed leader search, a broker group is not asked again."""
        if queues is None:
            self._repeat()
        dirty = list(self.table.dirty(queues).items())
        lost: dict[str, ClientError] = {}
        done = await asyncio.gather(*(self._commit_one(q, offset, lost) for q, offset in dirty))
        return {queue: offset for (queue, offset), ok in zip(dirty, done, strict=True) if ok}

    def _repeat(self) -> None:
        """Let this commit send every offset, after REPEAT_S."""
        now_s = asyncio.get_running_loop().time()
        if not self._repeat_s:
            self._repeat_s = now_s
        elif now_s - self._repeat_s >= REPEAT_S:
            self._repeat_s = now_s
            self.table.forget_sent()

    async def _commit_one(
        self, queue: MessageQueue, offset: int, lost: dict[str, ClientError]
    ) -> bool:
        """Write an offset after the queue's running commits, which must not overtake it."""
        while (before := self._under_way.get(queue)) is not None:
            await before.wait()
        ended = self._under_way[queue] = asyncio.Event()
        try:
            return await self._write_one(queue, offset, lost)
        finally:
            del self._under_way[queue]
            ended.set()

    async def _write_one(
        self, queue: MessageQueue, offset: int, lost: dict[str, ClientError]
    ) -> bool:
        name = queue.broker_name
        async with self._at_once[name]:
            if name in lost:
                logger.warning("commit_failed queue=%s error=%s", queue, lost[name])
                return False
            try:
                response = await self._instance.invoke_leader(
                    name, lambda: self._announced(queue, offset), leader_only=True
                )
            except ClientError as error:
                lost[name] = error
                logger.warning("commit_failed queue=%s error=%s", queue, error)
                return False
        if response.code != ResponseCode.SUCCESS:
            logger.warning(
                "commit_refused queue=%s code=%d remark=%s", queue, response.code, response.remark
            )
            return False
        self.table.sent(queue, offset)
        _send(self._on_commit, queue, offset)
        return True

    def _announced(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        _send(self._on_committing, queue, offset)
        return self._command(queue, offset)

    def _command(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        client_id = self._instance.client_id if self._consumes else None
        header = ConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, offset, client_id=client_id
        )
        return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())


def _send(callback: OnCommit | None, queue: MessageQueue, offset: int) -> None:
    if callback is None:
        return
    try:
        callback(queue, offset)
    except Exception:
        logger.exception("commit_callback_failed")  # the user's error must not stop the commits


class Offsets(Protocol):
    """A consumer's offsets, OffsetStore or LocalOffsetStore."""

    table: OffsetTable

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed or saved offset, or None. Raises ClientError, OSError."""

    async def commit_oneway(self) -> None: ...

    async def commit_confirmed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]: ...


async def starting_offset(
    offsets: Offsets,
    instance: ClientInstance,
    queue: MessageQueue,
    consume_from: ConsumeFrom,
    timestamp_ms: int,
) -> int:
    """Return the start offset in a queue, the group's offset or the start of a new group. A retry
    topic starts at its first offset. Raises ClientError, OSError. LAST_OFFSET asks for the queue's
    end first, so that messages stored between the two requests are consumed."""
    if queue.topic.startswith(RETRY_PREFIX):
        consume_from = ConsumeFrom.FIRST_OFFSET
    end = await max_offset(instance, queue) if consume_from is ConsumeFrom.LAST_OFFSET else None
    committed = await offsets.committed(queue)
    if committed is not None:
        return committed
    if end is not None:
        return end
    if consume_from is ConsumeFrom.TIMESTAMP:
        return await offset_for(instance, queue, timestamp_ms)
    return await min_offset(instance, queue)


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the queue's first offset. Raises ClientError."""
    ext = QueueOffsetHeader(queue.topic, queue.queue_id).to_ext()
    return offset_of(await ask_queue(instance, queue, RequestCode.GET_MIN_OFFSET, ext), queue)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """Return the offset behind the last message. Raises ClientError."""
    ext = QueueOffsetHeader(queue.topic, queue.queue_id).to_ext()
    return offset_of(await ask_queue(instance, queue, RequestCode.GET_MAX_OFFSET, ext), queue)


async def offset_for(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at or after that time. Raises ClientError."""
    ext = QueueOffsetHeader(queue.topic, queue.queue_id, timestamp_ms).to_ext()
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    return offset_of(await ask_queue(instance, queue, code, ext), queue)


async def ask_queue(
    instance: ClientInstance, queue: MessageQueue, code: int, ext: dict[str, str]
) -> RemotingCommand:
    """Return the queue leader's answer with any code. Raises ClientError."""
    return await instance.invoke_leader(
        queue.broker_name, lambda: RemotingCommand.request(code, dict(ext))
    )


def offset_of(response: RemotingCommand, queue: MessageQueue) -> int:
    """Return the offset in a successful answer. Raises BrokerRefused."""
    try:
        return fields.integer(successful(response, queue.broker_name).ext, "offset")
    except HeaderError as error:
        raise BrokerRefused(response.code, str(error), queue.broker_name) from error
