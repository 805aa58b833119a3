"""Long polling: pulls that found nothing wait here for the next message of their queue. Pure.

A held pull is released by the first dispatched unit of its queue that its filter takes (tags codes,
then the matcher over properties, if there is one), or when its time is over; the table's owner then
runs it again. Bound: `heldPullsMax`.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from raftmq.broker.consuming.filters import Codes, Filter, Matcher

T = TypeVar("T")
Properties = Sequence[Mapping[str, str]] | None
_TAGS_CODE = struct.Struct(">12xq")  # of a consume-queue unit


class Held(Generic[T]):
    """One held pull; `pull` is the owner's object."""

    __slots__ = ("codes", "deadline_ms", "key", "matcher", "pull", "released")

    def __init__(self, key: tuple[str, int], wanted: Filter, deadline_ms: int, pull: T) -> None:
        self.key = key
        self.codes: Codes = wanted.codes
        self.matcher: Matcher | None = wanted.matcher
        self.deadline_ms = deadline_ms
        self.pull = pull
        self.released = False


class HoldTable(Generic[T]):
    """Held pulls by (topic, queue id), and by deadline."""

    def __init__(
        self,
        count_max: int,
        release: Callable[[T], None],
        properties_of: Callable[[bytes], Properties] = lambda _: None,
    ) -> None:
        """`release(pull)` is called once for every held pull, never from within `hold`.
        `properties_of(units)` returns the properties of these units' messages; None lets every
        matcher pass."""
        self._count_max = count_max
        self._properties_of = properties_of
        self._release = release
        self._by_queue: dict[tuple[str, int], list[Held[T]]] = {}
        self._deadlines: list[tuple[int, int, Held[T]]] = []
        self._sequence = 0
        self.count = 0

    def hold(self, topic: str, queue_id: int, wanted: Filter, deadline_ms: int, pull: T) -> bool:
        """Keep the pull; False when the table is full and the caller must answer now."""
        if self.count >= self._count_max:
            return False
        held = Held((topic, queue_id), wanted, deadline_ms, pull)
        self._by_queue.setdefault(held.key, []).append(held)
        self._sequence += 1
        heapq.heappush(self._deadlines, (deadline_ms, self._sequence, held))
        self.count += 1
        return True

    def arrived(self, topic: str, queue_id: int, units: bytes) -> None:
        """Release the pulls that want one of the units that were added to the queue."""
        waiting = self._by_queue.pop((topic, queue_id), None)
        if waiting is None:
            return
        arrival = _Arrival(units, self._properties_of)
        keep: list[Held[T]] = []
        for held in waiting:
            try:
                passes = arrival.passes(held.codes, held.matcher)
            except Exception:  # from a filter: the pull meets it again when run, and answers
                passes = True
            if passes:
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

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the first held pull's time is over."""
        return self._deadlines[0][0] - now_ms if self._deadlines else float("inf")

    def release_all(self) -> None:
        """Run every held pull again now, because the broker stops or roles changed."""
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


class _Arrival:
    """Units that were added; what filters look at is extracted once, when first needed."""

    __slots__ = ("_asked", "_codes", "_properties", "_properties_of", "_units")

    def __init__(self, units: bytes, properties_of: Callable[[bytes], Properties]) -> None:
        self._units = units
        self._properties_of = properties_of
        self._codes: frozenset[int] | None = None
        self._properties: Properties = None
        self._asked = False

    def passes(self, codes: Codes, matcher: Matcher | None) -> bool:
        if codes is not None:
            if self._codes is None:
                self._codes = frozenset(code for (code,) in _TAGS_CODE.iter_unpack(self._units))
            if self._codes.isdisjoint(codes):
                return False
        if matcher is None:
            return True
        if not self._asked:
            self._asked, self._properties = True, self._properties_of(self._units)
        known = self._properties
        return known is None or any(matcher.matches(properties) for properties in known)
