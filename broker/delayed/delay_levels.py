"""Delivery of delayed messages, by the leader or a classic master.

Every tick, and after each committed delivery, due messages are read from the queues of their levels
in SCHEDULE_TOPIC_XXXX, by the due time in the entries. They are stored in their targets, in the
same frame as the level's progress, so the next leader continues without loss or duplicates. A level
has at most one delivery in flight.

While a draining group's timer messages are moved to another group (broker.delayed.moves), messages
due later than SOON_MS become timer messages, in the same way as due messages are delivered.

A message is due at its store time plus the level's delay, by the clock of the leader that stored
it; the current leader compares with its own. It is late by the delay at most, because a message
seen in the queue for the delay, by a monotonic clock, is due.

Messages for a deleted topic or queue are stored as well, like in Apache's broker.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from raftmq.remoting.codes import ResponseCode
from raftmq.store.dispatch import QUEUE_ENTRY, SCHEDULE_TOPIC
from raftmq.store.errors import StoreError
from raftmq.store.record import RecordError, decode_record, walk_records

from ..component import Service, at_each_leadership, next_turn
from ..context import Context
from ..errors import Refused
from ..messages.send_request import Outgoing, as_stored
from ..messages.timer_message import waiting_until
from ..scheduler import IDLE_MS, Chore
from ..send.callbacks import is_unknown
from ..send.service import SendPath
from ..send.topic_redirect import delivered
from ..tables.state import delay_progress

if TYPE_CHECKING:
    from raftmq.store.consumequeue.consumequeue import ConsumeQueue

log = logging.getLogger("raftmq.broker.delay")

COUNT_MAX = 128  # messages per turn of the loop, over all levels, about 4 ms
BYTES_MAX = 512 * 1024  # per delivery of a level; a larger message is sent alone
RETRY_MS = 500  # after a failed read or a rejection
SOON_MS = 60_000  # messages due earlier are not moved
HISTORY_MAX = 4_096
HISTORY_STEP_MS = 500  # between two sightings


class LevelView(NamedTuple):
    """The state of a level, for reports."""

    level: int
    delay_ms: int
    offset: int  # of the next message
    max_offset: int
    late_ms: int  # delay of the next message beyond its due time


class OffsetHistory:
    """Times at which a queue reached an offset, to find messages older than `delay_ms`."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._apart_ms = max(HISTORY_STEP_MS, delay_ms // (HISTORY_MAX - 1) + 1)
        self._marks: deque[tuple[int, int]] = deque(maxlen=HISTORY_MAX)  # (end, clock)

    def record(self, end: int, now_ms: int) -> None:
        marks = self._marks
        if not marks or (end > marks[-1][0] and now_ms - marks[-1][1] >= self._apart_ms):
            marks.append((end, now_ms))

    def waited_before(self, now_ms: int) -> int:
        """Return the offset before which all messages have waited for the delay."""
        marks, then_ms = self._marks, now_ms - self._delay_ms
        while len(marks) > 1 and marks[1][1] <= then_ms:
            marks.popleft()
        return marks[0][0] if marks and marks[0][1] <= then_ms else 0

    def clear(self) -> None:
        self._marks.clear()


class Level:
    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.history = OffsetHistory(delay_ms)
        self.under_way: int | None = None  # the offset behind the delivery in flight
        self.pause_until_ms = 0
        self.count_max = COUNT_MAX
        self.min_offset = 0  # of its queue, at the last check


class DelayService:
    """Delivers delayed messages. All methods run on the loop without waiting."""

    def __init__(
        self,
        context: Context,
        sends: SendPath,
        soon: Callable[[Callable[[], None]], object] = next_turn,
    ) -> None:
        """`soon(function)` calls it in another turn of the loop."""
        levels_ms = context.config.delay_levels_ms
        kept_ms = 3_600_000 * context.config.file_reserved_time
        if kept_ms <= max(levels_ms):
            log.warning(
                "delay_longer_than_kept ms=%d kept=%d: fileReservedTime", max(levels_ms), kept_ms
            )
        self._context = context
        self._levels = [Level(number, ms) for number, ms in enumerate(levels_ms, 1)]
        self._table = context.state.delays
        self._sends = sends
        self._queue = context.store.queues.queue
        self._soon = soon
        self._clock_ms = context.clock_ms
        self._wall_ms = context.wall_ms
        self._leadership = 0  # its number, to ignore callbacks of earlier leaderships
        self._first = 0  # the first level of this tick
        self.delivered_count = 0

    def service(self) -> Service:
        return Service(
            chores=[Chore("delayed", 0, self.tick, self._rest_ms)],
            role_changed=at_each_leadership(self.leadership_changed),
        )

    def leadership_changed(self) -> None:
        """Drop the deliveries in flight. A ready leader's table has their outcome."""
        self._leadership += 1
        for level in self._levels:
            level.under_way = None
            level.pause_until_ms = 0
            level.history.clear()

    def tick(self) -> None:
        """Deliver due messages, at most COUNT_MAX."""
        if not self._context.roles.leading:
            return
        now_ms, left = self._clock_ms(), COUNT_MAX
        count = len(self._levels)
        self._first = (self._first + 1) % count
        for at in range(self._first, self._first + count):
            level = self._levels[at % count]
            queue = self._queue(SCHEDULE_TOPIC, level.number - 1)
            if queue is None:
                continue
            level.history.record(queue.max_offset, now_ms)
            if self._is_free(level, now_ms) and left:
                left -= self._deliver(level, queue, left, now_ms)

    def _rest_ms(self) -> float:
        """Return the time until the first message is due. Raises OSError, StoreError."""
        rest_ms = IDLE_MS
        if not self._context.roles.leading:
            return rest_ms
        now_ms, wall_ms = self._clock_ms(), self._wall_ms()
        for level in self._levels:
            queue = self._queue(SCHEDULE_TOPIC, level.number - 1)
            busy = level.under_way is not None and self._table.get(level.number) < level.under_way
            if queue is None or busy:
                continue
            for _, _, due_ms in QUEUE_ENTRY.iter_unpack(queue.entries(self._next(level, queue), 1)):
                due_in_ms = 0 if self._moves(due_ms, wall_ms) else due_ms - wall_ms
                rest_ms = min(rest_ms, max(due_in_ms, level.pause_until_ms - now_ms))
        return rest_ms

    def view(self) -> list[LevelView]:
        """Return all levels with messages, on any replica. Raises OSError, StoreError."""
        views: list[LevelView] = []
        wall_ms = self._wall_ms()
        for level in self._levels:
            queue = self._queue(SCHEDULE_TOPIC, level.number - 1)
            if queue is None:
                continue
            offset, late_ms = self._next(level, queue), 0
            for _, _, due_ms in QUEUE_ENTRY.iter_unpack(queue.entries(offset, 1)):
                late_ms = max(0, wall_ms - due_ms)
            views.append(LevelView(level.number, level.delay_ms, offset, queue.max_offset, late_ms))
        return views

    def _is_free(self, level: Level, now_ms: int) -> bool:
        if level.under_way is not None and self._table.get(level.number) >= level.under_way:
            level.under_way = None  # its unknown outcome is resolved
        return level.under_way is None and now_ms >= level.pause_until_ms

    def _next(self, level: Level, queue: ConsumeQueue) -> int:
        """Return the offset of the next message, within the bounds of the log."""
        return min(max(self._table.get(level.number), queue.min_offset), queue.max_offset)

    def _deliver(self, level: Level, queue: ConsumeQueue, count_max: int, now_ms: int) -> int:
        self._log_lost(level, queue)
        offset = self._next(level, queue)
        count_max = min(count_max, level.count_max)
        get_messages = self._context.store.reads.get_messages

        def read() -> tuple[int, list[Outgoing]]:
            count = self._due(level, queue, offset, count_max, now_ms)
            if not count:
                return offset, []
            result = get_messages(SCHEDULE_TOPIC, queue.queue_id, offset, count, BYTES_MAX)
            return self._messages(b"".join(result.buffers), queue, offset, result.next_offset)

        try:
            end, messages = read()
        except (OSError, StoreError, RecordError) as error:
            log.error("delayed_unread level=%d offset=%d: %s", level.number, offset, error)
            level.pause_until_ms = now_ms + RETRY_MS
            if isinstance(error, OSError):
                self._context.log.read_failed(error, read)
            return 0
        if end > offset:
            self._store(level, messages, end, now_ms)
        return len(messages)

    def _log_lost(self, level: Level, queue: ConsumeQueue) -> None:
        """Log undelivered messages that retention deleted."""
        if queue.min_offset != level.min_offset:
            level.min_offset = queue.min_offset
            lost = level.min_offset - self._table.get(level.number)
            if lost > 0:
                log.error("delayed_lost level=%d count=%d: retention took them", level.number, lost)

    def _due(
        self, level: Level, queue: ConsumeQueue, offset: int, count_max: int, now_ms: int
    ) -> int:
        wall_ms, waited = self._wall_ms(), level.history.waited_before(now_ms)
        count = 0
        for size in (1, count_max):  # the first is usually not due
            count = 0
            for _, _, due_ms in QUEUE_ENTRY.iter_unpack(queue.entries(offset, size)):
                is_due = due_ms <= wall_ms or offset + count < waited
                if not is_due and not self._moves(due_ms, wall_ms):
                    return count
                count += 1
        return count

    @property
    def _moving(self) -> bool:
        moving = self._context.state.group.moving
        return moving.timers and bool(moving.to)

    def _moves(self, due_ms: int, wall_ms: int) -> bool:
        return due_ms > wall_ms + SOON_MS and self._moving

    def _messages(
        self, data: bytes, queue: ConsumeQueue, offset: int, end: int
    ) -> tuple[int, list[Outgoing]]:
        """Return the offset behind the records that can be stored, and their messages: as timer
        messages those that move. Raises RecordError."""
        messages: list[Outgoing] = []
        wall_ms = self._wall_ms()
        entries = queue.entries(offset, end - offset) if self._moving else b""
        due = [due_ms for _, _, due_ms in QUEUE_ENTRY.iter_unpack(entries)]
        walk = walk_records(data)
        for at, _ in walk:
            record = decode_record(data, at, check_body=False)
            due_ms = due[record.queue_offset - offset] if due else 0
            if self._moves(due_ms, wall_ms):
                message = waiting_until(as_stored(record), due_ms)
                if message is None:  # its properties are too long; it waits here
                    return record.queue_offset, messages
                messages.append(message)
                continue
            try:
                messages.append(delivered(as_stored(record)))
            except ValueError as error:  # as in Apache's broker
                log.error("delayed_without_target position=%d: %s", record.physical_offset, error)
        if walk.end != len(data):
            raise RecordError(walk.stop, walk.detail)
        return end, messages

    def _store(self, level: Level, messages: list[Outgoing], end: int, now_ms: int) -> None:
        leadership = self._leadership

        def ended(error: Exception | None) -> None:
            if leadership != self._leadership:
                return
            if error is None:
                level.under_way = None
                level.count_max = COUNT_MAX
                self.delivered_count += len(messages)
                self._soon(self.tick)
            elif not is_unknown(error):
                level.under_way = None
                level.pause_until_ms = self._clock_ms() + RETRY_MS

        command = delay_progress(level.number, end)
        level.under_way = end
        if not messages:
            self._context.log.propose_then(command, ended)
            return
        try:
            self._sends.store(messages, command, ended)
        except Refused as refused:
            level.under_way = None
            self._refused(level, messages, end, refused, now_ms)
            return
        self._sends.wake()

    def _refused(
        self, level: Level, messages: list[Outgoing], end: int, refused: Refused, now_ms: int
    ) -> None:
        if refused.code != ResponseCode.MESSAGE_ILLEGAL:
            level.pause_until_ms = now_ms + RETRY_MS
        elif len(messages) > 1:
            level.count_max = 1  # to isolate the bad message
        else:  # from a store with larger messages; skip it, because it would block the level
            log.error("delayed_undeliverable level=%d: %s", level.number, refused.remark)
            self._store(level, [], end, now_ms)
