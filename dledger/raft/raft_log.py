"""The core's log of accepted frames, and how far they are durable and committed.

The core has only terms, positions and sizes of frames (log_index.py); the driver writes the frames.

Invariants, asserted in production: commit_index <= last index and never falls; durable_index <=
last frame handed out <= last index; no truncation at or below commit.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.store.frame import Frame

from .log_index import LogIndex
from .ready import Outbox


class CoreLog:
    """A replica's log. `index` is ahead of the file by the frames in the outbox."""

    __slots__ = ("_commit_end", "_crc_of", "_outbox", "commit_index", "durable_index", "index")

    def __init__(
        self,
        index: LogIndex,
        commit_index: int,
        outbox: Outbox,
        crc_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """`index` is copied. `commit_index` is the last applied frame; frames that retention
        deleted are also committed. `crc_of` is `RaftLog.header_crc`."""
        self._outbox = outbox
        self._crc_of = crc_of
        self.index = index.copy()
        self.commit_index = min(index.last_index, max(commit_index, index.first_index - 1))
        self._commit_end = index.end_of(self.commit_index)
        self.durable_index = index.last_index

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of the log behind the last committed frame."""
        return self.index.end_position - self._commit_end

    def lag_bytes(self, match_index: int) -> int:
        """Return the bytes of the log behind `match_index`."""
        index = self.index
        reached = match_index >= index.first_index - 1
        return index.end_position - (index.end_of(match_index) if reached else 0)

    def is_matched_by(self, last_term: int, last_index: int) -> bool:
        """Return whether a candidate's log is at least as up to date as this log (Raft 5.4.1): the
        later last term wins, then the longer log."""
        return (last_term, last_index) >= (self.index.last_term, self.index.last_index)

    def header_crc(self, index: int) -> int | None:
        """Return the checksum of frame `index`'s header, or None if unknown."""
        accepted = index - 1 - self._outbox.handed_index
        if 0 <= accepted < len(self._outbox.append):
            return self._outbox.append[accepted].header_crc
        return self._crc_of(index) if accepted < 0 else None

    def append(self, frame: Frame) -> None:
        """Accept the next frame, and have the driver write it."""
        self.index.append(frame)
        self._outbox.append.append(frame)
        self._outbox.dirty = True

    def truncate(self, from_index: int) -> None:
        assert from_index > self.commit_index, (from_index, self.commit_index)
        self.index.truncate(from_index)
        self._outbox.truncate(from_index)
        self.durable_index = min(self.durable_index, from_index - 1)

    def durable(self, index: int) -> bool:
        """Note that frames up to `index` are durable. Only frames that were handed out and not
        truncated count. Return whether that is news."""
        index = min(index, self._outbox.handed_index)
        if index <= self.durable_index:
            return False
        self.durable_index = index
        return True

    def commit(self, index: int) -> None:
        """Note that frames up to `index` are committed, and have the driver apply them."""
        assert self.commit_index < index, (index, self.commit_index)
        assert index <= self.index.last_index, (index, self.index)
        self.commit_index = index
        self._commit_end = self.index.end_of(index)
        self._outbox.commit_index = index
        self._outbox.dirty = True

    def trim(self, first_index: int) -> None:
        """Note that retention deleted the frames before `first_index`."""
        assert first_index <= self.commit_index + 1, (first_index, self.commit_index)
        self.index.trim(first_index)
