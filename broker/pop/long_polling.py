"""Long polling for pops, by topic and its retries.

Each arrival wakes as many pops of a group as it has messages, in order of arrival. A pop that finds
nothing waits again. Pops of a closed connection are dropped. Notification requests wait the same
way, and are checked again at their deadline.

Many groups with costly filters may wait for a topic. So the pops of a turn of the loop share
WORK_MAX, and the rest run in later turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from raftmq.remoting.memory_limits import Allowance
from raftmq.remoting.names import pop_retry_topic
from raftmq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

from ..consume.filtered_reads import WORK_MAX
from ..consume.filters import Filter
from ..consume.long_polling import AT_ONCE_MAX, Waits

ATTEMPT_WORK = 100  # of a pop without a filter, as Matcher.work counts
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """A waiting pop. `pop` is the caller's object, `owner` its connection. `queue_id` < 0 is any
    queue. `asks` is True for notification requests."""

    topic: str
    group: str
    queue_id: int
    message_filter: Filter
    deadline_ms: int
    pop: T
    owner: object = None
    size_bytes: int = 0
    asks: bool = False
    done: bool = False


class WaitingPops(Generic[T]):
    def __init__(
        self,
        count_max: Callable[[], int],
        kept: Allowance,
        again: Callable[[Waiter[T]], int],
        over: Callable[[Waiter[T]], None],
    ) -> None:
        """`again(waiter)` retries a pop and returns the work of its filter, as Matcher.work counts.
        `over(waiter)` is called at its deadline. Both end the wait."""
        self._again = again
        self._over = over
        self._by_topic: dict[str, dict[Waiter[T], None]] = {}
        self._work_left = WORK_MAX  # in this turn
        self._woken: dict[Waiter[T], None] = {}  # still waiting for their turn
        self._waits: Waits[Waiter[T]] = Waits(count_max, kept)

    @property
    def count(self) -> int:
        return self._waits.count

    def wait(self, waiter: Waiter[T]) -> bool:
        """Add a pop. Returns False without capacity."""
        if not self._waits.add(waiter):
            return False
        for topic in self._topics_of(waiter):
            self._by_topic.setdefault(topic, {})[waiter] = None
        return True

    def arrived(self, topic: str, queue_id: int, entries: bytes) -> None:
        """Run pops that may match an entry added to the queue."""
        waiting = self._by_topic.get(topic)
        if not waiting:
            return
        count = len(entries) // QUEUE_ENTRY_BYTES
        codes: frozenset[int] | None = None
        woken: dict[str, int] = {}
        chosen: list[Waiter[T]] = []
        for waiter in waiting:
            if waiter in self._woken:
                continue
            if waiter.topic == topic:
                if waiter.queue_id not in (-1, queue_id):
                    continue
                if waiter.message_filter.codes is not None:
                    codes = codes or frozenset(
                        code for _, _, code in QUEUE_ENTRY.iter_unpack(entries)
                    )
                    if codes.isdisjoint(waiter.message_filter.codes):
                        continue
            number = woken.get(waiter.group, 0)
            if number < count:
                woken[waiter.group] = number + 1
                chosen.append(waiter)
        for waiter in chosen:
            self._wake(waiter)

    def opened(self, topic: str, group: str) -> None:
        """Run a group's pops of a topic because an orderly queue opened."""
        for waiter in [one for one in self._by_topic.get(topic, ()) if one.group == group]:
            self._wake(waiter)

    def turn(self, now_ms: int) -> None:
        """Run the woken pops, and end those at their deadline."""
        self._work_left = WORK_MAX
        for waiter in list(self._woken):
            if self._work_left <= 0:
                break
            self._wake(waiter)
        due = self._waits.due(now_ms)
        self._end([waiter for waiter in due if not (waiter.asks and waiter.deadline_ms)])
        for waiter in due:
            self._wake(waiter)

    def rest_ms(self, now_ms: int) -> float:
        return self._waits.rest_ms(now_ms) if self._work_left == WORK_MAX else 0

    def end_all(self) -> None:
        """End all waits, because roles or rights changed, or the broker stops."""
        waiters = self._waits.all()
        self._end(waiters[:AT_ONCE_MAX])
        for waiter in waiters[AT_ONCE_MAX:]:
            self._waits.make_due(waiter)

    def closed(self, owner: object) -> None:
        for waiter in self._waits.owned_by(owner):
            self._remove(waiter)

    def count_of(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of a group's pops that wait for a queue (-1 for any)."""
        waiting = self._by_topic.get(topic, ())
        return sum(one.group == group and one.queue_id in (-1, queue_id) for one in waiting)

    def _wake(self, waiter: Waiter[T]) -> None:
        if waiter.done:
            return
        if self._work_left > 0:
            self._remove(waiter)
            self._work_left -= ATTEMPT_WORK + self._again(waiter)
        else:
            self._woken[waiter] = None

    def _end(self, waiters: Sequence[Waiter[T]]) -> None:
        for waiter in waiters:
            if not waiter.done:
                self._remove(waiter)
                self._over(waiter)

    def _remove(self, waiter: Waiter[T]) -> None:
        self._waits.end(waiter)
        self._woken.pop(waiter, None)
        for topic in self._topics_of(waiter):
            waiting = self._by_topic[topic]
            del waiting[waiter]
            if not waiting:
                del self._by_topic[topic]

    @staticmethod
    def _topics_of(waiter: Waiter[T]) -> set[str]:
        return {waiter.topic, pop_retry_topic(waiter.topic, waiter.group)}
