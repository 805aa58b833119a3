"""The open half messages, reconstructed from the half and op topics.

A half is identified by its offset in the half queue. A check stores it again at a new offset; its
*root* is the first offset, which producers may still name. A recorded root counts only with the
same topic, producer group and UNIQ_KEY, so that halves of different transactions are never
confused.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque

from ..messages.half_message import Half, Root

ENDED_MAX = 100_000  # to answer producers that end a half message twice
COMMIT = 8
ROLLBACK = 12


class HalfBook:
    """The open halves as far as read. All before `half_from` and `op_from` have ended."""

    def __init__(self, half_from: int, op_from: int) -> None:
        self.half_next = half_from  # offset of the next half to read
        self.op_next = op_from
        self.open: dict[int, Half] = {}  # by offset, ascending
        self._roots: dict[Root, int] = {}  # → offset, of open halves stored again
        self._ahead: set[int] = set()  # ended before they were read
        self._ops: deque[int] = deque()  # latest halves of the ops before `op_next`
        self._due: list[tuple[int, int]] = []  # heap of (due, offset); may contain ended halves
        self._ended: OrderedDict[Root, int] = OrderedDict()  # → decision

    def add_half(self, half: Half) -> bool:
        """Add the next record of the half queue. Returns True if it is open."""
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
        """Drop halves before this offset, which were deleted from the log."""
        self.half_next = max(self.half_next, half_next)
        for offset in [offset for offset in self.open if offset < half_next]:
            self.close(offset)
        self._ahead = {offset for offset in self._ahead if offset >= self.half_next}

    def add_op(self, op_offset: int, halves: list[int]) -> None:
        """Add the next record of the op queue, which ends these halves."""
        self.skip_ops(op_offset)
        self.op_next = op_offset + 1
        self._ops.append(max(halves, default=-1))
        for offset in halves:
            if offset >= self.half_next:
                self._ahead.add(offset)
            else:
                self.close(offset)

    def skip_ops(self, op_next: int) -> None:
        """Skip ops before this offset, deleted like their halves."""
        if op_next > self.op_next:
            self._ops.clear()
            self.op_next = op_next

    def close(self, offset: int, decision: int | None = None) -> None:
        """Remove a half that ended or was stored again (`decision` None). Idempotent."""
        half = self.open.pop(offset, None)
        if half is None:
            return
        if self._roots.get(half.root) == offset:
            del self._roots[half.root]
        if decision is not None:
            self.record_end(half.root, decision)

    def record_end(self, root: Root, decision: int) -> None:
        self._ended[root] = decision
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def find(self, root: Root) -> Half | None:
        half = self.open.get(self._roots.get(root, root.offset))
        return half if half is not None and half.root == root else None

    def decision(self, root: Root) -> int | None:
        """Return how the half ended, if recorded."""
        return self._ended.get(root)

    def schedule(self, offset: int, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, offset))

    @property
    def next_due_ms(self) -> int | None:
        """A lower bound of the next check's time, or None."""
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int, count_max: int) -> list[Half]:
        """Return due open halves, once per schedule."""
        halves: list[Half] = []
        while self._due and self._due[0][0] <= now_ms and len(halves) < count_max:
            half = self.open.get(heapq.heappop(self._due)[1])
            if half is not None:
                halves.append(half)
        return halves

    def progress(self) -> tuple[int, int]:
        """Return (half offset, op offset). All halves before the first have ended, and the ops from
        the second on name the later ended halves."""
        half = next(iter(self.open), self.half_next)
        while self._ops and self._ops[0] < half:
            self._ops.popleft()
        return half, self.op_next - len(self._ops)
