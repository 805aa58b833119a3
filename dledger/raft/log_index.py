"""The terms and positions of a log's frames, by frame index.

`RaftLog` builds its index on `open()` and keeps it in step with *written* frames. `RaftCore` starts
with a *copy* and keeps that in step with *accepted* frames, which are ahead of the file by a Ready.
An index is never shared.

It needs little more than two bytes per frame, because a log of three days may have a hundred
million. Frames are in blocks of BLOCK. A block has the position of its first frame and the
*strides*, the distances between successive frames. A stride is the frame's size, except before a
blank record at a segment's end; those sizes are kept apart. Terms are kept as runs, because a log
has few terms.

Invariants: indexes have no gaps; terms never fall; a frame starts at the end of the previous frame,
or behind a blank record that fills the segment. `first_index - 1` is the last frame that retention
deleted, whose term is still known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from raftmq.store.frame import Frame

BLOCK = 256  # frames
_WIDE, _NARROW = "I", "H"  # of strides, of four bytes and of two
_NARROW_MAX = 0xFFFF


@dataclass(slots=True, eq=False)
class LogIndex:
    """The index of a log that starts at `first_index`, initially empty.

    `previous_term` is the term of the frame before it (0 at the very start), `start_position` the
    lowest byte offset of its first frame."""

    first_index: int = 1
    previous_term: int = 0
    start_position: int = 0
    last_index: int = field(init=False)
    last_term: int = field(init=False)
    end_position: int = field(init=False)  # byte offset just behind the last frame
    # Only the last block is changed in place; copies share all others.
    _blocks: list[array[int]] = field(default_factory=list, init=False)
    _starts: array[int] = field(default_factory=lambda: array("q"), init=False)
    _base: int = field(init=False)  # the index of the first block's first frame
    _sizes: dict[int, int] = field(default_factory=dict, init=False)  # where it is not the stride
    _run_firsts: list[int] = field(default_factory=list, init=False)  # first of each run of a term
    _run_terms: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        assert self.first_index >= 1, self.first_index
        self.last_index = self.first_index - 1
        self.last_term = self.previous_term
        self.end_position = self.start_position
        self._base = self.first_index

    def copy(self) -> LogIndex:
        """Return an independent index with the same content."""
        other = LogIndex(self.first_index, self.previous_term, self.start_position)
        other.last_index = self.last_index
        other.last_term = self.last_term
        other.end_position = self.end_position
        other._blocks = [*self._blocks[:-1], *(block[:] for block in self._blocks[-1:])]
        other._starts = self._starts[:]
        other._base = self._base
        other._sizes = self._sizes.copy()
        other._run_firsts = self._run_firsts[:]
        other._run_terms = self._run_terms[:]
        return other

    def append(self, frame: Frame) -> None:
        self.add(frame.index, frame.term, frame.position, len(frame.data))

    def add(self, index: int, term: int, position: int, size_bytes: int) -> None:
        """Add the next frame by its header fields."""
        assert index == self.last_index + 1, (index, self.last_index)
        assert position >= self.end_position, (position, self.end_position)
        if term != self.last_term or not self._run_firsts:
            assert term >= self.last_term, (term, self.last_term)
            self._run_firsts.append(index)
            self._run_terms.append(term)
            self.last_term = term
        if self._blocks and position != self.end_position:
            self._widen_last(position)
        self.last_index = index
        self.end_position = position + size_bytes
        blocks = self._blocks
        if not blocks or len(blocks[-1]) == BLOCK:
            if not blocks:
                self._base = index
            elif max(blocks[-1]) <= _NARROW_MAX:
                blocks[-1] = array(_NARROW, blocks[-1])
            blocks.append(array(_WIDE))
            self._starts.append(position)
        blocks[-1].append(size_bytes)

    def _widen_last(self, position: int) -> None:
        """Note that the next frame is at `position`, behind a gap."""
        number, at = self._slot(self.last_index)
        block = array(_WIDE, self._blocks[number])
        self._sizes[self.last_index] = block[at]
        block[at] += position - self.end_position
        self._blocks[number] = block

    def _slot(self, index: int) -> tuple[int, int]:
        """Return the number of a frame's block, and the offset in the block."""
        return divmod(index - self._base, BLOCK)

    def term_at(self, index: int) -> int:
        """Return the term of frame `index`, in first_index - 1 .. last_index."""
        assert self.first_index - 1 <= index <= self.last_index, (index, self)
        firsts = self._run_firsts
        if not firsts or index < firsts[0]:
            return self.previous_term
        if index >= firsts[-1]:
            return self.last_term
        return self._run_terms[bisect_right(firsts, index) - 1]

    def position_of(self, index: int) -> int:
        """Return the byte offset of frame `index`, which must be present."""
        assert self.first_index <= index <= self.last_index, (index, self)
        number, at = self._slot(index)
        block = self._blocks[number]
        if number == len(self._blocks) - 1 and 2 * at > len(block):
            return self.end_position - sum(block[at:])
        return self._starts[number] + sum(block[:at])

    def size_of(self, index: int) -> int:
        """Return the bytes of frame `index`, which must be present, with its header."""
        assert self.first_index <= index <= self.last_index, (index, self)
        number, at = self._slot(index)
        return self._sizes.get(index) or self._blocks[number][at]

    def spans(self, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
        """Return (term, position, size) of frames first..last, which must be present."""
        assert self.first_index <= first <= last <= self.last_index, (first, last, self)
        term = self.term_at(first)
        if term == self.term_at(last):
            terms = [term] * (last + 1 - first)
        else:
            terms = [self.term_at(index) for index in range(first, last + 1)]
        (number, at), (last_number, last_at) = self._slot(first), self._slot(last)
        if number == last_number:
            strides = self._blocks[number][at : last_at + 1].tolist()
        else:
            strides = self._blocks[number][at:].tolist()
            for block in self._blocks[number + 1 : last_number]:
                strides += block
            strides += self._blocks[last_number][: last_at + 1]
        positions = accumulate(strides[:-1], initial=self.position_of(first))
        for index, size in self._sizes.items():
            if first <= index <= last:
                strides[index - first] = size
        return tuple(zip(terms, positions, strides, strict=True))

    def end_of(self, index: int) -> int:
        """Return the byte offset behind frame `index`; `start_position` for first_index - 1."""
        if index == self.last_index:
            return self.end_position
        if index == self.first_index - 1:
            return self.start_position
        return self.position_of(index) + self.size_of(index)

    def last_within(self, first: int, bytes_max: int) -> int:
        """Return the last index of a run from `first` of at most `bytes_max`, at least `first`."""
        return max(first, self.last_ending_by(self.position_of(first) + bytes_max))

    def last_ending_by(self, position: int) -> int:
        """Return the last frame that ends at or below `position`, else first_index - 1."""
        if self.end_position <= position:
            return self.last_index
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return self.first_index - 1
        strides = accumulate(self._blocks[number], initial=self._starts[number])
        starts = list(strides)  # of the block's frames, and of the next frame
        at = bisect_right(starts, position) - 1
        index = self._base + number * BLOCK + at
        if index in self._sizes and starts[at] + self._sizes[index] <= position:
            index += 1  # `position` is in the gap behind that frame
        return max(self.first_index, index) - 1

    def first_from(self, position: int) -> int:
        """Return the first frame that starts at or behind `position`, else last_index + 1."""
        index = self.last_ending_by(position) + 1
        if index <= self.last_index and self.position_of(index) < position:
            index += 1
        return max(self.first_index, index)

    def first_index_of_term(self, term: int) -> int | None:
        """Return the first present frame of exactly `term`, or None."""
        run = bisect_right(self._run_terms, term) - 1
        if run < 0 or self._run_terms[run] != term:
            return None
        return self._run_firsts[run]

    def last_at_most(self, index: int, term: int) -> int:
        """Return the largest i <= `index` of a term <= `term`, else first_index - 1.

        A frame of a higher term cannot equal the other log's frame at or before `index`, so this
        step skips an entire term (Raft 5.3)."""
        run = bisect_right(self._run_terms, term)
        if run == len(self._run_terms):
            return min(index, self.last_index)
        return min(index, self._run_firsts[run] - 1)

    def truncate(self, from_index: int) -> None:
        """Forget frame `from_index` (at most last_index + 1) and all behind it."""
        assert self.first_index <= from_index <= self.last_index + 1, (from_index, self)
        self.end_position = self.end_of(from_index - 1)
        self.last_index = from_index - 1
        number, at = self._slot(from_index)
        kept = [self._blocks[number][:at]] if at else []
        self._blocks[number:] = [array(_WIDE, block) for block in kept]
        del self._starts[len(self._blocks) :]
        self._unwiden_last()
        while self._run_firsts and self._run_firsts[-1] >= from_index:
            self._run_firsts.pop()
            self._run_terms.pop()
        self.last_term = self._run_terms[-1] if self._run_terms else self.previous_term

    def _unwiden_last(self) -> None:
        """Remove the gap behind the last frame."""
        for index in [index for index in self._sizes if index > self.last_index]:
            del self._sizes[index]
        size = self._sizes.pop(self.last_index, None)
        if size is not None and self._blocks:
            number, at = self._slot(self.last_index)
            self._blocks[number] = array(_WIDE, self._blocks[number])
            self._blocks[number][at] = size

    def trim(self, first: int) -> None:
        """Forget the frames before `first` (≤ last_index + 1), which retention deleted."""
        assert self.first_index <= first <= self.last_index + 1, (first, self)
        if first == self.first_index:
            return
        previous_term = self.term_at(first - 1)
        start_position = self.end_of(first - 1)
        gone = self._slot(first)[0] if first <= self.last_index else len(self._blocks)
        del self._blocks[:gone]
        del self._starts[:gone]
        self._base = self._base + gone * BLOCK if self._blocks else first
        for index in [index for index in self._sizes if index < first - 1]:
            del self._sizes[index]
        run = bisect_right(self._run_firsts, first) - 1
        del self._run_firsts[:run]
        del self._run_terms[:run]
        if self._blocks:
            self._run_firsts[0] = first
        else:
            self._run_firsts.clear()
            self._run_terms.clear()
        self.first_index = first
        self.previous_term = previous_term
        self.start_position = start_position

    def __repr__(self) -> str:
        return f"<LogIndex {self.first_index}..{self.last_index} end {self.end_position}>"
