"""Pops that found nothing wait here for a message of their topic, or of its retries. Pure.

An arrival wakes as many pops of a group as there are new messages, those that have waited longest
first; each runs again and waits on, if another one was faster. The rest stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from raftmq.broker.consuming.filters import Filter
from raftmq.remoting.names import pop_retry_topic
from raftmq.store.dispatch import UNIT, UNIT_SIZE_BYTES

T = TypeVar("T")


class Waiter(Generic[T]):
    """One waiting pop; `pop` is the owner's object. `queue_id` < 0: any of the topic's."""

    __slots__ = ("deadline_ms", "done", "group", "pop", "queue_id", "topic", "wanted")

    def __init__(
        self, topic: str, group: str, queue_id: int, wanted: Filter, deadline_ms: int, pop: T
    ) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.wanted = wanted
        self.deadline_ms = deadline_ms
        self.pop = pop
        self.done = False


class WaitingPops(Generic[T]):
    """Waiting pops by topic, in the order in which they came, and by deadline."""

    def __init__(
        self,
        count_max: Callable[[], int],
        again: Callable[[Waiter[T]], None],
        over: Callable[[Waiter[T]], None],
    ) -> None:
        """`again(waiter)`: a message may be there; `over(waiter)`: its time is over. Each ends the
        wait."""
        self._count_max = count_max
        self._again = again
        self._over = over
        self._by_topic: dict[str, dict[Waiter[T], None]] = {}
        self._deadlines: list[tuple[int, int, Waiter[T]]] = []
        self._sequence = 0
        self.count = 0

    def wait(self, waiter: Waiter[T]) -> bool:
        """Keep a pop; False when there are too many."""
        if self.count >= self._count_max():
            return False
        for topic in self._topics_of(waiter):
            self._by_topic.setdefault(topic, {})[waiter] = None
        self._sequence += 1
        heapq.heappush(self._deadlines, (waiter.deadline_ms, self._sequence, waiter))
        self.count += 1
        return True

    def arrived(self, topic: str, queue_id: int, units: bytes) -> None:
        """Run pops that may want one of the units that were added to the queue."""
        waiting = self._by_topic.get(topic)
        if not waiting:
            return
        count = len(units) // UNIT_SIZE_BYTES
        codes: frozenset[int] | None = None
        woken: dict[str, int] = {}
        chosen: list[Waiter[T]] = []
        for waiter in waiting:
            if waiter.topic == topic:
                if waiter.queue_id not in (-1, queue_id):
                    continue
                if waiter.wanted.codes is not None:
                    codes = codes or frozenset(code for _, _, code in UNIT.iter_unpack(units))
                    if codes.isdisjoint(waiter.wanted.codes):
                        continue
            number = woken.get(waiter.group, 0)
            if number < count:
                woken[waiter.group] = number + 1
                chosen.append(waiter)
        for waiter in chosen:
            self._wake(waiter)

    def opened(self, topic: str, group: str) -> None:
        """Run a group's pops of a topic: a queue that was closed is open again."""
        for waiter in [one for one in self._by_topic.get(topic, ()) if one.group == group]:
            self._wake(waiter)

    def expire(self, now_ms: int) -> None:
        """Tell every pop whose time is over."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_ms or deadlines[0][2].done):
            waiter = heapq.heappop(deadlines)[2]
            if not waiter.done:
                self._remove(waiter)
                self._over(waiter)
        if len(deadlines) > 2 * self.count + 64:  # mostly ended ones: rebuild
            self._deadlines = [entry for entry in deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the first pop's time is over."""
        return self._deadlines[0][0] - now_ms if self._deadlines else float("inf")

    def end_all(self) -> None:
        """End every wait: roles or rights changed, or the broker stops."""
        for waiting in list(self._by_topic.values()):
            for waiter in list(waiting):
                if not waiter.done:
                    self._remove(waiter)
                    self._over(waiter)

    def count_of(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue (-1: for any of the topic)."""
        waiting = self._by_topic.get(topic, ())
        return sum(one.group == group and one.queue_id in (-1, queue_id) for one in waiting)

    def _wake(self, waiter: Waiter[T]) -> None:
        if not waiter.done:
            self._remove(waiter)
            self._again(waiter)

    def _remove(self, waiter: Waiter[T]) -> None:
        waiter.done = True
        self.count -= 1
        for topic in self._topics_of(waiter):
            waiting = self._by_topic[topic]
            del waiting[waiter]
            if not waiting:
                del self._by_topic[topic]

    @staticmethod
    def _topics_of(waiter: Waiter[T]) -> set[str]:
        return {waiter.topic, pop_retry_topic(waiter.topic, waiter.group)}
