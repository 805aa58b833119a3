"""Durability of a CommitLog: what of it is durable, and what threads do with its files.

A sync is a ticket, so that it runs in a thread while the loop keeps writing. A failed sync is final
(SyncFailed): the kernel may have dropped the pages. Files of removed segments are closed when no
ticket and no hold can use them any more.
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
    """Stands in for the durable mark of a log that has no checkpoint: nothing of it counts as
    durable once, and no peer is asked for what is missing."""

    durable_offset = 0
    committed_offset = 1 << 62
    lost = False

    def raise_durable(self, offset: int) -> None:
        pass

    def lower_durable(self, offset: int) -> None:
        pass


@dataclass(eq=False, slots=True)
class SyncTicket:
    """One fdatasync to be done: `run` it anywhere, then hand it to `finish_sync`."""

    _disk: Disk
    directory: str | None  # None: no new names in it
    files: list[File]
    end: int  # durable up to here afterwards; a truncation meanwhile lowers it
    error: OSError | None = None
    ran: bool = False
    elapsed_s: float = 0.0  # how long `run` took

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError; then this ticket can never be finished."""
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
    """Keeps a segment's file open for a thread that reads it, whatever retention does meanwhile."""

    _segment: Segment

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at CommitLog offset `offset`, which lies in this segment."""
        assert self._segment.start <= offset <= self._segment.end, (offset, self._segment.start)
        return self._segment.file.pread(offset - self._segment.start, size)


@dataclass(slots=True, eq=False)
class LogSyncs:
    """The syncs of one CommitLog. For one caller (the loop), except `SyncTicket.run`.

    `_on_synced` gets each sync's duration in s. `_dirty` are the segments, by start, that were
    written and are not known durable. `_retired` are files of removed segments, which a ticket or a
    hold may still use."""

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
        """Return a ticket for everything written, which ends at `end`; None if all of it is
        durable. Raises SyncFailed once any sync has failed."""
        self._check_failed()
        if self.durable_offset == end and not self._directory_dirty:
            self._dirty.clear()
            return None
        files = [segment.file for segment in self._dirty.values()]
        return self.ticket(files, end, names=self._directory_dirty)

    def ticket(self, files: list[File], end: int, *, names: bool) -> SyncTicket:
        """Return a ticket for these files; `names`: and for the directory."""
        ticket = SyncTicket(self._disk, self._directory if names else None, files, end)
        self._tickets.append(ticket)
        return ticket

    def finish(self, ticket: SyncTicket, last_start: int) -> None:
        """Take a ticket that has run; the last segment begins at `last_start`. Raises
        SyncFailed."""
        self._check_failed()
        assert ticket.ran
        self._tickets.remove(ticket)
        if self._on_synced is not None:
            self._on_synced(ticket.elapsed_s)
        if ticket.end > self.durable_offset:
            self.durable_offset = ticket.end
            self._mark.raise_durable(ticket.end)
        # Files that lie wholly below are done; the last one always may have got more since.
        for segment in [s for s in self._dirty.values() if s.end <= ticket.end]:
            del self._dirty[segment.start]
        if ticket.directory is not None and self.durable_offset > last_start:
            self._directory_dirty = False
        self._close_retired()

    def lower(self, offset: int) -> None:
        """Lower what is durable, and what outstanding tickets promise, to `offset`."""
        for ticket in self._tickets:
            ticket.end = min(ticket.end, offset)
        self.durable_offset = min(self.durable_offset, offset)

    def fail(self, error: OSError) -> None:
        """Have every later sync fail."""
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
