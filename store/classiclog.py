"""Writes the CommitLog of classic mode: records, dispatched as soon as they are written.

A master appends records that the send path has encoded; a slave copies bytes of its master's log as
they stand there. Nothing is durable until a GroupFlusher or a flush of the store says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.store.commitlog import CommitLog
from raftmq.store.derived import DerivedFiles
from raftmq.store.dispatch import Units
from raftmq.store.errors import Diverged, StoreDamaged
from raftmq.store.record import BLANK, MAGIC_BLANK, store_timestamp_at, walk_records

_REDISPATCH_BYTES = 4 << 20  # read at once


class ClassicLog:
    """Writes records and dispatches them."""

    def __init__(self, commitlog: CommitLog, derived: DerivedFiles) -> None:
        self._commitlog = commitlog
        self._derived = derived

    def append(self, position: int, data: bytes, units: Sequence[Units], now_ms: int) -> None:
        """Append records with queue offsets, store time `now_ms` and `position` (from the log's
        `place`) in them, and their `units`. Store times never go back, since queues are searched by
        them. Raises OSError."""
        self._derived.make_room()
        self._commitlog.write(position, data)
        self._derived.append(units, position + len(data), now_ms)

    def copy(self, data: bytes, newest_ms: int) -> Sequence[Units]:
        """Append whole records of a master's log at the end of this one and dispatch them; return
        the units by queue. Raises Diverged, having written nothing; OSError; DispatchError."""
        position = self._commitlog.max_offset
        units = self._derived.dispatcher.index(data, position)
        for topic, queue_id, first, _ in units:
            queue = self._derived.queues.queue(topic, queue_id)
            end = 0 if queue is None else queue.max_offset
            if end not in (first, 0):  # 0: the log may begin in the middle of the master's
                text = f"queue offset {first} of {topic}/{queue_id} follows {end - 1}"
                raise Diverged(position, text)
        self._derived.make_room()
        self._commitlog.copy(data)
        self._derived.append(units, position + len(data), newest_ms)
        return units

    def copy_blank(self, data: bytes) -> None:
        """Append the rest of a segment of a master's log, from its blank record on."""
        self._commitlog.copy(data)
        self._derived.append((), self._commitlog.max_offset, self._derived.newest_ms)

    def dispatch_from(self, position: int) -> None:
        """At start: dispatch the records from `position` to the end of the log. Blocking. Raises
        StoreDamaged, DispatchError, OSError."""
        log, derived = self._commitlog, self._derived
        stamp_ms = derived.newest_ms
        while position < log.max_offset:
            data = log.read(position, _REDISPATCH_BYTES)
            if BLANK.unpack_from(data)[1] == MAGIC_BLANK:
                position += BLANK.unpack_from(data)[0]
                continue
            walk = walk_records(data, position, check_body=False)
            last = 0
            for at, _ in walk:
                last = at
            if walk.end == 0:
                record = log.record_at(position)
                if record is None:
                    raise StoreDamaged(position, walk.detail)
                data, walk.end = record, len(record)
            units = derived.dispatcher.index(data, position, 0, walk.end)
            position, stamp_ms = position + walk.end, store_timestamp_at(data, last)
            derived.append(units, position, stamp_ms)
        derived.append((), log.max_offset, stamp_ms)
