"""Verification of a Raft log's bytes, frame by frame and in order. Pure.

Checked are both checksums and the position of every frame, rising indexes, terms that never fall,
segment limits, and the blank record of each partly filled segment. So any damage is found, with its
position.
"""

from __future__ import annotations

from raftmq.dledger.raft.messages import TERM_MAX
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameError, parse_frame, parse_header
from raftmq.store.record import BLANK, BLANK_SIZE_BYTES, MAGIC_BLANK


class ChainBroken(Exception):
    """The bytes at CommitLog offset `position` are not the expected frame `index`."""

    def __init__(self, position: int, index: int, reason: str) -> None:
        super().__init__(f"frame {index} at {position}: {reason}")
        self.position = position
        self.index = index
        self.reason = reason


class FrameChain:
    """A chain of frames, fed from the first byte of a frame on. Holds at most one frame."""

    def __init__(self, index: int, term: int, position: int, segment_size_bytes: int) -> None:
        """`index` and `term` are of the previous frame; `position` is the start of the next."""
        self.index = index
        self.term = term
        self.position = position  # behind the last complete frame or blank
        self._size = segment_size_bytes
        self._waiting = b""  # from `position` on
        self._skip = 0  # missing bytes of a blank record

    @property
    def next_position(self) -> int:
        """The required position of the next `feed`."""
        return self.position - self._skip + len(self._waiting)

    @property
    def is_between_frames(self) -> bool:
        return not self._waiting and not self._skip

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Return the complete frames. Raises ChainBroken, after which nothing can be checked."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        data = b"".join((self._waiting, memoryview(data)[skipped:]))
        frames: list[Frame] = []
        at = 0
        while not self._skip:
            remaining = self._size - self.position % self._size
            took = self._blank(data, at, remaining)
            if took is None:
                frame = self._frame(data, at, remaining)
                if frame is None:
                    break
                frames.append(frame)
                at += frame.size_bytes
            else:
                at += took
        self._waiting = data[at:]
        return frames

    def _blank(self, data: bytes, at: int, remaining: int) -> int | None:
        """Return how many bytes of `data` belong to a blank record at `at`. Return None if there is
        no blank record, or too few bytes to decide. Raises ChainBroken."""
        if len(data) - at < BLANK_SIZE_BYTES:
            return None
        size, magic = BLANK.unpack_from(data, at)
        if magic != MAGIC_BLANK:
            return None
        if size != remaining:
            raise self._broken(f"blank record of {size} bytes with {remaining} left")
        took = min(remaining, len(data) - at)
        self.position += remaining
        self._skip = remaining - took
        return took

    def _frame(self, data: bytes, at: int, remaining: int) -> Frame | None:
        """Return the frame at `at`, or None while it is incomplete. Raises ChainBroken."""
        if len(data) - at < min(HEADER_SIZE_BYTES, remaining):
            return None
        try:
            fields = parse_header(data, at)
            _, _, index, term, position, _, length, _, _, _, _ = fields
            if position != self.position:
                raise FrameError(f"frame says it stands at {position}")
            if index != self.index + 1 or not self.term <= term <= TERM_MAX:
                raise FrameError(f"frame {index}@{term} does not follow {self.index}@{self.term}")
            if HEADER_SIZE_BYTES + length + BLANK_SIZE_BYTES > remaining:
                raise FrameError("frame goes beyond its segment")
            if len(data) - at < HEADER_SIZE_BYTES + length:
                return None
            frame = parse_frame(data, at)
        except FrameError as error:
            raise self._broken(error.reason) from error
        self.index, self.term = index, term
        self.position = frame.end
        return frame

    def _broken(self, reason: str) -> ChainBroken:
        return ChainBroken(self.position, self.index + 1, reason)
