"""Selects the messages of a pop, from the log and the leader's tables.

A pop reads its queues in turn, starting with the retries in every fifth pop, as in Apache's broker.
Each queue starts at the end of the group's last pop. The pop ends at its number of messages, at the
size limit of a response, or after the last queue. Its reads share the work of a filter and the
budget of a request. The group's next pop starts with the queues that were skipped without work.

An orderly queue with unacknowledged messages is closed until their deadline. Then its next pop
starts at the first of them, as in Apache's broker: acknowledged messages behind it are redelivered
as well, and new messages are added. A repeated receive attempt (`attempt_id`) need not wait.

Without order, a repeated attempt of a client with renewal gets its messages and handles again
(`RepeatedAttempts`), because they would stay in flight for the client's lifetime.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from raftmq.remoting.names import RETRY_PREFIX, pop_retry_topic
from raftmq.remoting.pop_headers import INIT_MAX, PopHeader
from raftmq.store.commitlog.commitlog import ReadBudget
from raftmq.store.errors import StoreError
from raftmq.store.get_message import GetStatus

from ..consume.filtered_reads import WORK_MAX, FilteredReads
from ..consume.filters import Filter, Work, own_retries
from ..consume.long_polling import COUNT_MAX
from ..context import Context
from ..tables.pops import Batch, BatchKey, PopQueue, QueueKey, Step
from .leader_state import LiveQueues

if TYPE_CHECKING:
    from raftmq.store.message_reads import GetResult

log = logging.getLogger("raftmq.broker.pops")

RETRIES_FIRST = 5  # every fifth pop (popFromRetryProbability 20)
NEW_MAX = 100  # new queues per command
STOPS_MAX = 1_000  # of topics and groups; a dropped entry only changes the first queue
ATTEMPT_BATCHES_MAX = 1_000  # newest batches per queue; attempts are repeated soon
_SIZE = struct.Struct(">i")
_QUEUE_OFFSET = struct.Struct(">q")
_OFFSET_AT = 20  # in a record
ALL = Filter()
# No message at this offset any more or yet.
MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
SKIPPED = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_FOUND_NULL,
)


@dataclass(frozen=True, slots=True)
class Pop:
    """A checked pop."""

    header: PopHeader
    message_filter: Filter


class Selection(NamedTuple):
    """A pop's messages of a queue. Its cursor moves from `before` to `after`; reading began at
    `start`. `mark` is the reset applied and `commit` the group's new offset."""

    queue_key: QueueKey
    before: int
    after: int
    start: int
    offsets: Sequence[int]
    buffers: list[bytes]
    size_bytes: int
    mark: int | None
    commit: int

    def steps(self, pop_ms: int, header: PopHeader) -> list[Step]:
        offsets = self.offsets
        step_offsets = len(offsets) if isinstance(offsets, range) else list(offsets)
        who = (header.renewed_by, header.attempt_id, header.order)
        return [
            (
                "take",
                *self.queue_key,
                self.before,
                self.after,
                self.start,
                pop_ms,
                pop_ms + header.invisible_ms,
                step_offsets,
                *who,
            ),
            ("offset", *self.queue_key, self.commit, self.mark),
        ]

    def key(self, pop_ms: int) -> BatchKey:
        return self.start, pop_ms


class Attempt:
    def __init__(self, count: int, size_bytes: int) -> None:
        self.selected: list[Selection] = []
        self.count = count  # remaining messages
        self.size_bytes = size_bytes  # remaining bytes
        self.rest = 0  # messages behind, in all queues read
        self.budget = ReadBudget()
        self.work = Work(WORK_MAX)  # for its filter
        self.retry_work = Work(WORK_MAX)  # to separate the group's retries

    @property
    def has_messages(self) -> bool:
        return any(selected.offsets for selected in self.selected)

    def add(self, selected: Selection) -> None:
        self.selected.append(selected)
        self.count -= len(selected.offsets)
        self.size_bytes -= selected.size_bytes


class PopSelector:
    def __init__(self, context: Context, live: LiveQueues) -> None:
        self._config = context.config
        self._state = context.state
        self._table = context.state.pops
        self._store = context.store
        self._reads = context.store.reads
        self._filtered = FilteredReads(context.store)
        self._wall_ms = context.wall_ms
        self._live = live
        self._turn = 0
        # by topic and group, the queue where work ended
        self._stops: dict[tuple[str, str], int] = {}

    def attempt(self, pop: Pop) -> Attempt:
        """Select the pop's messages. Raises StoreError, OSError."""
        header, config = pop.header, self._config
        count_max = min(header.count_max, COUNT_MAX)
        attempt = Attempt(count_max, config.max_transfer_bytes_on_message_in_memory)
        if new := self._new_queues(header):
            for queue_key in new:
                start = self._initial(queue_key)
                attempt.add(Selection(queue_key, start, start, start, (), [], 0, None, start))
            return attempt
        left_out: list[int] = []
        for topic, queue_id, message_filter in self._sources(pop):
            queue_key = (topic, header.consumer_group, queue_id)
            if attempt.count <= 0 or attempt.size_bytes <= 0:
                break
            filtered = topic == header.topic and message_filter.matcher is not None
            if attempt.budget.spent or (filtered and attempt.work.left <= 0):
                if topic == header.topic:
                    left_out.append(queue_id)
                continue
            selected = self._select(queue_key, header, message_filter, attempt)
            if selected is not None:
                attempt.add(selected)
        if header.queue_id < 0:
            self._record_stop((header.topic, header.consumer_group), left_out)
        return attempt

    def _new_queues(self, header: PopHeader) -> list[QueueKey]:
        """Return the queues without a group offset, with INIT_MAX. The initial offset is logged
        before the first pop, as in Apache's brokers, so messages stored between two empty pops are
        not skipped."""
        topic, group = header.topic, header.consumer_group
        topic_config = self._state.topics.get(topic)
        if header.init_mode != INIT_MAX or topic.startswith(RETRY_PREFIX) or topic_config is None:
            return []
        popped = self._table.queues.get((topic, group), {})
        committed = self._state.offsets.offsets.get((topic, group), {})
        queue_ids = (
            range(topic_config.read_queue_count) if header.queue_id < 0 else (header.queue_id,)
        )
        new = sorted(set(queue_ids).difference(popped, committed))  # usually empty, at C speed
        queue_keys = ((topic, group, queue_id) for queue_id in new)
        return list(islice((one for one in queue_keys if self._live.next_of(one) is None), NEW_MAX))

    def pop_ms(self, attempt: Attempt) -> int:
        """Return the time of the pop, which is later than all earlier pops of its messages."""
        pop_ms = self._wall_ms()
        for selected in attempt.selected:
            queue = self._table.get(selected.queue_key)
            if queue is not None and selected.start < queue.popped_to:
                pop_ms = max(pop_ms, queue.popped_ms + 1)
        return pop_ms

    def _sources(self, pop: Pop) -> Iterator[tuple[str, int, Filter]]:
        header = pop.header
        self._turn += 1
        retries: list[tuple[str, int, Filter]] = []
        if not header.order:  # orderly messages are redelivered from the queue itself
            name = pop_retry_topic(header.topic, header.consumer_group)
            topic = self._state.topics.get(name) if name != header.topic else None
            count = 0 if topic is None else topic.read_queue_count
            own = own_retries(ALL, name, header.consumer_group)
            retries = [(name, queue_id, own) for queue_id in range(count)]
        message_filter = own_retries(pop.message_filter, header.topic, header.consumer_group)
        first = self._turn % RETRIES_FIRST == 0
        if first:
            yield from retries
        if header.queue_id >= 0:
            yield header.topic, header.queue_id, message_filter
        else:
            topic_config = self._state.topics.get(header.topic)
            count = 0 if topic_config is None else topic_config.read_queue_count
            start = self._stops.get((header.topic, header.consumer_group), self._turn)
            for n in range(count):
                yield header.topic, (start + n) % count, message_filter
        if not first:
            yield from retries

    def _record_stop(self, who: tuple[str, str], left_out: Sequence[int]) -> None:
        self._stops.pop(who, None)
        if left_out:
            self._stops[who] = left_out[0]
            if len(self._stops) > STOPS_MAX:
                del self._stops[next(iter(self._stops))]

    def _select(
        self, queue_key: QueueKey, header: PopHeader, message_filter: Filter, attempt: Attempt
    ) -> Selection | None:
        queue = self._table.get(queue_key)
        batch = None
        if header.order:
            if self._is_closed(queue_key, queue, header.attempt_id):
                return None
            batch = None if queue is None else queue.order_batch
        elif queue is not None and queue.in_flight >= self._config.pop_inflight_message_threshold:
            return None
        cursor, before, mark = self._cursor(queue_key)
        unchanged = before
        if batch is not None:
            cursor = unchanged = batch.pending_offsets[0]
        maximum = self._store.queues.end_of(queue_key[0], queue_key[2])
        if cursor == maximum and cursor == before:
            return None
        limits = attempt.count, attempt.size_bytes
        work = attempt.work if queue_key[0] == header.topic else attempt.retry_work
        result = self._read(queue_key, cursor, *limits, message_filter, work, attempt.budget)
        if result.status in MOVED:
            cursor = result.next_offset
            result = self._read(queue_key, cursor, *limits, message_filter, work, attempt.budget)
        offsets, after = _offsets(result, cursor)
        attempt.rest += max(0, maximum - after)
        if after == unchanged and not offsets:
            return None
        buffers = result.buffers if offsets else []
        size = result.size_bytes if offsets else 0
        commit = offsets[0] if header.order and offsets else after
        return Selection(queue_key, before, after, cursor, offsets, buffers, size, mark, commit)

    def _is_closed(self, queue_key: QueueKey, queue: PopQueue | None, attempt_id: str) -> bool:
        """Return True while the queue has no messages for an orderly pop: before the deadline of
        its batch, except for the attempt that popped it, and during changes."""
        if self._live.next_of(queue_key) is not None:
            return True
        batch = None if queue is None else queue.order_batch
        if queue is None or queue.order is None or batch is None:
            return False
        if self._live.busy_of(queue_key, queue.order):
            return True
        repeated = bool(attempt_id) and batch.attempt == attempt_id
        return not repeated and self._wall_ms() < batch.ends_ms

    def _cursor(self, queue_key: QueueKey) -> tuple[int, int, int | None]:
        """Return the start of the queue's next pop, the table's cursor by then, and the mark of a
        reset not applied yet."""
        following = self._live.next_of(queue_key)
        topic, group, queue_id = queue_key
        offsets = self._state.offsets
        if following is not None:
            return following, following, self._live.mark_of(queue_key)
        mark = offsets.reset_of(topic, group, queue_id)
        known = self._state.position(topic, group, queue_id)
        queue = self._table.get(queue_key)
        if queue is None:
            start = self._min_offset(queue_key) if known is None else known
            return start, start, mark
        # In order, the group's offset lags. A pop decided before a reset, or a pull, may have moved
        # the queue since.
        if known is None or (queue.is_orderly and mark is None):
            known = max(queue.next, known or 0)
        return known, queue.next, mark

    def _initial(self, queue_key: QueueKey) -> int:
        """Return a new group's first offset with INIT_MAX, like Apache. It is the last message, or
        the first if nothing was deleted and all is in memory."""
        name = queue_key[0], queue_key[2]
        queue = self._store.queues.queue(*name)
        if queue is None or queue.min_offset == queue.max_offset:
            return 0 if queue is None else queue.max_offset
        if queue.min_offset <= 0 and not self._reads.get_messages(*name, 0, 1, 1).cold:
            return 0
        return queue.max_offset - 1

    def _min_offset(self, queue_key: QueueKey) -> int:
        queue = self._store.queues.queue(queue_key[0], queue_key[2])
        return 0 if queue is None else queue.min_offset

    def _read(
        self,
        queue_key: QueueKey,
        offset: int,
        count_max: int,
        bytes_max: int,
        message_filter: Filter,
        work: Work,
        budget: ReadBudget,
    ) -> GetResult:
        topic, _, queue_id = queue_key
        limits = count_max, bytes_max
        if message_filter.matcher is not None:
            return self._filtered.get_messages(
                topic, queue_id, offset, *limits, message_filter.matcher, work, budget
            )
        return self._reads.get_messages(
            topic, queue_id, offset, *limits, message_filter.codes, budget
        )


class RepeatedAttempts:
    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._table = context.state.pops
        self._reads = context.store.reads

    def of(self, header: PopHeader) -> tuple[list[Selection], int]:
        """Return the attempt's unacknowledged messages, and the time of their pop."""
        if not header.renewed_by or not header.attempt_id or header.order:
            return [], 0
        group = header.consumer_group
        batches: list[tuple[QueueKey, BatchKey, Batch]] = []
        for topic in dict.fromkeys((header.topic, pop_retry_topic(header.topic, group))):
            for queue_id, queue in self._table.queues.get((topic, group), {}).items():
                for key in islice(reversed(queue.batches), ATTEMPT_BATCHES_MAX):
                    batch = queue.batches[key]
                    if batch.attempt == header.attempt_id and batch.client == header.renewed_by:
                        batches.append(((topic, group, queue_id), key, batch))
        pop_ms = max((key[1] for _, key, _ in batches), default=0)
        budget = ReadBudget()
        try:
            again = [self._read(*one, budget) for one in batches if one[1][1] == pop_ms]
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s error=%s", header.topic, error)
            return [], 0
        return [selected for selected in again if selected.offsets], pop_ms

    def _read(
        self, queue_key: QueueKey, key: BatchKey, batch: Batch, budget: ReadBudget
    ) -> Selection:
        offsets: list[int] = []
        buffers: list[bytes] = []
        size = 0
        bytes_max = self._config.max_transfer_bytes_on_message_in_memory
        for offset in batch.pending_offsets:
            if budget.spent:
                break
            one = self._reads.get_messages(
                queue_key[0], queue_key[2], offset, 1, bytes_max, budget=budget
            )
            if one.message_count and one.next_offset == offset + 1:  # else retention deleted it
                offsets.append(offset)
                buffers += one.buffers
                size += one.size_bytes
        return Selection(queue_key, key[0], key[0], key[0], offsets, buffers, size, None, key[0])


def _offsets(result: GetResult, start: int) -> tuple[Sequence[int], int]:
    if result.status is not GetStatus.FOUND:
        return (), result.next_offset if result.status in SKIPPED else start
    if result.next_offset - start == result.message_count:
        return range(start, result.next_offset), result.next_offset
    offsets: list[int] = []
    for data in result.buffers:
        at = 0
        while at < len(data):
            offsets.append(_QUEUE_OFFSET.unpack_from(data, at + _OFFSET_AT)[0])
            at += _SIZE.unpack_from(data, at)[0]
    return offsets, result.next_offset
