"""Delivery of timer messages, by the leader or a classic master.

Every replica keeps a wheel of waiting messages (broker.tables.timer_wheel), fed from the timer
topic. The leader reads due messages and stores them in their targets, in the same frame as the
progress. So the next leader continues from the log, without loss or duplicates, and never early by
its clock. After a jump of the clock, deliveries pause for Durations.timer_hold, in which peers may
object and replace the leader.

A message may wait longer than its segment is kept. After half of `fileReservedTime`, or when its
segment is to be deleted (`spare`), it is stored again at the end of the queue; retention waits for
that. All waiting messages are stored again if the progress is ahead of the clock by AHEAD_MS,
because a leader's clock was ahead. This restores the order by time; deliveries pause. While a
message is unreadable, late messages are delivered in the order of the queue instead. A follower
with a fuller disk than its leader's waits for the leader's deletion; a classic slave does not
(broker.checkpointer).

A draining group's messages move to another group (broker.delayed.moves) in windows, from the first
waiting message on (`open_window`). The floor of the progress then excludes them here, and retention
waits until the window is closed.

A recall (TIMER_DEL_UNIQKEY) waits for the same slot as its message, which is then skipped. While a
recall is in flight, its message waits. Due messages cannot be recalled.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from raftmq.remoting.codes import ResponseCode
from raftmq.store.commitlog.commitlog import ReadBudget
from raftmq.store.dispatch import QUEUE_ENTRY, TIMER_TOPIC, timer_code
from raftmq.store.errors import StoreDamaged, StoreError
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, RecordError, decode_record

from ..component import Service, at_each_leadership, next_turn
from ..context import Context
from ..errors import Refused, busy
from ..messages.send_request import Outgoing, as_stored
from ..messages.timer_message import Key, key_of, recalls, rolled
from ..scheduler import IDLE_MS, Chore
from ..send.callbacks import Completion, Done, is_unknown
from ..send.service import SendPath
from ..send.topic_redirect import delivered
from ..tables.broker_group import Window, move
from ..tables.state import several, timer_progress
from ..tables.timer_wheel import Progress, TimerWheel, Waiting

if TYPE_CHECKING:
    from raftmq.store.consumequeue.consumequeue import ConsumeQueue

log = logging.getLogger("raftmq.broker.timers")

COUNT_MAX = 128  # messages per delivery, about 4 ms
BYTES_MAX = 512 * 1024  # per delivery; a larger message is sent alone
TAKE_MAX = 4_096  # entries per tick, about 5 ms
RETRY_MS = 500  # after a failed read or a rejection
RECALL_MS = 10  # while due messages wait for recalls in flight
AGE_CHECK_MS = 10_000
STEP_MS = 2_000  # of wall clock against monotonic clock
AHEAD_MS = 10_000  # tolerated progress ahead of the clock
NO_TIME_BELOW_MS = 10**11  # 1973; smaller values are tags codes of an Apache broker


class TimerView(NamedTuple):
    """The state of the timer messages, for reports."""

    waiting: int
    late_ms: int  # delay of the next message beyond its due time
    offset: int  # of the first waiting message, or slightly less
    max_offset: int


class TimerService:
    """Delivers timer messages. All methods run on the loop without waiting."""

    def __init__(
        self,
        context: Context,
        sends: SendPath,
        wheel: TimerWheel,
        soon: Callable[[Callable[[], None]], object] = next_turn,
    ) -> None:
        """`wheel` is empty; its count limits sends. `soon(function)` calls in another turn."""
        self.timing = sends.redirects.timing
        self._context = context
        self._table = context.state.delays
        self._sends = sends
        self._queue = context.store.queues.queue
        self._reads = context.store.reads
        self._soon = soon
        self._clock_ms = context.clock_ms
        self.wheel = wheel
        self._recalls: dict[int, list[int]] = {}  # slot → offsets of recalls
        self._recalling: Counter[tuple[int, Key]] = Counter()  # recalls in flight by slot and key
        # offsets, keys; a cache for a slot
        self._recalled_by: tuple[Sequence[int], set[Key]] = ((), set())
        self._leadership = 0  # its number, to ignore callbacks of earlier leaderships
        self._under_way: Progress | None = None
        self._popped: list[Waiting] = []  # messages in flight
        self.is_opening = False  # a window is in flight
        self._again: Callable[[], object] = lambda: None  # repeats the last read after an error
        self._pause_until_ms = 0
        self._step_until_ms = 0  # no deliveries before, after a clock jump
        self._lead_ms = self._wall_lead_ms()
        self._count_max = COUNT_MAX
        self._roll_next = False
        self._roll_position = 0  # retention waits to delete up to this CommitLog offset
        self._roll_offset = 0  # messages before this queue offset are old
        self._reorder_offset = 0  # restores the time order behind this queue offset; 0: not needed
        self._reorder_from_ms = 0  # retry no earlier, after a read error
        self._age_due_ms = 0
        self.delivered_count = 0
        self.rolled_count = 0

    def service(self) -> Service:
        return Service(
            chores=[Chore("timers", 0, self.tick, self._rest_ms)],
            role_changed=at_each_leadership(self.leadership_changed),
        )

    def leadership_changed(self) -> None:
        """Drop the delivery in flight. A ready leader's table has its outcome."""
        self._leadership += 1
        self._end_move()
        self._recalling.clear()
        self._pause_until_ms = 0
        self._count_max = COUNT_MAX
        self._reorder_offset = self._reorder_from_ms = 0

    def tick(self) -> None:
        """Read new entries and progress, and deliver at most COUNT_MAX due messages."""
        now_ms = self._clock_ms()
        self._check_clock_step(now_ms)
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None:
            return
        try:
            self._follow(queue)
            if now_ms < self._held_until_ms or not self._is_free():
                return
            self._check_age(now_ms)
            self._check_ahead(now_ms)
            moves = [self._deliver, self._roll]
            if self._roll_next or self._reorder_offset:
                moves.reverse()
            self._roll_next = not self._roll_next
            if not moves[0](queue) and not self._reorder_offset:
                moves[1](queue)
        except (OSError, StoreError, RecordError) as error:
            log.error("timers_unread: %s", error)
            self._end_move()
            self._pause_until_ms = now_ms + RETRY_MS
            self._reorder_offset, self._reorder_from_ms = 0, now_ms + 2 * RETRY_MS
            if isinstance(error, OSError):
                self._context.log.read_failed(error, self._again)

    def _rest_ms(self) -> float:
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None:
            return IDLE_MS
        pause_ms = self._held_until_ms - self._clock_ms()
        if self.wheel.next_offset < queue.max_offset or self.wheel.progress != self._table.timer:
            return pause_ms
        due_ms = self.wheel.next_due_ms
        if due_ms is None or not self._is_free():
            return IDLE_MS
        if self.wheel.ahead_ms(self.timing.wall_ms()) > AHEAD_MS:
            return pause_ms  # an earlier leader's clock was ahead
        return max(pause_ms, due_ms + 1 - self.timing.wall_ms())

    @property
    def _held_until_ms(self) -> int:
        return max(self._pause_until_ms, self._step_until_ms)

    def _wall_lead_ms(self) -> int:
        return self.timing.wall_ms() - self._clock_ms()

    def _check_clock_step(self, now_ms: int) -> None:
        lead_ms = self._wall_lead_ms()
        if lead_ms > self._lead_ms + STEP_MS:
            self._step_until_ms = now_ms + self._context.durations.timer_hold
            log.warning("timers_held step_ms=%d: the clock jumped ahead", lead_ms - self._lead_ms)
        self._lead_ms = lead_ms

    @property
    def is_read(self) -> bool:
        """False while a new leader still reads the waiting messages."""
        queue = self._queue(TIMER_TOPIC, 0)
        return queue is None or self.wheel.next_offset >= queue.max_offset

    def view(self) -> TimerView:
        """Return the state of the timer messages, on any replica. Raises OSError, StoreError."""
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None:
            return TimerView(0, 0, 0, 0)
        due_ms, late_ms = self.wheel.next_due_ms, 0
        if due_ms is not None:
            late_ms = max(0, self.timing.wall_ms() - 1 - due_ms)
        return TimerView(self.wheel.count, late_ms, self.wheel.first_offset, queue.max_offset)

    def spare(self, position: int) -> int:
        """Return the offset before which retention may delete. Raises OSError, StoreError."""
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None:
            return position
        windows = self._context.state.group.moving.windows
        starts = [one.start for one in windows if one.topic == TIMER_TOPIC]
        first = max(min([self.wheel.first_offset, *starts]), queue.min_offset)
        if self.wheel.next_offset < queue.max_offset:  # limited by the entries read
            first = max(min(first, self.wheel.next_offset), queue.min_offset)
        for at, _, _ in QUEUE_ENTRY.iter_unpack(queue.entries(first, 1)):
            if at < position:
                self._roll_position = max(self._roll_position, position)
                return int(at)
        return position

    def recalling(self, slot_ms: int, key: Key) -> Callable[[], None]:
        """Record a recall in flight. Returns the function to call at its end; a stored recall is in
        the queue by then."""
        recalled, leadership = (slot_ms, key), self._leadership
        self._recalling[recalled] += 1

        def ended() -> None:
            if leadership == self._leadership:
                self._recalling[recalled] -= 1
                if not self._recalling[recalled]:
                    del self._recalling[recalled]

        return ended

    def is_delivered(self, slot_ms: int) -> bool:
        """Return True if messages of this slot may have been delivered."""
        progress = self._under_way or self._table.timer
        return slot_ms <= progress.due_ms

    # ---- waiting messages ------------------------------------------------------------------

    def _follow(self, queue: ConsumeQueue) -> None:
        """Read new entries of the queue, and the applied progress."""
        wheel, table = self.wheel, self._table.timer
        if self._reorder_offset and table.end == table.floor >= self._reorder_offset:
            self._reorder_offset = 0  # the order is restored
        if queue.max_offset < wheel.next_offset or table < wheel.progress:
            log.info("timers_rebuilt end=%d taken=%d", queue.max_offset, wheel.next_offset)
            self._end_move()
            wheel.clear(table)  # the send path keeps using this wheel
            self._recalls.clear()
        if table != wheel.progress:
            self._end_move()  # its unknown outcome is resolved
            wheel.settle(table)
        wheel.skip_to(max(table.floor, queue.min_offset))
        offset = wheel.next_offset
        self._again = lambda: queue.entries(offset, TAKE_MAX)
        for at, _, code in QUEUE_ENTRY.iter_unpack(queue.entries(offset, TAKE_MAX)):
            if abs(code) < NO_TIME_BELOW_MS:
                code = timer_code(decode_properties(self._record(at, offset).properties))
            if wheel.take(offset, abs(code)) and code < 0:
                self._recalls.setdefault(-code, []).append(offset)
            offset += 1
        waits_late = wheel.waits_late or bool(self._popped)
        if offset >= queue.max_offset and not waits_late:  # else it may belong to a past slot
            for slot_ms in [slot_ms for slot_ms in self._recalls if slot_ms < table.due_ms]:
                del self._recalls[slot_ms]

    def _is_free(self) -> bool:
        """Return True if deliveries may start, after the whole queue was read."""
        return self._context.roles.leading and self._under_way is None and self.is_read

    def _record(
        self, position: int, offset: int, budget: ReadBudget | None = None
    ) -> MessageRecord:
        """Read a timer message. Raises RecordError, OSError, StoreError (also without budget)."""
        data = self._reads.message_at(position, budget)
        record = None if data is None else decode_record(data, check_body=False)
        if record is None or record.topic != TIMER_TOPIC or record.queue_offset != offset:
            raise StoreDamaged(position, f"not timer message {offset}")
        return record

    # ---- deliveries -------------------------------------------------------------------------

    def _deliver(self, queue: ConsumeQueue) -> bool:
        """Start a delivery of due messages. Returns True if started."""
        popped = self.wheel.pop(self.timing.wall_ms(), self._count_max)
        if not popped:
            return False
        self._popped = popped
        self._again = lambda: self._read(queue, popped)
        messages, count = self._read(queue, popped)
        self.wheel.put_back(popped[count:])
        del popped[count:]
        if not popped:
            self._pause_until_ms = self._clock_ms() + RECALL_MS
            return False
        self._move(messages, self.wheel.after(popped), len(messages), 0)
        return True

    def _read(self, queue: ConsumeQueue, waiting: Sequence[Waiting]) -> tuple[list[Outgoing], int]:
        """Return the messages to deliver, and the entries handled, within a delivery's limits."""
        messages: list[Outgoing] = []
        size, budget = 0, ReadBudget()
        for count, (due_ms, offset) in enumerate(waiting):
            entries = queue.entries(offset, 1)
            if not entries:
                log.error("timer_lost offset=%d: the log does not have it any more", offset)
                continue
            at, record_size, _ = QUEUE_ENTRY.unpack(entries)
            size += record_size
            if count and size > BYTES_MAX:
                return messages, count
            try:
                message = as_stored(self._record(at, offset, budget))
            except StoreDamaged:
                if budget.spent:
                    return messages, count
                raise
            if recalls(message) is not None:
                continue
            key = key_of(message) if self._recalling or due_ms in self._recalls else None
            if key is not None and (due_ms, key) in self._recalling:
                return messages, count
            if key is not None and self._is_recalled(queue, due_ms, key):
                log.info("timer_recalled offset=%d", offset)
                continue
            try:
                messages.append(delivered(message))
            except (ValueError, KeyError) as error:
                log.error("timer_without_target position=%d: %s", at, error)
        return messages, len(waiting)

    def _is_recalled(self, queue: ConsumeQueue, slot_ms: int, key: Key) -> bool:
        offsets = self._recalls.get(slot_ms, ())
        if self._recalled_by[0] != tuple(offsets):
            keys: set[Key] = set()
            for offset in offsets:
                for at, _, _ in QUEUE_ENTRY.iter_unpack(queue.entries(offset, 1)):
                    recalled = recalls(as_stored(self._record(at, offset)))
                    if recalled is not None:
                        keys.add(recalled)
            self._recalled_by = tuple(offsets), keys
        return key in self._recalled_by[1]

    # ---- stored once more -------------------------------------------------------------------

    def _check_age(self, now_ms: int) -> None:
        if now_ms >= self._age_due_ms:
            self._age_due_ms = now_ms + AGE_CHECK_MS
            kept_ms = 3_600_000 * self._context.config.file_reserved_time
            since_ms = self.timing.wall_ms() - kept_ms // 2
            self._again = lambda: self._reads.offset_by_time(TIMER_TOPIC, 0, since_ms)
            self._roll_offset = self._reads.offset_by_time(TIMER_TOPIC, 0, since_ms)

    def _check_ahead(self, now_ms: int) -> None:
        ahead_ms = self.wheel.ahead_ms(self.timing.wall_ms())
        if not self._reorder_offset and ahead_ms > AHEAD_MS and now_ms >= self._reorder_from_ms:
            self._reorder_offset = self.wheel.next_offset
            log.warning("timers_ahead seconds=%d waiting=%d", ahead_ms // 1000, self.wheel.count)

    def _roll(self, queue: ConsumeQueue) -> bool:
        """Start storing messages again that are old, block retention, or restore the time order.
        Returns True if started."""
        reorder_offset = self._reorder_offset
        first_offset = offset = max(self.wheel.first_offset, queue.min_offset)
        self._again = lambda: queue.entries(first_offset, TAKE_MAX)
        progress = self._table.timer
        messages: list[Outgoing] = []
        size = 0
        for at, record_size, code in QUEUE_ENTRY.iter_unpack(queue.entries(offset, TAKE_MAX)):
            if offset >= max(self._roll_offset, reorder_offset) and at >= self._roll_position:
                break
            if _waits(progress, code, offset):
                size += record_size
                if len(messages) >= self._count_max or (messages and size > BYTES_MAX):
                    break
                messages.append(rolled(as_stored(self._record(at, offset))))
            offset += 1
        reordered = reorder_offset > 0 and offset >= reorder_offset
        if offset == first_offset and not reordered:
            return False
        progress = progress._replace(floor=offset)
        if reordered:
            progress = Progress(self.timing.wall_ms() - 1, -1, offset, offset)
        self._move(messages, progress, 0, len(messages))
        return True

    # ---- moved to another group -------------------------------------------------------------

    def open_window(self, to: str) -> Completion | None:
        """Start to take the first waiting messages out of the queue for a move to the broker group
        `to`. Return None if none waits, or if a delivery or a recall is in flight. Raises OSError,
        StoreError."""
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None or not self._is_free() or self._recalling or self._reorder_offset:
            return None
        progress = self._table.timer
        start = end = max(self.wheel.first_offset, queue.min_offset)
        count = size = 0
        for _, record_size, code in QUEUE_ENTRY.iter_unpack(queue.entries(start, TAKE_MAX)):
            if _waits(progress, code, end):
                if count and (count >= COUNT_MAX or size + record_size > BYTES_MAX):
                    break
                count, size = count + 1, size + record_size
            end += 1
        if start == end:
            return None
        commands = [timer_progress(after := progress._replace(floor=end))]
        if count:
            commands.append(move(Window(0, to, TIMER_TOPIC, 0, start, end, progress)))
        ended = Completion()
        self.is_opening = True
        self._move([], after, 0, 0, several(commands), ended)
        return ended

    def window_messages(self, window: Window) -> Iterator[tuple[int, MessageRecord]]:
        """Yield the messages of a window that are not recalled, with their slots. Raises Refused
        before the whole queue is read; StoreError, OSError, RecordError."""
        queue = self._queue(TIMER_TOPIC, 0)
        if queue is None or not self.is_read:
            raise busy("the timer messages are not read yet", retriable=True)
        start = max(window.start, queue.min_offset)
        entries = queue.entries(start, max(0, window.end - start))
        for offset, (at, _, code) in enumerate(QUEUE_ENTRY.iter_unpack(entries), start):
            if not _waits(window.progress, code, offset):
                continue
            record = self._record(at, offset)
            message, slot_ms = as_stored(record), abs(code)
            is_recall = recalls(message) is not None or slot_ms not in self._recalls
            if is_recall or not self._is_recalled(queue, slot_ms, key_of(message)):
                yield slot_ms, record

    # ---- all ---------------------------------------------------------------------------------

    def _move(
        self,
        messages: list[Outgoing],
        progress: Progress,
        delivered_count: int,
        rolled_count: int,
        command: bytes = b"",
        done: Done = lambda error: None,
    ) -> None:
        """Store the messages together with the resulting progress, or with `command`, which has
        it."""
        leadership = self._leadership

        def ended(error: Exception | None) -> None:
            done(error)
            if error is None:
                self.delivered_count += delivered_count
                self.rolled_count += rolled_count
            if leadership != self._leadership or self._under_way is not progress:
                return  # the classic table may have changed first
            if error is None:
                self._end_move()
                self._count_max = COUNT_MAX
                self._soon(self.tick)
            elif not is_unknown(error):
                self._end_move()
                self._pause_until_ms = self._clock_ms() + RETRY_MS

        command = command or timer_progress(progress)
        self._under_way = progress
        if not messages:
            self._context.log.propose_then(command, ended)
            return
        try:
            self._sends.store(messages, command, ended)
        except Refused as refused:
            if refused.code == ResponseCode.MESSAGE_ILLEGAL and len(messages) == 1:
                # From a store with larger messages; skip it, because it would block the queue.
                log.error("timer_undeliverable: %s", refused.remark)
                self._context.log.propose_then(command, ended)
                return
            self._end_move()
            if refused.code == ResponseCode.MESSAGE_ILLEGAL:
                self._count_max = 1  # to isolate the bad message
            else:
                self._pause_until_ms = self._clock_ms() + RETRY_MS
            return
        self._sends.wake()

    def _end_move(self) -> None:
        """Drop the delivery in flight. The table has its outcome."""
        popped, self._popped = self._popped, []
        self._under_way = None
        self.is_opening = False
        self.wheel.put_back(popped)


def _waits(progress: Progress, code: int, offset: int) -> bool:
    """Return whether the message of this entry waits, by its slot in the tags code."""
    return abs(code) < NO_TIME_BELOW_MS or progress.lets_wait(abs(code), offset)
