"""Reads the log for those outside: whatever is handed out was compared with its frame's checksum.

A disk may change bytes below a running replica, and neither a record's place nor its body's
checksum shows a changed property. The latest frames, which this process made or took and still has
in memory (`RaftLog.memory_start`), are taken from the file as they are. Older ones are read as
whole frames and checked; so a consumer that is behind costs the checking, and one that follows the
log does not. That a page is in the kernel's memory proves nothing: reading ahead, another program
or the process before this one may have brought it there unchecked.

Frames are checked by the block, those that begin in the same BLOCK_BYTES of the log, and the last
blocks are kept: a pull reads many pieces of the same frames, the next pull goes on in them, and the
pulls of other queues read what lies between. Messages of a damaged frame wait until it was fetched
again.
"""

from __future__ import annotations

from typing import NamedTuple

from raftmq.dledger.errors import FrameDamaged
from raftmq.dledger.log import RaftLog
from raftmq.store.commitlog import record_in

BLOCK_BYTES = 64 << 10  # with frames of one small message each, 0.3 ms to check
KEPT_BYTES_MAX = 4 << 20  # of all blocks; a longer one is kept alone


class Frames(NamedTuple):
    """Checked frames, one behind the other: the bytes of [start, end) of the log."""

    start: int
    end: int
    data: bytes


class FrameReads:
    """`ServedReads` of a log of frames. For one caller (the loop)."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self._kept: dict[int, Frames] = {}  # blocks by number, the newest last
        self._kept_bytes = 0
        self._epoch = log.epoch
        self.checked_bytes = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`, fewer at the end of the segment or of the log.

        Raises FrameDamaged, OffsetOutOfRange, OSError."""
        log, end = self._log, offset + size
        if not self._is_old(offset):
            return log.commitlog.read(offset, size)
        pieces: list[bytes] = []
        while offset < end:
            frames = self._frames_at(offset)
            if frames is None:
                pieces.append(log.commitlog.read(offset, end - offset))
                break
            pieces.append(frames.data[offset - frames.start : end - frames.start])
            offset = frames.end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def record_at(self, offset: int) -> bytes | None:
        """Return the whole message record that begins at `offset`, None if none does. Raises
        FrameDamaged, OSError."""
        frames = self._frames_at(offset) if self._is_old(offset) else None
        if frames is None:
            return self._log.commitlog.record_at(offset)
        return record_in(frames.data, offset - frames.start, offset)

    def _is_old(self, offset: int) -> bool:
        log = self._log
        return log.index.start_position <= offset < log.memory_start and log.is_open

    def _frames_at(self, offset: int) -> Frames | None:
        """Return checked frames that hold the byte at `offset`; None if no frame does. Raises
        FrameDamaged, OSError."""
        if self._epoch != self._log.epoch:  # truncated: other frames may stand there now
            self._epoch = self._log.epoch
            self._kept.clear()
            self._kept_bytes = 0
        number = offset // BLOCK_BYTES
        frames = self._kept_at(number, offset) or self._kept_at(number - 1, offset)
        if frames is not None:
            return frames
        frames = self._check(number, offset)
        if frames is not None:
            return frames
        index = self._log.index
        first = index.last_ending_by(offset) + 1
        if first > index.last_index or offset < index.position_of(first):
            return None  # in the blank record behind a segment's last frame, or behind the log
        number = index.position_of(first) // BLOCK_BYTES  # of a frame that is longer than a block
        return self._kept_at(number, offset) or self._check(number, offset)

    def _kept_at(self, number: int, offset: int) -> Frames | None:
        frames = self._kept.get(number)
        return frames if frames is not None and frames.start <= offset < frames.end else None

    def _check(self, number: int, offset: int) -> Frames | None:
        """Check this block; if another frame of it than that at `offset` is damaged, that frame
        alone. None if `offset` is in no frame of it. Raises FrameDamaged, OSError."""
        log, index = self._log, self._log.index
        begin, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
        first = index.first_from(max(begin, log.segment_start(offset)))
        last = index.first_from(min(end, log.segment_end(offset))) - 1
        if first > last:
            return None
        spans = index.spans(first, last)
        start, end = spans[0][1], spans[-1][1] + spans[-1][2]
        if not start <= offset < end:
            return None
        try:
            frames = Frames(start, end, log.checked(first, spans))
        except FrameDamaged:
            at = next(n for n, (_, position, size) in enumerate(spans) if offset < position + size)
            _, start, size = spans[at]
            return Frames(start, start + size, log.checked(first + at, spans[at : at + 1]))
        self.checked_bytes += len(frames.data)
        self._keep(number, frames)
        return frames

    def _keep(self, number: int, frames: Frames) -> None:
        kept = self._kept
        before = kept.pop(number, None)
        kept[number] = frames
        self._kept_bytes += len(frames.data) - (len(before.data) if before is not None else 0)
        while self._kept_bytes > KEPT_BYTES_MAX and len(kept) > 1:
            self._kept_bytes -= len(kept.pop(next(iter(kept))).data)
