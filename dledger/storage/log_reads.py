"""Verified reads of the log. All bytes are compared with their frame's checksum.

A disk may change bytes below a running replica, and neither a record's place nor its body's
checksum shows a changed property. The latest frames, which are still in memory
(`RaftLog.memory_start`), are read from the file without checks. Older frames are read completely
and checked, so only consumers that are behind pay for checks. The kernel's page cache proves
nothing. Readahead, a different program or an earlier process may have filled it unchecked.

Small frames are checked by the block of BLOCK_BYTES in which they start, and the last blocks are
kept, because pulls read many pieces of the same frames. A larger frame is checked alone, once, and
its running checksum at every STEP_BYTES is kept instead of its bytes. A later read of a record in
it reads the steps around the record, and compares their checksums. Messages of a damaged frame wait
for its repair.

Each check uses up the caller's `ReadBudget`, and a read ends with it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from google_crc32c import extend

from raftmq.store.commitlog.commitlog import FIRST_READ_BYTES, ReadBudget, record_in, record_size
from raftmq.store.frame import HEADER_SIZE_BYTES, payload_checksum

from ..raft.errors import FrameDamaged
from .log_storage import RaftLog

BLOCK_BYTES = 64 << 10  # with frames of one small message each, 0.3 ms to check
KEPT_BYTES_MAX = 4 << 20  # of all blocks
FRAME_COST = 1024  # the cost of a further frame, as bytes to check
STEP_BYTES = 4096  # of a large frame; its checksums need 0.1 % of its size
PIECE_BYTES = 64 * STEP_BYTES  # per read during the check of a large frame
SUMS_MAX = 1 << 20  # max. checksums of large frames, for 4 GiB of the log
DIFFERS = "its bytes do not fit its checksums"


class Frames(NamedTuple):
    """The checked bytes [start, end) of contiguous frames."""

    start: int
    end: int
    data: bytes


class Large(NamedTuple):
    """A large checked frame. `sums` has its payload's checksum before each step and at its end."""

    number: int  # of the frame in the log
    start: int
    end: int
    head: bytes
    sums: array[int]


class FrameReads:
    """`ServedReads` of a log of frames. For a single caller (the loop)."""

    def __init__(self, log: RaftLog) -> None:
        self._log = log
        self._kept: dict[int, Frames] = {}  # blocks by number, the newest last
        self._kept_bytes = 0
        self._large: dict[int, Large] = {}  # by index, the last used at the end
        self._sums = 0  # of all of them
        self._epoch = log.epoch
        self.checked_bytes = 0

    def read(self, offset: int, size: int, budget: ReadBudget | None = None) -> bytes:
        """Return up to `size` bytes at `offset`, fewer at the end of the segment, of the log, or of
        the budget. The first check of a budget is always made. Raises FrameDamaged,
        OffsetOutOfRange, OSError."""
        log, end = self._log, offset + size
        if not self._is_old(offset):
            return log.commitlog.read(offset, size)
        budget = budget or ReadBudget()
        pieces: list[bytes] = []
        while offset < end:
            piece = self._piece(offset, end - offset, budget)
            if piece is None:
                pieces.append(log.commitlog.read(offset, end - offset))
                break
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def record_at(self, offset: int, budget: ReadBudget | None = None) -> bytes | None:
        """Return the message record at `offset`; None without a record there, or at the end of the
        budget. Raises FrameDamaged, OSError."""
        old, budget = self._is_old(offset), budget or ReadBudget()
        data = self._piece(offset, FIRST_READ_BYTES, budget) if old else None
        if data is None:
            return self._log.commitlog.record_at(offset)
        size = record_size(data, 0, offset)
        if size > len(data):
            data += self.read(offset + len(data), size - len(data))  # of the same frame
        return record_in(data, 0, offset)

    def _is_old(self, offset: int) -> bool:
        log = self._log
        return log.index.start_position <= offset < log.memory_start and log.is_open

    def _piece(self, offset: int, size: int, budget: ReadBudget) -> bytes | None:
        """Return up to `size` checked bytes at `offset`, to the end of a block's frames or of a
        large frame; none at the end of the budget; None if no frame holds that byte. Raises
        FrameDamaged, OSError."""
        if self._epoch != self._log.epoch:  # truncated, and other frames may be there now
            self._epoch = self._log.epoch
            self._kept.clear()
            self._large.clear()
            self._kept_bytes = self._sums = 0
        number = offset // BLOCK_BYTES
        frames = self._kept_at(number, offset) or self._kept_at(number - 1, offset)
        if frames is None:
            index = self._log.index
            at = index.last_ending_by(offset) + 1
            if at > index.last_index or offset < index.position_of(at):
                return None  # in the blank record behind a segment's last frame, or behind the log
            if index.size_of(at) > BLOCK_BYTES:
                return self._in_large(at, offset, size, budget)
            number = index.position_of(at) // BLOCK_BYTES
            frames = self._kept_at(number, offset) or self._check(number, at, budget)
            if frames is None:
                return b""
        return frames.data[offset - frames.start : offset - frames.start + size]

    def _kept_at(self, number: int, offset: int) -> Frames | None:
        frames = self._kept.get(number)
        return frames if frames is not None and frames.start <= offset < frames.end else None

    def _check(self, number: int, at: int, budget: ReadBudget) -> Frames | None:
        """Check this block's small frames, or only frame `at` if a neighbour is damaged. None at
        the end of the budget. Raises FrameDamaged, OSError."""
        log, index = self._log, self._log.index
        offset = index.position_of(at)
        block_start, end = number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES
        first = index.first_from(max(block_start, log.segment_start(offset)))
        last = index.first_from(min(end, log.segment_end(offset))) - 1
        if index.size_of(last) > BLOCK_BYTES:
            last -= 1
        spans = index.spans(first, last)
        start, end = spans[0][1], spans[-1][1] + spans[-1][2]
        if not budget.take(end - start + FRAME_COST * len(spans)):
            return None
        self.checked_bytes += end - start
        try:
            frames = Frames(start, end, log.checked(first, spans))
        except FrameDamaged:
            _, start, size = spans[at - first]
            return Frames(start, start + size, log.checked(at, spans[at - first : at - first + 1]))
        self._keep(number, frames)
        return frames

    def _keep(self, number: int, frames: Frames) -> None:
        kept = self._kept
        before = kept.pop(number, None)
        kept[number] = frames
        self._kept_bytes += len(frames.data) - (len(before.data) if before is not None else 0)
        while self._kept_bytes > KEPT_BYTES_MAX and len(kept) > 1:
            self._kept_bytes -= len(kept.pop(next(iter(kept))).data)

    def _in_large(self, at: int, offset: int, size: int, budget: ReadBudget) -> bytes:
        """Return up to `size` bytes of frame `at`; none at the end of the budget. Raises
        FrameDamaged, OSError."""
        index = self._log.index
        start, end = index.position_of(at), index.end_of(at)
        size = min(size, end - offset)
        large = self._large.get(at)
        if not budget.take(end - start if large is None else min(size + STEP_BYTES, end - start)):
            return b""
        if large is None:
            large, data = self._sum_up(at, start, end, offset, offset + size)
            self._sums += len(large.sums)
        else:
            data = self._steps(large, offset, offset + size)
        self._large.pop(at, None)
        self._large[at] = large
        while self._sums > SUMS_MAX and len(self._large) > 1:
            self._sums -= len(self._large.pop(next(iter(self._large))).sums)
        return data

    def _sum_up(self, at: int, start: int, end: int, offset: int, stop: int) -> tuple[Large, bytes]:
        """Check a frame; return its checksums, and its bytes in [begin, stop). Raises FrameDamaged,
        OSError."""
        log = self._log
        head = log.commitlog.read(start, HEADER_SIZE_BYTES)
        expected = payload_checksum(head, end - start, (at, log.index.term_at(at), start))
        pieces = [head[max(0, offset - start) : max(0, stop - start)]]
        sums, checksum = array("I", [0]), 0
        for position in range(start + HEADER_SIZE_BYTES, end, PIECE_BYTES):
            piece = log.commitlog.read(position, min(PIECE_BYTES, end - position))
            for step in range(0, len(piece), STEP_BYTES):
                checksum = extend(checksum, piece[step : step + STEP_BYTES])
                sums.append(checksum)
            if position < stop and offset < position + len(piece):
                pieces.append(piece[max(0, offset - position) : stop - position])
        self.checked_bytes += end - start
        if checksum != expected:
            raise log.damaged(at, DIFFERS)
        return Large(at, start, end, head, sums), b"".join(pieces)

    def _steps(self, large: Large, offset: int, stop: int) -> bytes:
        """Return the bytes [begin, stop) of a checked frame, after comparing the checksums of the
        steps around them. Raises FrameDamaged, OSError."""
        payload = large.start + HEADER_SIZE_BYTES
        if offset < payload:
            return large.head[offset - large.start : stop - large.start]
        first, last = (offset - payload) // STEP_BYTES, (stop - 1 - payload) // STEP_BYTES
        start = payload + first * STEP_BYTES
        size = min(payload + (last + 1) * STEP_BYTES, large.end) - start
        data = self._log.commitlog.read(start, size)
        self.checked_bytes += len(data)
        if len(data) < size or extend(large.sums[first], data) != large.sums[last + 1]:
            self._sums -= len(self._large.pop(large.number).sums)
            raise self._log.damaged(large.number, DIFFERS)
        return data[offset - start : stop - start]
