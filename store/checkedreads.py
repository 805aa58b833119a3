"""Reads the records that ConsumeQueue units point at, and checks each unit against its record.

A pull never returns a record of another queue, another offset or, for cold data, one with a damaged
body. For hot data the topic is compared in the first record, the last, and one in TOPIC_EVERY:
units of another topic come by the page, which holds more units than that. (A read of 32 small
messages takes 22 us, of 700 100 us, where the topics of all would take 1 us each.)

Units that do not fit their record are noted for repair (store.queuerepair).
"""

from __future__ import annotations

import numpy as np

from raftmq.store.commitlog import CommitLog
from raftmq.store.consumequeue import ConsumeQueue, ConsumeQueueStore
from raftmq.store.errors import OffsetOutOfRange, UnitDamaged
from raftmq.store.pointing import HEAD, body_is_whole, queue_offset_at
from raftmq.store.queuerepair import QueueRepairs
from raftmq.store.record import HEAD_SIZE_BYTES, MAGIC_V1
from raftmq.store.selection import Longs, Selected, spans

TOPIC_EVERY = 64  # < 204, the units on a page
VECTOR_MIN = 64  # records, from which on arrays are faster than a loop
_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", ">i4"),
        ("queue", ">i4"),
        ("flag", ">i4"),
        ("offset", ">i8"),
        ("position", ">i8"),
    ]
)

assert _HEAD.itemsize == HEAD.size


class CheckedReads:
    """Reads and checks the records of one store."""

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueStore, repairs: QueueRepairs | None
    ) -> None:
        """If `repairs` is None (classic mode), wrong units are not repaired; they are never
        returned."""
        self._commitlog = commitlog
        self._queues = queues
        self._repairs = repairs

    def read(self, chosen: Selected, queue: ConsumeQueue, cold: bool) -> bytes:
        """Return the chosen records, one behind the other. They must be of that queue and have the
        queue offsets that `chosen` gives.

        Raises UnitDamaged, OSError."""
        if chosen.sizes.min() < HEAD_SIZE_BYTES:  # no unit of a record
            raise self._damaged_at(queue, chosen, int(chosen.sizes.argmin()))
        log = self._commitlog
        pieces: list[bytes] = []
        for start, length, first, parts in spans(chosen, log.segment_size_bytes, log.min_offset):
            try:
                data = log.read(start, length)
            except OffsetOutOfRange as error:
                raise self.damaged(queue, int(chosen.offsets[first]), error.offset) from error
            if len(data) < length:
                behind = chosen.positions[first:] + chosen.sizes[first:] > start + len(data)
                raise self._damaged_at(queue, chosen, first + int(behind.argmax()))
            pieces += [data[begin - start : end - start] for begin, end in parts]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._check(chosen, queue, data, cold)
        return data

    def _check(self, chosen: Selected, queue: ConsumeQueue, data: bytes, cold: bool) -> None:
        """Check that `data` is the chosen records. Raises UnitDamaged."""
        count, every = len(chosen.sizes), 1 if cold else TOPIC_EVERY
        starts = chosen.sizes.cumsum() - chosen.sizes
        topic = queue.topic.encode()
        unlike = _unlike_of_many if count >= VECTOR_MIN else _unlike
        suspects = unlike(data, starts, chosen, queue.queue_id)
        for number in (*suspects, *range(0, count - 1, every), count - 1):
            offset, position, at, size = (
                part.item(number)
                for part in (chosen.offsets, chosen.positions, starts, chosen.sizes)
            )
            told = queue_offset_at(data, at, position, size, topic, queue.queue_id)
            if told != offset or (cold and not body_is_whole(data, at, position)):
                raise self._damaged_at(queue, chosen, number)

    def _damaged_at(self, queue: ConsumeQueue, chosen: Selected, number: int) -> UnitDamaged:
        return self.damaged(queue, chosen.offsets.item(number), chosen.positions.item(number))

    def check_removed(self, queue: ConsumeQueue, offset: int) -> None:
        """Check that a unit points below the log's beginning because retention deleted its record
        and those before it. Raises UnitDamaged if it cannot be that."""
        minimum = self._commitlog.min_offset
        followed = self._queues.corrected_to == minimum
        if followed or queue.first_at(lambda position, _: position >= minimum) <= offset:
            raise self.damaged(queue, offset, queue.unit(offset)[0])

    def damaged(self, queue: ConsumeQueue, offset: int, position: int) -> UnitDamaged:
        """Return the error for a unit that does not fit the record it points at, and note it."""
        if self._repairs is not None:
            self._repairs.note(queue.topic, queue.queue_id, offset, position)
        return UnitDamaged(queue.topic, queue.queue_id, offset, position)


def _unlike(data: bytes, starts: Longs, chosen: Selected, queue_id: int) -> list[int]:
    """Return the numbers of the records that are not, by their heads, V1 records of that queue, of
    their size and place."""
    head = HEAD.unpack_from
    positions, sizes, offsets = (part.tolist() for part in chosen[:3])
    found = []
    for number, at in enumerate(starts.tolist()):
        size, magic, of_queue, offset, position = head(data, at)
        if (
            offset != offsets[number]
            or position != positions[number]
            or size != sizes[number]
            or of_queue != queue_id
            or magic != MAGIC_V1
        ):
            found.append(number)
    return found


def _unlike_of_many(data: bytes, starts: Longs, chosen: Selected, queue_id: int) -> list[int]:
    """Do as `_unlike`, which is faster for few."""
    heads = np.ndarray((len(data) - HEAD.size + 1,), _HEAD, data, strides=(1,))[starts]
    wrong = (heads["offset"] != chosen.offsets) | (heads["position"] != chosen.positions)
    wrong |= (heads["size"] != chosen.sizes) | (heads["queue"] != queue_id)
    wrong |= heads["magic"] != MAGIC_V1
    return np.flatnonzero(wrong).tolist()
