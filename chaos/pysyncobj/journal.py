"""FrameJournal, the CommitLog as pysyncobj's journal. An entry is a frame, at its position.

SyncObj's entries are (command, index, term). Here a command is the byte 1 (pysyncobj's type for an
entry without effect) and a frame. So every entry is a no-op for SyncObj with an empty state
machine, and only the log is replicated. On the leader `add` seals frames, because index and term
are known there; a follower's `add` writes the leader's bytes at the leader's offset.

Index 1, term 0 is SyncObj's first entry, a no-op with timestamp 0 and the same bytes on all
replicas.

Deliberately as in pysyncobj's FileJournal:
- an entry counts as stored when it is in the page cache; nothing is fsynced, whatever flushDiskType
  is. The interface would allow a blocking fdatasync per entry in `add`, but then the engine would
  not be the library under comparison;
- `deleteEntriesFrom` truncates applied entries on request.

One difference is that compaction (`deleteEntriesTo`) is off by configuration, because SyncObj's
snapshot cannot replace a CommitLog; so the log only grows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import overload

from pysyncobj.journal import Journal

from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.store.frame import Frame, FrameError, FrameKind, parse_frame, seal_frame

from .meta import Meta, MetaFile

log = logging.getLogger("raftmq.chaos.pysyncobj")

REGULAR = 0  # pysyncobj's command types, the first byte of a command
NO_OP = 1
READ_BYTES_MAX = 1 << 18  # of frames read at once while entries are iterated over

PlainEntry = tuple[bytes, int, int]


class JournalError(Exception):
    """An entry cannot be written at its position, so this replica cannot continue."""


class Entry:
    """An entry (command, index, term); the command is read only when it is accessed."""

    __slots__ = ("_log", "index", "term")

    def __init__(self, log: RaftLog, index: int) -> None:
        self._log = log
        self.index = index
        self.term = log.index.term_at(index)

    def __getitem__(self, at: int) -> bytes | int:
        if at == 0:
            return _command(self._log.frames(self.index, self.index)[0])
        return (self.index, self.term)[at - 1]


class EntryRange:
    """Consecutive entries, a slice of the journal; they are read when iterated over.

    SyncObj slices to the journal's end to read one entry or the first few."""

    def __init__(self, log: RaftLog, indexes: range) -> None:
        self._log = log
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[PlainEntry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[PlainEntry]:
        if isinstance(at, slice):
            return list(EntryRange(self._log, self._indexes[at]))
        return Entry(self._log, self._indexes[at])

    def __iter__(self) -> Iterator[PlainEntry]:
        first, end = self._indexes.start, self._indexes.stop
        while first < end:
            frames = self._log.frames(first, end - 1, READ_BYTES_MAX)
            for frame in frames:
                yield _command(frame), frame.index, frame.term
            first += len(frames)


class FrameJournal(Journal):  # type: ignore[misc]  # the package has no types
    """The CommitLog as pysyncobj's journal. The names of the methods are pysyncobj's."""

    def __init__(
        self,
        log: RaftLog,
        meta_file: MetaFile,
        *,
        wall_ms: Callable[[], int],
        on_cut: Callable[[int], None],
    ) -> None:
        """`log` is open. `on_cut(index)` is called after every truncation."""
        self.log = log
        self.held: Frame | None = None  # the frame of SyncObj's next command
        self.opening_index = 0  # this replica's own no-op, the first entry of its leadership
        self.saves = 0
        self._meta_file = meta_file
        self._meta = meta_file.load()
        self._meta_saved = True
        self._wall_ms = wall_ms
        self._on_cut = on_cut

    @property
    def voted_for(self) -> str | None:
        return self._meta.voted_for

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Write an entry. Raises JournalError, OSError."""
        if command[0] == REGULAR:
            frame = self._sealed(idx, term)
        elif len(command) == 1:
            frame = self._no_op(idx, term)
            self.opening_index = idx
        else:
            try:
                frame = parse_frame(memoryview(command)[1:])
            except FrameError as error:
                raise JournalError(f"entry {idx}@{term} is no frame: {error.reason}") from error
        self._write(frame, idx, term)

    def _sealed(self, idx: int, term: int) -> Frame:
        """Return the frame sealed for this command. After a change of leadership that frame has a
        wrong position and is dropped; return a no-op instead."""
        frame, self.held = self.held, None
        if frame is None or (frame.index, frame.term) != (idx, term):
            return self._no_op(idx, term)
        return frame

    def _no_op(self, idx: int, term: int) -> Frame:
        stamp_ms = 0 if idx == 1 else self._wall_ms()
        return seal_frame(idx, term, self.log.allocate(0), stamp_ms, FrameKind.NOOP, 0, b"")

    def _write(self, frame: Frame, idx: int, term: int) -> None:
        log = self.log
        if (frame.index, frame.term) != (idx, term):
            raise JournalError(f"entry {idx}@{term} carries {frame!r}")
        if idx != log.last_index + 1 or term < log.index.last_term:
            raise JournalError(f"{frame!r} does not follow {log.last_index}@{log.index.last_term}")
        position = log.allocate(len(frame.payload))
        if frame.position != position:
            raise JournalError(
                f"{frame!r}, but this log goes on at {position}: the replicas parted"
            )
        log.append((frame,))

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> EntryRange: ...

    def __getitem__(self, item: int | slice) -> Entry | EntryRange:
        index = self.log.index
        result = range(index.first_index, index.last_index + 1)[item]
        return (
            EntryRange(self.log, result) if isinstance(result, range) else Entry(self.log, result)
        )

    def __len__(self) -> int:
        return self.log.last_index - self.log.index.first_index + 1

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Truncate the log behind its first `entryFrom` entries. Raises OSError."""
        from_index = self.log.index.first_index + entryFrom
        if from_index <= self.log.last_index:
            self.log.truncate(from_index)
            self._on_cut(from_index)

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise JournalError("SyncObj compacts its log, although it is configured not to")

    def clear(self) -> None:
        self.deleteEntriesFrom(0)

    def _destroy(self) -> None:
        """Save the commit index at a clean end of SyncObj, as the FileJournal does."""
        self.onOneSecondTimer()

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        meta = self._meta
        if meta.commit_index != raftCommitIndex:
            self._meta = Meta(meta.term, meta.voted_for, raftCommitIndex)
            self._meta_saved = False

    def getRaftCommitIndex(self) -> int:
        return self._meta.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Save term and vote, before SyncObj sends anything that reflects them. Raises OSError."""
        self._meta = Meta(term, votedForNodeId, self._meta.commit_index)
        self._save()

    def getCurrentTerm(self) -> int:
        return self._meta.term

    def getVotedForNodeId(self) -> str | None:
        return self._meta.voted_for

    def onOneSecondTimer(self) -> None:
        """Save the commit index. It is a hint, so the next second retries after a failure."""
        if self._meta_saved:
            return
        try:
            self._save()
        except OSError as error:
            log.info("commit_index_not_saved error=%r", error)

    def _save(self) -> None:
        self._meta_file.save(self._meta)
        self._meta_saved = True
        self.saves += 1


def _command(frame: Frame) -> bytes:
    return b"\x01" + frame.data
