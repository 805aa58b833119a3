"""Durability of a CommitLog. Sync tickets, and files that threads of the pool use.

A ticket runs in a thread while the loop keeps writing. A failed sync is final (SyncFailed), because
the kernel may have dropped the pages. Files of removed segments are closed once no ticket and no
hold can use them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..checkpoint import Checkpoint
from ..disk import Disk, File
from ..errors import SyncFailed
from .segments import Segment


class NoMark:
    """The durable mark of a log without a checkpoint. Nothing was durable before, and no peer is
    asked for missing parts."""

    durable_offset = 0
    committed_offset = 1 << 62
    lost = False

    def raise_durable(self, offset: int) -> None:
        pass

    def lower_durable(self, offset: int) -> None:
        pass


@dataclass(eq=False, slots=True)
class SyncTicket:
    """An fdatasync to `run` in any thread, then pass it to `finish_sync`."""

    _disk: Disk
    directory: str | None  # None: no new names in it
    files: list[File]
    end: int  # durable up to here after `run`; a truncation lowers it
    error: OSError | None = None
    ran: bool = False
    elapsed_s: float = 0.0  # duration of `run`

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError; the ticket can never be finished then."""
        started_s = time.perf_counter()
        try:
            for file in self.files:
                file.sync()
            if self.directory is not None:
                self._disk.sync_directory(self.directory)
        except OSError as error:
            self.error = error
            raise
        self.elapsed_s = time.perf_counter() - started_s
        self.ran = True


@dataclass(eq=False, slots=True)
class SegmentHold:
    """Keeps a segment's file open for a reading thread, even if retention removes the segment."""

    _segment: Segment

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at CommitLog offset `offset` in this segment."""
        assert self._segment.start <= offset <= self._segment.end, (offset, self._segment.start)
        return self._segment.file.pread(offset - self._segment.start, size)


@dataclass(slots=True, eq=False)
class LogSyncs:
    """The syncs of a CommitLog. For the loop only, except `SyncTicket.run`. `_on_synced` gets each
    sync's duration in s. `_dirty` has the segments, by start, that were written since their last
    sync. `_retired` has files of removed segments that a ticket or a hold may still use."""

    _disk: Disk
    _directory: str
    _mark: Checkpoint | NoMark
    _on_synced: Callable[[float], None] | None
    durable_offset: int = field(default=0, init=False)
    _dirty: dict[int, Segment] = field(default_factory=dict, init=False)
    _directory_dirty: bool = field(default=False, init=False)
    _tickets: list[SyncTicket] = field(default_factory=list, init=False)
    _holds: list[SegmentHold] = field(default_factory=list, init=False)
    _retired: list[File] = field(default_factory=list, init=False)
    _failed: OSError | None = field(default=None, init=False)

    def wrote(self, segment: Segment) -> None:
        self._dirty[segment.start] = segment

    def created(self, segment: Segment) -> None:
        self.wrote(segment)
        self._directory_dirty = True

    def start(self, end: int) -> SyncTicket | None:
        """Return a ticket for what is not durable up to `end`, or None. Raises SyncFailed."""
        self._check_failed()
        if self.durable_offset == end and not self._directory_dirty:
            self._dirty.clear()
            return None
        files = [segment.file for segment in self._dirty.values()]
        return self.ticket(files, end, names=self._directory_dirty)

    def ticket(self, files: list[File], end: int, *, names: bool) -> SyncTicket:
        """Return a ticket for these files, and with `names` for the directory."""
        ticket = SyncTicket(self._disk, self._directory if names else None, files, end)
        self._tickets.append(ticket)
        return ticket

    def finish(self, ticket: SyncTicket, last_start: int) -> None:
        """Finish a ticket that ran; the last segment is at `last_start`. Raises SyncFailed."""
        self._check_failed()
        assert ticket.ran
        self._tickets.remove(ticket)
        if self._on_synced is not None:
            self._on_synced(ticket.elapsed_s)
        if ticket.end > self.durable_offset:
            self.durable_offset = ticket.end
            self._mark.raise_durable(ticket.end)
        # Files below the end are clean. The last file may have been written again.
        for segment in [s for s in self._dirty.values() if s.end <= ticket.end]:
            del self._dirty[segment.start]
        if ticket.directory is not None and self.durable_offset > last_start:
            self._directory_dirty = False
        self._close_retired()

    def lower(self, offset: int) -> None:
        """Lower the durable offset and the ends of outstanding tickets to `offset`."""
        for ticket in self._tickets:
            ticket.end = min(ticket.end, offset)
        self.durable_offset = min(self.durable_offset, offset)

    def fail(self, error: OSError) -> None:
        self._failed = error

    def hold(self, segment: Segment) -> SegmentHold:
        hold = SegmentHold(segment)
        self._holds.append(hold)
        return hold

    def release(self, hold: SegmentHold) -> None:
        self._holds.remove(hold)
        self._close_retired()

    def retire(self, segment: Segment) -> None:
        """Close a removed segment's file once no thread uses it."""
        self._dirty.pop(segment.start, None)
        self._retired.append(segment.file)
        self._close_retired()

    def close(self) -> None:
        for file in self._retired:
            file.close()
        self._retired.clear()

    def _check_failed(self) -> None:
        for ticket in self._tickets:
            self._failed = ticket.error or self._failed
        if self._failed is not None:
            raise SyncFailed(f"fdatasync failed: {self._failed}") from self._failed

    def _close_retired(self) -> None:
        if not self._tickets and not self._holds:
            self.close()
