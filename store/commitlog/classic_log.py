"""Classic mode's CommitLog. Writes records and dispatches them at once.

A master appends records that the send path has encoded. A slave copies bytes of its master's log.
Data becomes durable by a GroupFlusher or by a flush of the store.

In a log of Apache's broker, queue offsets restart at 0 after a topic was deleted and created again.
Such queues restart here also, and older entries are dropped, as that broker dropped them. Our
masters let the queue continue instead. Therefore data stored by our master never restarts a queue
that has messages here; a restart would mean that the master lost its queue files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..derived_files import DerivedFiles
from ..dispatch import (
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    DispatchError,
    QueueRestarted,
)
from ..errors import Diverged, FlushUnderWay, StoreDamaged
from ..frame import EntryBatch
from ..record import BLANK, MAGIC_BLANK, store_timestamp_at, walk_records
from .commitlog import CommitLog

logger = logging.getLogger("raftmq.store.commitlog.classic_log")

_REDISPATCH_BYTES = 4 << 20  # per read


@contextmanager
def contradicting(entries: Sequence[EntryBatch]) -> Iterator[None]:
    """Raise StoreDamaged if the entries do not continue their queues; for starts only."""
    try:
        yield
    except (AssertionError, ValueError) as error:
        position = min(QUEUE_ENTRY.unpack_from(packed)[0] for _, _, _, packed in entries)
        raise StoreDamaged(position, f"records that do not continue a queue: {error}") from error


class ClassicLog:
    def __init__(self, commitlog: CommitLog, derived: DerivedFiles) -> None:
        self._commitlog = commitlog
        self._derived = derived
        self.gap = -1  # position of the last damaged record in the walk at start; -1 if none

    def append(
        self, position: int, data: bytes, entries: Sequence[EntryBatch], now_ms: int
    ) -> None:
        """Append records and their `entries`. Queue offsets, the store time `now_ms` and `position`
        (from the log's `allocate`) are in the records. Store times never decrease, because queues
        are searched by them. Raises OSError."""
        self._derived.write_full_tails()
        self._commitlog.write(position, data)
        self._derived.append(entries, position + len(data), now_ms)

    def copy(
        self, data: bytes, newest_ms: int, own_from: int | None = None
    ) -> Sequence[EntryBatch]:
        """Append whole records of a master's log and dispatch them; return the entries by queue.
        From CommitLog offset `own_from` on, our masters stored them. Raises Diverged or
        FlushUnderWay before anything is written; OSError."""
        position = self._commitlog.max_offset
        try:
            batches = list(self._batches(data, position, len(data)))
        except DispatchError as error:
            raise Diverged(position, str(error)) from error
        self._check(batches, position, own_from)
        self._derived.write_full_tails()
        self._commitlog.copy(data)
        for entries, end in batches:
            self._drop_restarted(entries)
            self._derived.append(entries, end, newest_ms)
        return [one for entries, _ in batches for one in entries]

    def copy_blank(self, data: bytes) -> None:
        """Append the rest of a segment of a master's log, from its blank record on."""
        self._commitlog.copy(data)
        self._derived.append((), self._commitlog.max_offset, self._derived.newest_ms)

    def dispatch_from(self, position: int) -> None:
        """Dispatch the records from `position` to the end of the log, at start. Blocking. Raises
        OSError; StoreDamaged for contradictory records."""
        end = self._commitlog.max_offset
        for entries, reached, stamp_ms in self._walk(position, end):
            self._drop_restarted(entries)
            with contradicting(entries):
                self._derived.append(entries, reached, stamp_ms)
        self._derived.append((), end, self._derived.newest_ms)

    def rebuild_damaged(self, end: int) -> None:
        """Rebuild the queues that were not loaded, up to `end`, a record's start or the log's end.
        At start; blocking. Raises OSError; StoreDamaged for contradictory records."""
        queues = self._derived.queues
        damaged = dict(queues.damaged)
        if not damaged:
            return
        for (topic, queue_id), reason in damaged.items():
            logger.error("queue_damaged topic=%s queue=%d reason=%s", topic, queue_id, reason)
            queues.discard(topic, queue_id)
        for entries, _, _ in self._walk(self._commitlog.min_offset, end):
            selected = [one for one in entries if one[:2] in damaged]
            self._drop_restarted(selected)
            for one in selected:
                with contradicting([one]):
                    queues.append(*one)
        logger.warning("queues_rebuilt count=%d", len(damaged))

    def _walk(self, position: int, end: int) -> Iterator[tuple[list[EntryBatch], int, int]]:
        """Yield the entries of the records from `position` to `end` in batches in which no queue
        restarts, each with its end and the store time of its last records. A classic log is never
        repaired. The rest of a segment after a damaged record is skipped, and the offsets that
        queues lost there are filled. Raises StoreDamaged, OSError."""
        log = self._commitlog
        while position < end:
            data = log.read(position, min(_REDISPATCH_BYTES, end - position))
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
                    self.gap, position = position, log.segment_end(position)
                    logger.error("queue_gap at=%d to=%d reason=%s", self.gap, position, walk.detail)
                    continue
                data, walk.end = record, len(record)
            stamp_ms = store_timestamp_at(data, last)
            for entries, reached in self._valid_batches(data, position, walk.end):
                if self.gap >= 0:
                    for topic, queue_id, first, _ in entries:
                        self._derived.queues.fill_up_to(topic, queue_id, first, self.gap)
                yield entries, reached, stamp_ms
            position += walk.end

    def _valid_batches(
        self, data: bytes, position: int, size: int
    ) -> Iterator[tuple[list[EntryBatch], int]]:
        """Yield `_batches`. Raises StoreDamaged instead of its errors."""
        try:
            yield from self._batches(data, position, size)
        except DispatchError as error:
            raise StoreDamaged(error.position, error.reason) from error
        except UnicodeDecodeError as error:
            raise StoreDamaged(position, f"behind it a topic is no text: {error}") from error

    def _batches(
        self, data: bytes, position: int, size: int
    ) -> Iterator[tuple[list[EntryBatch], int]]:
        """Yield the entries of data[:size] at `position` in batches in which no queue restarts,
        each with its end. Raises DispatchError."""
        index = self._derived.dispatcher.index
        start = 0
        while start < size:
            try:
                entries, stop = index(data, position + start, start, size), size
            except QueueRestarted as restarted:
                entries, stop = index(data, position + start, start, restarted.at), restarted.at
            yield [*entries], position + stop
            start = stop

    def _check(
        self,
        batches: Sequence[tuple[Sequence[EntryBatch], int]],
        position: int,
        own_from: int | None,
    ) -> None:
        """Check that the batches continue the queues. Raises Diverged, FlushUnderWay."""
        queues = self._derived.queues
        ends: dict[tuple[str, int], int] = {}
        for entries, _ in batches:
            for topic, queue_id, first, packed in entries:
                key = (topic, queue_id)
                end = ends.get(key, queues.end_of(topic, queue_id))
                if end not in (first, 0):  # 0: the log may start in the middle of the master's
                    if first:
                        text = f"queue offset {first} of {topic}/{queue_id} follows {end - 1}"
                        raise Diverged(position, text)
                    ours = own_from is not None and QUEUE_ENTRY.unpack_from(packed)[0] >= own_from
                    if ours and (key in ends or queues.has_messages(topic, queue_id)):
                        text = f"{topic}/{queue_id} begins at 0 again, and {end - 1} was its last"
                        raise Diverged(position, f"{text}: the master has lost that queue's files")
                    if queues.flushing:
                        raise FlushUnderWay(f"{topic}/{queue_id} begins anew")
                ends[key] = first + len(packed) // QUEUE_ENTRY_BYTES

    def _drop_restarted(self, entries: Sequence[EntryBatch]) -> None:
        """Drop the queues that restart with these `entries`. Raises OSError."""
        queues = self._derived.queues
        for topic, queue_id, first, packed in entries:
            queue = queues.queue(topic, queue_id)
            if first or queue is None or not queue.max_offset:
                continue
            if (
                queue.last_position < QUEUE_ENTRY.unpack_from(packed)[0]
            ):  # otherwise it has these entries
                logger.info("queue_restarted topic=%s queue=%d", topic, queue_id)
                queues.discard(topic, queue_id)
