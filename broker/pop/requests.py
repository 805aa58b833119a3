"""POP_MESSAGE (200050) and what looks at the same queues: PEEK_MESSAGE (200052), NOTIFICATION
(200054), POLLING_INFO (200055).

A pop reads the messages, puts into the log that they are in flight, and answers when that is
committed. So whoever leads then knows of them: nobody else gets them before their time, and they
come again if they are not acknowledged. A consumer that dies, or whose answer is lost, has them for
as long as it said.
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
from ..consume.filters import (
    Filter,
    is_tag,
    parse_expression,
    parse_tags,
    unsupported,
)
from ..consume.group_creation import GroupCreation
from ..consume.long_polling import WAIT_MS_MAX, kept_bytes
from ..consume.offset_commits import no_room
from ..context import Context
from ..errors import Refused, busy
from ..tables.groups import SubscriptionGroup
from ..tables.pops import Place
from ..tables.topics import PERM_READ, topic_name_problem
from .command_batch import StepLog
from .leader_state import Gate, LiveQueues, Told
from .long_polling import Waiter, WaitingPops
from .revive import Deadlines
from .selection import ALL, Attempt, Pop, Repeats, Taken, Taker

log = logging.getLogger("raftmq.broker.pops")

INVISIBLE_MS_MAX = 43_200_000  # 12 h, as Apache's proxy allows
NAME_LENGTH_MAX = 255  # of a client, or of a receive attempt
ANSWER_BYTES_MAX = 64 << 20  # of messages whose pops are in flight
_LENGTH = struct.Struct(">I")
NOTHING = "NO_MESSAGE_IN_QUEUE"


class PopConnection(ClientConnection, Protocol):
    last_active_s: float  # when something arrived last, by the loop's clock

    def write_many(self, frames: list[bytes]) -> bool: ...

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Asked:
    """A pop, or a question whether there is something to pop, and who asked."""

    connection: PopConnection
    request: RemotingCommand
    pop: Pop
    deadline_ms: int

    @property
    def is_pop(self) -> bool:
        return self.request.code == RequestCode.POP_MESSAGE


class Pops:
    """The handlers; one per broker."""

    def __init__(
        self,
        context: Context,
        gate: Gate,
        groups: GroupCreation,
        live: LiveQueues,
        steps: StepLog,
        deadlines: Deadlines,
        told: Told,
        refusal: Callable[[RemotingCommand, Exception], RemotingCommand],
    ) -> None:
        """`refusal` makes the answer for an error."""
        self._refusal = refusal
        self._context = context
        self._config = context.config
        self._state = context.state
        self._gate = gate
        self._groups = groups
        self._live = live
        self._steps = steps
        self._deadlines = deadlines
        self._told = told
        self._taker = Taker(context, live)
        self._repeats = Repeats(context)
        self._answer_bytes = 0
        self.popped_count = 0  # messages
        self.waiting: WaitingPops[Asked] = WaitingPops(
            lambda: context.config.held_pulls_max, context.budgets.kept, self._again, self._over
        )

    def handle(self, connection: PopConnection, request: RemotingCommand) -> None:
        """Answer a pop, now or later. Raises Refused, HeaderError."""
        header = PopHeader.parse(request.ext)
        pop = Pop(header, self._check(header))
        again, pop_ms = self._repeats.of(header)
        if again:
            self._write(connection, request, pop, again, pop_ms, 0)
            return
        poll_ms = min(header.poll_ms, WAIT_MS_MAX) if self._config.long_polling_enable else 0
        deadline_ms = self._context.clock_ms() + poll_ms
        self._run(Asked(connection, request, pop, deadline_ms))

    def notify(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200054: tell, now or later, whether there is something to pop. Raises Refused,
        HeaderError."""
        asked = QueuePollHeader.parse(request.ext)
        header = _as_pop(asked)
        pop = Pop(header, self._check(header))
        deadline_ms = self._context.clock_ms() + min(asked.poll_ms, WAIT_MS_MAX)
        self._run(Asked(connection, request, pop, deadline_ms))

    def peek(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200052: answer with what a pop would get, which changes nothing. Raises Refused,
        HeaderError."""
        header = _as_pop(QueuePollHeader.parse(request.ext))
        pop = Pop(header, self._check(header))
        attempt = self._attempt(pop)
        if attempt.found:
            self._write(connection, request, pop, attempt.taken, self._taker.pop_ms(attempt), 0)
        else:
            self._write_nothing(Asked(connection, request, pop, 0))

    def polling_info(self, _: PopConnection, request: RemotingCommand) -> RemotingCommand:
        """200055: how many pops of the group wait. Raises HeaderError."""
        header = QueuePollHeader.parse(request.ext)
        where = header.topic, header.consumer_group, header.queue_id
        ext = {"pollingNum": str(self.waiting.count_of(*where))}
        return RemotingCommand.response_to(request, ext=ext)

    # ---- checks ---------------------------------------------------------------------------

    def _check(self, header: PopHeader) -> Filter:
        """Check a pop as Apache's PopMessageProcessor does; return its filter. Raises Refused."""
        self._gate.check()
        name, code = header.consumer_group, ResponseCode
        if not self._config.broker_permission & PERM_READ:
            ip = self._config.broker_ip1
            raise Refused(code.NO_PERMISSION, f"the broker[{ip}] pop message is forbidden")
        if not 0 < header.count_max <= COUNT_MAX:
            raise Refused(code.INVALID_PARAMETER, f"maxMsgNums is from 1 to {COUNT_MAX}")
        if not 0 <= header.invisible_ms <= INVISIBLE_MS_MAX:
            words = f"invisibleTime is from 0 to {INVISIBLE_MS_MAX} ms"
            raise Refused(code.INVALID_PARAMETER, words)
        if max(len(header.attempt_id), len(header.renewed_by)) > NAME_LENGTH_MAX:
            words = f"attemptId and client have at most {NAME_LENGTH_MAX} characters"
            raise Refused(code.INVALID_PARAMETER, words)  # they are kept in the log
        group = self._permit(header)
        known = (header.topic, name) in self._state.pops.queues
        problem = "" if known else topic_name_problem(pop_retry_topic(header.topic, name))
        if problem:
            raise Refused(code.INVALID_PARAMETER, f"its retry topic would not be valid: {problem}")
        if group is None:
            self._groups.ensure_bare(name)
        if self._state.pops.batch_count >= self._config.pop_batches_max:
            raise busy(f"popBatchesMax ({self._config.pop_batches_max}) pops are unacknowledged")
        return self._filter(header)

    def _permit(self, header: PopHeader) -> SubscriptionGroup | None:
        """Return the pop's group, None if it is yet to be created. Raises Refused unless group and
        queue may be read now; asked again when a pop that waited goes on."""
        name, code = header.consumer_group, ResponseCode
        topic = self._state.topics.existing(header.topic)
        if not topic.readable:
            raise Refused(code.NO_PERMISSION, f"topic[{header.topic}] is not readable")
        if header.queue_id >= topic.read_queue_count:
            words = f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
            raise Refused(
                code.INVALID_PARAMETER,
                f"{words} topicConfig.readQueueNums:[{topic.read_queue_count}]",
            )
        group = self._state.groups.get(name)
        if group is None:
            if not self._config.auto_create_subscription_group:
                words = f"subscription group [{name}] does not exist"
                raise Refused(code.SUBSCRIPTION_GROUP_NOT_EXIST, words)
        elif not group.consume_enable:
            words = f"subscription group no permission, {name}"
            raise Refused(code.NO_PERMISSION, words)
        return group

    def _filter(self, header: PopHeader) -> Filter:
        if not header.expression:
            return ALL
        if is_tag(header.expression_type):
            return Filter(parse_tags(header.expression))
        if not self._config.enable_property_filter:
            raise unsupported(header.expression_type)
        return Filter(matcher=parse_expression(header.expression_type, header.expression))

    # ---- pops -----------------------------------------------------------------------------

    def _run(self, asked: Asked) -> int:
        """Return the work of the pop's filter."""
        attempt = self._attempt(asked.pop)
        if not asked.is_pop:
            if attempt.found or not self._hold(asked):
                self._tell_whether(asked, attempt.found)
        elif attempt.taken:
            self._take(asked, attempt)
        elif not self._hold(asked):
            self._write_nothing(asked)
        return WORK_MAX - attempt.work.left

    def _attempt(self, pop: Pop) -> Attempt:
        """Return what the pop gets. Raises Refused if disk or data are bad."""
        try:
            return self._taker.attempt(pop)
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s error=%s", pop.header.topic, error)
            if isinstance(error, OSError):
                self._context.log.read_failed(error, lambda: self._taker.attempt(pop))
            remark = f"[DISK_ERROR] the messages cannot be read here now: {error}"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark, retriable=True) from error

    def _take(self, asked: Asked, attempt: Attempt) -> None:
        """Have it put into the log that the messages are in flight, then answer."""
        header, taken = asked.pop.header, attempt.taken
        room = self._gate.has_room
        for one in taken:
            if not room(one.place[0], one.place[1], (one.place[2],)):
                raise no_room()
        size = sum(one.size_bytes for one in taken)
        if self._answer_bytes + size > ANSWER_BYTES_MAX:
            raise busy("too many answers to pops are under way")
        pop_ms = self._taker.pop_ms(attempt)
        leadership = self._live.leadership
        # Queues that were popped in order: what is in flight there comes again as everything else.
        ending = [one.place for one in taken if not header.order and self._is_orderly(one.place)]

        def done(error: Exception | None) -> None:
            self._answer_bytes -= size
            for one in taken:
                self._live.end_take(one.place, leadership)
            if error is not None:
                self._write_error(asked, error)
                return
            for place in ending:
                self._deadlines.add_all(place)
            found = [one for one in taken if self._is_there(one, pop_ms)]
            for one in found:
                self._deadlines.add(one.place, one.key(pop_ms))
            if found:
                self.popped_count += sum(len(one.offsets) for one in found)
                self._write(asked.connection, asked.request, asked.pop, found, pop_ms, attempt.rest)
            elif attempt.found:
                self._write_nothing(asked)  # a reset came between
            else:
                self._go_on(asked)  # only what its filter does not want was passed over

        self._steps.add([step for one in taken for step in one.steps(pop_ms, header)], done)
        self._answer_bytes += size
        for one in taken:
            self._live.begin_take(one.place, one.after, one.mark)

    def _is_orderly(self, place: Place) -> bool:
        queue = self._state.pops.get(place)
        return queue is not None and queue.is_orderly

    def _is_there(self, taken: Taken, pop_ms: int) -> bool:
        if not taken.offsets:
            return False
        return self._state.pops.batch(taken.place, taken.key(pop_ms)) is not None

    # ---- waiting --------------------------------------------------------------------------

    def _hold(self, asked: Asked) -> bool:
        """Keep a pop that found nothing; return False if it is to be answered now."""
        if asked.deadline_ms <= self._context.clock_ms() or self._context.life.stopping:
            return False
        header = asked.pop.header
        queue_id = max(header.queue_id, -1)
        waiter = Waiter(
            header.topic,
            header.consumer_group,
            queue_id,
            asked.pop.wanted,
            asked.deadline_ms,
            asked,
            asked.connection,
            kept_bytes(asked.request, asked.pop.wanted),
            asks=not asked.is_pop,
        )
        return self.waiting.wait(waiter)

    def _again(self, waiter: Waiter[Asked]) -> int:
        return self._go_on(waiter.pop)

    def _go_on(self, asked: Asked) -> int:
        """Return the work of the pop's filter."""
        if not asked.connection.is_open:
            return 0
        try:
            try:
                self._gate.check()
                self._permit(asked.pop.header)
                return self._run(asked)
            except Refused as refused:
                self._write_error(asked, refused)
        except Exception as error:  # nothing that a consumer asks for may fail an apply
            self._context.contained.failed("held_pop", error, asked.connection)
        return 0

    def _over(self, waiter: Waiter[Asked]) -> None:
        asked = waiter.pop
        if not asked.connection.is_open:
            return
        if asked.is_pop:
            self._write_nothing(asked, ResponseCode.POLLING_TIMEOUT)
        else:
            self._tell_whether(asked, False)

    # ---- answers --------------------------------------------------------------------------

    def _write(
        self,
        connection: PopConnection,
        request: RemotingCommand,
        pop: Pop,
        found: list[Taken],
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
            ";".join([start_info(*_at(one), one.start) for one in found if one.offsets]),
            ";".join([offset_info(*_at(one), one.offsets) for one in found if one.offsets]),
            self._order_counts(found, pop_ms) if header.order else "",
        )
        buffers: list[bytes] = []
        for one in found:
            topic = one.place[0]
            if topic != header.topic:
                buffers += [self._as_asked(data, one, header, pop_ms) for data in one.buffers]
            else:
                buffers += one.buffers
        response = RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, "FOUND", answer.to_ext()
        )
        head = encode_command(response)
        size = sum(map(len, buffers))
        if header.renewed_by:
            for one in found:
                self._told.note(connection, one.place, one.key(pop_ms))
        connection.write_many([_LENGTH.pack(len(head) - 4 + size) + head[4:], *buffers])

    def _order_counts(self, found: list[Taken], pop_ms: int) -> str:
        parts: list[str] = []
        for one in found:
            batch = self._state.pops.batch(one.place, one.key(pop_ms))
            if batch is not None and batch.times:
                times = dict(zip(batch.offsets, batch.times, strict=True))
                parts.append(order_info(*_at(one), times))
        return ";".join(parts)

    def _as_asked(self, data: bytes, taken: Taken, header: PopHeader, pop_ms: int) -> bytes:
        """Return retries as messages of the topic that was popped, with their handles, as Apache's
        broker does: its clients could not tell them from others. One whose properties have no room
        for the handle stays a message of the retry topic, by which clients make it themselves."""
        records: list[bytes] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            record = decode_record(data, at, check_body=False)
            handle = Handle(
                taken.start,
                pop_ms,
                header.invisible_ms,
                0,
                taken.place[0].startswith(RETRY_PREFIX),
                self._config.broker_name,
                record.queue_id,
                record.queue_offset,
            )
            properties = decode_properties(record.properties)
            properties[POP_CK] = handle.encode()
            told = joined(properties)
            if len(told) <= PROPERTIES_SIZE_BYTES_MAX:
                records.append(encode_record(replace(record, topic=header.topic, properties=told)))
            else:
                records.append(data[at : at + size])
            at += size
        return b"".join(records)

    def _write_nothing(self, asked: Asked, code: int = 0) -> None:
        header = asked.pop.header
        revive = ORDER_REVIVE_QUEUE if header.order else 0
        answer = PopResponseHeader(self._context.wall_ms(), header.invisible_ms, revive, 0)
        if not code:
            in_time = asked.deadline_ms > self._context.clock_ms()
            code = ResponseCode.POLLING_FULL if in_time else ResponseCode.POLLING_TIMEOUT
        response = RemotingCommand.response_to(asked.request, code, NOTHING, answer.to_ext())
        asked.connection.write_many([encode_command(response)])

    def _tell_whether(self, asked: Asked, found: bool) -> None:
        ext = {"hasMsg": "true" if found else "false", "pollingFull": "false"}
        response = RemotingCommand.response_to(asked.request, ext=ext)
        asked.connection.write_many([encode_command(response)])

    def _write_error(self, asked: Asked, error: Exception) -> None:
        response = self._refusal(asked.request, error)
        asked.connection.write_many([encode_command(response)])


def _at(taken: Taken) -> tuple[str, int]:
    return taken.place[0], taken.place[2]


def _as_pop(asked: QueuePollHeader) -> PopHeader:
    return PopHeader(
        asked.consumer_group,
        asked.topic,
        asked.queue_id,
        max(1, min(asked.count_max, COUNT_MAX)),
        0,
        asked.poll_ms,
        order=asked.order,
        attempt_id=asked.attempt_id,
    )
