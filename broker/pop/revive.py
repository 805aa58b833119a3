"""Revival of popped messages at their deadline, as retries or dead letters.

The leader keeps the deadlines of all batches in flight, rebuilt from the table after an election.
Expired messages are stored in the group's pop retry topic, or as dead letters. The same frame
records the revival, so a message is redelivered exactly once, and never after a committed
acknowledgement. An orderly batch is not moved; its queue opens and waiting pops run.

A batch that a client's heartbeats renew (`client`) gets RENEWED_MS more while the client is
present, up to an age of RENEWED_MS_MAX. An absent client may return in time.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from raftmq.remoting.names import pop_retry_topic, popped_topic
from raftmq.remoting.pop_headers import FIRST_POP_TIME, ORIGIN_GROUP
from raftmq.store.commitlog.commitlog import ReadBudget
from raftmq.store.errors import StoreError
from raftmq.store.properties import DELAY, decode_properties
from raftmq.store.record import MessageRecord, RecordError, decode_record, offset_message_id

from ..component import Service, at_each_leadership
from ..context import Context
from ..errors import Refused
from ..messages.send_request import INT32_MAX, Outgoing, as_stored, fitting
from ..scheduler import IDLE_MS, Chore
from ..send.callbacks import is_unknown
from ..send.retry_policy import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    dead_letter_topic,
    record_origin,
)
from ..send.service import SendPath
from ..tables.groups import SubscriptionGroup
from ..tables.pops import Batch, BatchKey, QueueKey, Step, pop_command
from ..tables.state import put_topic
from ..tables.topics import PERM_READ, PERM_WRITE, TopicConfig
from .command_batch import StepLog
from .leader_state import Deliveries, LiveQueues

log = logging.getLogger("raftmq.broker.revivals")

COUNT_MAX = 128  # messages per frame
BYTES_MAX = 512 * 1024  # per frame; a larger message has its own frame
CHECKS_MAX = 2_000  # per tick
SPARE_MAX = 1_024  # of ended batches
RETRY_MS = 500  # after a failed read or a rejection
RENEWED_MS = 60_000
RENEW_BEFORE_MS = 30_000  # before the deadline
ABSENT_CHECK_MS = 2_000  # between two checks of an absent client
RENEWED_MS_MAX = 10_800_000  # 3 h, as in Apache's proxy

Due = tuple[int, QueueKey, BatchKey]


class Deadlines:
    def __init__(self, context: Context) -> None:
        self._table = context.state.pops
        self._due: list[Due] = []
        self._unseen: list[QueueKey] = []

    def clear(self) -> None:
        self._due.clear()
        self._unseen.clear()

    def reload(self) -> None:
        self._due.clear()
        self._unseen = [queue_key for queue_key, queue in self._table.all_queues() if queue.batches]

    def load_some(self) -> None:
        count = 0
        while self._unseen and count < CHECKS_MAX:
            queue_key = self._unseen.pop()
            queue = self._table.get(queue_key)
            count += 0 if queue is None else len(queue.batches)
            self.add_all(queue_key)

    def add_all(self, queue_key: QueueKey) -> None:
        queue = self._table.get(queue_key)
        for key in () if queue is None else queue.batches:
            self.add(queue_key, key)

    def add(self, queue_key: QueueKey, key: BatchKey, not_before_ms: int = 0) -> None:
        batch = self._table.batch(queue_key, key)
        if batch is not None:
            due_ms = batch.ends_ms
            if batch.client:
                due_ms -= RENEW_BEFORE_MS
            heapq.heappush(self._due, (max(due_ms, not_before_ms), queue_key, key))
            if len(self._due) > 2 * self._table.batch_count + SPARE_MAX:  # mostly of ended batches
                self._drop_ended()

    def _drop_ended(self) -> None:
        """Remove the entries of ended batches, and duplicates."""
        first: dict[tuple[QueueKey, BatchKey], int] = {}
        for due_ms, queue_key, key in self._due:
            if self._table.batch(queue_key, key) is not None:
                known_ms = first.get((queue_key, key), due_ms)
                first[queue_key, key] = min(known_ms, due_ms)
        self._due = [(due_ms, queue_key, key) for (queue_key, key), due_ms in first.items()]
        heapq.heapify(self._due)

    def __len__(self) -> int:
        return len(self._due)

    def next_due(self, now_ms: int) -> tuple[QueueKey, BatchKey] | None:
        if not self._due or self._due[0][0] > now_ms:
            return None
        _, queue_key, key = heapq.heappop(self._due)
        return queue_key, key

    def rest_ms(self, now_ms: int) -> float:
        if self._unseen:
            return 0
        return self._due[0][0] - now_ms if self._due else IDLE_MS


class Reviver:
    def __init__(
        self,
        context: Context,
        sends: SendPath,
        steps: StepLog,
        live: LiveQueues,
        deadlines: Deadlines,
        deliveries: Deliveries,
        *,
        is_present: Callable[[str, str], bool],
        opened: Callable[[str, str], None],
    ) -> None:
        """`is_present(group, client)` is True while its heartbeats arrive. `opened(topic, group)`
        reports an open orderly queue."""
        self._context = context
        self._state = context.state
        self._table = context.state.pops
        self._sends = sends
        self._steps = steps
        self._live = live
        self.deadlines = deadlines
        self._deliveries = deliveries
        self._is_present = is_present
        self._opened = opened
        self._wall_ms = context.wall_ms
        self._under_way = False
        self._pause_until_ms = 0  # by wall clock
        self._making: set[str] = set()  # topics being created
        self.revived_count = 0
        self.dead_count = 0

    def service(self) -> Service:
        return Service(
            chores=[Chore("pops", 0, self.tick, self._rest_ms)],
            role_changed=at_each_leadership(self.leadership_changed),
        )

    def leadership_changed(self) -> None:
        """Drop the revival in flight. A ready leader's table has its outcome."""
        self._live.clear()
        self._deliveries.clear()
        self._under_way = False
        self._pause_until_ms = 0
        self._making.clear()
        if self._context.roles.leading:
            self.deadlines.reload()
        else:
            self.deadlines.clear()

    def tick(self) -> None:
        if not self._context.roles.leading or self._under_way:
            return
        now_ms = self._wall_ms()
        if now_ms < self._pause_until_ms:
            return
        self.deadlines.load_some()
        # Half of a small segment leaves space for record heads and the command.
        frame = _Frame(min(BYTES_MAX, self._sends.own_bytes_max // 2))
        for _ in range(CHECKS_MAX):
            due = self.deadlines.next_due(now_ms)
            if due is None:
                break
            if self._check(*due, now_ms, frame):
                break
        if frame.steps:
            self._store(frame)

    def _rest_ms(self) -> float:
        if not self._context.roles.leading or self._under_way:
            return IDLE_MS
        now_ms = self._wall_ms()
        return max(self._pause_until_ms - now_ms, self.deadlines.rest_ms(now_ms))

    def _check(self, queue_key: QueueKey, key: BatchKey, now_ms: int, frame: _Frame) -> bool:
        """Handle a batch that may be due. Returns True if the frame is full."""
        batch = self._table.batch(queue_key, key)
        if batch is None:
            return False
        ends_ms = batch.ends_ms
        if now_ms < ends_ms:
            renewable = (
                bool(batch.client)
                and now_ms < key[1] + RENEWED_MS_MAX
                and not self._deliveries.is_unconfirmed(queue_key, key)
            )
            if renewable and self._is_present(queue_key[1], batch.client):
                self._renew(queue_key, key, now_ms + RENEWED_MS)
            elif renewable:  # it may return through another proxy
                self.deadlines.add(queue_key, key, min(ends_ms, now_ms + ABSENT_CHECK_MS))
            else:
                self.deadlines.add(queue_key, key, ends_ms)
            return False
        if batch.order:
            self._opened(queue_key[0], queue_key[1])
            return False
        return self._revive(queue_key, key, batch, frame)

    def _renew(self, queue_key: QueueKey, key: BatchKey, visible_ms: int) -> None:
        def done(_: Exception | None) -> None:
            self.deadlines.add(queue_key, key)

        try:
            self._steps.add([("renew", *queue_key, *key, visible_ms)], done)
        except Refused:  # too many changes in flight
            self.deadlines.add(queue_key, key, self._wall_ms() + RETRY_MS)

    def _revive(self, queue_key: QueueKey, key: BatchKey, batch: Batch, frame: _Frame) -> bool:
        topic, group, _ = queue_key
        config = self._state.groups.get(group) or SubscriptionGroup(group)
        mask = 0
        full = False
        for number, offset in enumerate(batch.offsets):
            bit = 1 << number
            if not batch.pending & bit or self._live.is_busy(queue_key, key, bit):
                continue
            try:
                record = self._read(queue_key, offset, frame.budget)
                if record is None and frame.budget.spent:
                    self.deadlines.add(queue_key, key)
                    full = True
                    break
                if record is not None:
                    message, target = again(record, topic, group, key[1], config)
                    if not self._have(target):
                        self.deadlines.add(queue_key, key, self._wall_ms() + RETRY_MS)
                        break
                    if frame.is_full_for(message):
                        self.deadlines.add(queue_key, key)
                        full = True
                        break
                    self._sends.check(message)
            except (OSError, StoreError, RecordError, Refused) as error:
                log.error("revival_unread place=%s offset=%d: %s", queue_key, offset, error)
                if isinstance(error, OSError):
                    self._context.log.read_failed(error, partial(self._read, queue_key, offset))
                continue
            except Exception as error:  # a bad message must not block the rest
                self._context.contained.failed("revival", error)
                continue
            if record is not None:
                frame.add(message, is_dead=target.name != pop_retry_topic(topic, group))
            else:
                log.error(
                    "popped_message_lost topic=%s queue=%d offset=%d", topic, queue_key[2], offset
                )
            mask |= bit
        else:
            if batch.pending & ~mask:  # in acknowledgement, or unreadable for now
                self.deadlines.add(queue_key, key, self._wall_ms() + RETRY_MS)
        if mask:
            frame.steps.append(("revived", *queue_key, *key, mask))
            frame.held.append((queue_key, key, mask))
            self._live.start(queue_key, key, mask)
        return full

    def _read(
        self, queue_key: QueueKey, offset: int, budget: ReadBudget | None = None
    ) -> MessageRecord | None:
        """Return a message, or None if it is deleted or the budget is used up. Raises OSError,
        StoreError, RecordError."""
        result = self._context.store.reads.get_messages(
            queue_key[0], queue_key[2], offset, 1, BYTES_MAX, budget=budget
        )
        if not result.message_count or result.next_offset != offset + 1:
            return None
        return decode_record(result.buffers[0], check_body=False)

    def _have(self, topic: TopicConfig) -> bool:
        """Return True if the topic exists, else create it."""
        if self._state.topics.get(topic.name) is not None:
            return True
        if topic.name not in self._making:
            self._making.add(topic.name)

            def done(error: Exception | None) -> None:
                self._making.discard(topic.name)
                if error is not None:
                    log.info("retry_topic_not_created topic=%s: %s", topic.name, error)

            self._context.log.propose_then(put_topic(topic, if_absent=True), done)
        return False

    def _store(self, frame: _Frame) -> None:
        leadership = self._live.leadership
        self._under_way = True

        def ended(error: Exception | None) -> None:
            if leadership != self._live.leadership:
                return
            if error is not None and is_unknown(error):
                # Once a later command is applied, the outcome is final.
                self._context.log.propose_then(pop_command(()), settled)
                return
            settled(error)

        def settled(error: Exception | None) -> None:
            if leadership != self._live.leadership:
                return
            self._under_way = False
            if error is None:
                self.revived_count += len(frame.messages) - frame.dead_count
                self.dead_count += frame.dead_count
            else:
                self._pause_until_ms = self._wall_ms() + RETRY_MS
            for queue_key, key, mask in frame.held:
                self._live.finish(queue_key, key, mask, leadership)
                self.deadlines.add(queue_key, key, self._pause_until_ms)

        command = pop_command(frame.steps)
        if not frame.messages:
            self._context.log.propose_then(command, ended)
            return
        try:
            self._sends.store(frame.messages, command, ended)
        except Exception as error:  # nothing is stored, so the messages may be acknowledged
            settled(error)
            if not isinstance(error, Refused):
                raise
            log.info("revival_refused count=%d: %s", len(frame.messages), error)
            return
        self._sends.wake()


class _Frame:
    """The messages of a frame, of at most `bytes_max` or a single larger message."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.messages: list[Outgoing] = []
        self.steps: list[Step] = []
        self.held: list[tuple[QueueKey, BatchKey, int]] = []
        self.size_bytes = 0
        self.dead_count = 0
        self.budget = ReadBudget()

    def is_full_for(self, message: Outgoing) -> bool:
        size = self.size_bytes + _size_of(message)
        return bool(self.messages) and (len(self.messages) >= COUNT_MAX or size > self._bytes_max)

    def add(self, message: Outgoing, *, is_dead: bool) -> None:
        self.messages.append(message)
        self.size_bytes += _size_of(message)
        self.dead_count += is_dead


def _size_of(message: Outgoing) -> int:
    return len(message.body) + len(message.properties)


def again(
    record: MessageRecord, topic: str, group: str, pop_ms: int, config: SubscriptionGroup
) -> tuple[Outgoing, TopicConfig]:
    """Return the redelivery of an unacknowledged message and its topic, for the group's retries of
    `topic` or its dead letters. If the origin does not fit the properties, they are unchanged."""
    properties = decode_properties(record.properties)
    record_origin(properties, record.topic, popped_topic(record.topic, group))
    properties.setdefault(FIRST_POP_TIME, str(pop_ms))
    properties[ORIGIN_GROUP] = group
    properties.pop(DELAY, None)
    target = TopicConfig(pop_retry_topic(topic, group), 1, 1, PERM_READ | PERM_WRITE)
    if record.reconsume_times >= config.retry_times_max:
        target = dead_letter_topic(group)
        origin = properties.get(ORIGIN_MESSAGE_ID, "").strip() or offset_message_id(
            record.store_host, record.physical_offset
        )
        properties |= {
            ORIGIN_MESSAGE_ID: origin,
            DLQ_ORIGIN_TOPIC: properties[RETRY_TOPIC],
            DLQ_ORIGIN_MESSAGE_ID: origin,
        }
    message = replace(
        as_stored(record),
        topic=target.name,
        queue_id=0,
        properties=fitting(properties, record.properties),
        reconsume=min(record.reconsume_times + 1, INT32_MAX),
    )
    return message, target
