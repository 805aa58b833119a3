"""Which half messages are open: pure.

Fed with the records of the half topic and of the op topic, in any order of the two. What it is
asked: is this half open, whose turn is it to be checked, and up to where has everything ended?
Halves are named by their offset in the half topic's only queue. A check stores a half again, at
a new offset; its *root* is the offset that it had first, which producers may still name.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass

ENDED_MAX = 100_000  # how many ends are remembered, for who asks a second time
COMMIT = 8
ROLLBACK = 12


@dataclass(frozen=True, slots=True)
class Half:
    """One stored half message."""

    offset: int
    root: int
    position: int  # in the CommitLog
    group: str  # the producers'
    due_ms: int  # when it is to be checked
    checks: int  # how often it was


class HalfBook:
    """See the module. `half_from`, `op_from`: all before them has ended."""

    def __init__(self, half_from: int, op_from: int) -> None:
        self.half_next = half_from  # offset of the next half to be told of
        self.op_next = op_from
        self.open: dict[int, Half] = {}  # by offset, ascending
        self._roots: dict[int, int] = {}  # root → offset, of open ones that have moved
        self._ahead: set[int] = set()  # ended, and not told of yet
        self._ops: deque[int] = deque()  # halves that the ops before `op_next` name
        self._due: list[tuple[int, int]] = []  # heap of (due, offset); may name ended ones
        self._ended: OrderedDict[int, int] = OrderedDict()  # root → decision

    def take_half(self, half: Half) -> bool:
        """The half queue's next record. True if it is open."""
        assert half.offset >= self.half_next, (half, self.half_next)
        self.half_next = half.offset + 1
        if half.offset in self._ahead:
            self._ahead.discard(half.offset)
            return False
        self.open[half.offset] = half
        if half.root != half.offset:
            self._roots[half.root] = half.offset
        self.schedule(half.offset, half.due_ms)
        return True

    def skip_halves(self, half_next: int) -> None:
        """Halves before this offset are not in the log any more."""
        self.half_next = max(self.half_next, half_next)
        for offset in [offset for offset in self.open if offset < half_next]:
            self.close(offset)
        self._ahead = {offset for offset in self._ahead if offset >= self.half_next}

    def take_op(self, op_offset: int, halves: list[int]) -> None:
        """The op queue's next record: these halves have ended."""
        self.skip_ops(op_offset)
        self.op_next = op_offset + 1
        self._ops.append(max(halves, default=-1))
        for offset in halves:
            if offset >= self.half_next:
                self._ahead.add(offset)
            else:
                self.close(offset)

    def skip_ops(self, op_next: int) -> None:
        """Ops before this offset are not in the log any more, nor are the halves they name."""
        if op_next > self.op_next:
            self._ops.clear()
            self.op_next = op_next

    def close(self, offset: int, decision: int | None = None) -> None:
        """The half has ended, or moved (`decision` None). Again: nothing happens."""
        half = self.open.pop(offset, None)
        if half is None:
            return
        if self._roots.get(half.root) == offset:
            del self._roots[half.root]
        if decision is not None:
            self._ended[half.root] = decision
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)

    def find(self, root: int) -> Half | None:
        """The open half that began at `root`."""
        return self.open.get(self._roots.get(root, root))

    def decision(self, root: int) -> int | None:
        """How it ended, as far as that is remembered."""
        return self._ended.get(root)

    def schedule(self, offset: int, due_ms: int) -> None:
        """Have an open half come up at this time."""
        heapq.heappush(self._due, (due_ms, offset))

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Open halves whose time has come; each once, until it is scheduled again."""
        found: list[Half] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < count_max:
            half = self.open.get(heapq.heappop(self._due)[1])
            if half is not None:
                found.append(half)
        return found

    def progress(self) -> tuple[int, int]:
        """(half offset, op offset): every half before the first has ended, and which of the later
        ones have is told by the ops from the second on."""
        half = next(iter(self.open), self.half_next)
        while self._ops and self._ops[0] < half:
            self._ops.popleft()
        return half, self.op_next - len(self._ops)
