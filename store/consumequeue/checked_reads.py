"""Reads the records of ConsumeQueue entries, and checks each entry against its record.

A pull never returns a record of a different queue or offset or, for cold data, a record with a
damaged body. For hot data the topic is compared in the first record, the last, and every
TOPIC_EVERY-th. Entries of a foreign topic appear by the page, and a page holds more entries than
that. A read of 32 small messages takes 22 us, of 700 messages 100 us; comparing every topic would
add 1 us per message.

Entries that do not match their record are reported for repair (store.consumequeue.repair).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from operator import add

from ..commitlog.commitlog import CommitLog, ReadBudget
from ..errors import EntryDamaged, OffsetOutOfRange
from ..get_message import Selected, spans
from ..record import HEAD_SIZE_BYTES, MAGIC_V1
from .consumequeue import ConsumeQueue, ConsumeQueueStore
from .repair import HEAD, QueueRepairs, body_is_valid, queue_offset_at

TOPIC_EVERY = 64  # < 204, the entries of a page


class CheckedReads:
    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueStore, repairs: QueueRepairs | None
    ) -> None:
        """With `repairs` None (classic mode), wrong entries are only never returned."""
        self._commitlog = commitlog
        self._queues = queues
        self._repairs = repairs

    def read(
        self, chosen: Selected, queue: ConsumeQueue, cold: bool, budget: ReadBudget
    ) -> tuple[Selected, bytes]:
        """Return the chosen records consecutively, or the first that the budget allows. They must
        have that queue and the queue offsets of `chosen`. Raises EntryDamaged, OSError."""
        sizes, offsets = chosen.sizes, chosen.offsets
        if min(sizes) < HEAD_SIZE_BYTES:  # no entry of a record
            raise self._damaged_at(queue, chosen, sizes.index(min(sizes)))
        log = self._commitlog
        pieces: list[bytes] = []
        for start, length, first, bounds in spans(chosen, log.segment_size_bytes, log.min_offset):
            try:
                data = log.served.read(start, length, budget)
            except OffsetOutOfRange as error:
                raise self.damaged(queue, offsets[first], error.offset) from error
            pieces += [data[low - start : end - start] for low, end in bounds]
            if len(data) < length:
                ends = map(add, chosen.positions[first:], sizes[first:])
                behind = [end > start + len(data) for end in ends].index(True)
                if not budget.spent:
                    raise self._damaged_at(queue, chosen, first + behind)
                chosen = chosen.first(first + behind)
                break
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if budget.spent:
            data = data[: sum(chosen.sizes)]
        self._check(chosen, queue, data, cold)
        return chosen, data

    def _check(self, chosen: Selected, queue: ConsumeQueue, data: bytes, cold: bool) -> None:
        """Check that `data` is the chosen records. Raises EntryDamaged."""
        head, queue_id, topic = HEAD.unpack_from, queue.queue_id, queue.topic.encode()
        starts = [0, *accumulate(chosen.sizes)]
        count = len(chosen.sizes)
        if not count:
            return
        suspects = [*range(0, count, 1 if cold else TOPIC_EVERY), count - 1]
        for at, position, size, offset in zip(starts, *chosen[:3], strict=False):
            stored_size, magic, of_queue, queue_offset, stored_position = head(data, at)
            if (
                queue_offset != offset
                or stored_position != position
                or stored_size != size
                or of_queue != queue_id
                or magic != MAGIC_V1
            ):
                suspects.append(bisect_left(starts, at))
        for number in suspects:
            at, position, size = starts[number], chosen.positions[number], chosen.sizes[number]
            stored_offset = queue_offset_at(data, at, position, size, topic, queue_id)
            valid = not cold or body_is_valid(data, at, position)
            if stored_offset != chosen.offsets[number] or not valid:
                raise self._damaged_at(queue, chosen, number)

    def _damaged_at(self, queue: ConsumeQueue, chosen: Selected, number: int) -> EntryDamaged:
        return self.damaged(queue, chosen.offsets[number], chosen.positions[number])

    def check_removed(self, queue: ConsumeQueue, offset: int) -> None:
        """Check that an entry points below the log's start because retention deleted its record and
        all earlier records. Raises EntryDamaged otherwise."""
        minimum = self._commitlog.min_offset
        followed = self._queues.corrected_to == minimum
        if followed or queue.first_at(lambda position, _: position >= minimum) <= offset:
            raise self.damaged(queue, offset, queue.entry(offset)[0])

    def damaged(self, queue: ConsumeQueue, offset: int, position: int) -> EntryDamaged:
        """Report an entry that does not match its record, and return the error."""
        if self._repairs is not None:
            self._repairs.report(queue.topic, queue.queue_id, offset, position)
        return EntryDamaged(queue.topic, queue.queue_id, offset, position)
