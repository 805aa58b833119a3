"""What is under way in each queue that is popped: the leader's part of the table. Pure.

The table (broker.tables.pops) holds what is applied. Between a decision and its application the
leader remembers here what it has decided, so that the next decision is made on top of it: where a
queue goes on behind the pops in flight, and which messages an acknowledgement or a revival in
flight is about. All of it belongs to one leadership.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import busy
from ..tables.pops import BatchKey, Place

WAITING_MAX = 1_000  # of one queue


@dataclass(slots=True)
class LiveQueue:
    """One queue with something under way."""

    next: int = 0  # while `takes`: where the next pop begins
    takes: int = 0  # pops in flight
    mark: int | None = None  # while `takes`: the reset that the first of them obeys
    busy: dict[BatchKey, int] = field(default_factory=dict)  # bits of messages under way
    waiting: list[Callable[[], None]] = field(default_factory=list)


class LiveQueues:
    """The queues with something under way; one per broker."""

    def __init__(self) -> None:
        self.leadership = 0  # its number; what an earlier one began does not end here
        self._queues: dict[Place, LiveQueue] = {}

    def clear(self) -> None:
        """Forget everything, because a leadership began or ended; those that wait look again."""
        self.leadership += 1
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for again in queue.waiting:
                again()

    def next_of(self, place: Place) -> int | None:
        """Return where the queue goes on behind the pops in flight; None: there are none."""
        queue = self._queues.get(place)
        return queue.next if queue is not None and queue.takes else None

    def mark_of(self, place: Place) -> int | None:
        """Return the mark of the reset that the pops in flight obey. One that came since is not
        obeyed by what goes on behind them."""
        return self._queues[place].mark

    def begin_take(self, place: Place, after: int, mark: int | None) -> None:
        queue = self._queues.setdefault(place, LiveQueue())
        queue.next = after
        if not queue.takes:
            queue.mark = mark
        queue.takes += 1

    def end_take(self, place: Place, leadership: int) -> None:
        if leadership == self.leadership:
            queue = self._queues[place]
            queue.takes -= 1
            self._settle(place, queue)

    def is_busy(self, place: Place, key: BatchKey, mask: int) -> bool:
        """Return whether something is under way for one of these messages."""
        return bool(self.busy_of(place, key) & mask)

    def busy_of(self, place: Place, key: BatchKey) -> int:
        """Return the bits of a batch for which something is under way."""
        queue = self._queues.get(place)
        return 0 if queue is None else queue.busy.get(key, 0)

    def begin(self, place: Place, key: BatchKey, mask: int) -> None:
        queue = self._queues.setdefault(place, LiveQueue())
        queue.busy[key] = queue.busy.get(key, 0) | mask

    def end(self, place: Place, key: BatchKey, mask: int, leadership: int) -> None:
        if leadership != self.leadership:
            return
        queue = self._queues[place]
        left = queue.busy.get(key, 0) & ~mask
        if left:
            queue.busy[key] = left
        else:
            queue.busy.pop(key, None)
        self._settle(place, queue)

    def wait(self, place: Place, again: Callable[[], None]) -> None:
        """Have `again` called when something of the queue has ended. Raises Refused at the
        limit."""
        queue = self._queues[place]
        if len(queue.waiting) >= WAITING_MAX:
            raise busy("too many requests wait for one queue's messages")
        queue.waiting.append(again)

    def _settle(self, place: Place, queue: LiveQueue) -> None:
        waiting, queue.waiting = queue.waiting, []
        if not queue.takes and not queue.busy:
            del self._queues[place]
        for again in waiting:
            again()
