"""Queries for offsets (14, 15, 29-32), messages (33) and clients (34, 35, 38, 46).

Consumer offsets are served by the ready leader behind a read barrier, so that a deposed leader
cannot return old values. The remaining queries are served from this replica's applied state; see
broker.error_responses for the barriers of a leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection, Handler
from raftmq.remoting.fair_scheduling import Steps
from raftmq.remoting.fast_json import loads_request
from raftmq.remoting.fields import integer, text
from raftmq.remoting.headers import ConsumerOffsetHeader, QueueOffsetHeader, UnregisterClientHeader

from ..clients import ClientTable
from ..context import Context
from ..errors import Refused, not_leader, rejected
from ..tables.groups import group_name_problem
from .filters import TAG, is_tag, parse_expression, unsupported
from .offset_commits import CommitService
from .offset_resets import Resets

if TYPE_CHECKING:
    from ..access import Access


@dataclass(frozen=True, slots=True)
class Queries:
    """The handlers of queries."""

    context: Context
    clients: ClientTable
    commits: CommitService
    resets: Resets
    access: Access

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            int(code.QUERY_CONSUMER_OFFSET): self.query_offset,
            int(code.UPDATE_CONSUMER_OFFSET): self.update_offset,
            int(code.GET_MAX_OFFSET): self.max_offset,
            int(code.GET_MIN_OFFSET): self.min_offset,
            int(code.SEARCH_OFFSET_BY_TIMESTAMP): self.search_offset,
            int(code.GET_EARLIEST_MSG_STORETIME): self.earliest_time,
            int(code.VIEW_MESSAGE_BY_ID): self.view_message,
            int(code.HEART_BEAT): self.heartbeat,
            int(code.UNREGISTER_CLIENT): self.unregister,
            int(code.GET_CONSUMER_LIST_BY_GROUP): self.consumer_list,
            int(code.CHECK_CLIENT_CONFIG): self.check_client_config,
        }

    async def query_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """14: return a group's offset of a queue, after all answered commits."""
        header = ConsumerOffsetHeader.parse(request.ext)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        await self.commits.settle(topic, group, queue_id)
        await self.context.log.barrier()
        offset = self.context.state.position(topic, group, queue_id)
        if offset is None:
            offset = self._beginning(header)
        if offset is None:
            return RemotingCommand.response_to(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, maybe this group consumer boot first",
                {},
            )
        return _offset_answer(request, offset)

    def _beginning(self, header: ConsumerOffsetHeader) -> int | None:
        """Return the first offset of a group without an offset, or None if the client decides. As
        in Apache's brokers, it is 0 if nothing was deleted and all messages are in memory.

        For an empty queue it is the end. After a 22 clients ask for the end, and would skip
        messages that arrived since."""
        topic, queue_id = header.topic, header.queue_id
        if not self._has_queue(topic, queue_id):
            return None
        store = self.context.store
        queue = store.queues.queue(topic, queue_id)
        if queue is None or queue.min_offset == queue.max_offset:
            return 0 if queue is None else queue.max_offset
        if queue.min_offset > 0 or not header.zero_if_not_found:
            return None
        first = int.from_bytes(queue.entries(0, 1)[:8], "big", signed=True)
        hot = store.commitlog.max_offset - first <= store.config.hot_span_bytes
        return 0 if hot else None

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        """Return True if the topic has or had the queue."""
        config = self.context.state.topics.get(topic)
        if config is None:
            return False
        if 0 <= queue_id < max(config.read_queue_count, config.write_queue_count):
            return True
        return self.context.store.queues.queue(topic, queue_id) is not None

    def update_offset(self, connection: Connection, request: RemotingCommand) -> Answer:
        """15: commit an offset. One-way requests are gathered."""
        header = ConsumerOffsetHeader.parse(request.ext)
        offset = integer(request.ext, "commitOffset")
        if offset < 0:
            raise rejected("queueId and commitOffset must not be < 0")
        topic, group = header.topic, header.consumer_group
        if not request.is_oneway and not self.context.roles.takes_commits:
            # checked first because a replica that is behind may not have the topic
            raise not_leader()
        self._check_queue(topic, group, header.queue_id)
        if request.is_oneway:
            self.commits.commit(topic, group, header.queue_id, offset)
            return None
        return self._commit_and_answer(connection, request, header, offset)

    def _check_queue(self, topic: str, group: str, queue_id: int) -> None:
        """Check group name and queue of a commit. The topic may have had more queues before."""
        problem = group_name_problem(group)
        if problem:
            raise rejected(problem)
        self.context.state.topics.existing(topic)
        if not self._has_queue(topic, queue_id):
            raise rejected(f"topic [{topic}] has no queue {queue_id}")

    async def _commit_and_answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: ConsumerOffsetHeader,
        offset: int,
    ) -> RemotingCommand:
        """Commit an offset and respond. While a reset is pending (broker.consume.offset_resets), or
        if the group pops, a commit from a tool resets the group, as in Apache's brokers. A
        consumer's commit is rejected while a reset is pending. A new leader has few heartbeats yet,
        so our consumers send their client id."""
        where = (header.topic, header.consumer_group, header.queue_id)
        state = self.context.state
        pops = where[:2] in state.pops.queues
        consumes = header.client_id or self.clients.is_consumer(connection, header.consumer_group)
        if (pops or state.offsets.reset_of(*where) is not None) and not consumes:
            await self.resets.reset(header.consumer_group, header.topic, {header.queue_id: offset})
            return RemotingCommand.response_to(request)
        await self.commits.commit_and_wait(*where, offset)
        mark = self.context.state.offsets.reset_of(*where)
        if mark is not None and mark != offset:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the group was moved to {mark} and has not gone there yet",
                tag="RESET_PENDING",
            )
        # A classic slave's response is no proof of leadership.
        ext = {"brokerRole": "SLAVE"} if self.context.config.is_slave else None
        return RemotingCommand.response_to(request, ext=ext)

    def _queue_header(self, request: RemotingCommand) -> QueueOffsetHeader:
        header = QueueOffsetHeader.parse(request.ext)
        self.context.state.topics.existing(header.topic)
        if header.queue_id < 0:
            raise rejected(f"queueId {header.queue_id} is illegal")
        return header

    async def max_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """30: return the offset of the queue's next message."""
        header = self._queue_header(request)
        await self.context.log.barrier()
        end = self.context.store.queues.end_of(header.topic, header.queue_id)
        return _offset_answer(request, end)

    def min_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """31: return the offset of the queue's oldest message."""
        header = self._queue_header(request)
        queue = self.context.store.queues.queue(header.topic, header.queue_id)
        return _offset_answer(request, 0 if queue is None else queue.min_offset)

    async def search_offset(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """29: return the offset of the first message stored at `timestamp` or later. With
        `boundaryType` UPPER, return the last message stored then or earlier. Raises Refused."""
        header = self._queue_header(request)
        timestamp_ms = integer(request.ext, "timestamp")
        reads = self.context.store.reads
        by_boundary = {"LOWER": reads.offset_by_time, "UPPER": reads.last_offset_by_time}
        search = by_boundary.get(header.boundary)
        if search is None:
            remark = f"boundaryType is LOWER or UPPER, not {header.boundary}"
            raise rejected(remark)
        await self.context.log.barrier()
        return _offset_answer(request, search(header.topic, header.queue_id, timestamp_ms))

    def earliest_time(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """32: return the store time of the queue's oldest message, or -1."""
        header = self._queue_header(request)
        timestamp_ms = self.context.store.reads.earliest_store_time(header.topic, header.queue_id)
        return RemotingCommand.response_to(request, ext={"timestamp": str(timestamp_ms)})

    def view_message(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """33: return a message by its offset id. Raises Refused, AclError."""
        offset = integer(request.ext, "offset")
        record = self.context.store.reads.message_at(offset)
        if record is None:
            remark = f"can not find message by offset: {offset}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark, absent=True)
        self.access.permit_record(connection, request, record)
        return RemotingCommand.response_to(request, body=bytes(record))

    def heartbeat(self, connection: Connection, request: RemotingCommand) -> Steps[RemotingCommand]:
        """34: register a client with its producer and consumer groups."""
        changed = yield from self.clients.heartbeat_in_steps(
            connection,
            loads_request(request.body),
            request.language,
            request.version,
            self.context.clock_ms(),
        )
        # Version 2 heartbeats omit subscriptions, which the broker needs.
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true" if changed else "false"}
        return RemotingCommand.response_to(request, ext=ext)

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """35: remove a client's groups."""
        header = UnregisterClientHeader.parse(request.ext)
        self.clients.unregister(
            connection, header.client_id, header.producer_group, header.consumer_group
        )
        return RemotingCommand.response_to(request, ext={})

    def consumer_list(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """38: return the client ids of a consumer group."""
        group = text(request.ext, "consumerGroup")
        ids = self.clients.client_ids(group)
        if not ids:
            raise rejected(f"no consumer for this group, {group}")
        body = orjson.dumps({"consumerIdList": ids})
        return RemotingCommand.response_to(request, ext={}, body=body)

    def check_client_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """46: check a subscription's filter expression."""
        fields = loads_request(request.body)
        subscription = fields.get("subscriptionData")
        if isinstance(subscription, dict):
            kind = str(subscription.get("expressionType") or TAG)
            if not is_tag(kind):
                if not self.context.config.enable_property_filter:
                    raise unsupported(kind)
                parse_expression(kind, str(subscription.get("subString") or ""))
        return RemotingCommand.response_to(request)


def _offset_answer(request: RemotingCommand, offset: int) -> RemotingCommand:
    return RemotingCommand.response_to(request, ext={"offset": str(offset)})
