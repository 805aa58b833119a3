"""Wing and Gong's search for a linearization of the operations on an object.

An operation takes effect at one moment between its call and its return. The history is linearizable
if such moments can be ordered so that each operation is legal in the state that the previous
operation left. An unanswered operation may take effect at any moment after its call, or never.

The search is that of porcupine and Knossos (Wing and Gong 1993; Lowe 2017), depth first over the
operations that can be next, remembering every pair (operations done, state). It has three exact
shortcuts. A read that the state allows is taken at once, because it excludes nothing. Unanswered
operations are tried last, only if they change the state, and only the first of several with the
same action. A state reached with more of them used is not searched again. A search longer than
`steps_max` ends as UNKNOWN. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from .verdict import Verdict

STEPS_MAX = 200_000  # per search, about 0.3 s


class Special(Enum):
    """Values that are no state of any object."""

    ILLEGAL = "illegal"  # the operation cannot happen in this state
    ANY = "any"  # the unknown state at the start of a history


ILLEGAL = Special.ILLEGAL
ANY = Special.ANY


@dataclass(slots=True)
class Operation:
    """An operation on an object. `returned_ns` is None if it was not answered.

    `action` is hashable. `reads`: in a known state the operation is illegal or changes nothing.
    `event` is its source in the history, for descriptions.
    """

    called_ns: int
    returned_ns: int | None
    action: Any
    reads: bool = False
    event: Any = None


Step = Callable[[Any, Any], Any]  # (state, action) → the state after it, or ILLEGAL


def linearizable(
    operations: Sequence[Operation], step: Step, initial: Any = ANY, steps_max: int = STEPS_MAX
) -> Verdict:
    """Return PASS if there is such an order, FAIL if there is none, UNKNOWN beyond `steps_max`.

    States are hashable. Operations that only touch in time may be ordered either way.
    """
    todo = _Todo(operations)
    # bit sets of answered operations in the order, and of used unanswered operations
    state, done, used = initial, 0, 0
    seen: dict[tuple[int, Any], list[int]] = {}
    path: list[tuple[int, Any, Iterator[int]]] = []  # operation, state before it, its rivals
    choices = todo.choices(state, step)
    steps = 0
    while todo.count:
        for number in choices:
            steps += 1
            if steps > steps_max:
                return Verdict.UNKNOWN
            one = todo.operations[number]
            after = step(state, one.action)
            if after is ILLEGAL or (one.returned_ns is None and after == state):
                continue
            now_done, now_used = todo.bits(number, done, used)
            before = seen.setdefault((now_done, after), [])
            if not any(fewer & now_used == fewer for fewer in before):
                break
        else:
            if not path:
                return Verdict.FAIL
            number, state, choices = path.pop()
            done, used = todo.bits(number, done, used)
            todo.put_back(number)
            continue
        before[:] = [more for more in before if more & now_used != now_used]
        before.append(now_used)
        path.append((number, state, choices))
        done, used, state = now_done, now_used, after
        todo.take(number)
        choices = todo.choices(state, step)
    return Verdict.PASS


class _Todo:
    """The operations that are not yet in the order. The calls and returns of those that were
    answered are a list linked by numbers, in the order of time; `count`: how many these are."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        answered: list[Operation] = []
        unanswered: list[Operation] = []
        for operation in operations:
            if operation.returned_ns is not None:
                answered.append(operation)
            elif not operation.reads:  # an unanswered read shows nothing
                unanswered.append(operation)
        unanswered.sort(key=lambda operation: operation.called_ns)
        self.operations = answered + unanswered
        self.count = len(answered)
        moments: list[tuple[int, bool, int]] = []
        for number, operation in enumerate(answered):
            assert operation.returned_ns is not None
            assert operation.called_ns <= operation.returned_ns, operation
            moments.append((operation.called_ns, False, number))
            moments.append((operation.returned_ns, True, number))
        moments.sort()
        self._moments = moments
        # The place after the last is both the list's head and its end.
        self._next = [*range(1, len(moments) + 1), 0]
        self._before = [len(moments), *range(len(moments))]
        self._slots: list[list[int]] = [[] for _ in answered]  # of call and return
        for slot, (_, _, number) in enumerate(moments):
            self._slots[number].append(slot)
        self._unanswered = dict.fromkeys(range(len(answered), len(self.operations)))

    def choices(self, state: Any, step: Step) -> Iterator[int]:
        """Return the possible next operations, called before the first return of the rest."""
        if not self.count:
            return iter(())
        result: list[int] = []
        slot = self._next[-1]
        while True:
            time_ns, returned, number = self._moments[slot]
            if returned:
                break
            one = self.operations[number]
            if one.reads and step(state, one.action) == state:
                return iter((number,))
            result.append(number)
            slot = self._next[slot]
        alike: set[Any] = set()  # of those that do the same, the first called is as good as any
        for number in self._unanswered:
            one = self.operations[number]
            if one.called_ns > time_ns:
                break
            if one.action not in alike:
                alike.add(one.action)
                result.append(number)
        return iter(result)

    def bits(self, number: int, done: int, used: int) -> tuple[int, int]:
        """Return the bit sets with one operation's bit flipped."""
        answered = len(self._slots)
        if number < answered:
            return done ^ 1 << number, used
        return done, used ^ 1 << (number - answered)

    def take(self, number: int) -> None:
        if number in self._unanswered:
            del self._unanswered[number]
            return
        self.count -= 1
        for slot in self._slots[number]:
            before, after = self._before[slot], self._next[slot]
            self._next[before], self._before[after] = after, before

    def put_back(self, number: int) -> None:
        """Undo the last `take`."""
        if number >= len(self._slots):
            self._unanswered[number] = None
            self._unanswered = dict.fromkeys(sorted(self._unanswered))
            return
        self.count += 1
        for slot in reversed(self._slots[number]):
            self._next[self._before[slot]] = self._before[self._next[slot]] = slot


def unexplained(
    operations: Sequence[Operation], step: Step, initial: Any = ANY, steps_max: int = STEPS_MAX
) -> list[Operation]:
    """Return the shortest window of a history that is not linearizable that is not either.

    The part ends with the first return that no order explains. It starts at the latest idle moment
    from which no order exists, with an unknown state.
    """

    def is_wrong(some: Sequence[Operation], state: Any) -> bool:
        return linearizable(some, step, state, steps_max) is Verdict.FAIL

    ends = sorted({one.returned_ns for one in operations if one.returned_ns is not None})
    # The last part has no order, and a search that is too long for an earlier part must not pass
    # it.
    end = bisect_left(ends[:-1], True, key=lambda end: is_wrong(until(operations, end), initial))
    known = sorted(until(operations, ends[end]), key=lambda one: one.called_ns)
    starts = list(_quiet_moments(known))
    back = bisect_left(
        range(len(starts)), True, key=lambda count: is_wrong(since(known, starts[-1 - count]), ANY)
    )
    return since(known, starts[-1 - back]) if back < len(starts) else known


def until(operations: Iterable[Operation], end_ns: int) -> list[Operation]:
    """Return the operations as known at that moment, without later returns."""
    return [
        one if one.returned_ns is not None and one.returned_ns <= end_ns
        else replace(one, returned_ns=None)
        for one in operations
        if one.called_ns <= end_ns
    ]  # fmt: skip


def since(operations: Iterable[Operation], start_ns: int) -> list[Operation]:
    return [one for one in operations if one.returned_ns is None or one.called_ns >= start_ns]


def _quiet_moments(operations: Iterable[Operation]) -> Iterator[int]:
    """Yield each moment at which an answered operation was called and none was under way."""
    busy_ns = -1
    for one in operations:
        if one.returned_ns is None:
            continue
        if one.called_ns > busy_ns:
            yield one.called_ns
        busy_ns = max(busy_ns, one.returned_ns)
