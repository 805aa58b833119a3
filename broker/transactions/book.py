"""The half messages that are open. Pure.

The book is fed with the records of the half topic and of the op topic, in any order of the two. It
tells whether a half is open, which are to be checked next, and up to where everything has ended.
Halves are named by their offset in the half topic's only queue. A check stores a half again, at a
new offset; its *root* is its first offset, which producers may still name. Where a half says which
its root was, that counts only together with its topic, producer group and UNIQ_KEY, which a half
keeps when it is stored again: no half speaks for one of another transaction.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque

from ..messages.half_message import Half, Root

ENDED_MAX = 100_000  # ends remembered, to answer producers that end a half message twice
COMMIT = 8
ROLLBACK = 12


class HalfBook:
    """The open halves, as far as the topics were read. `half_from`, `op_from`: all before them has
    ended."""

    def __init__(self, half_from: int, op_from: int) -> None:
        self.half_next = half_from  # offset of the next half to take
        self.op_next = op_from
        self.open: dict[int, Half] = {}  # by offset, ascending
        self._roots: dict[Root, int] = {}  # → offset, of open halves that were stored again
        self._ahead: set[int] = set()  # ended, but not taken yet
        self._ops: deque[int] = deque()  # halves that the ops before `op_next` name
        self._due: list[tuple[int, int]] = []  # heap of (due, offset); may name ended ones
        self._ended: OrderedDict[Root, int] = OrderedDict()  # → decision

    def take_half(self, half: Half) -> bool:
        """Take the half queue's next record. Returns True if it is open."""
        assert half.offset >= self.half_next, (half, self.half_next)
        self.half_next = half.offset + 1
        if half.offset in self._ahead:
            self._ahead.discard(half.offset)
            return False
        self.open[half.offset] = half
        if half.root.offset != half.offset:
            self._roots[half.root] = half.offset
        self.schedule(half.offset, half.due_ms)
        return True

    def skip_halves(self, half_next: int) -> None:
        """Forget halves before this offset, which are not in the log any more."""
        self.half_next = max(self.half_next, half_next)
        for offset in [offset for offset in self.open if offset < half_next]:
            self.close(offset)
        self._ahead = {offset for offset in self._ahead if offset >= self.half_next}

    def take_op(self, op_offset: int, halves: list[int]) -> None:
        """Take the op queue's next record: these halves have ended."""
        self.skip_ops(op_offset)
        self.op_next = op_offset + 1
        self._ops.append(max(halves, default=-1))
        for offset in halves:
            if offset >= self.half_next:
                self._ahead.add(offset)
            else:
                self.close(offset)

    def skip_ops(self, op_next: int) -> None:
        """Skip ops before this offset, which are gone from the log, as are their halves."""
        if op_next > self.op_next:
            self._ops.clear()
            self.op_next = op_next

    def close(self, offset: int, decision: int | None = None) -> None:
        """Remove a half that ended, or was stored again (`decision` None); it may be gone."""
        half = self.open.pop(offset, None)
        if half is None:
            return
        if self._roots.get(half.root) == offset:
            del self._roots[half.root]
        if decision is not None:
            self.record_end(half.root, decision)

    def record_end(self, root: Root, decision: int) -> None:
        """Remember how a half ended."""
        self._ended[root] = decision
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def find(self, root: Root) -> Half | None:
        """Return the open half that began at `root`."""
        half = self.open.get(self._roots.get(root, root.offset))
        return half if half is not None and half.root == root else None

    def decision(self, root: Root) -> int | None:
        """Return how the half ended, as far as that is remembered."""
        return self._ended.get(root)

    def schedule(self, offset: int, due_ms: int) -> None:
        """Have an open half become due at this time."""
        heapq.heappush(self._due, (due_ms, offset))

    @property
    def next_due_ms(self) -> int | None:
        """The time at which a half is due next, or earlier; None if none is scheduled."""
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Return open halves that are due; each once, until it is scheduled again."""
        halves: list[Half] = []
        while self._due and self._due[0][0] <= now_ms and len(halves) < count_max:
            half = self.open.get(heapq.heappop(self._due)[1])
            if half is not None:
                halves.append(half)
        return halves

    def progress(self) -> tuple[int, int]:
        """Return (half offset, op offset): every half before the first has ended, and the ops from
        the second on tell which of the later ones have."""
        half = next(iter(self.open), self.half_next)
        while self._ops and self._ops[0] < half:
            self._ops.popleft()
        return half, self.op_next - len(self._ops)
