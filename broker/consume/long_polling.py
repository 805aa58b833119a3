"""Long polling for pulls, and the limits of all waiting requests.

A held pull runs again once its filter matches a new entry of its queue, by tags code and then by
properties, or at its deadline. Limits are HELD_PULLS_MAX and
the budget of kept bytes.

Matchers share WORK_MAX per `turn`. The remaining pulls wait for a later turn, and run at their
deadline, or after BEHIND_BYTES_MAX of further entries. Pulls without an expression never wait for
the work of matchers.

`Waits` serves pulls and pops. Each wait ends with its deadline or its connection, and their number
is limited.
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

AT_ONCE_MAX = 500  # waits ended per call, so that thousands do not block the rest
WAIT_MS_MAX = 60_000  # upper limit for requests
COUNT_MAX = 1_024  # messages of a pop, or of a pull with a byte limit
T = TypeVar("T")
HELD_PULLS_MAX = 100_000
Properties = Sequence[Mapping[str, str]] | None
WORK_MAX = 20_000  # of all filters per turn, as Matcher.work counts, about 15 ms of the loop
BEHIND_BYTES_MAX = 800 * 20  # of entries that the same pulls have yet to check
_TAGS_CODE = struct.Struct(">12xq")  # of a ConsumeQueue entry


class Wait(Protocol):
    """A waiting request. `owner` is its connection; `done` is True once it ended."""

    deadline_ms: int
    owner: object
    size_bytes: int
    done: bool


W = TypeVar("W", bound=Wait)


def kept_bytes(request: RemotingCommand, message_filter: Filter) -> int:
    """Return the estimated memory of a waiting request, besides its constant part."""
    size = sum(map(len, (request.ext or {}).values()))
    if message_filter.evaluates:
        return size * COMPILED
    return size + CODE_BYTES * len(message_filter.codes or ())


class Waits(Generic[W]):
    def __init__(self, count_max: Callable[[], int], kept: Allowance) -> None:
        """`kept` is shared with all other memory kept for peers."""
        self._count_max = count_max
        self._kept = kept
        self._deadlines: list[tuple[int, int, W]] = []
        self._by_owner: dict[object, dict[W, None]] = {}
        self._sequence = 0
        self.count = 0

    def add(self, wait: W) -> bool:
        """Add a wait. Returns False if there is no capacity."""
        if self.count >= self._count_max() or not self._kept.take(wait.size_bytes):
            return False
        self._by_owner.setdefault(wait.owner, {})[wait] = None
        self.count += 1
        self._push(wait)
        return True

    def end(self, wait: W) -> None:
        wait.done = True
        self.count -= 1
        self._kept.give_back(wait.size_bytes)
        owned = self._by_owner[wait.owner]
        del owned[wait]
        if not owned:
            del self._by_owner[wait.owner]
        if len(self._deadlines) > 2 * self.count + 64:  # rebuild a heap of mostly ended waits
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)

    def make_due(self, wait: W) -> None:
        if wait.deadline_ms:
            wait.deadline_ms = 0
            self._push(wait)

    def postpone(self, wait: W, now_ms: int) -> None:
        """Move a due wait behind all other due waits."""
        wait.deadline_ms = now_ms
        self._push(wait)

    def due(self, now_ms: int) -> list[W]:
        """Return up to AT_ONCE_MAX due waits. The caller ends or postpones them."""
        deadlines = self._deadlines
        due: list[W] = []
        while deadlines and len(due) < AT_ONCE_MAX:
            if deadlines[0][0] > now_ms and not deadlines[0][2].done:
                break
            deadline_ms, _, wait = heapq.heappop(deadlines)
            if not wait.done and deadline_ms == wait.deadline_ms:  # outdated by `make_due`
                due.append(wait)
        return due

    def rest_ms(self, now_ms: int) -> float:
        return self._deadlines[0][0] - now_ms if self._deadlines else float("inf")

    def owned_by(self, owner: object) -> list[W]:
        return list(self._by_owner.get(owner, ()))

    def all(self) -> list[W]:
        return [wait for owned in self._by_owner.values() for wait in owned]

    def _push(self, wait: W) -> None:
        self._sequence += 1
        heapq.heappush(self._deadlines, (wait.deadline_ms, self._sequence, wait))


@dataclass(slots=True, eq=False)
class Held(Generic[T]):
    """A held pull. `pull` is the caller's object, `owner` its connection."""

    key: tuple[str, int]
    message_filter: Filter
    deadline_ms: int
    pull: T
    owner: object = None
    size_bytes: int = 0
    done: bool = False


class HoldTable(Generic[T]):
    def __init__(
        self,
        count_max: int,
        kept: Allowance,
        release: Callable[[T], None],
        properties_of: Callable[[bytes], Properties] = lambda _: None,
    ) -> None:
        """`release(pull)` is called once per held pull, never within `hold`. `properties_of(units)`
        returns the properties of these entries' messages, or None to match all."""
        self._properties_of = properties_of
        self._release = release
        self._by_queue: dict[tuple[str, int], dict[Held[T], None]] = {}
        self._waits: Waits[Held[T]] = Waits(lambda: count_max, kept)
        self._behind: dict[tuple[str, int], _Behind[T]] = {}
        self.work = Work(WORK_MAX)  # until the next turn; shared with the released pulls

    @property
    def count(self) -> int:
        return self._waits.count

    @property
    def unchecked_count(self) -> int:
        """Held pulls whose filters have not been evaluated for all arrived messages yet."""
        return sum(len(behind.pulls) for behind in self._behind.values())

    def hold(self, held: Held[T]) -> bool:
        """Hold the pull. Returns False without capacity; the caller then responds."""
        if not self._waits.add(held):
            return False
        self._by_queue.setdefault(held.key, {})[held] = None
        return True

    def arrived(self, topic: str, queue_id: int, entries: bytes) -> None:
        """Release the pulls that match an entry added to the queue."""
        key = topic, queue_id
        waiting = self._by_queue.get(key)
        if waiting is None:
            return
        behind = self._behind.get(key)
        if behind is None:
            self._check(key, entries, waiting)
            return
        behind.entries += entries
        self._check(key, entries, [held for held in waiting if held not in behind.pulls])
        if len(behind.entries) > BEHIND_BYTES_MAX:
            self._behind.pop(key, None)
            for held in behind.pulls:
                self._waits.make_due(held)

    def turn(self, now_ms: int) -> None:
        """Renew the work, first for due pulls, then for unchecked pulls in queue order."""
        self.work.left = WORK_MAX
        self.expire(now_ms)
        for key in list(self._behind):
            if self.work.left <= 0:
                break
            behind = self._behind.pop(key, None)  # None if an earlier release removed it
            if behind is not None:
                self._check(key, behind.entries, behind.pulls)

    def expire(self, now_ms: int) -> None:
        for held in self._waits.due(now_ms):
            if self._may_run(held):
                self._release_now(held)
            else:
                self._waits.postpone(held, now_ms)

    def rest_ms(self, now_ms: int) -> float:
        return self._waits.rest_ms(now_ms) if self.work.left == WORK_MAX else 0

    def release_all(self) -> None:
        """Run all held pulls, because the broker stops or roles changed."""
        self._release_these(self._waits.all())

    def closed(self, owner: object) -> None:
        for held in self._waits.owned_by(owner):
            self._forget(held)

    def _check(self, key: tuple[str, int], entries: bytes, pulls: Iterable[Held[T]]) -> None:
        """Release the pulls that match an entry. The unchecked rest is kept for a later turn."""
        arrival = _Arrival(entries, self._properties_of, self.work)
        matching: list[Held[T]] = []
        for held in pulls:
            match = arrival.matches(held.message_filter)
            if match:
                matching.append(held)
            elif match is None:
                self._behind.setdefault(key, _Behind(entries)).pulls[held] = None
        self._release_these(matching)

    def _may_run(self, held: Held[T]) -> bool:
        return not held.message_filter.evaluates or self.work.left > 0

    def _release_these(self, pulls: Sequence[Held[T]]) -> None:
        for number, held in enumerate(pulls):
            if held.done:
                continue
            if number < AT_ONCE_MAX and self._may_run(held):
                self._release_now(held)
            else:
                self._waits.make_due(held)

    def _release_now(self, held: Held[T]) -> None:
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
    """Unchecked pulls of a queue, and the entries to check."""

    __slots__ = ("entries", "pulls")

    def __init__(self, entries: bytes) -> None:
        self.entries = entries
        self.pulls: dict[Held[T], None] = {}


class _Arrival:
    """Added entries. Codes and properties are extracted on first use."""

    __slots__ = ("_codes", "_entries", "_loaded", "_properties", "_properties_of", "_work")

    def __init__(
        self, entries: bytes, properties_of: Callable[[bytes], Properties], work: Work
    ) -> None:
        self._entries = entries
        self._properties_of = properties_of
        self._codes: frozenset[int] | None = None
        self._properties: Properties = None
        self._loaded = False
        self._work = work

    def matches(self, message_filter: Filter) -> bool | None:
        """Return True if the filter matches an entry, or None if no work is left."""
        if not self._has(message_filter.codes):
            return False
        if message_filter.matcher is None:
            return True
        passes = None
        if self._work.left > 0:
            try:
                passes = self._passes(message_filter.matcher)
            except Exception:  # the pull reports the filter's error when it runs
                return True
        return True if passes is None and not message_filter.evaluates else passes

    def _has(self, codes: Codes) -> bool:
        if codes is None:
            return True
        if self._codes is None:
            self._codes = frozenset(code for (code,) in _TAGS_CODE.iter_unpack(self._entries))
        return not self._codes.isdisjoint(codes)

    def _passes(self, matcher: Matcher) -> bool | None:
        """Return None if the work ends early. A filter that had half of a turn's work matches
        instead, since later turns may not suffice either."""
        if not self._loaded:
            self._loaded, self._properties = True, self._properties_of(self._entries)
            self._work.left -= RECORD_WORK * (len(self._entries) // _TAGS_CODE.size)
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
