"""The CommitLog, an endless byte string in segments of fixed size.

Segments are `<directory>/%020d`, named by the offset of their first byte and preallocated with
zeros. Nothing spans segments. If `length + 8 > remaining`, a blank record (int32 remaining, int32
0xCBD43194) closes the segment and the bytes go to the start of the next.

Offsets are absolute. [min_offset, max_offset) is readable immediately after a write; everything
below `durable_offset` survives a power cut. After `open` the end is unknown. The log is readable up
to the end of its last segment, and `settle` must set the end before writes.
store.commitlog.recovery finds the end.

Syncs use tickets, so that fdatasync runs in a thread while the loop keeps writing. `start_sync`
records the end and the files written since the last finished ticket, `ticket.run()` blocks,
`finish_sync` moves `durable_offset`. A truncation lowers the end of outstanding tickets. A failed
sync is final (SyncFailed), because the kernel may have dropped the pages.

An optional checkpoint keeps the log's *durable mark*. It records every new durable offset, and is
lowered and synced before a truncation below it, so that recovery can distinguish a torn tail from
damage.

Writes are pwrite into fallocated files. Measured with 16 KiB writes into fresh files on 2 cores and
ext4: pwrite 3,600 MB/s, pwritev of 8 buffers 3,200, mmap 2,700 (5,800 after the first touch), 1,800
without fallocate. With `zero_ahead`, for logs that are synced often, 256 KiB are written as zeros
before their use. Then a write of 25 KB and its fdatasync take 68 us of CPU instead of 150.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

from ..checkpoint import Checkpoint
from ..disk import Disk
from ..errors import OffsetOutOfRange, RecordTooLarge, StoreError
from ..record import (
    BLANK,
    BLANK_SIZE_BYTES,
    FIXED_SIZE_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
)
from .log_sync import LogSyncs, NoMark, SegmentHold, SyncTicket
from .segments import ZEROS, NextSegment, Segment, SegmentFiles, SegmentInfo

SEGMENT_SIZE_BYTES = 1 << 30
SIZE_IS_FIXED = "mappedFileSizeCommitLog must be what the store was made with"
READ_BYTES_MAX = 4 << 20  # per request: some 3 ms of the loop
FIRST_READ_BYTES = 4096  # a single read fetches most records
# After a kill the mark is where the last sync ended, and less than this follows it. After a power
# cut the mark may be further back, but the page cache is empty.
WRITTEN_AGAIN_BYTES_MAX = 256 << 20
_COPIED_BYTES = 1 << 20  # per write
RESTORED_SEGMENTS_MAX = 4096  # if more are missing, the names or the mark must be wrong


class ReadBudget:
    """The bytes of the log that a request may still have checked."""

    __slots__ = ("left", "spent", "started")

    def __init__(self, left: int = READ_BYTES_MAX) -> None:
        self.left = left
        self.started = False
        self.spent = False  # something was not read because the budget was used up

    def take(self, size: int) -> bool:
        """Return whether `size` bytes may be checked now. The first check is always allowed, so
        that every request makes progress."""
        if self.started and size > self.left:
            self.spent = True
            return False
        self.started = True
        self.left -= size
        return True


class ServedReads(Protocol):
    """Reads for clients."""

    def read(self, offset: int, size: int, budget: ReadBudget | None = None) -> bytes:
        """Return up to `size` bytes at `offset`, within the budget. Raises StoreError, OSError."""

    def record_at(self, offset: int, budget: ReadBudget | None = None) -> bytes | None:
        """Return the message record at `offset`; None if there is none or the budget is used up.
        Raises StoreError, OSError."""


class CommitLog:
    """The CommitLog. For the loop only, except `ticket.run` and `prepare_next`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        mark: Checkpoint | None = None,
        *,
        zero_ahead: bool = False,
        on_synced: Callable[[float], None] | None = None,
    ) -> None:
        """`on_synced` gets the duration of each sync in s."""
        assert segment_size_bytes > BLANK_SIZE_BYTES
        self.directory = directory
        self.segment_size_bytes = segment_size_bytes
        self._disk = disk
        self._mark = mark or NoMark()
        self._files = SegmentFiles(disk, directory, segment_size_bytes)
        self._next = NextSegment(self._files)
        self._zero_ahead = zero_ahead
        self.syncs = LogSyncs(disk, directory, self._mark, on_synced)
        self._segments: list[Segment] = []
        self._settled = False
        self.mark_was_lost = False  # at open
        self.restored_end = 0  # end of the last segment that was missing before existing segments
        self.min_offset = 0
        self.max_offset = 0
        # A log of frames replaces it with checked reads (dledger.storage.log_reads).
        self.served: ServedReads = self

    # -- life ---------------------------------------------------------------------------------

    def open(self, start_offset: int = 0, *, restore: bool = False) -> None:
        """Open the existing segments, or an empty, settled log at `start_offset`. Raises StoreError
        if names or sizes do not make a log. With `restore`, a missing inner segment, or one below
        the durable mark, is restored as zeros; recovery finds damage there, and a peer may have its
        contents."""
        assert not self._segments
        self.mark_was_lost = self.mark_lost
        self._disk.makedirs(self.directory)
        files, size = self._files, self.segment_size_bytes
        starts = files.starts()
        for previous, start in pairwise(starts):
            if start - previous == size or (start == starts[-1] and files.drop_stray(start)):
                continue
            if not restore or (start - previous) % size:
                why = f"segments {previous} and {start} are not {size} bytes apart"
                raise StoreError(f"{why}; {SIZE_IS_FIXED}")
        starts = [start for start in starts if files.exists(start)]
        if restore and starts:
            there, last = set(starts), starts[-1]
            starts = self._restorable(starts[0], max(last + 1, self.durable_hint))
            missing_starts = [start for start in starts if start < last and start not in there]
            self._record_restored(max(missing_starts, default=-size) + size)
        for start in starts:
            # The last segment may be short if the process was killed between creation and
            # allocation.
            segment = files.reopen(start, sparse=restore and start != starts[-1])
            if segment.file.size_bytes != size:
                why = f"{segment.path} has {segment.file.size_bytes} bytes"
                raise StoreError(f"{why}; {SIZE_IS_FIXED}")
            self._segments.append(segment)
        if starts:
            self.min_offset, self.max_offset = starts[0], starts[-1] + size
        else:
            self.min_offset = self.max_offset = self.syncs.durable_offset = start_offset
            self._settled = True
            if self._mark.lost:
                self._mark.lower_durable(start_offset)

    def restore_front(self, start: int) -> None:
        """Restore segments missing at the front, or all of them, as zeros, before settling. The log
        began at `start`, a segment's first byte. Raises OSError."""
        end = self.min_offset if self._segments else max(start, self.durable_hint)
        if end <= start:
            return
        assert not self._settled or not self._segments
        missing = self._restorable(start, end)
        if self._segments:
            self._record_restored(missing[-1] + self.segment_size_bytes)
        self._segments[:0] = [self._files.reopen(at, sparse=True) for at in missing]
        self._settled = False
        self.min_offset = start
        self.max_offset = self._segments[-1].end

    def raise_hint(self, end: int) -> None:
        """Record durably, before settling, that everything below `end` was durable once, even if a
        power cut has set the mark back. Blocking. Raises OSError."""
        mark = self._mark
        if end > 0 and not mark.lost:
            # Never lowers it; syncs it even if it is only written.
            mark.lower_durable(max(end, mark.durable_offset))

    def _write_again(self, start: int, end: int) -> None:
        """Rewrite everything from the durable mark to `end`. If its sync failed before the last
        process ended, the kernel considers the pages clean although they are not on the disk, and
        no sync would write them."""
        start = min(max(start, self.durable_hint), end)
        for segment in self._segments:
            at = max(start, segment.start)
            while at < min(end, segment.end):
                size = min(end, segment.end, at + _COPIED_BYTES) - at
                segment.file.pwrite(
                    at - segment.start, segment.file.pread(at - segment.start, size)
                )
                at += size

    def _record_restored(self, end: int) -> None:
        """Record that a segment ending at `end` is missing before existing segments. Call it before
        the restoration, because after a kill the next start could not distinguish it from a segment
        that was never filled."""
        self.restored_end = max(self.restored_end, end)
        self.raise_hint(end)

    def _restorable(self, start: int, end: int) -> list[int]:
        """Return the starts of segments that cover [start, end). Raises StoreError for too many."""
        covered = range(start, end, self.segment_size_bytes)
        missing = len(covered) - len(self._disk.listdir(self.directory))
        if missing > RESTORED_SEGMENTS_MAX:
            raise StoreError(f"{missing} segments of [{start}, {end}) are missing")
        return list(covered)

    def settle(self, end: int) -> None:
        """Set the log's end once after opening, and drop everything behind it. Returns when the
        whole log is durable, because after a kill its tail may be only in the page cache. Blocking.
        Raises OSError."""
        assert not self._settled
        assert self.min_offset <= end <= self.max_offset
        if self.durable_hint > end:
            self._mark.lower_durable(end)
        while self._segments and self._segments[-1].start >= end and len(self._segments) > 1:
            self._remove(self._segments.pop())
        last = self._segments[-1]
        last.file.truncate(end - last.start)  # a hole of zeros, without I/O
        last.file.close()
        last.file = self._disk.open(last.path, allocate_bytes=self.segment_size_bytes)
        last.written_end = end
        if not isinstance(self._mark, NoMark):
            self._write_again(max(self.min_offset, end - WRITTEN_AGAIN_BYTES_MAX), end)
        # All segments, because a frame below the mark may also have been patched just before the
        # kill. Clean files cost nothing.
        for segment in self._segments:
            segment.file.sync()
        self._disk.sync_directory(self.directory)
        self.max_offset = self.syncs.durable_offset = end
        self._settled = True
        self._next.expect(last.end)
        self._mark.raise_durable(end)

    def close(self) -> None:
        """Close the files without syncing them."""
        self._settled = False
        self._next.close()
        for segment in self._segments:
            segment.file.close()
        self._segments = []
        self.syncs.close()

    @property
    def settled(self) -> bool:
        """True once the end is known. Only then may the log be written."""
        return self._settled

    @property
    def durable_hint(self) -> int:
        """The offset up to which the log was durable once; 0 if unknown."""
        return 0 if self._mark.lost else self._mark.durable_offset

    @property
    def committed_hint(self) -> int:
        """Raft mode: frames below this offset were committed, so peers have them; 0 if unknown."""
        return 0 if self._mark.lost else self._mark.committed_offset

    @property
    def mark_lost(self) -> bool:
        """True if the durable mark is damaged. Then nothing may be treated as a torn tail."""
        return self._mark.lost

    @property
    def durable_offset(self) -> int:
        """Everything below survives a power cut."""
        return self.syncs.durable_offset

    # -- writing ------------------------------------------------------------------------------

    def allocate(self, length: int) -> int:
        """Return the position that the next `length` bytes get. Raises RecordTooLarge."""
        position = self.max_offset
        segment_end = self._segments[-1].end if self._segments else self.segment_end(position)
        if length + BLANK_SIZE_BYTES <= segment_end - position:
            return position
        if length + BLANK_SIZE_BYTES > self.segment_size_bytes:
            size = self.segment_size_bytes
            raise RecordTooLarge(f"{length} bytes do not fit a segment of {size}")
        return segment_end

    def prepare_segment(self, position: int) -> None:
        """Create the segment that starts at `position` (from `allocate`), if any. `write` then
        needs no more disk space or descriptors. Raises OSError with nothing changed."""
        if position != self.max_offset or self._is_full:
            self._next.get(position)

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Append `data` at `position` (from `allocate`). Rolls if that is the next segment's start.
        Raises OSError; the end is unchanged then."""
        self.write_many(position, (data,), len(data))

    def write_many(
        self, position: int, buffers: Sequence[bytes | memoryview], length: int | None = None
    ) -> None:
        """Write several buffers consecutively in a segment, as `write` does."""
        assert self._settled
        if length is None:
            length = sum(map(len, buffers))
        if position != self.max_offset or self._is_full:
            self._roll(position)
        self._append(buffers, length, BLANK_SIZE_BYTES)

    def start_at(self, offset: int) -> None:
        """Let an empty log start at `offset`, the first byte of a segment of the copied log."""
        assert self._settled and not self._segments and self.min_offset == self.max_offset
        assert offset % self.segment_size_bytes == 0, offset
        self.min_offset = self.max_offset = self.syncs.durable_offset = offset

    def copy(self, data: bytes | memoryview) -> None:
        """Append bytes of a peer's log, either whole records or a blank record and the rest of its
        segment. They stay in a segment and may fill it. Raises OSError; the end is unchanged then.
        """
        assert self._settled
        if self._is_full:
            self._roll(self.max_offset)
        self._append((data,), len(data), 0)

    @property
    def _is_full(self) -> bool:
        return not self._segments or self.max_offset == self._segments[-1].end

    def _append(self, buffers: Sequence[bytes | memoryview], length: int, spare_bytes: int) -> None:
        """Write at the end, and leave `spare_bytes` of the last segment."""
        segment, position = self._segments[-1], self.max_offset
        end = position + length
        assert end + spare_bytes <= segment.end, (position, length, segment.end)
        if self._zero_ahead and length < len(ZEROS):  # a larger write costs more than its record
            segment.zero_ahead(end)
        if segment.written_end < end:  # before the write, which may fail after a part of it
            segment.written_end = end
        self.syncs.wrote(segment)
        if len(buffers) == 1:
            segment.file.pwrite(position - segment.start, buffers[0])
        else:
            segment.file.pwritev(position - segment.start, buffers)
        self.max_offset = end

    def prepare_next(self) -> None:
        """Create and allocate the segment after the last, if it is missing, so that the next roll
        need not. Blocking; runs in the pool. Raises OSError."""
        self._next.prepare()

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, size: int, budget: ReadBudget | None = None) -> bytes:
        """Return up to `size` bytes at `offset`; fewer at the end of the segment or of the log. The
        bytes are not checked, so no budget is used. Raises OffsetOutOfRange if offset is not in
        [min_offset, max_offset]."""
        if not self.min_offset <= offset <= self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        if offset == self.max_offset:
            return b""
        segment = self._segments[(offset - self.min_offset) // self.segment_size_bytes]
        size = min(size, segment.end - offset, self.max_offset - offset)
        return segment.file.pread(offset - segment.start, size)

    def record_at(self, offset: int, budget: ReadBudget | None = None) -> bytes | None:
        """Return the message record at `offset`; None if there is none. Checks size, magic and the
        physical offset in the record, but not its CRC."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        data = self.read(offset, FIRST_READ_BYTES)
        size = record_size(data, 0, offset)
        if size > len(data):
            data += self.read(offset + len(data), size - len(data))
        return record_in(data, 0, offset)

    def segments(self) -> list[SegmentInfo]:
        return [SegmentInfo(s.start, s.end, s.path) for s in self._segments]

    def segment_end(self, position: int) -> int:
        """Return the end of the segment that contains, or would contain, `position`."""
        size = self.segment_size_bytes
        return self.min_offset + ((position - self.min_offset) // size + 1) * size

    # -- mending ------------------------------------------------------------------------------

    def patch(self, position: int, data: bytes | memoryview) -> SyncTicket:
        """Overwrite damaged bytes within a segment below the end; also before `settle`. The
        ticket's `run` makes the patch durable; then call `finish_sync`. Raises OSError."""
        segment = self._segment_at(position)
        end = position + len(data)
        assert end <= segment.end, (position, len(data), segment.end)
        assert end <= self.max_offset, (position, len(data), self.max_offset)
        segment.file.pwrite(position - segment.start, data)
        # Before settling, names of restored segments are not durable either.
        return self.syncs.ticket([segment.file], 0, names=not self._settled)

    def extend(self) -> None:
        """Add a segment for a patch that needs it, before settling. Raises OSError."""
        assert not self._settled
        self._segments.append(self._files.reopen(self.max_offset))
        self.max_offset = self._segments[-1].end

    def hold(self, offset: int) -> SegmentHold:
        """Keep the segment of `offset` open for a reading thread, until `release`."""
        return self.syncs.hold(self._segment_at(offset))

    def release(self, hold: SegmentHold) -> None:
        self.syncs.release(hold)

    def _segment_at(self, offset: int) -> Segment:
        if not self.min_offset <= offset < self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        return self._segments[(offset - self.min_offset) // self.segment_size_bytes]

    @property
    def wants_next(self) -> bool:
        """True if the last segment is more than half full and the next is not prepared."""
        if not self._segments or self._next.is_prepared:
            return False
        last = self._segments[-1]
        return (self.max_offset - last.start) * 2 > self.segment_size_bytes

    # -- truncation and deletion --------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Drop everything at and above `offset`. Later segments are removed, and the rest is
        overwritten with zeros, so that no stale byte looks valid. Durable on return (blocking,
        rare): otherwise old frames could reappear behind new ones after a power cut. Raises
        OSError, OffsetOutOfRange."""
        assert self._settled
        if not self.min_offset <= offset <= self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        if offset == self.max_offset and (
            not self._segments or self._segments[-1].written_end <= offset
        ):
            return  # a failed write left nothing behind the end
        if self._mark.durable_offset > offset:
            self._mark.lower_durable(offset)
        self.syncs.lower(offset)
        dropped = self._next.expect(None)
        if dropped is not None:
            self._remove(dropped)
        while len(self._segments) > 1 and self._segments[-1].start >= offset:
            self._remove(self._segments.pop())
        self._disk.sync_directory(self.directory)
        last = self._segments[-1]
        # Lowered in memory first, so that the dropped bytes are not read if a later step fails.
        self.max_offset = offset
        last.fill(offset, last.written_end)
        try:
            last.file.sync()
        except OSError as error:
            self.syncs.fail(error)
            raise
        last.written_end = offset
        self.syncs.wrote(last)
        self._next.expect(last.end)

    def delete_before(self, offset: int) -> int:
        """Remove whole segments that end at or below `offset`, but never the last; return how many.
        Raises OSError."""
        count = 0
        while len(self._segments) > 1 and self._segments[0].end <= min(offset, self.max_offset):
            self._remove(self._segments[0])  # if it fails, the next call retries
            del self._segments[0]
            self.min_offset = self._segments[0].start
            count += 1
        if count:
            self._disk.sync_directory(self.directory)
        return count

    # -- durability ---------------------------------------------------------------------------

    def start_sync(self) -> SyncTicket | None:
        """Return a ticket for what is not durable, or None. Raises SyncFailed after a failure."""
        assert self._settled, "its end is not known"
        return self.syncs.start(self.max_offset)

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Finish a ticket that has run; return the new durable offset. Raises SyncFailed."""
        self.syncs.finish(ticket, self._segments[-1].start if self._segments else 0)
        assert self.durable_offset <= self.max_offset
        return self.durable_offset

    # -- segments -----------------------------------------------------------------------------

    def _roll(self, position: int) -> None:
        """Close the last segment with a blank record and start the next at `position`."""
        start = self._segments[-1].end if self._segments else self.max_offset
        assert position == start, (position, self.max_offset, start)
        segment = self._next.get(start)
        if self._segments and self.max_offset < start:
            last = self._segments[-1]
            remaining = start - self.max_offset
            assert remaining >= BLANK_SIZE_BYTES
            last.written_end = self.max_offset + BLANK_SIZE_BYTES
            self.syncs.wrote(last)
            blank = BLANK.pack(remaining, MAGIC_BLANK)
            last.file.pwrite(self.max_offset - last.start, blank)
        self._next.expect(segment.end)
        self._segments.append(segment)
        self.syncs.created(segment)
        self.max_offset = start

    def _remove(self, segment: Segment) -> None:
        """Unlink a segment, and close its file once no pool thread uses it."""
        with suppress(FileNotFoundError):  # an operator removed it
            self._disk.remove(segment.path)
        self.syncs.retire(segment)


def record_in(data: bytes, at: int, offset: int) -> bytes | None:
    """Return the message record at data[at:], which has CommitLog offset `offset`, with the checks
    of `CommitLog.record_at`; None if there is none."""
    size = record_size(data, at, offset)
    return data[at : at + size] if 0 < size <= len(data) - at else None


def record_size(data: bytes, at: int, offset: int) -> int:
    """Return the size of the record at data[at:]; 0 if there is none."""
    if len(data) - at < FIXED_SIZE_BYTES:
        return 0
    size, magic = BLANK.unpack_from(data, at)
    stored_position = int.from_bytes(data[at + 28 : at + 36], "big", signed=True)
    if magic not in (MAGIC_V1, MAGIC_V2) or stored_position != offset:
        return 0
    return size if FIXED_SIZE_BYTES <= size <= RECORD_SIZE_BYTES_MAX else 0
