"""Long polling: pulls that found nothing wait here for the next message of their queue. Pure.

A held pull is released by the first dispatched unit of its queue that its tag filter lets pass,
or when its time is over; whoever owns the table runs it again then. Bound: `heldPullsMax`.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

from broker.filters import Codes

T = TypeVar("T")
_TAGS_CODE = struct.Struct(">12xq")  # of a consume-queue unit


class Held(Generic[T]):
    """One held pull; `pull` is the owner's."""

    __slots__ = ("codes", "deadline_ms", "key", "pull", "released")

    def __init__(self, key: tuple[str, int], codes: Codes, deadline_ms: int, pull: T) -> None:
        self.key = key
        self.codes = codes
        self.deadline_ms = deadline_ms
        self.pull = pull
        self.released = False


class HoldTable(Generic[T]):
    """Held pulls by (topic, queue id), and by deadline."""

    def __init__(self, count_max: int, release: Callable[[T], None]) -> None:
        """`release(pull)` is called once for every held pull, never from within `hold`."""
        self._count_max = count_max
        self._release = release
        self._by_queue: dict[tuple[str, int], list[Held[T]]] = {}
        self._deadlines: list[tuple[int, int, Held[T]]] = []
        self._sequence = 0
        self.count = 0

    def hold(self, topic: str, queue_id: int, codes: Codes, deadline_ms: int, pull: T) -> bool:
        """Keep the pull; False when the table is full and the caller must answer now."""
        if self.count >= self._count_max:
            return False
        held = Held((topic, queue_id), codes, deadline_ms, pull)
        self._by_queue.setdefault(held.key, []).append(held)
        self._sequence += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._sequence, held))
        self.count += 1
        return True

    def arrived(self, topic: str, queue_id: int, units: bytes) -> None:
        """Units were added to the queue: release the pulls that want one of them."""
        waiting = self._by_queue.pop((topic, queue_id), None)
        if waiting is None:
            return
        codes: frozenset[int] | None = None
        keep: list[Held[T]] = []
        for held in waiting:
            if held.codes is not None and codes is None:
                codes = frozenset(code for (code,) in _TAGS_CODE.iter_unpack(units))
            if held.codes is None or (codes is not None and not codes.isdisjoint(held.codes)):
                self._let_go(held)
            else:
                keep.append(held)
        if keep:  # a released pull may have come back into this queue meanwhile
            self._by_queue.setdefault((topic, queue_id), []).extend(keep)

    def expire(self, now_ms: int) -> None:
        """Release every pull whose time is over."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ms or deadlines[0][2].released):
            held = heapq.heappop(deadlines)[2]
            if not held.released:
                self._remove(held)
                self._let_go(held)
        if len(deadlines) > 2 * self.count + 64:  # mostly released ones: rebuild
            self._deadlines = [entry for entry in deadlines if not entry[2].released]
            heapq.heapify(self._deadlines)

    def release_all(self) -> None:
        """The broker stops, or roles changed: run every held pull again now."""
        for waiting in list(self._by_queue.values()):
            for held in list(waiting):
                self._remove(held)
                self._let_go(held)

    def _remove(self, held: Held[T]) -> None:
        waiting = self._by_queue.get(held.key)
        if waiting is not None and held in waiting:
            waiting.remove(held)
            if not waiting:
                del self._by_queue[held.key]

    def _let_go(self, held: Held[T]) -> None:
        held.released = True
        self.count -= 1
        self._release(held.pull)
