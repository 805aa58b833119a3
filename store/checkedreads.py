"""Reads the records that ConsumeQueue units point at, and checks each unit against its record.

A pull never returns a record of another queue, another offset or, for cold data, one with a damaged
body. For hot data the topic is compared in the first record, the last, and one in TOPIC_EVERY:
units of another topic come by the page, which holds more units than that. (A pull of 32 small
messages takes 32 us; it took 29 when only size and magic were checked, and 76 with all topics.)

Units that do not fit their record are noted for repair (store.queuerepair).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from raftmq.store.commitlog import CommitLog
from raftmq.store.consumequeue import ConsumeQueue, ConsumeQueueStore
from raftmq.store.errors import OffsetOutOfRange, UnitDamaged
from raftmq.store.pointing import HEAD, body_is_whole, queue_offset_at
from raftmq.store.queuerepair import QueueRepairs
from raftmq.store.record import MAGIC_V1
from raftmq.store.selection import cut_records, spans

TOPIC_EVERY = 64  # < 204, the units on a page


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

    def read(
        self,
        chosen: list[tuple[int, int]],
        queue: ConsumeQueue,
        offsets: Sequence[int],
        cold: bool,
    ) -> list[bytes]:
        """Return the records `chosen` as (position, size); adjacent ones come in one piece. Each
        must be of that queue and have the queue offset that `offsets` gives for it.

        Raises UnitDamaged, OSError."""
        buffers: list[bytes] = []
        log, queue_id, head = self._commitlog, queue.queue_id, HEAD.unpack_from
        number = 0
        try:
            for start, length, records in spans(chosen, log.segment_size_bytes, log.min_offset):
                data = log.read(start, length)
                for position, size in records:
                    wanted = offsets[number]
                    told = head(data, position - start)
                    if (
                        cold
                        or not number % TOPIC_EVERY
                        or told != (size, MAGIC_V1, queue_id, wanted, position)
                    ):
                        self._check(queue, wanted, data, position - start, position, size, cold)
                    number += 1
                buffers += cut_records(data, start, records)
            self._check(queue, wanted, data, position - start, position, size, cold)
        except OffsetOutOfRange as error:
            raise self.damaged(queue, offsets[number], error.offset) from error
        except struct.error as error:
            raise self.damaged(queue, offsets[number], chosen[number][0]) from error
        return buffers

    def _check(
        self,
        queue: ConsumeQueue,
        wanted: int,
        data: bytes,
        at: int,
        position: int,
        size: int,
        cold: bool,
    ) -> None:
        """Check one record completely. Raises UnitDamaged."""
        topic = queue.topic.encode()
        told = queue_offset_at(data, at, position, size, topic, queue.queue_id)
        if told != wanted or (cold and not body_is_whole(data, at, position)):
            raise self.damaged(queue, wanted, position)

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
