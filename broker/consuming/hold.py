"""Long polling: pulls that found nothing wait here for the next message of their queue. Pure.

A held pull is released by the first dispatched unit of its queue that its filter takes (tags codes,
then the matcher over properties, if there is one), or whose filter was not asked because others had
done WORK_MAX for that arrival, or when its time is over; the table's owner then runs it again. One
whose connection ends is forgotten. Bounds: `heldPullsMax`, `keptBytesMax`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from raftmq.broker.consuming.filters import Codes, Filter, Matcher
from raftmq.broker.consuming.waits import AT_ONCE_MAX, Waits
from raftmq.remoting.budgets import Allowance

T = TypeVar("T")
Properties = Sequence[Mapping[str, str]] | None
WORK_MAX = 10_000  # of all filters for one arrival, as Matcher.work counts: some 10 ms of an apply
_TAGS_CODE = struct.Struct(">12xq")  # of a consume-queue unit


class Held(Generic[T]):
    """One held pull; `pull` is the owner's object, `owner` its connection."""

    __slots__ = ("deadline_ms", "done", "key", "owner", "pull", "size_bytes", "wanted")

    def __init__(
        self,
        key: tuple[str, int],
        wanted: Filter,
        deadline_ms: int,
        pull: T,
        owner: object = None,
        size_bytes: int = 0,
    ) -> None:
        self.key = key
        self.wanted = wanted
        self.deadline_ms = deadline_ms
        self.pull = pull
        self.owner = owner
        self.size_bytes = size_bytes
        self.done = False


class HoldTable(Generic[T]):
    """Held pulls by (topic, queue id)."""

    def __init__(
        self,
        count_max: int,
        kept: Allowance,
        release: Callable[[T], None],
        properties_of: Callable[[bytes], Properties] = lambda _: None,
    ) -> None:
        """`release(pull)` is called once for every held pull, never from within `hold`.
        `properties_of(units)` returns the properties of these units' messages; None lets every
        matcher pass."""
        self._properties_of = properties_of
        self._release = release
        self._by_queue: dict[tuple[str, int], dict[Held[T], None]] = {}
        self._waits: Waits[Held[T]] = Waits(lambda: count_max, kept)

    @property
    def count(self) -> int:
        return self._waits.count

    def hold(self, held: Held[T]) -> bool:
        """Keep the pull; False when there is no room and the caller must answer now."""
        if not self._waits.add(held):
            return False
        self._by_queue.setdefault(held.key, {})[held] = None
        return True

    def arrived(self, topic: str, queue_id: int, units: bytes) -> None:
        """Release the pulls that want one of the units that were added to the queue."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        arrival = _Arrival(units, self._properties_of)
        self._release_these([held for held in waiting if _wants(held.wanted, arrival)])

    def expire(self, now_ms: int) -> None:
        """Release the pulls whose time is over."""
        for held in self._waits.due(now_ms):
            self._let_go(held)

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the first held pull's time is over."""
        return self._waits.rest_ms(now_ms)

    def release_all(self) -> None:
        """Run every held pull again now, because the broker stops or roles changed."""
        self._release_these(self._waits.all())

    def closed(self, owner: object) -> None:
        """Forget the pulls of a connection that ended."""
        for held in self._waits.owned_by(owner):
            self._forget(held)

    def _release_these(self, pulls: Sequence[Held[T]]) -> None:
        """Release the first of them, and the others as if their time was over."""
        for held in pulls[:AT_ONCE_MAX]:
            if not held.done:
                self._let_go(held)
        for held in pulls[AT_ONCE_MAX:]:
            self._waits.hurry(held)

    def _let_go(self, held: Held[T]) -> None:
        self._forget(held)
        self._release(held.pull)

    def _forget(self, held: Held[T]) -> None:
        self._waits.end(held)
        waiting = self._by_queue[held.key]
        del waiting[held]
        if not waiting:
            del self._by_queue[held.key]


def _wants(wanted: Filter, arrival: _Arrival) -> bool:
    try:
        return arrival.passes(wanted.codes, wanted.matcher)
    except Exception:  # from a filter: the pull meets it again when run, and answers
        return True


class _Arrival:
    """Units that were added; what filters look at is extracted once, when first needed."""

    __slots__ = ("_asked", "_codes", "_properties", "_properties_of", "_units", "_work_left")

    def __init__(self, units: bytes, properties_of: Callable[[bytes], Properties]) -> None:
        self._units = units
        self._properties_of = properties_of
        self._codes: frozenset[int] | None = None
        self._properties: Properties = None
        self._asked = False
        self._work_left = WORK_MAX

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
        return known is None or any(self._takes(matcher, properties) for properties in known)

    def _takes(self, matcher: Matcher, properties: Mapping[str, str]) -> bool:
        """Return whether the matcher takes the message, or True if that would be too much work: the
        pull looks for itself."""
        self._work_left -= matcher.work(properties)
        return self._work_left < 0 or matcher.matches(properties)
