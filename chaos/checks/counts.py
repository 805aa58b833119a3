"""Counts how often each offset of a queue was seen: a byte each, for dense offsets. Pure."""

from __future__ import annotations

DENSE_GAP_MAX = 1 << 24  # an offset farther ahead is kept apart; 16 MB are acceptable
TIMES_MAX = 255  # counted up to here


class OffsetCounts:
    """Counts by offset. Memory: a byte for each offset up to the highest."""

    __slots__ = ("_dense", "_far", "distinct")

    def __init__(self) -> None:
        self._dense = bytearray()
        self._far: dict[int, int] = {}
        self.distinct = 0  # offsets seen at least once

    def add(self, offset: int) -> int:
        """Count one more; return the count before (TIMES_MAX: that many or more)."""
        dense = self._dense
        if offset >= len(dense):
            if offset - len(dense) > DENSE_GAP_MAX or offset in self._far:
                before = self._far.get(offset, 0)
                self._far[offset] = min(before + 1, TIMES_MAX)
                self.distinct += not before
                return before
            dense.extend(bytes(max(offset + 1 - len(dense), len(dense), 1024)))
        before = dense[offset] or self._far.pop(offset, 0)
        if before < TIMES_MAX:
            dense[offset] = before + 1
        if not before:
            self.distinct += 1
        return before

    def __contains__(self, offset: int) -> bool:
        return (offset < len(self._dense) and self._dense[offset] > 0) or offset in self._far
