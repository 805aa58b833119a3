"""POP_MESSAGE (200050), PEEK_MESSAGE, NOTIFICATION, POLLING_INFO (200052-200055).

A pop reads messages, logs that they are in flight, and responds once that is committed. So every
later leader hides them until their deadline, and redelivers them if they are not acknowledged. This
includes consumers that die or lose the response.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.names import RETRY_PREFIX, pop_retry_topic
from raftmq.remoting.pop_headers import (
    COUNT_MAX,
    ORDER_REVIVE_QUEUE,
    POP_CK,
    Handle,
    PopHeader,
    PopResponseHeader,
    QueuePollHeader,
    offset_info,
    order_info,
    start_info,
)
from raftmq.store.errors import StoreError
from raftmq.store.properties import PROPERTIES_SIZE_BYTES_MAX, decode_properties, joined
from raftmq.store.record import decode_record, encode_record

from ..clients import ClientConnection
from ..consume.filtered_reads import WORK_MAX
from ..consume.filters import Filter, filter_of
from ..consume.group_creation import GroupCreation
from ..consume.long_polling import HELD_PULLS_MAX, WAIT_MS_MAX, kept_bytes
from ..consume.offset_commits import offsets_full
from ..context import Context
from ..errors import Refused, busy, forbidden, invalid
from ..tables.groups import SubscriptionGroup
from ..tables.offsets import HasRoom
from ..tables.pops import QueueKey
from ..tables.topics import PERM_READ, topic_name_problem
from .command_batch import StepLog
from .leader_state import Deliveries, LiveQueues
from .long_polling import Waiter, WaitingPops
from .revive import Deadlines
from .selection import ALL, Attempt, Pop, PopSelector, RepeatedAttempts, Selection

log = logging.getLogger("raftmq.broker.pops")

BATCHES_MAX = 200_000  # unacknowledged pops, each of some 400 bytes of memory
INVISIBLE_MS_MAX = 43_200_000  # 12 h, as in Apache's proxy
NAME_LENGTH_MAX = 255  # of a client or a receive attempt
ANSWER_BYTES_MAX = 64 << 20  # of messages of pops in flight
_LENGTH = struct.Struct(">I")
NOTHING = "NO_MESSAGE_IN_QUEUE"


class PopConnection(ClientConnection, Protocol):
    last_active_s: float  # time of the last arrival, by the loop's clock

    def write_many(self, frames: list[bytes]) -> bool: ...

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class PopRequest:
    """A pop or notification request with its connection."""

    connection: PopConnection
    request: RemotingCommand
    pop: Pop
    deadline_ms: int

    @property
    def is_pop(self) -> bool:
        return self.request.code == RequestCode.POP_MESSAGE


class PopRequests:
    def __init__(
        self,
        context: Context,
        has_room: HasRoom,
        groups: GroupCreation,
        live: LiveQueues,
        steps: StepLog,
        deadlines: Deadlines,
        deliveries: Deliveries,
        refusal: Callable[[RemotingCommand, Exception], RemotingCommand],
    ) -> None:
        """`refusal` encodes an error."""
        self._refusal = refusal
        self._context = context
        self._config = context.config
        self._state = context.state
        self._has_room = has_room
        self._groups = groups
        self._live = live
        self._steps = steps
        self._deadlines = deadlines
        self._deliveries = deliveries
        self.selector = PopSelector(context, live)
        self._repeats = RepeatedAttempts(context)
        self._answer_bytes = 0
        self.popped_count = 0  # messages
        self.waiting: WaitingPops[PopRequest] = WaitingPops(
            lambda: HELD_PULLS_MAX, context.budgets.kept, self._again, self._over
        )

    def handle(self, connection: PopConnection, request: RemotingCommand) -> None:
        """Answer a pop now or later. Raises Refused, HeaderError."""
        header = PopHeader.parse(request.ext)
        pop = Pop(header, self._check(header))
        again, pop_ms = self._repeats.of(header)
        if again:
            self._write(connection, request, pop, again, pop_ms, 0)
            return
        poll_ms = min(header.poll_ms, WAIT_MS_MAX) if self._config.long_polling_enable else 0
        deadline_ms = self._context.clock_ms() + poll_ms
        self._run(PopRequest(connection, request, pop, deadline_ms))

    def notify(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200054: return whether a pop would get messages. Raises Refused, HeaderError."""
        poll = QueuePollHeader.parse(request.ext)
        header = _as_pop(poll)
        pop = Pop(header, self._check(header))
        deadline_ms = self._context.clock_ms() + min(poll.poll_ms, WAIT_MS_MAX)
        self._run(PopRequest(connection, request, pop, deadline_ms))

    def peek(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200052: return the messages that a pop would get. Raises Refused, HeaderError."""
        header = _as_pop(QueuePollHeader.parse(request.ext))
        pop = Pop(header, self._check(header))
        attempt = self._attempt(pop)
        if attempt.has_messages:
            self._write(
                connection, request, pop, attempt.selected, self.selector.pop_ms(attempt), 0
            )
        else:
            self._write_nothing(PopRequest(connection, request, pop, 0))

    def polling_info(self, _: PopConnection, request: RemotingCommand) -> RemotingCommand:
        """200055: return the number of waiting pops. Raises HeaderError."""
        header = QueuePollHeader.parse(request.ext)
        where = header.topic, header.consumer_group, header.queue_id
        ext = {"pollingNum": str(self.waiting.count_of(*where))}
        return RemotingCommand.response_to(request, ext=ext)

    # ---- checks ---------------------------------------------------------------------------

    def _check(self, header: PopHeader) -> Filter:
        """Check a pop like Apache's PopMessageProcessor. Returns its filter. Raises Refused."""
        self._context.roles.require_leading()
        name = header.consumer_group
        if not self._config.broker_permission & PERM_READ:
            ip = self._config.broker_ip1
            raise forbidden(f"the broker[{ip}] pop message is forbidden")
        if not 0 < header.count_max <= COUNT_MAX:
            raise invalid(f"maxMsgNums is from 1 to {COUNT_MAX}")
        if not 0 <= header.invisible_ms <= INVISIBLE_MS_MAX:
            raise invalid(f"invisibleTime is from 0 to {INVISIBLE_MS_MAX} ms")
        if max(len(header.attempt_id), len(header.renewed_by)) > NAME_LENGTH_MAX:
            raise invalid(
                f"attemptId and client have at most {NAME_LENGTH_MAX} characters"
            )  # the log stores them
        group = self._permit(header)
        known = (header.topic, name) in self._state.pops.queues
        problem = "" if known else topic_name_problem(pop_retry_topic(header.topic, name))
        if problem:
            raise invalid(f"its retry topic would not be valid: {problem}")
        if group is None:
            self._groups.ensure_bare(name)
        if self._state.pops.batch_count >= BATCHES_MAX:
            raise busy(f"{BATCHES_MAX} pops are unacknowledged")
        return self._filter(header)

    def _permit(self, header: PopHeader) -> SubscriptionGroup | None:
        """Return the pop's group, or None if it is yet to be created. Raises Refused unless group
        and queue are readable. Checked again when a waiting pop runs."""
        name, code = header.consumer_group, ResponseCode
        topic = self._state.topics.existing(header.topic)
        if not topic.readable:
            raise forbidden(f"topic[{header.topic}] is not readable")
        if header.queue_id >= topic.read_queue_count:
            reason = f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
            raise invalid(f"{reason} topicConfig.readQueueNums:[{topic.read_queue_count}]")
        group = self._state.groups.get(name)
        if group is None:
            if not self._config.auto_create_subscription_group:
                reason = f"subscription group [{name}] does not exist"
                raise Refused(code.SUBSCRIPTION_GROUP_NOT_EXIST, reason)
        elif not group.consume_enable:
            raise forbidden(f"subscription group no permission, {name}")
        return group

    def _filter(self, header: PopHeader) -> Filter:
        if not header.expression:
            return ALL
        enabled = self._config.enable_property_filter
        return filter_of(header.expression_type, header.expression, sql_enabled=enabled)

    # ---- pops -----------------------------------------------------------------------------

    def _run(self, pop_request: PopRequest) -> int:
        attempt = self._attempt(pop_request.pop)
        if not pop_request.is_pop:
            if attempt.has_messages or not self._hold(pop_request):
                self._write_availability(pop_request, attempt.has_messages)
        elif attempt.selected:
            self._log_and_answer(pop_request, attempt)
        elif not self._hold(pop_request):
            self._write_nothing(pop_request)
        return WORK_MAX - attempt.work.left

    def _attempt(self, pop: Pop) -> Attempt:
        """Select the pop's messages. Raises Refused if disk or data are bad."""
        try:
            return self.selector.attempt(pop)
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s error=%s", pop.header.topic, error)
            if isinstance(error, OSError):
                self._context.log.read_failed(error, lambda: self.selector.attempt(pop))
            remark = f"[DISK_ERROR] the messages cannot be read here now: {error}"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark, retriable=True) from error

    def _log_and_answer(self, pop_request: PopRequest, attempt: Attempt) -> None:
        header, selected = pop_request.pop.header, attempt.selected
        room = self._has_room
        for one in selected:
            if not room(one.queue_key[0], one.queue_key[1], (one.queue_key[2],)):
                raise offsets_full()
        size = sum(one.size_bytes for one in selected)
        if self._answer_bytes + size > ANSWER_BYTES_MAX:
            raise busy("too many answers to pops are under way")
        pop_ms = self.selector.pop_ms(attempt)
        leadership = self._live.leadership
        # In formerly orderly queues, messages in flight now expire like any.
        ending = [
            one.queue_key
            for one in selected
            if not header.order and self._is_orderly(one.queue_key)
        ]

        def done(error: Exception | None) -> None:
            self._answer_bytes -= size
            for one in selected:
                self._live.finish_take(one.queue_key, leadership)
            if error is not None:
                self._write_error(pop_request, error)
                return
            for queue_key in ending:
                self._deadlines.add_all(queue_key)
            delivered = [one for one in selected if self._is_there(one, pop_ms)]
            for one in delivered:
                self._deadlines.add(one.queue_key, one.key(pop_ms))
            if delivered:
                self.popped_count += sum(len(one.offsets) for one in delivered)
                self._write(
                    pop_request.connection,
                    pop_request.request,
                    pop_request.pop,
                    delivered,
                    pop_ms,
                    attempt.rest,
                )
            elif attempt.has_messages:
                self._write_nothing(pop_request)  # because of a concurrent reset
            else:
                self._continue(pop_request)  # the filter matched nothing

        self._steps.add([step for one in selected for step in one.steps(pop_ms, header)], done)
        self._answer_bytes += size
        for one in selected:
            self._live.start_take(one.queue_key, one.after, one.mark)

    def _is_orderly(self, queue_key: QueueKey) -> bool:
        queue = self._state.pops.get(queue_key)
        return queue is not None and queue.is_orderly

    def _is_there(self, selected: Selection, pop_ms: int) -> bool:
        if not selected.offsets:
            return False
        return self._state.pops.batch(selected.queue_key, selected.key(pop_ms)) is not None

    # ---- waiting --------------------------------------------------------------------------

    def _hold(self, pop_request: PopRequest) -> bool:
        """Hold an empty pop. Returns False if it must be answered now."""
        if pop_request.deadline_ms <= self._context.clock_ms() or self._context.life.stopping:
            return False
        header = pop_request.pop.header
        queue_id = max(header.queue_id, -1)
        waiter = Waiter(
            header.topic,
            header.consumer_group,
            queue_id,
            pop_request.pop.message_filter,
            pop_request.deadline_ms,
            pop_request,
            pop_request.connection,
            kept_bytes(pop_request.request, pop_request.pop.message_filter),
            asks=not pop_request.is_pop,
        )
        return self.waiting.wait(waiter)

    def _again(self, waiter: Waiter[PopRequest]) -> int:
        return self._continue(waiter.pop)

    def _continue(self, pop_request: PopRequest) -> int:
        if not pop_request.connection.is_open:
            return 0
        try:
            try:
                self._context.roles.require_leading()
                self._permit(pop_request.pop.header)
                return self._run(pop_request)
            except Refused as refused:
                self._write_error(pop_request, refused)
        except Exception as error:  # a consumer's request must not fail an apply
            self._context.contained.failed("held_pop", error, pop_request.connection)
        return 0

    def _over(self, waiter: Waiter[PopRequest]) -> None:
        pop_request = waiter.pop
        if not pop_request.connection.is_open:
            return
        if pop_request.is_pop:
            self._write_nothing(pop_request, ResponseCode.POLLING_TIMEOUT)
        else:
            self._write_availability(pop_request, False)

    # ---- answers --------------------------------------------------------------------------

    def _write(
        self,
        connection: PopConnection,
        request: RemotingCommand,
        pop: Pop,
        selected: list[Selection],
        pop_ms: int,
        rest: int,
    ) -> None:
        header = pop.header
        revive = ORDER_REVIVE_QUEUE if header.order else 0
        answer = PopResponseHeader(
            pop_ms,
            header.invisible_ms,
            revive,
            rest,
            ";".join([start_info(*_at(one), one.start) for one in selected if one.offsets]),
            ";".join([offset_info(*_at(one), one.offsets) for one in selected if one.offsets]),
            self._order_counts(selected, pop_ms) if header.order else "",
        )
        buffers: list[bytes] = []
        for one in selected:
            topic = one.queue_key[0]
            if topic != header.topic:
                buffers += [self._with_handles(data, one, header, pop_ms) for data in one.buffers]
            else:
                buffers += one.buffers
        response = RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, "FOUND", answer.to_ext()
        )
        head = encode_command(response)
        size = sum(map(len, buffers))
        if header.renewed_by:
            for one in selected:
                self._deliveries.record(connection, one.queue_key, one.key(pop_ms))
        connection.write_many([_LENGTH.pack(len(head) - 4 + size) + head[4:], *buffers])

    def _order_counts(self, selected: list[Selection], pop_ms: int) -> str:
        counts: list[str] = []
        for one in selected:
            batch = self._state.pops.batch(one.queue_key, one.key(pop_ms))
            if batch is not None and batch.times:
                times = dict(zip(batch.offsets, batch.times, strict=True))
                counts.append(order_info(*_at(one), times))
        return ";".join(counts)

    def _with_handles(
        self, data: bytes, selected: Selection, header: PopHeader, pop_ms: int
    ) -> bytes:
        """Return retries as messages of the popped topic with their handles, like Apache's broker.
        If the handle does not fit, the message keeps the retry topic, and clients build the handle
        themselves."""
        records: list[bytes] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            record = decode_record(data, at, check_body=False)
            handle = Handle(
                selected.start,
                pop_ms,
                header.invisible_ms,
                0,
                selected.queue_key[0].startswith(RETRY_PREFIX),
                self._config.broker_name,
                record.queue_id,
                record.queue_offset,
            )
            properties = decode_properties(record.properties)
            properties[POP_CK] = handle.encode()
            stored = joined(properties)
            if len(stored) <= PROPERTIES_SIZE_BYTES_MAX:
                records.append(
                    encode_record(replace(record, topic=header.topic, properties=stored))
                )
            else:
                records.append(data[at : at + size])
            at += size
        return b"".join(records)

    def _write_nothing(self, pop_request: PopRequest, code: int = 0) -> None:
        header = pop_request.pop.header
        revive = ORDER_REVIVE_QUEUE if header.order else 0
        answer = PopResponseHeader(self._context.wall_ms(), header.invisible_ms, revive, 0)
        if not code:
            in_time = pop_request.deadline_ms > self._context.clock_ms()
            code = ResponseCode.POLLING_FULL if in_time else ResponseCode.POLLING_TIMEOUT
        response = RemotingCommand.response_to(pop_request.request, code, NOTHING, answer.to_ext())
        pop_request.connection.write_many([encode_command(response)])

    def _write_availability(self, pop_request: PopRequest, available: bool) -> None:
        ext = {"hasMsg": "true" if available else "false", "pollingFull": "false"}
        response = RemotingCommand.response_to(pop_request.request, ext=ext)
        pop_request.connection.write_many([encode_command(response)])

    def _write_error(self, pop_request: PopRequest, error: Exception) -> None:
        response = self._refusal(pop_request.request, error)
        pop_request.connection.write_many([encode_command(response)])


def _at(selected: Selection) -> tuple[str, int]:
    return selected.queue_key[0], selected.queue_key[2]


def _as_pop(poll: QueuePollHeader) -> PopHeader:
    return PopHeader(
        poll.consumer_group,
        poll.topic,
        poll.queue_id,
        max(1, min(poll.count_max, COUNT_MAX)),
        0,
        poll.poll_ms,
        order=poll.order,
        attempt_id=poll.attempt_id,
    )
