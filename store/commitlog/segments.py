"""The segment files of a CommitLog, and the next segment, prepared ahead of its use.

A segment is the file `<directory>/%020d`, named by the offset of its first byte and preallocated
with zeros.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..disk import Disk, File
from ..errors import StoreError
from ..record import BLANK_SIZE_BYTES

NAME_DIGITS = 20
ZEROS = bytes(1 << 18)  # 256 KiB per write, so that other syncs are not delayed for long


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment, for callers. `end` is the offset behind its last byte."""

    start: int
    end: int
    path: str


@dataclass(eq=False, slots=True)
class Segment:
    """An open segment. The file holds only zeros from `written_end` to the segment's end."""

    start: int
    end: int
    path: str
    file: File
    written_end: int
    zeroed_end: int = 0  # the file is not only allocated up to here, but written

    def zero_ahead(self, end: int) -> None:
        """Write zeros behind a write that will end at `end`, if none are left there. The next syncs
        are quicker, because the file system need not record that allocated blocks are in use."""
        if self.zeroed_end < end:
            zeroed_end = min(self.end, end + len(ZEROS))
            self.fill(end, zeroed_end)
            self.zeroed_end = zeroed_end

    def fill(self, start: int, end: int) -> None:
        for at in range(start, end, len(ZEROS)):
            zeros = memoryview(ZEROS)[: min(len(ZEROS), end - at)]
            self.file.pwrite(at - self.start, zeros)


class SegmentFiles:
    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.size_bytes = size_bytes

    def starts(self) -> list[int]:
        """Return the starts of the existing segments, in order. Raises StoreError."""
        starts = []
        for name in self.disk.listdir(self.directory):
            if len(name) != NAME_DIGITS or not name.isdecimal():
                raise StoreError(f"not a segment: {self.directory}/{name}")
            starts.append(int(name))
        return starts

    def path(self, start: int) -> str:
        return f"{self.directory}/{start:0{NAME_DIGITS}d}"

    def exists(self, start: int) -> bool:
        return self.disk.exists(self.path(start))

    def open(self, start: int, *, sparse: bool = False) -> Segment:
        """Open or create a segment. With `sparse`, the missing part of the file takes no disk space
        before it is written, so that a wrong start of the log does not fill the disk with zeros."""
        existed = self.exists(start)
        try:
            return self.allocate(start, sparse=sparse)
        except OSError:
            if not existed:
                self.remove(start)  # leave no partial segment on a full disk
            raise

    def allocate(self, start: int, *, sparse: bool = False) -> Segment:
        """Do as `open`, but keep the file if that fails, because it may be in use."""
        path, size = self.path(start), self.size_bytes
        file = self.disk.open(path, allocate_bytes=None if sparse else size)
        if file.size_bytes < size:
            file.truncate(size)
        return Segment(start, start + size, path, file, start)

    def remove(self, start: int) -> None:
        """Remove a segment's file if it exists."""
        if self.exists(start):
            self.disk.remove(self.path(start))

    def reopen(self, start: int, *, sparse: bool = False) -> Segment:
        """Open a segment that may hold anything, or restore it as zeros."""
        segment = self.open(start, sparse=sparse)
        segment.written_end = segment.end
        return segment

    def drop_stray(self, start: int) -> bool:
        """Remove a last segment that was never written (prepared, then the log was truncated and
        the power cut). Return False if it holds data."""
        file = self.disk.open(self.path(start))
        head = file.pread(0, BLANK_SIZE_BYTES)
        file.close()
        if any(head):
            return False
        self.disk.remove(self.path(start))
        return True


class NextSegment:
    """The segment after the last. `prepare` runs in the pool, everything else on the loop."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._lock = threading.Lock()  # guards the fields below
        self._in_use = False  # the log is open
        self._start: int | None = None  # of the next segment; None if there is none to prepare
        self._segment: Segment | None = None
        self._preparing = False
        self._generation = 0  # of `_start`; `prepare` notices changes

    @property
    def is_prepared(self) -> bool:
        return self._segment is not None

    def expect(self, start: int | None) -> Segment | None:
        """Set the start of the next segment, after the last segment came into use or was dropped.
        Return the previously prepared segment, which the caller now owns."""
        with self._lock:
            before, self._segment = self._segment, None
            self._in_use, self._start = True, start
            self._generation += 1
        return before

    def get(self, start: int) -> Segment:
        """Return the segment, opened now if it was not prepared. It is kept here until `expect`
        announces its use. Raises OSError."""
        with self._lock:
            if self._segment is None or self._segment.start != start:
                # While `prepare` has the file, it keeps or removes the file after a failure.
                make = self._files.allocate if self._preparing else self._files.open
                self._segment = make(start)
            return self._segment

    def prepare(self) -> None:
        """Create and allocate it if that is not done. Blocking. Raises OSError."""
        with self._lock:
            if self._start is None or self._segment is not None or self._preparing:
                return
            self._preparing = True
            start, generation = self._start, self._generation
        segment, kept = None, False
        try:
            segment = self._files.allocate(start)
            with self._lock:
                if self._generation == generation and self._segment is None:
                    self._segment, kept = segment, True
        finally:
            with self._lock:  # the log may have rolled into the file
                self._preparing = False
                if not kept:  # too late, or the disk was full
                    if segment is not None:
                        segment.file.close()
                    if self._is_stray(start):
                        self._files.remove(start)

    def _is_stray(self, start: int) -> bool:
        """Return whether the segment at `start` is unused. The caller has the lock."""
        if not self._in_use or (self._segment is not None and self._segment.start == start):
            return False
        return self._start is None or start >= self._start

    def close(self) -> None:
        """Forget it and close its file; the file stays."""
        segment = self.expect(None)
        with self._lock:
            self._in_use = False
        if segment is not None:
            segment.file.close()
