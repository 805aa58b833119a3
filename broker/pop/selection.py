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
handles (`Repeats`): its answer was lost, and they would stay in flight for as long as the client
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
from ..tables.pops import Batch, BatchKey, Place, PopQueue, Step
from .leader_state import LiveQueues

if TYPE_CHECKING:
    from raftmq.store.message_reads import GetResult

log = logging.getLogger("raftmq.broker.pops")

RETRIES_FIRST = 5  # one of so many pops looks at the retries first (popFromRetryProbability 20)
NEW_MAX = 100  # queues in which a group begins with one command
STOPS_MAX = 1_000  # of topics and groups; one that is forgotten begins where its turn is
LOOK_MAX = 1_000  # the newest batches of each queue; an attempt is repeated soon
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
    """A pop that passed the checks. `wanted` is its filter."""

    header: PopHeader
    wanted: Filter


class Taken(NamedTuple):
    """The part of a pop that one queue gives: its cursor goes from `before` to `after`. `start` is
    where it began to read; `mark`: the reset that it obeys; `commit`: the group's offset then;
    `gone`: offsets that were to come again, in order, and that retention deleted."""

    place: Place
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
        told = len(offsets) if isinstance(offsets, range) else list(offsets)
        who = (header.renewed_by, header.attempt_id, header.order)
        head = ("take", *self.place, self.before)
        steps: list[Step] = []
        if self.gone:  # a batch of its own, which ends at once
            gone, everything = list(self.gone), (1 << len(self.gone)) - 1
            steps += [
                (*head, self.before, gone[0], pop_ms, pop_ms, gone, *who),
                ("revived", *self.place, gone[0], pop_ms, everything),
            ]
        return [
            *steps,
            (*head, self.after, self.start, pop_ms, pop_ms + header.invisible_ms, told, *who),
            ("offset", *self.place, self.commit, self.mark),
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
    def found(self) -> bool:
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
            for place in new:
                begin = self._initial(place)
                attempt.add(Taken(place, begin, begin, begin, (), [], 0, None, begin))
            return attempt
        left_out: list[int] = []
        for topic, queue_id, wanted in self._sources(pop):
            place = (topic, header.consumer_group, queue_id)
            if attempt.count <= 0 or attempt.size_bytes <= 0:
                break
            filtered = topic == header.topic and wanted.matcher is not None
            if attempt.budget.spent or (filtered and attempt.work.left <= 0):
                if topic == header.topic:
                    left_out.append(queue_id)
                continue
            taken = self._take(place, header, wanted, attempt)
            if taken is not None:
                attempt.add(taken)
        if header.queue_id < 0:
            self._note_stop((header.topic, header.consumer_group), left_out)
        return attempt

    def _new_queues(self, header: PopHeader) -> list[Place]:
        """Return queues of which the group has no offset, and that with INIT_MAX. Where it begins
        there is put into the log before anything is popped, as Apache's brokers do: what is stored
        between two pops that find nothing is not skipped, however much it is."""
        topic, group = header.topic, header.consumer_group
        found = self._state.topics.get(topic)
        if header.init_mode != INIT_MAX or topic.startswith(RETRY_PREFIX) or found is None:
            return []
        popped = self._table.queues.get((topic, group), {})
        committed = self._state.offsets.offsets.get((topic, group), {})
        asked = range(found.read_queue_count) if header.queue_id < 0 else (header.queue_id,)
        new = sorted(set(asked).difference(popped, committed))  # by C code: mostly there are none
        places = ((topic, group, queue_id) for queue_id in new)
        return list(islice((one for one in places if self._live.next_of(one) is None), NEW_MAX))

    def pop_ms(self, attempt: Attempt) -> int:
        """Return the time of the pop: now, or later than all pops before of the same messages."""
        pop_ms = self._wall_ms()
        for taken in attempt.taken:
            queue = self._table.get(taken.place)
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
        wanted = own_retries(pop.wanted, header.topic, header.consumer_group)
        first = self._turn % RETRIES_FIRST == 0
        if first:
            yield from retries
        if header.queue_id >= 0:
            yield header.topic, header.queue_id, wanted
        else:
            found = self._state.topics.get(header.topic)
            count = 0 if found is None else found.read_queue_count
            begin = self._stops.get((header.topic, header.consumer_group), self._turn)
            for n in range(count):
                yield header.topic, (begin + n) % count, wanted
        if not first:
            yield from retries

    def _note_stop(self, who: tuple[str, str], left_out: Sequence[int]) -> None:
        self._stops.pop(who, None)
        if left_out:
            self._stops[who] = left_out[0]
            if len(self._stops) > STOPS_MAX:
                del self._stops[next(iter(self._stops))]

    # ---- one queue ------------------------------------------------------------------------

    def _take(
        self, place: Place, header: PopHeader, wanted: Filter, attempt: Attempt
    ) -> Taken | None:
        queue = self._table.get(place)
        if header.order:
            return self._take_in_order(place, queue, header, wanted, attempt)
        if queue is not None and queue.in_flight >= self._config.pop_inflight_message_threshold:
            return None
        cursor, before, mark = self._cursor(place)
        maximum = self._max_offset(place)
        if cursor == maximum and cursor == before:
            return None
        limits = attempt.count, attempt.size_bytes
        work = attempt.work if place[0] == header.topic else attempt.retry_work
        found = self._read(place, cursor, *limits, wanted, work, attempt.budget)
        if found.status in MOVED:
            cursor = found.next_offset
            found = self._read(place, cursor, *limits, wanted, work, attempt.budget)
        offsets, after = _offsets(found, cursor)
        attempt.rest += max(0, maximum - after)
        if after == before and not offsets:
            return None
        buffers = found.buffers if offsets else []
        size = found.size_bytes if offsets else 0
        return Taken(place, before, after, cursor, offsets, buffers, size, mark, after)

    def _take_in_order(
        self,
        place: Place,
        queue: PopQueue | None,
        header: PopHeader,
        wanted: Filter,
        attempt: Attempt,
    ) -> Taken | None:
        if self._live.next_of(place) is not None:
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
            one = self._read(place, offset, *limits, ALL, attempt.work, attempt.budget)
            if one.message_count and one.next_offset == offset + 1:
                offsets.append(offset)
                buffers += one.buffers
                size += one.size_bytes
            elif offset < one.min_offset:
                gone.append(offset)
            elif attempt.budget.spent:  # what follows it must wait for it
                break
        cursor, before, mark = self._cursor(place)
        after = cursor
        if len(gone) == len(again) and not repeated:
            limits = attempt.count, attempt.size_bytes
            fresh = self._read(place, cursor, *limits, wanted, attempt.work, attempt.budget)
            if fresh.status in MOVED:
                cursor = fresh.next_offset
                fresh = self._read(place, cursor, *limits, wanted, attempt.work, attempt.budget)
            new, after = _offsets(fresh, cursor)
            offsets, buffers, size = list(new), list(fresh.buffers), fresh.size_bytes
        if not offsets and not gone and after == before:
            return None
        start = offsets[0] if offsets else cursor
        commit = offsets[0] if offsets else after
        return Taken(place, before, after, start, offsets, buffers, size, mark, commit, gone)

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

    def _cursor(self, place: Place) -> tuple[int, int, int | None]:
        """Return where the next pop of the queue begins, what the table will have as its cursor
        then, and the mark of a reset that the group has not obeyed yet."""
        following = self._live.next_of(place)
        topic, group, queue_id = place
        offsets = self._state.offsets
        if following is not None:
            return following, following, self._live.mark_of(place)
        mark = offsets.reset_of(topic, group, queue_id)
        known = self._state.position(topic, group, queue_id)
        queue = self._table.get(place)
        if queue is None:
            begin = self._min_offset(place) if known is None else known
            return begin, begin, mark
        # In order, the group's offset is behind. A pop that was decided before a reset may have
        # moved the queue since, and consumers may have pulled meanwhile.
        if known is None or (queue.is_orderly and mark is None):
            known = max(queue.next, known or 0)
        return known, queue.next, mark

    def _initial(self, place: Place) -> int:
        """Return where a new group begins with INIT_MAX, by Apache's rule: at the last message, but
        at the first of a queue of which nothing was deleted and all is in memory."""
        found = self._store.queues.queue(place[0], place[2])
        if found is None or found.min_offset == found.max_offset:
            return 0 if found is None else found.max_offset
        if found.min_offset <= 0 and self._is_hot(place):
            return 0
        return found.max_offset - 1

    def _is_hot(self, place: Place) -> bool:
        found = self._reads.get_messages(place[0], place[2], 0, 1, 1)
        return not found.cold

    def _min_offset(self, place: Place) -> int:
        found = self._store.queues.queue(place[0], place[2])
        return 0 if found is None else found.min_offset

    def _max_offset(self, place: Place) -> int:
        found = self._store.queues.queue(place[0], place[2])
        return 0 if found is None else found.max_offset

    def _read(
        self,
        place: Place,
        offset: int,
        count_max: int,
        bytes_max: int,
        wanted: Filter,
        work: Work,
        budget: ReadBudget,
    ) -> GetResult:
        topic, _, queue_id = place
        limits = count_max, bytes_max
        if wanted.matcher is not None:
            return self._filtered.get_messages(
                topic, queue_id, offset, *limits, wanted.matcher, work, budget
            )
        return self._reads.get_messages(topic, queue_id, offset, *limits, wanted.codes, budget)


class Repeats:
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
        found: list[tuple[Place, BatchKey, Batch]] = []
        for topic in dict.fromkeys((header.topic, pop_retry_topic(header.topic, group))):
            for queue_id, queue in self._table.queues.get((topic, group), {}).items():
                for key in islice(reversed(queue.batches), LOOK_MAX):
                    batch = queue.batches[key]
                    if batch.attempt == header.attempt_id and batch.client == header.renewed_by:
                        found.append(((topic, group, queue_id), key, batch))
        pop_ms = max((key[1] for _, key, _ in found), default=0)
        budget = ReadBudget()
        try:
            again = [self._read(*one, budget) for one in found if one[1][1] == pop_ms]
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s error=%s", header.topic, error)
            return [], 0
        return [taken for taken in again if taken.offsets], pop_ms

    def _read(self, place: Place, key: BatchKey, batch: Batch, budget: ReadBudget) -> Taken:
        """Return the messages of a batch that the budget allows to read."""
        offsets: list[int] = []
        buffers: list[bytes] = []
        size = 0
        bytes_max = self._config.max_transfer_bytes_on_message_in_memory
        for offset in batch.pending_offsets:
            if budget.spent:
                break
            one = self._reads.get_messages(place[0], place[2], offset, 1, bytes_max, budget=budget)
            if one.message_count and one.next_offset == offset + 1:  # else retention deleted it
                offsets.append(offset)
                buffers += one.buffers
                size += one.size_bytes
        return Taken(place, key[0], key[0], key[0], offsets, buffers, size, None, key[0])


def _offsets(found: GetResult, start: int) -> tuple[Sequence[int], int]:
    """Return the offsets of the messages read, and where the queue goes on."""
    if found.status is not GetStatus.FOUND:
        return (), found.next_offset if found.status in SKIPPED else start
    if found.next_offset - start == found.message_count:
        return range(start, found.next_offset), found.next_offset
    offsets: list[int] = []
    for data in found.buffers:
        at = 0
        while at < len(data):
            offsets.append(_QUEUE_OFFSET.unpack_from(data, at + _OFFSET_AT)[0])
            at += _SIZE.unpack_from(data, at)[0]
    return offsets, found.next_offset
