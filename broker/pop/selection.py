"""Decides which messages a pop gets: reads the log and this leader's tables, changes nothing.

A pop looks at its queues one after the other, and in every fifth case at the retries first, as
Apache's broker does. In each queue it begins where the group's last pop ended. It ends at the
number of messages asked for, at the bytes of one answer, or when all queues were looked at. Its
filter may do as much work as in one read, and all its reads have the budget of one request; it
leaves out the queues for which none is left, and the group's next pop begins with the first of
these.

In order, a queue whose last messages are not all acknowledged is closed until their time is over;
then those that were not come again, alone: new messages follow when they are acknowledged. The same
receive attempt repeated (`attempt_id`) gets the same messages.

Without order, a repeated attempt whose messages heartbeats renew gets the same ones, under the same
handles (`RepeatedAttempts`): its answer was lost, and they would stay in flight for as long as the client
lives. They are in flight as the log says, so nothing is changed: they are read and told once more.
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

RETRIES_FIRST = 5  # one of so many pops looks at the retries first (popFromRetryProbability 20)
NEW_MAX = 100  # queues in which a group begins with one command
STOPS_MAX = 1_000  # of topics and groups; one that is forgotten begins where its turn is
ATTEMPT_BATCHES_MAX = 1_000  # the newest batches of each queue; an attempt is repeated soon
_SIZE = struct.Struct(">i")
_QUEUE_OFFSET = struct.Struct(">q")
_OFFSET_AT = 20  # in a record
ALL = Filter()
# The queue has nothing at this offset any more, or not yet: it goes on elsewhere.
MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY)
SKIPPED = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_FOUND_NULL,
)


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop that passed the checks. `message_filter` is its filter."""

    header: PopHeader
    message_filter: Filter


class Taken(NamedTuple):
    """The part of a pop that one queue gives: its cursor goes from `before` to `after`. `start` is
    where it began to read; `mark`: the reset that it obeys; `commit`: the group's offset then;
    `gone`: offsets that were to come again, in order, and that retention deleted."""

    queue_key: QueueKey
    before: int
    after: int
    start: int
    offsets: Sequence[int]
    buffers: list[bytes]
    size_bytes: int
    mark: int | None
    commit: int
    gone: Sequence[int] = ()

    def steps(self, pop_ms: int, header: PopHeader) -> list[Step]:
        offsets = self.offsets
        step_offsets = len(offsets) if isinstance(offsets, range) else list(offsets)
        who = (header.renewed_by, header.attempt_id, header.order)
        head = ("take", *self.queue_key, self.before)
        steps: list[Step] = []
        if self.gone:  # a batch of its own, which ends at once
            gone, everything = list(self.gone), (1 << len(self.gone)) - 1
            steps += [
                (*head, self.before, gone[0], pop_ms, pop_ms, gone, *who),
                ("revived", *self.queue_key, gone[0], pop_ms, everything),
            ]
        return [
            *steps,
            (
                *head,
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
    """One pop as far as it has come."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self.taken: list[Taken] = []
        self.count = count  # messages that it still wants
        self.size_bytes = size_bytes  # and bytes
        self.rest = 0  # messages behind, in the queues looked at
        self.budget = ReadBudget()
        self.work = Work(WORK_MAX)  # for its filter
        self.retry_work = Work(WORK_MAX)  # to tell the group's retries from others'

    @property
    def has_messages(self) -> bool:
        return any(taken.offsets for taken in self.taken)

    def add(self, taken: Taken) -> None:
        self.taken.append(taken)
        self.count -= len(taken.offsets)
        self.size_bytes -= taken.size_bytes


class Taker:
    """Decides pops; one per broker."""

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
        self._stops: dict[tuple[str, str], int] = {}  # by topic and group: where work was used up

    def attempt(self, pop: Pop) -> Attempt:
        """Return what the pop gets now. Raises StoreError, OSError."""
        header, config = pop.header, self._config
        count_max = min(header.count_max, COUNT_MAX)
        attempt = Attempt(count_max, config.max_transfer_bytes_on_message_in_memory)
        if new := self._new_queues(header):
            for queue_key in new:
                start = self._initial(queue_key)
                attempt.add(Taken(queue_key, start, start, start, (), [], 0, None, start))
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
            taken = self._take(queue_key, header, message_filter, attempt)
            if taken is not None:
                attempt.add(taken)
        if header.queue_id < 0:
            self._record_stop((header.topic, header.consumer_group), left_out)
        return attempt

    def _new_queues(self, header: PopHeader) -> list[QueueKey]:
        """Return queues of which the group has no offset, and that with INIT_MAX. Where it begins
        there is put into the log before anything is popped, as Apache's brokers do: what is stored
        between two pops that find nothing is not skipped, however much it is."""
        topic, group = header.topic, header.consumer_group
        topic_config = self._state.topics.get(topic)
        if header.init_mode != INIT_MAX or topic.startswith(RETRY_PREFIX) or topic_config is None:
            return []
        popped = self._table.queues.get((topic, group), {})
        committed = self._state.offsets.offsets.get((topic, group), {})
        asked = range(topic_config.read_queue_count) if header.queue_id < 0 else (header.queue_id,)
        new = sorted(set(asked).difference(popped, committed))  # by C code: mostly there are none
        queue_keys = ((topic, group, queue_id) for queue_id in new)
        return list(islice((one for one in queue_keys if self._live.next_of(one) is None), NEW_MAX))

    def pop_ms(self, attempt: Attempt) -> int:
        """Return the time of the pop: now, or later than all pops before of the same messages."""
        pop_ms = self._wall_ms()
        for taken in attempt.taken:
            queue = self._table.get(taken.queue_key)
            first = taken.gone[0] if taken.gone else taken.start
            if queue is not None and first < queue.popped_to:
                pop_ms = max(pop_ms, queue.popped_ms + 1)
        return pop_ms

    def _sources(self, pop: Pop) -> Iterator[tuple[str, int, Filter]]:
        """Yield the queues that a pop looks at, in the order of this turn, each with its filter."""
        header = pop.header
        self._turn += 1
        retries: list[tuple[str, int, Filter]] = []
        if not header.order:  # in order, messages come again from the queue itself
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

    # ---- one queue ------------------------------------------------------------------------

    def _take(
        self, queue_key: QueueKey, header: PopHeader, message_filter: Filter, attempt: Attempt
    ) -> Taken | None:
        queue = self._table.get(queue_key)
        if header.order:
            return self._take_in_order(queue_key, queue, header, message_filter, attempt)
        if queue is not None and queue.in_flight >= self._config.pop_inflight_message_threshold:
            return None
        cursor, before, mark = self._cursor(queue_key)
        maximum = self._max_offset(queue_key)
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
        if after == before and not offsets:
            return None
        buffers = result.buffers if offsets else []
        size = result.size_bytes if offsets else 0
        return Taken(queue_key, before, after, cursor, offsets, buffers, size, mark, after)

    def _take_in_order(
        self,
        queue_key: QueueKey,
        queue: PopQueue | None,
        header: PopHeader,
        message_filter: Filter,
        attempt: Attempt,
    ) -> Taken | None:
        if self._live.next_of(queue_key) is not None:
            return None
        again, repeated = self._again(queue, header.attempt_id)
        if again is None:
            return None
        offsets: list[int] = []
        gone: list[int] = []
        buffers: list[bytes] = []
        size = 0
        for offset in again:
            if len(offsets) >= attempt.count or size >= attempt.size_bytes:
                break
            limits = 1, attempt.size_bytes
            one = self._read(queue_key, offset, *limits, ALL, attempt.work, attempt.budget)
            if one.message_count and one.next_offset == offset + 1:
                offsets.append(offset)
                buffers += one.buffers
                size += one.size_bytes
            elif offset < one.min_offset:
                gone.append(offset)
            elif attempt.budget.spent:  # what follows it must wait for it
                break
        cursor, before, mark = self._cursor(queue_key)
        after = cursor
        if len(gone) == len(again) and not repeated:
            limits = attempt.count, attempt.size_bytes
            fresh = self._read(
                queue_key, cursor, *limits, message_filter, attempt.work, attempt.budget
            )
            if fresh.status in MOVED:
                cursor = fresh.next_offset
                fresh = self._read(
                    queue_key, cursor, *limits, message_filter, attempt.work, attempt.budget
                )
            new, after = _offsets(fresh, cursor)
            offsets, buffers, size = list(new), list(fresh.buffers), fresh.size_bytes
        if not offsets and not gone and after == before:
            return None
        start = offsets[0] if offsets else cursor
        commit = offsets[0] if offsets else after
        return Taken(queue_key, before, after, start, offsets, buffers, size, mark, commit, gone)

    def _again(self, queue: PopQueue | None, attempt_id: str) -> tuple[list[int] | None, bool]:
        """Return what comes again in order, None while the queue is closed; and whether the same
        attempt is repeated."""
        if queue is None:
            return [], False
        batch = queue.order_batch
        left = [offset for offset, _ in queue.left]
        if batch is None:
            return left, False
        repeated = bool(attempt_id) and batch.attempt == attempt_id
        if not repeated and self._wall_ms() < batch.ends_ms:
            return None, False
        again = batch.pending_offsets
        return (again if repeated else sorted([*again, *left])), repeated

    def _cursor(self, queue_key: QueueKey) -> tuple[int, int, int | None]:
        """Return where the next pop of the queue begins, what the table will have as its cursor
        then, and the mark of a reset that the group has not obeyed yet."""
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
        # In order, the group's offset is behind. A pop that was decided before a reset may have
        # moved the queue since, and consumers may have pulled meanwhile.
        if known is None or (queue.is_orderly and mark is None):
            known = max(queue.next, known or 0)
        return known, queue.next, mark

    def _initial(self, queue_key: QueueKey) -> int:
        """Return where a new group begins with INIT_MAX, by Apache's rule: at the last message, but
        at the first of a queue of which nothing was deleted and all is in memory."""
        queue = self._store.queues.queue(queue_key[0], queue_key[2])
        if queue is None or queue.min_offset == queue.max_offset:
            return 0 if queue is None else queue.max_offset
        if queue.min_offset <= 0 and self._is_hot(queue_key):
            return 0
        return queue.max_offset - 1

    def _is_hot(self, queue_key: QueueKey) -> bool:
        result = self._reads.get_messages(queue_key[0], queue_key[2], 0, 1, 1)
        return not result.cold

    def _min_offset(self, queue_key: QueueKey) -> int:
        queue = self._store.queues.queue(queue_key[0], queue_key[2])
        return 0 if queue is None else queue.min_offset

    def _max_offset(self, queue_key: QueueKey) -> int:
        queue = self._store.queues.queue(queue_key[0], queue_key[2])
        return 0 if queue is None else queue.max_offset

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
    """Finds what an attempt got before; one per broker."""

    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._table = context.state.pops
        self._reads = context.store.reads

    def of(self, header: PopHeader) -> tuple[list[Taken], int]:
        """Return what the attempt got and has not acknowledged, and the time of that pop."""
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
        return [taken for taken in again if taken.offsets], pop_ms

    def _read(self, queue_key: QueueKey, key: BatchKey, batch: Batch, budget: ReadBudget) -> Taken:
        """Return the messages of a batch that the budget allows to read."""
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
        return Taken(queue_key, key[0], key[0], key[0], offsets, buffers, size, None, key[0])


def _offsets(result: GetResult, start: int) -> tuple[Sequence[int], int]:
    """Return the offsets of the messages read, and where the queue goes on."""
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
