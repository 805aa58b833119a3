"""The bytes in flight in one direction of a connection, passed at once, delayed, or held.

Bytes arrive complete, once and in order, even if rules change. The end of the stream (END) and its
loss (RESET) keep their positions. The owner stops reading when `full`: a flow holds at most its
limit and one more read. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from .rules import Way

HELD_BYTES_MAX = 4 << 20  # a delayed way holds this much: 10 MB/s over 400 ms
QUEUE_S = 0.5  # a slow way queues for this long, as a small router does
QUEUE_BYTES_MIN = 64 << 10
PIECE_S = 0.02  # at a limited rate a piece of bytes takes about this long
PIECE_BYTES_MIN = 512


class Mark(Enum):
    """The marks that can be in flight among bytes."""

    END = "end"  # nothing follows (FIN)
    RESET = "reset"  # the connection is gone


Item = bytes | Mark


class Pace:
    """The rate limit of one direction of a link, shared by all its connections."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def take(self, size_bytes: int, rate: float, now_s: float) -> float:
        """Return when `size_bytes` more have passed."""
        self._free_s = max(now_s, self._free_s) + size_bytes / rate
        return self._free_s

    def reset(self) -> None:
        """Drop earlier reservations, because the rate has changed."""
        self._free_s = 0.0


class Flow:
    """One direction. `random` in [0, 1) draws jitter. Times are seconds of a single clock."""

    def __init__(self, way: Way, pace: Pace, random: Callable[[], float]) -> None:
        self.way = way
        self._pace = pace
        self._random = random
        self._queue: deque[tuple[float, Item]] = deque()
        self._last_due_s = 0.0
        self.held_bytes = 0

    @property
    def passes(self) -> bool:
        """True if arriving bytes may be forwarded without being queued here."""
        return not self._queue and self.way.passes

    @property
    def full(self) -> bool:
        if not self.way.rate:
            return self.held_bytes >= HELD_BYTES_MAX
        limit = max(QUEUE_BYTES_MIN, self.way.rate * QUEUE_S)
        return self.held_bytes >= min(limit, HELD_BYTES_MAX)

    def push(self, item: Item, now_s: float) -> None:
        """Put something in flight."""
        if isinstance(item, Mark):
            self._add(item, now_s + self._delay_s())
            return
        self.held_bytes += len(item)
        if not self.way.rate:
            self._add(item, now_s + self._delay_s())
            return
        size = max(PIECE_BYTES_MIN, int(self.way.rate * PIECE_S))
        for at in range(0, len(item), size):
            piece = item[at : at + size]
            passed_s = self._pace.take(len(piece), self.way.rate, now_s)
            self._add(piece, passed_s + self._delay_s())

    def take(self, now_s: float) -> list[Item]:
        result: list[Item] = []
        if self.way.cut:
            return result
        while self._queue and self._queue[0][0] <= now_s:
            _, item = self._queue.popleft()
            if not isinstance(item, Mark):
                self.held_bytes -= len(item)
            result.append(item)
        return result

    def next_due_s(self) -> float | None:
        """Return the time of the next arrival; None if it depends on a change of rules."""
        return None if self.way.cut or not self._queue else self._queue[0][0]

    def change(self, way: Way, now_s: float) -> None:
        """Apply new rules from now on, also to bytes in flight."""
        if way == self.way:
            return
        reshape = way.passes or (way.delay_s, way.jitter_s, way.rate) != (
            self.way.delay_s,
            self.way.jitter_s,
            self.way.rate,
        )
        self.way = way
        if not reshape:
            return
        waiting = list(self._queue)
        self._queue.clear()
        self.held_bytes = 0
        self._last_due_s = 0.0
        for _, item in waiting:
            self.push(item, now_s)

    def clear(self) -> None:
        self._queue.clear()
        self.held_bytes = 0

    def _delay_s(self) -> float:
        way = self.way
        return way.delay_s + (way.jitter_s * self._random() if way.jitter_s else 0.0)

    def _add(self, item: Item, due_s: float) -> None:
        self._last_due_s = max(due_s, self._last_due_s)  # jitter does not overtake
        self._queue.append((self._last_due_s, item))
