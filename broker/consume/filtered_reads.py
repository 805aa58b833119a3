"""Reads of a queue through a filter over message properties.

The store filters by tags codes, from the ConsumeQueue alone. An expression needs the properties of
each message, so records are read in chunks and parsed in place without their bodies. A pull checks
at most as many entries as a filter by tags, SCAN_BYTES_MAX of records, and as many records as its
work allows. Then the consumer continues behind the matches found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from raftmq.store.commitlog.commitlog import ReadBudget
from raftmq.store.errors import StoreError
from raftmq.store.get_message import GetStatus, scan_count
from raftmq.store.message_reads import GetResult
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import decode_properties
from raftmq.store.record import HEAD_SIZE_BYTES, MAGIC_V2, hosts_extra

from .filters import RECORD_WORK, Matcher, Work

SCAN_BYTES_MAX = 4 << 20
WORK_MAX = 50_000  # for the filter of a new pull, as Matcher.work counts, about 50 ms
CHUNK_ENTRIES = 128
CHUNK_BYTES = 256 << 10
WAKE_ENTRIES_MAX = 800  # per arrival, for held pulls; with more, all pulls run
_HEAD = struct.Struct(">ii12xq8xi")  # TOTALSIZE, MAGIC, QUEUEOFFSET, SYSFLAG
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_ENTRY = struct.Struct(">qi8x")


def records_in(data: bytes) -> Iterator[tuple[int, int, int, Mapping[str, str]]]:
    """Yield start, size, queue offset and properties of each checked record."""
    at = 0
    while at < len(data):
        size, magic, queue_offset, sys_flag = _HEAD.unpack_from(data, at)
        body_at = at + HEAD_SIZE_BYTES + hosts_extra(sys_flag)
        topic_at = body_at + _INT.unpack_from(data, body_at - 4)[0]
        if magic == MAGIC_V2:
            topic_end = topic_at + 2 + _SHORT.unpack_from(data, topic_at)[0]
        else:
            topic_end = topic_at + 1 + data[topic_at]
        yield at, size, queue_offset, decode_properties(data[topic_end + 2 : at + size])
        at += size


@dataclass(slots=True)
class _Kept:
    """The records matched, and the remaining work."""

    count_max: int
    bytes_max: int
    buffers: list[bytes]
    work: Work
    size_bytes: int = 0

    def takes(self, size: int) -> bool:
        if not self.buffers:
            return True
        return len(self.buffers) < self.count_max and self.size_bytes + size <= self.bytes_max

    def add(self, record: bytes) -> bool:
        """Keep a record. Returns False if no more fit."""
        self.buffers.append(record)
        self.size_bytes += len(record)
        return len(self.buffers) < self.count_max


@dataclass(frozen=True, slots=True)
class FilteredReads:
    """Reads for filters by expression."""

    store: MessageStore

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        matcher: Matcher,
        work: Work,
        budget: ReadBudget | None = None,
    ) -> GetResult:
        """Read matches, as far as `work` and `budget` allow. Raises StoreDamaged, OSError."""
        entries_left, bytes_left = scan_count(count_max), SCAN_BYTES_MAX
        kept = _Kept(count_max, bytes_max, [], work)
        at, result, cold = offset, None, False
        config = self.store.config
        budget = budget or ReadBudget()
        while entries_left > 0 and bytes_left > 0 and not budget.spent:
            limits = min(entries_left, CHUNK_ENTRIES), min(bytes_left, CHUNK_BYTES)
            read = self.store.reads.get_messages(topic, queue_id, at, *limits, budget=budget)
            if read.status is not GetStatus.FOUND:
                if result is None:
                    return read
                break
            if read.cold:
                cold = True
                kept.count_max = min(kept.count_max, config.cold_count_max)
                kept.bytes_max = min(kept.bytes_max, config.cold_bytes_max)
            result = read
            stopped_at = self._select(read.buffers, matcher, kept)
            if stopped_at is not None:
                at = stopped_at
                break
            entries_left -= read.next_offset - at
            bytes_left -= read.size_bytes
            at = read.next_offset
        assert result is not None
        count = len(kept.buffers)
        status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
        return replace(
            result,
            status=status,
            buffers=kept.buffers,
            next_offset=at,
            message_count=count,
            size_bytes=kept.size_bytes,
            cold=cold,
        )

    def _select(self, buffers: list[bytes], matcher: Matcher, kept: _Kept) -> int | None:
        """Keep the matches. Returns the queue offset to continue at if no more fit or the work is
        used up, else None. If any work is left, the next record is evaluated whatever its cost, so
        that reads progress."""
        for data in buffers:
            for at, size, queue_offset, properties in records_in(data):
                if kept.work.left <= 0:
                    return queue_offset
                kept.work.left -= RECORD_WORK + matcher.work(properties)
                if not matcher.matches(properties):
                    continue
                if not kept.takes(size):
                    return queue_offset
                if not kept.add(data[at : at + size]):
                    return queue_offset + 1
        return None

    def properties_of(self, entries: bytes) -> Sequence[Mapping[str, str]] | None:
        """Return the properties of the messages of these ConsumeQueue entries. Returns None if they
        are too many or unreadable; then the pull runs and reports the error."""
        if len(entries) > WAKE_ENTRIES_MAX * 20:
            return None
        try:
            data = b"".join(
                self.store.commitlog.read(position, size)
                for position, size in _ENTRY.iter_unpack(entries)
            )
            parsed = [properties for *_, properties in records_in(data)]
        except (OSError, StoreError, struct.error, IndexError):
            return None
        return parsed if len(parsed) * 20 == len(entries) else None
