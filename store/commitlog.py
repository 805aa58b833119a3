"""The CommitLog: one endless byte string, kept in segments of fixed size.

Segments are `<directory>/%020d`, named by the offset of their first byte, pre-allocated with
zeros. Nothing spans segments: when `length + 8 > remaining`, a blank record (int32 remaining,
int32 0xCBD43194) closes the segment and the bytes go to the start of the next.

Offsets are absolute. [min_offset, max_offset) can be read as soon as it is written; everything
below `durable_offset` survives a power cut. After `open` the end is not known: the log may be read
up to the end of its last segment, and must be given its end (`settle`) before it is written to.
store.recovery finds that end.

Durability is by ticket, so that fdatasync runs in a thread while the loop keeps writing:
`begin_sync` notes the end and the files written since the last finished ticket, `ticket.run()`
blocks, `finish_sync` moves `durable_offset`. A later truncation lowers what an outstanding
ticket promises. A failed sync is final (SyncFailed): the kernel may have dropped the pages.

A *durable mark* (store.checkpoint) can be handed in. It records every new durable offset, and is
lowered, synced, before a truncation below it: so recovery can tell a torn tail from damage.

Writes are pwrite into fallocated files. Measured, 16 KiB writes into fresh files, 2 cores, ext4:
pwrite 3,600 MB/s, pwritev of 8 parts 3,200, mmap 2,700 (5,800 once touched, which costs the touch);
without fallocate 1,800. fdatasync after each is p50 186 us, and 124 us when the file was filled
with zeros before (no extent to convert): `zero_ahead` gains that by writing every byte twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from raftmq.store.disk import Disk, File
from raftmq.store.errors import OffsetOutOfRange, RecordTooLarge, StoreError, SyncFailed
from raftmq.store.record import (
    BLANK,
    BLANK_SIZE_BYTES,
    FIXED_SIZE_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
)

SEGMENT_SIZE_BYTES = 1 << 30
NAME_DIGITS = 20
_ZEROS = bytes(1 << 18)  # 256 KiB at a time: short enough not to delay another sync for long
_FIRST_READ_BYTES = 4096  # most records are shorter: one read fetches them
RESTORED_SEGMENTS_MAX = 4096  # if more are missing, the names or the mark must be wrong


class DurableMark(Protocol):
    """Remembers, outside the log, how far it was once durable."""

    @property
    def durable_offset(self) -> int: ...

    @property
    def committed_offset(self) -> int:
        """The offset below which all was committed (Raft mode); 0: not known."""
        ...

    @property
    def lost(self) -> bool:
        """True if the mark itself is damaged: nothing is known then, until it is lowered."""
        ...

    def raise_durable(self, offset: int) -> None:
        """Raise the mark to `offset`; need not be durable itself (forgetting is safe)."""
        ...

    def lower_durable(self, offset: int) -> None:
        """Set the mark to `offset`; durable on return."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment, for callers. `end` is the offset behind its last byte."""

    start: int
    end: int
    path: str


class Segment:
    """An open segment. From `written_end` on, if that is below the segment's end, the file holds
    only zeros."""

    __slots__ = ("end", "file", "path", "start", "written_end")

    def __init__(self, start: int, size: int, path: str, file: File) -> None:
        self.start = start
        self.end = start + size
        self.path = path
        self.file = file
        self.written_end = start


class SyncTicket:
    """One fdatasync to be done: `run` it anywhere, then hand it to `finish_sync`."""

    __slots__ = ("_disk", "directory", "elapsed_s", "end", "error", "files", "ran")

    def __init__(self, disk: Disk, directory: str | None, files: list[File], end: int) -> None:
        self._disk = disk
        self.directory = directory  # None: no new names in it
        self.files = files
        self.end = end  # durable up to here afterwards; a truncation meanwhile lowers it
        self.error: OSError | None = None
        self.ran = False
        self.elapsed_s = 0.0  # how long `run` took

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError; then this ticket can never be finished."""
        begun_s = time.perf_counter()
        try:
            for file in self.files:
                file.sync()
            if self.directory is not None:
                self._disk.sync_directory(self.directory)
        except OSError as error:
            self.error = error
            raise
        self.elapsed_s = time.perf_counter() - begun_s
        self.ran = True


class SegmentHold:
    """Keeps a segment's file open for a thread that reads it, whatever retention does meanwhile."""

    __slots__ = ("_segment",)

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at CommitLog offset `offset`, which lies in this segment."""
        assert self._segment.start <= offset <= self._segment.end, (offset, self._segment.start)
        return self._segment.file.pread(offset - self._segment.start, size)


class CommitLog:
    """The CommitLog. For one caller (the loop), except `ticket.run` and `prepare_next`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        mark: DurableMark | None = None,
        *,
        zero_ahead: bool = False,
    ) -> None:
        assert segment_size_bytes > BLANK_SIZE_BYTES
        self._disk = disk
        self.directory = directory
        self.segment_size_bytes = segment_size_bytes
        self._mark = mark
        self._zero_ahead = zero_ahead
        self._segments: list[Segment] = []
        self._dirty: dict[int, File] = {}  # by segment start: written, and not known durable
        self._directory_dirty = False
        self._tickets: list[SyncTicket] = []
        self._holds: list[SegmentHold] = []
        self._retired: list[File] = []  # removed segments a ticket or a hold may still use
        self._prepared: Segment | None = None
        self._preparing = False
        self._generation = 0  # of the list of segments; prepare_next sees that it changed
        self._lock = threading.Lock()  # guards these four and `_segments`' end
        self._failed: OSError | None = None
        self._settled = False
        self.mark_was_lost = False  # when it was opened
        self.restored_end = 0  # end of the last segment that was missing in front of others
        self.min_offset = 0
        self.max_offset = 0
        self.durable_offset = 0
        self.on_synced: Callable[[float], None] | None = None  # gets each sync's duration in s

    # -- life ---------------------------------------------------------------------------------

    def open(self, start_offset: int = 0, *, restore: bool = False) -> None:
        """Open the existing segments; with none, begin an empty, settled log at `start_offset`.

        Raises StoreError when names or sizes do not make a log. With `restore`, a segment that is
        missing among the others or below the durable mark comes back as zeros instead: recovery
        then finds damage there, and a peer may have what it held."""
        assert not self._segments
        self.mark_was_lost = self.mark_lost
        self._disk.makedirs(self.directory)
        starts = []
        for name in self._disk.listdir(self.directory):
            if len(name) != NAME_DIGITS or not name.isdecimal():
                raise StoreError(f"not a segment: {self.directory}/{name}")
            starts.append(int(name))
        size = self.segment_size_bytes
        for previous, start in pairwise(starts):
            if start - previous == size or (start == starts[-1] and self._drop_stray(start)):
                continue
            if not restore or (start - previous) % size:
                raise StoreError(f"segments {previous} and {start} are not {size} bytes apart")
        starts = [start for start in starts if self._disk.exists(self._path(start))]
        if restore and starts:
            there, last = set(starts), starts[-1]
            starts = self._restorable(starts[0], max(last + 1, self.durable_hint))
            gone = [start for start in starts if start < last and start not in there]
            self._note_restored(max(gone, default=-size) + size)
        for start in starts:
            # The last one may be short: killed between creating and allocating it.
            segment = self._open_segment(start, sparse=restore and start != starts[-1])
            segment.written_end = segment.end
            if segment.file.size_bytes != size:
                raise StoreError(f"{segment.path} has {segment.file.size_bytes} bytes")
            self._segments.append(segment)
        if starts:
            self.min_offset, self.max_offset = starts[0], starts[-1] + size
        else:
            self.min_offset = self.max_offset = self.durable_offset = start_offset
            self._settled = True
            if self._mark is not None and self._mark.lost:
                self._mark.lower_durable(start_offset)

    def restore_front(self, start: int) -> None:
        """Before settling: restore segments missing at the front, or all of them, as zeros. The
        log began at `start`, a segment's first byte. Raises OSError."""
        end = self.min_offset if self._segments else max(start, self.durable_hint)
        if end <= start:
            return
        assert not self._settled or not self._segments
        missing = self._restorable(start, end)
        if self._segments:
            self._note_restored(missing[-1] + self.segment_size_bytes)
        front: list[Segment] = []
        for at in missing:
            segment = self._open_segment(at, sparse=True)
            segment.written_end = segment.end
            front.append(segment)
        self._segments[:0] = front
        self._settled = False
        self.min_offset = start
        self.max_offset = self._segments[-1].end

    def raise_hint(self, end: int) -> None:
        """Before settling: note durably, for the next start, that everything below `end` was
        durable once, even if a power cut has set the mark back. Blocking. Raises OSError."""
        mark = self._mark
        if end > 0 and mark is not None and not mark.lost:
            # Never lower than it is; and synced, also where it is above and only noted.
            mark.lower_durable(max(end, mark.durable_offset))

    def _note_restored(self, end: int) -> None:
        """Note that a segment which ends at `end` is missing in front of others. Called before it
        is restored: after a kill the next start could not tell it from one never filled."""
        self.restored_end = max(self.restored_end, end)
        self.raise_hint(end)

    def _restorable(self, start: int, end: int) -> list[int]:
        """Return the first bytes of the segments that cover [start, end). Raises StoreError if too
        many are missing."""
        covered = range(start, end, self.segment_size_bytes)
        missing = len(covered) - len(self._disk.listdir(self.directory))
        if missing > RESTORED_SEGMENTS_MAX:
            raise StoreError(f"{missing} segments of [{start}, {end}) are missing")
        return list(covered)

    def settle(self, end: int) -> None:
        """Set the log's end, once after opening, and drop everything behind it.

        Returns when the whole log is durable: after a kill its tail may be in the page cache
        only. Blocking. Raises OSError."""
        assert not self._settled
        assert self.min_offset <= end <= self.max_offset
        if self._mark is not None and self.durable_hint > end:
            self._mark.lower_durable(end)
        while self._segments and self._segments[-1].start >= end and len(self._segments) > 1:
            self._remove(self._segments.pop())
        last = self._segments[-1]
        last.file.truncate(end - last.start)  # zeros by dropping: reads nothing, writes nothing
        last.file.close()
        last.file = self._disk.open(last.path, allocate_bytes=self.segment_size_bytes)
        last.written_end = end
        # All of them: below the mark, too, a frame may have been patched just before the kill. It
        # costs nothing where nothing is dirty.
        for segment in self._segments:
            segment.file.sync()
        self._disk.sync_directory(self.directory)
        self.max_offset = self.durable_offset = end
        self._settled = True
        if self._mark is not None:
            self._mark.raise_durable(end)

    def close(self) -> None:
        """Close the files without syncing them."""
        with self._lock:
            prepared, self._prepared = self._prepared, None
            self._generation += 1
            self._settled = False
        for segment in [*self._segments, *([prepared] if prepared else [])]:
            segment.file.close()
        for file in self._retired:
            file.close()
        self._segments, self._retired = [], []

    @property
    def settled(self) -> bool:
        """True once the end is known; only then may the log be written."""
        return self._settled

    @property
    def durable_hint(self) -> int:
        """How far the log is known to have been durable once; 0 if that is not known."""
        return 0 if self._mark is None or self._mark.lost else self._mark.durable_offset

    @property
    def committed_hint(self) -> int | None:
        """Raft mode: frames below this offset were committed, so peers have them; 0: not known.
        None: this log has no mark."""
        if self._mark is None:
            return None
        return 0 if self._mark.lost else self._mark.committed_offset

    @property
    def mark_lost(self) -> bool:
        """True if the durable mark is damaged: then nothing bad may be taken for a torn tail."""
        return self._mark is not None and self._mark.lost

    # -- writing ------------------------------------------------------------------------------

    def place(self, length: int) -> int:
        """Return the position that the next `length` bytes get. Raises RecordTooLarge."""
        position = self.max_offset
        segment_end = (
            self._segments[-1].end if self._segments else (position + self.segment_size_bytes)
        )
        if length + BLANK_SIZE_BYTES <= segment_end - position:
            return position
        if length + BLANK_SIZE_BYTES > self.segment_size_bytes:
            raise RecordTooLarge(
                f"{length} bytes do not fit a segment of {self.segment_size_bytes}"
            )
        return segment_end

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Append `data` at `position`, which `place` gave for it. Rolls when that is the next
        segment's start. Raises OSError, after which the end is unchanged (but see `place`)."""
        self.write_many(position, (data,), len(data))

    def write_many(
        self, position: int, buffers: Sequence[bytes | memoryview], length: int | None = None
    ) -> None:
        """Write several buffers one behind the other in one segment, as `write` does."""
        assert self._settled
        if length is None:
            length = sum(map(len, buffers))
        if (
            position != self.max_offset
            or not self._segments
            or (position == self._segments[-1].end)
        ):
            self._roll(position)
        segment = self._segments[-1]
        end = position + length
        assert end + BLANK_SIZE_BYTES <= segment.end, (position, length, segment.end)
        # Before writing: a failed write may have written some of it.
        segment.written_end = end
        self._dirty[segment.start] = segment.file
        if len(buffers) == 1:
            segment.file.pwrite(position - segment.start, buffers[0])
        else:
            segment.file.pwritev(position - segment.start, buffers)
        self.max_offset = end

    def start_at(self, offset: int) -> None:
        """Let an empty log begin at `offset`, the first byte of a segment of the copied log."""
        assert self._settled and not self._segments and self.min_offset == self.max_offset
        assert offset % self.segment_size_bytes == 0, offset
        self.min_offset = self.max_offset = self.durable_offset = offset

    def copy(self, data: bytes | memoryview) -> None:
        """Append bytes of another replica's log as they stand there: whole records, or a blank
        record and all that follows it in its segment. They end in the segment that they begin in,
        and may fill it. Raises OSError, after which the end is unchanged."""
        assert self._settled
        if not self._segments or self.max_offset == self._segments[-1].end:
            self._roll(self.max_offset)
        segment = self._segments[-1]
        position, end = self.max_offset, self.max_offset + len(data)
        assert end <= segment.end, (position, len(data), segment.end)
        segment.written_end = end
        self._dirty[segment.start] = segment.file
        segment.file.pwrite(position - segment.start, data)
        self.max_offset = end

    def prepare_next(self) -> None:
        """Create and allocate the segment after the last, so that the next roll need not.

        Blocking; runs in the pool. Raises OSError. Does nothing if it is there already."""
        with self._lock:
            if not self._settled or not self._segments or self._preparing or self._prepared:
                return
            self._preparing = True
            start, generation = self._segments[-1].end, self._generation
        segment = None
        try:
            segment = self._open_segment(start)
            if self._zero_ahead:
                self._fill_with_zeros(segment, generation)
            with self._lock:
                if self._generation == generation:
                    self._prepared, segment = segment, None
        finally:
            with self._lock:
                self._preparing = False
                if segment is not None:  # too late, or the filling failed
                    segment.file.close()
                    in_use = any(s.start == start for s in self._segments)
                    if self._settled and not in_use and self._disk.exists(segment.path):
                        self._disk.remove(segment.path)

    def _fill_with_zeros(self, segment: Segment, generation: int) -> None:
        """Fill a segment in chunks, until it comes into use: a roll may come first."""
        for at in range(0, self.segment_size_bytes, len(_ZEROS)):
            size = min(len(_ZEROS), self.segment_size_bytes - at)
            with self._lock:
                if self._generation != generation:
                    return
                segment.file.pwrite(at, memoryview(_ZEROS)[:size])
        segment.file.sync()

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer at the end of the segment or of the log.

        Raises OffsetOutOfRange if offset is not in [min_offset, max_offset]."""
        if not self.min_offset <= offset <= self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        if offset == self.max_offset:
            return b""
        segment = self._segments[(offset - self.min_offset) // self.segment_size_bytes]
        size = min(size, segment.end - offset, self.max_offset - offset)
        return segment.file.pread(offset - segment.start, size)

    def record_at(self, offset: int) -> bytes | None:
        """Return the whole message record that begins at `offset`; None if none does.

        Checks size, magic and the physical offset in the record, not its CRC."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        data = self.read(offset, _FIRST_READ_BYTES)
        if len(data) < FIXED_SIZE_BYTES:
            return None
        size, magic = BLANK.unpack_from(data)
        if magic not in (MAGIC_V1, MAGIC_V2) or not (
            FIXED_SIZE_BYTES <= size <= RECORD_SIZE_BYTES_MAX
        ):
            return None
        if int.from_bytes(data[28:36], "big", signed=True) != offset:
            return None
        if size > len(data):
            data += self.read(offset + len(data), size - len(data))
        return data[:size] if len(data) >= size else None

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""
        return [SegmentInfo(s.start, s.end, s.path) for s in self._segments]

    def segment_end(self, position: int) -> int:
        """Return the offset behind the segment that holds, or would hold, `position`."""
        size = self.segment_size_bytes
        return self.min_offset + ((position - self.min_offset) // size + 1) * size

    # -- mending ------------------------------------------------------------------------------

    def patch(self, position: int, data: bytes | memoryview) -> SyncTicket:
        """Write `data` over damaged bytes within one segment, below the end; also before `settle`.
        The ticket's `run` makes it durable; then the ticket goes to `finish_sync`. Raises
        OSError."""
        segment = self._segment_at(position)
        end = position + len(data)
        assert end <= segment.end, (position, len(data), segment.end)
        assert end <= self.max_offset, (position, len(data), self.max_offset)
        segment.file.pwrite(position - segment.start, data)
        # The names of segments that were restored are not durable before it is settled either.
        directory = None if self._settled else self.directory
        ticket = SyncTicket(self._disk, directory, [segment.file], 0)
        self._tickets.append(ticket)
        return ticket

    def extend(self) -> None:
        """Before settling: add one segment, for a patch that needs it. Raises OSError."""
        assert not self._settled
        segment = self._open_segment(self.max_offset)
        segment.written_end = segment.end
        self._segments.append(segment)
        self.max_offset = segment.end

    def hold(self, offset: int) -> SegmentHold:
        """Hold the segment of `offset` open for a thread that reads it; hand the hold to `release`
        after that."""
        hold = SegmentHold(self._segment_at(offset))
        self._holds.append(hold)
        return hold

    def release(self, hold: SegmentHold) -> None:
        self._holds.remove(hold)
        self._close_retired()

    def _segment_at(self, offset: int) -> Segment:
        if not self.min_offset <= offset < self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        return self._segments[(offset - self.min_offset) // self.segment_size_bytes]

    def _close_retired(self) -> None:
        if not self._tickets and not self._holds:
            for file in self._retired:
                file.close()
            self._retired.clear()

    @property
    def wants_next(self) -> bool:
        """True if it is time to `prepare_next`: the last segment is more than half full."""
        if not self._segments or self._prepared is not None:
            return False
        last = self._segments[-1]
        return (self.max_offset - last.start) * 2 > self.segment_size_bytes

    # -- truncation and deletion --------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Drop everything at and above `offset`: later segments are removed, the rest is
        overwritten with zeros, so that no stale byte ever looks valid again.

        Durable on return (blocking; rare): otherwise old frames could come back behind new ones
        after a power cut. Raises OSError, OffsetOutOfRange."""
        assert self._settled
        if not self.min_offset <= offset <= self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        if offset == self.max_offset and (
            not self._segments or self._segments[-1].written_end <= offset
        ):
            return  # and a failed write has left nothing behind the end either
        if self._mark is not None and self._mark.durable_offset > offset:
            self._mark.lower_durable(offset)
        for ticket in self._tickets:
            ticket.end = min(ticket.end, offset)
        self.durable_offset = min(self.durable_offset, offset)
        with self._lock:
            dropped, self._prepared = self._prepared, None
            self._generation += 1
        if dropped is not None:
            self._remove(dropped)
        while len(self._segments) > 1 and self._segments[-1].start >= offset:
            self._remove(self._segments.pop())
        self._disk.sync_directory(self.directory)
        last = self._segments[-1]
        # Lowered in memory first: whatever fails below, nobody reads the dropped bytes.
        self.max_offset = offset
        for at in range(offset, last.written_end, len(_ZEROS)):
            size = min(len(_ZEROS), last.written_end - at)
            last.file.pwrite(at - last.start, memoryview(_ZEROS)[:size])
        try:
            last.file.sync()
        except OSError as error:
            self._failed = error
            raise
        last.written_end = offset
        self._dirty[last.start] = last.file

    def delete_before(self, offset: int) -> int:
        """Remove whole segments that end at or below `offset`, never the last one.

        Returns how many were removed. Raises OSError."""
        count = 0
        while len(self._segments) > 1 and self._segments[0].end <= min(offset, self.max_offset):
            segment = self._segments.pop(0)
            self.min_offset = self._segments[0].start
            self._remove(segment)
            count += 1
        if count:
            self._disk.sync_directory(self.directory)
        return count

    # -- durability ---------------------------------------------------------------------------

    def begin_sync(self) -> SyncTicket | None:
        """Return a ticket for everything written so far; None if all of it is durable.

        Raises SyncFailed once any sync has failed."""
        assert self._settled, "its end is not known"
        self._check_failed()
        if self.durable_offset == self.max_offset and not self._directory_dirty:
            self._dirty.clear()
            return None
        directory = self.directory if self._directory_dirty else None
        ticket = SyncTicket(self._disk, directory, list(self._dirty.values()), self.max_offset)
        self._tickets.append(ticket)
        return ticket

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Take a ticket that has run; return the new durable offset. Raises SyncFailed."""
        self._check_failed()
        assert ticket.ran
        self._tickets.remove(ticket)
        if self.on_synced is not None:
            self.on_synced(ticket.elapsed_s)
        if ticket.end > self.durable_offset:
            self.durable_offset = ticket.end
            if self._mark is not None:
                self._mark.raise_durable(ticket.end)
        assert self.durable_offset <= self.max_offset
        # Files that lie wholly below are done; the last one always may have got more since.
        for start in [s for s in self._dirty if s + self.segment_size_bytes <= ticket.end]:
            del self._dirty[start]
        if ticket.directory is not None and self.durable_offset > self._segments[-1].start:
            self._directory_dirty = False
        self._close_retired()
        return self.durable_offset

    def _check_failed(self) -> None:
        for ticket in self._tickets:
            if ticket.error is not None:
                self._failed = ticket.error
        if self._failed is not None:
            raise SyncFailed(f"fdatasync failed: {self._failed}") from self._failed

    # -- segments -----------------------------------------------------------------------------

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:0{NAME_DIGITS}d}"

    def _open_segment(self, start: int, *, sparse: bool = False) -> Segment:
        """Open or create a segment. `sparse`: the missing part of the file takes no room before it
        is written (so a wrong note of the log's beginning does not fill the disk with zeros)."""
        path, size = self._path(start), self.segment_size_bytes
        existed = self._disk.exists(path)
        try:
            file = self._disk.open(path, allocate_bytes=None if sparse else size)
            if file.size_bytes < size:
                file.truncate(size)
        except OSError:
            if not existed and self._disk.exists(path):
                self._disk.remove(path)  # a full disk: leave no half segment behind
            raise
        return Segment(start, self.segment_size_bytes, path, file)

    def _roll(self, position: int) -> None:
        """Close the last segment with a blank record and begin the next one at `position`."""
        start = self._segments[-1].end if self._segments else self.max_offset
        assert position == start, (position, self.max_offset, start)
        with self._lock:  # so that prepare_next, in the pool, sees either all of it or nothing
            segment = self._prepared
            if segment is None or segment.start != start:
                segment = self._open_segment(start)
            if self._segments and self.max_offset < start:
                last = self._segments[-1]
                remaining = start - self.max_offset
                assert remaining >= BLANK_SIZE_BYTES
                last.written_end = self.max_offset + BLANK_SIZE_BYTES
                self._dirty[last.start] = last.file
                blank = BLANK.pack(remaining, MAGIC_BLANK)
                last.file.pwrite(self.max_offset - last.start, blank)
            self._prepared = None
            self._generation += 1
            self._segments.append(segment)
        self._dirty[start] = segment.file
        self._directory_dirty = True
        self.max_offset = start

    def _drop_stray(self, start: int) -> bool:
        """Remove a last segment that was never written to (prepared, then the log was truncated,
        then the power was cut). Return False if it holds something."""
        file = self._disk.open(self._path(start))
        head = file.pread(0, BLANK_SIZE_BYTES)
        file.close()
        if any(head):
            return False
        self._disk.remove(self._path(start))
        return True

    def _remove(self, segment: Segment) -> None:
        """Unlink a segment, and close its file once no thread of the pool uses it."""
        self._dirty.pop(segment.start, None)
        self._disk.remove(segment.path)
        if self._tickets or self._holds:
            self._retired.append(segment.file)
        else:
            segment.file.close()
