"""The leader's soft state of pops, kept during its leadership.

The leader adds its decisions in flight to the applied table (broker.tables.pops), so that the next
decision builds on them. These are the offset behind the pops in flight of a queue, and the messages
of acknowledgements and revivals in flight.

A dying proxy loses the messages it was about to deliver, and its client's heartbeats through the
next proxy would keep them in flight for hours. So messages sent just before a connection went
silent are not renewed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import busy
from ..tables.pops import BatchKey, QueueKey

WAITING_MAX = 1_000  # requests per queue
CONFIRM_S = 2.0  # the longest delivery time of a response
BATCHES_MAX = 10_000  # per connection in that time; older batches count as confirmed


@dataclass(slots=True)
class LiveQueue:
    """A queue with changes in flight."""

    next: int = 0  # the next offset, if `takes`
    takes: int = 0  # pops in flight
    mark: int | None = None  # the reset applied by the first pop, if `takes`
    # bits of messages with changes in flight
    busy: dict[BatchKey, int] = field(default_factory=dict)
    waiting: list[Callable[[], None]] = field(default_factory=list)


class LiveQueues:
    def __init__(self) -> None:
        self.leadership = 0  # its number, to ignore callbacks of earlier leaderships
        self._queues: dict[QueueKey, LiveQueue] = {}

    def clear(self) -> None:
        """Clear at the start and end of a leadership. Waiting requests run again."""
        self.leadership += 1
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for again in queue.waiting:
                again()

    def next_of(self, queue_key: QueueKey) -> int | None:
        """Return the offset behind the pops in flight, or None without any."""
        queue = self._queues.get(queue_key)
        return queue.next if queue is not None and queue.takes else None

    def mark_of(self, queue_key: QueueKey) -> int | None:
        """Return the mark of the reset that pops in flight apply; later resets do not matter."""
        return self._queues[queue_key].mark

    def start_take(self, queue_key: QueueKey, after: int, mark: int | None) -> None:
        queue = self._queues.setdefault(queue_key, LiveQueue())
        queue.next = after
        if not queue.takes:
            queue.mark = mark
        queue.takes += 1

    def finish_take(self, queue_key: QueueKey, leadership: int) -> None:
        if leadership == self.leadership:
            queue = self._queues[queue_key]
            queue.takes -= 1
            self._settle(queue_key, queue)

    def is_busy(self, queue_key: QueueKey, key: BatchKey, mask: int) -> bool:
        return bool(self.busy_of(queue_key, key) & mask)

    def busy_of(self, queue_key: QueueKey, key: BatchKey) -> int:
        """Return the bits of a batch's messages with changes in flight."""
        queue = self._queues.get(queue_key)
        return 0 if queue is None else queue.busy.get(key, 0)

    def start(self, queue_key: QueueKey, key: BatchKey, mask: int) -> None:
        queue = self._queues.setdefault(queue_key, LiveQueue())
        queue.busy[key] = queue.busy.get(key, 0) | mask

    def finish(self, queue_key: QueueKey, key: BatchKey, mask: int, leadership: int) -> None:
        if leadership != self.leadership:
            return
        queue = self._queues[queue_key]
        left = queue.busy.get(key, 0) & ~mask
        if left:
            queue.busy[key] = left
        else:
            queue.busy.pop(key, None)
        self._settle(queue_key, queue)

    def wait(self, queue_key: QueueKey, again: Callable[[], None]) -> None:
        """Call `again` after the next change of the queue ended. Raises Refused at the limit."""
        queue = self._queues[queue_key]
        if len(queue.waiting) >= WAITING_MAX:
            raise busy("too many requests wait for one queue's messages")
        queue.waiting.append(again)

    def _settle(self, queue_key: QueueKey, queue: LiveQueue) -> None:
        waiting, queue.waiting = queue.waiting, []
        if not queue.takes and not queue.busy:
            del self._queues[queue_key]
        for again in waiting:
            again()


class ActiveConnection(Protocol):
    """A connection that receives pop responses."""

    last_active_s: float  # time of the last arrival, by the loop's clock


class Deliveries:
    """The batches recently sent through each connection."""

    def __init__(
        self, clock_s: Callable[[], float], is_there: Callable[[QueueKey, BatchKey], bool]
    ) -> None:
        """`clock_s` is the clock of `last_active_s`; `is_there` is True for a batch in flight."""
        self._clock_s = clock_s
        self._is_there = is_there
        self._recent: dict[ActiveConnection, deque[tuple[float, QueueKey, BatchKey]]] = {}
        self._unconfirmed: set[tuple[QueueKey, BatchKey]] = set()

    def record(self, connection: ActiveConnection, queue_key: QueueKey, key: BatchKey) -> None:
        recent = self._recent.setdefault(connection, deque(maxlen=BATCHES_MAX))
        self._drop_confirmed(connection, recent)
        recent.append((self._clock_s(), queue_key, key))

    def closed(self, connection: ActiveConnection) -> None:
        """Mark the recent batches of a closed connection as unconfirmed."""
        recent = self._recent.pop(connection, None)
        if recent is not None:
            self._drop_confirmed(connection, recent)
            self._unconfirmed.update((queue_key, key) for _, queue_key, key in recent)
            self._unconfirmed = {one for one in self._unconfirmed if self._is_there(*one)}

    def is_unconfirmed(self, queue_key: QueueKey, key: BatchKey) -> bool:
        return (queue_key, key) in self._unconfirmed

    def clear(self) -> None:
        self._recent.clear()
        self._unconfirmed.clear()

    def __len__(self) -> int:
        return len(self._unconfirmed)

    @staticmethod
    def _drop_confirmed(
        connection: ActiveConnection, recent: deque[tuple[float, QueueKey, BatchKey]]
    ) -> None:
        while recent and recent[0][0] < connection.last_active_s - CONFIRM_S:
            recent.popleft()
