"""Long polling: pulls that found nothing wait here for the next message of their queue. Pure.

A held pull is released by the first dispatched entry of its queue that its filter takes (tags
codes, then the matcher over properties, if there is one), or when its time is over; the table's
owner then runs it again. One whose connection ends is forgotten. Bounds: `heldPullsMax`,
`keptBytesMax`.

Matchers may do WORK_MAX from one `turn` to the next, when they judge arrivals and when their pulls
run again. Who comes too late for that is judged in a later turn, or run if its time is over or more
than BEHIND_BYTES_MAX of entries came meanwhile. Pulls that evaluate no expression never wait for
others'.

`Waits` is common to pulls and pops: each wait ends with its time or its connection, and all of one
kind together are bounded.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.memory_limits import Allowance

from .filters import CODE_BYTES, COMPILED, RECORD_WORK, Codes, Filter, Matcher, Work

AT_ONCE_MAX = 500  # waits that are ended in one go; the others must not wait for thousands
WAIT_MS_MAX = 60_000  # whatever a request asks for
COUNT_MAX = 1_024  # messages of a pull that says how many bytes it takes, and of a pop
T = TypeVar("T")
Properties = Sequence[Mapping[str, str]] | None
WORK_MAX = 20_000  # of all filters in one turn, as Matcher.work counts: some 15 ms of the loop
BEHIND_BYTES_MAX = 800 * 20  # of entries for which the same pulls are still to be judged
_TAGS_CODE = struct.Struct(">12xq")  # of a consume-queue entry


class Wait(Protocol):
    """A waiting request. `owner`: its connection; `done`: it waits no longer."""

    deadline_ms: int
    owner: object
    size_bytes: int
    done: bool


W = TypeVar("W", bound=Wait)


def kept_bytes(request: RemotingCommand, message_filter: Filter) -> int:
    """Return roughly what a waiting request keeps in memory, besides what every one does."""
    size = sum(map(len, (request.ext or {}).values()))
    if message_filter.evaluates:
        return size * COMPILED
    return size + CODE_BYTES * len(message_filter.codes or ())


class Waits(Generic[W]):
    """All waits of one kind, by deadline and by owner."""

    def __init__(self, count_max: Callable[[], int], kept: Allowance) -> None:
        """`kept` is shared with everything else that is kept for peers."""
        self._count_max = count_max
        self._kept = kept
        self._deadlines: list[tuple[int, int, W]] = []
        self._by_owner: dict[object, dict[W, None]] = {}
        self._sequence = 0
        self.count = 0

    def add(self, wait: W) -> bool:
        """Keep a wait; False, with nothing kept, if there is no room."""
        if self.count >= self._count_max() or not self._kept.take(wait.size_bytes):
            return False
        self._by_owner.setdefault(wait.owner, {})[wait] = None
        self.count += 1
        self._push(wait)
        return True

    def end(self, wait: W) -> None:
        """Forget a wait: it is over, whatever the reason."""
        wait.done = True
        self.count -= 1
        self._kept.give_back(wait.size_bytes)
        owned = self._by_owner[wait.owner]
        del owned[wait]
        if not owned:
            del self._by_owner[wait.owner]
        if len(self._deadlines) > 2 * self.count + 64:  # mostly ended ones: rebuild
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)

    def hurry(self, wait: W) -> None:
        """Let a wait's time be over now."""
        if wait.deadline_ms:
            wait.deadline_ms = 0
            self._push(wait)

    def put_off(self, wait: W, now_ms: int) -> None:
        """Let a wait that was due come behind all others that are."""
        wait.deadline_ms = now_ms
        self._push(wait)

    def due(self, now_ms: int) -> list[W]:
        """Return the waits whose time is over, AT_ONCE_MAX at most; the caller ends them, or puts
        them off."""
        deadlines = self._deadlines
        due: list[W] = []
        while deadlines and len(due) < AT_ONCE_MAX:
            if deadlines[0][0] > now_ms and not deadlines[0][2].done:
                break
            deadline_ms, _, wait = heapq.heappop(deadlines)
            if not wait.done and deadline_ms == wait.deadline_ms:  # else it was hurried
                due.append(wait)
        return due

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the first wait's time is over."""
        return self._deadlines[0][0] - now_ms if self._deadlines else float("inf")

    def owned_by(self, owner: object) -> list[W]:
        return list(self._by_owner.get(owner, ()))

    def all(self) -> list[W]:
        """Return all waits, those of one owner after the other's."""
        return [wait for owned in self._by_owner.values() for wait in owned]

    def _push(self, wait: W) -> None:
        self._sequence += 1
        heapq.heappush(self._deadlines, (wait.deadline_ms, self._sequence, wait))


@dataclass(slots=True, eq=False)
class Held(Generic[T]):
    """One held pull; `pull` is the owner's object, `owner` its connection."""

    key: tuple[str, int]
    message_filter: Filter
    deadline_ms: int
    pull: T
    owner: object = None
    size_bytes: int = 0
    done: bool = False


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
        `properties_of(entries)` returns the properties of these entries' messages; None lets every
        matcher pass."""
        self._properties_of = properties_of
        self._release = release
        self._by_queue: dict[tuple[str, int], dict[Held[T], None]] = {}
        self._waits: Waits[Held[T]] = Waits(lambda: count_max, kept)
        self._behind: dict[tuple[str, int], _Behind[T]] = {}
        self.work = Work(WORK_MAX)  # until the next turn; the pulls that are released draw on it

    @property
    def count(self) -> int:
        return self._waits.count

    def hold(self, held: Held[T]) -> bool:
        """Keep the pull; False when there is no room and the caller must answer now."""
        if not self._waits.add(held):
            return False
        self._by_queue.setdefault(held.key, {})[held] = None
        return True

    def arrived(self, topic: str, queue_id: int, entries: bytes) -> None:
        """Release the pulls that want one of the entries that were added to the queue."""
        key = topic, queue_id
        waiting = self._by_queue.get(key)
        if waiting is None:
            return
        behind = self._behind.get(key)
        if behind is None:
            self._judge(key, entries, waiting)
            return
        behind.entries += entries
        self._judge(key, entries, [held for held in waiting if held not in behind.pulls])
        if len(behind.entries) > BEHIND_BYTES_MAX:
            self._behind.pop(key, None)
            for held in behind.pulls:
                self._waits.hurry(held)

    def turn(self, now_ms: int) -> None:
        """Give the matchers new work: first for the pulls whose time is over, then for those that
        are still to be judged, queue after queue."""
        self.work.left = WORK_MAX
        self.expire(now_ms)
        for key in list(self._behind):
            if self.work.left <= 0:
                break
            behind = self._behind.pop(key, None)  # None: released by what was done for another
            if behind is not None:
                self._judge(key, behind.entries, behind.pulls)

    def expire(self, now_ms: int) -> None:
        """Release the pulls whose time is over."""
        for held in self._waits.due(now_ms):
            if self._may_run(held):
                self._let_go(held)
            else:
                self._waits.put_off(held, now_ms)

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the next turn has something to do."""
        return self._waits.rest_ms(now_ms) if self.work.left == WORK_MAX else 0

    def release_all(self) -> None:
        """Run every held pull again now, because the broker stops or roles changed."""
        self._release_these(self._waits.all())

    def closed(self, owner: object) -> None:
        """Forget the pulls of a connection that ended."""
        for held in self._waits.owned_by(owner):
            self._forget(held)

    def _judge(self, key: tuple[str, int], entries: bytes, pulls: Iterable[Held[T]]) -> None:
        """Release those of a queue's pulls that want one of the entries; what cannot be judged now
        is kept for a later turn."""
        arrival = _Arrival(entries, self._properties_of, self.work)
        wanting: list[Held[T]] = []
        for held in pulls:
            wants = arrival.matches(held.message_filter)
            if wants:
                wanting.append(held)
            elif wants is None:
                self._behind.setdefault(key, _Behind(entries)).pulls[held] = None
        self._release_these(wanting)

    def _may_run(self, held: Held[T]) -> bool:
        return not held.message_filter.evaluates or self.work.left > 0

    def _release_these(self, pulls: Sequence[Held[T]]) -> None:
        """Release the first of them, and the others as if their time was over."""
        for number, held in enumerate(pulls):
            if held.done:
                continue
            if number < AT_ONCE_MAX and self._may_run(held):
                self._let_go(held)
            else:
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
        behind = self._behind.get(held.key)
        if behind is not None:
            behind.pulls.pop(held, None)
            if not behind.pulls:
                del self._behind[held.key]


class _Behind(Generic[T]):
    """Pulls of one queue that are still to be judged, and the entries for which they are."""

    __slots__ = ("entries", "pulls")

    def __init__(self, entries: bytes) -> None:
        self.entries = entries
        self.pulls: dict[Held[T], None] = {}


class _Arrival:
    """Units that were added; what filters look at is extracted once, when first needed."""

    __slots__ = ("_asked", "_codes", "_properties", "_properties_of", "_units", "_work")

    def __init__(
        self, entries: bytes, properties_of: Callable[[bytes], Properties], work: Work
    ) -> None:
        self._units = entries
        self._properties_of = properties_of
        self._codes: frozenset[int] | None = None
        self._properties: Properties = None
        self._asked = False
        self._work = work

    def matches(self, message_filter: Filter) -> bool | None:
        """Return whether the filter takes one of the units' messages; None if no work is left to
        find out."""
        if not self._has(message_filter.codes):
            return False
        if message_filter.matcher is None:
            return True
        passes = None
        if self._work.left > 0:
            try:
                passes = self._passes(message_filter.matcher)
            except Exception:  # from a filter: the pull meets it again when run, and answers
                return True
        return True if passes is None and not message_filter.evaluates else passes

    def _has(self, codes: Codes) -> bool:
        if codes is None:
            return True
        if self._codes is None:
            self._codes = frozenset(code for (code,) in _TAGS_CODE.iter_unpack(self._units))
        return not self._codes.isdisjoint(codes)

    def _passes(self, matcher: Matcher) -> bool | None:
        """Return None if the work ends before the last message. A filter that had half of a turn's
        for itself then passes, and its pull looks for itself: a later turn may not suffice, too."""
        if not self._asked:
            self._asked, self._properties = True, self._properties_of(self._units)
            self._work.left -= RECORD_WORK * (len(self._units) // _TAGS_CODE.size)
        if self._properties is None:
            return True
        work, at_first = self._work, self._work.left
        for properties in self._properties:
            if work.left <= 0:
                return True if at_first >= WORK_MAX // 2 else None
            work.left -= matcher.work(properties)
            if matcher.matches(properties):
                return True
        return False
