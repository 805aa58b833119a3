"""Consumed offsets on the broker: read them when a queue is taken over, write them as they move."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from client.errors import BrokerRefused, ClientError
from client.instance import ClientInstance
from client.message import MessageQueue
from client.offsets import ConsumeFrom, OffsetTable
from remoting import fields
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import HeaderError, RemotingError
from remoting.headers import ConsumerOffsetHeader, QueueOffsetHeader

logger = logging.getLogger(__name__)

CONFIRMED_AT_ONCE_MAX = 64  # confirmed commits in flight together

OnCommit = Callable[[MessageQueue, int], None]


class OffsetStore:
    """`table` is what this consumer knows; the broker is the truth."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        on_commit: OnCommit | None = None,
        on_committing: OnCommit | None = None,
    ) -> None:
        self.table = OffsetTable()
        self._group = group
        self._instance = instance
        self._on_commit = on_commit
        self._on_committing = on_committing
        self._at_once = asyncio.Semaphore(CONFIRMED_AT_ONCE_MAX)

    async def start_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom, timestamp_ms: int
    ) -> tuple[int, bool]:
        """(offset to begin at, whether the group committed it). Raises ClientError."""
        response = await self._ask(
            queue,
            RequestCode.QUERY_CONSUMER_OFFSET,
            ConsumerOffsetHeader(self._group, queue.topic, queue.queue_id).to_ext(),
        )
        if response.code == ResponseCode.SUCCESS:
            return self._offset(response, queue), True
        if response.code != ResponseCode.QUERY_NOT_FOUND:
            raise BrokerRefused(response.code, response.remark or "", queue.broker_name)
        if queue.topic.startswith("%RETRY%"):
            consume_from = ConsumeFrom.FIRST_OFFSET
        if consume_from is ConsumeFrom.TIMESTAMP:
            header = QueueOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        else:
            header = QueueOffsetHeader(queue.topic, queue.queue_id)
            first = consume_from is ConsumeFrom.FIRST_OFFSET
            code = RequestCode.GET_MIN_OFFSET if first else RequestCode.GET_MAX_OFFSET
        response = await self._ask(queue, code, header.to_ext())
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(response.code, response.remark or "", queue.broker_name)
        return self._offset(response, queue), False

    async def commit_oneway(self) -> None:
        """Tell the leaders what moved, without waiting for answers. What is lost with a leader is
        told again to the next one (OffsetTable.forget_told)."""
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
            self.table.told(queue, offset)
        if leaderless:  # nobody to tell blindly: a request that is answered finds the leader
            await self.commit_confirmed(leaderless)

    async def commit_confirmed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Write what moved and wait for the answers; returns what brokers confirmed."""
        dirty = list(self.table.dirty(queues).items())
        done = await asyncio.gather(*(self._commit_one(q, offset) for q, offset in dirty))
        return {queue: offset for (queue, offset), ok in zip(dirty, done, strict=True) if ok}

    async def _commit_one(self, queue: MessageQueue, offset: int) -> bool:
        async with self._at_once:
            if self._on_committing is not None:
                self._on_committing(queue, offset)
            try:
                response = await self._instance.invoke_leader(
                    queue.broker_name, lambda: self._command(queue, offset), leader_only=True
                )
            except ClientError as error:
                logger.warning("commit_failed queue=%s error=%s", queue, error)
                return False
        if response.code != ResponseCode.SUCCESS:
            logger.warning(
                "commit_refused queue=%s code=%d remark=%s", queue, response.code, response.remark
            )
            return False
        self.table.told(queue, offset)
        if self._on_commit is not None:
            self._on_commit(queue, offset)
        return True

    def _command(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        header = ConsumerOffsetHeader(self._group, queue.topic, queue.queue_id, offset)
        return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())

    async def _ask(self, queue: MessageQueue, code: int, ext: dict[str, str]) -> RemotingCommand:
        return await self._instance.invoke_leader(
            queue.broker_name, lambda: RemotingCommand.request(code, dict(ext))
        )

    def _offset(self, response: RemotingCommand, queue: MessageQueue) -> int:
        try:
            return fields.integer(response.ext, "offset")
        except HeaderError as error:
            raise BrokerRefused(response.code, str(error), queue.broker_name) from error
