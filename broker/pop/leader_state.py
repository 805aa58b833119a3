"""The leader's own state of pops: whether they may change, what is under way or unheard.

The table (broker.tables.pops) holds what is applied. Between a decision and its application the
leader remembers here what it has decided, so that the next decision is made on top of it: where a
queue goes on behind the pops in flight, and which messages an acknowledgement or a revival in
flight is about. All of it belongs to one leadership.

A proxy that dies takes with it what it was about to hand on. Its client goes on, through another
proxy, and its heartbeats would keep those messages in flight for hours. So what was told through a
connection shortly before nothing came through it any more is not renewed: it comes again when its
time is over, if the client does not acknowledge it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from raftmq.dledger.transport.wire import POP_VERSION

from ..context import Context
from ..errors import busy, not_leader
from ..replication.engine import all_speak
from ..tables.pops import BatchKey, QueueKey

WAITING_MAX = 1_000  # of one queue
CONFIRM_S = 2.0  # how long an answer may take from here to the client
BATCHES_MAX = 10_000  # of one connection in that time; the oldest are taken for heard


class Gate:
    """Asked before every change; one per broker. A group's first pop puts a kind of command into
    the log at which older programs would stop, so it waits until every member knows it."""

    def __init__(
        self, context: Context, has_room: Callable[[str, str, Collection[int]], bool]
    ) -> None:
        """`has_room(topic, group, queue ids)`: whether the table of offsets takes them."""
        self.has_room = has_room
        self._context = context
        self._table = context.state.pops

    def check(self) -> None:
        """Raise Refused if this replica does not lead, or the group cannot pop yet."""
        if not self._context.roles.leading:
            raise not_leader()
        engine = None if self._context.config.is_classic else self._context.log.raft
        if engine is not None and not self._table.used and not all_speak(engine, POP_VERSION):
            raise busy(
                "not every replica of this group has said that it knows popped messages: "
                "upgrade all of them, and start those that are down",
                retriable=True,
            )


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
        self._queues: dict[QueueKey, LiveQueue] = {}

    def clear(self) -> None:
        """Forget everything, because a leadership began or ended; those that wait look again."""
        self.leadership += 1
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for again in queue.waiting:
                again()

    def next_of(self, queue_key: QueueKey) -> int | None:
        """Return where the queue goes on behind the pops in flight; None: there are none."""
        queue = self._queues.get(queue_key)
        return queue.next if queue is not None and queue.takes else None

    def mark_of(self, queue_key: QueueKey) -> int | None:
        """Return the mark of the reset that the pops in flight obey. One that came since is not
        obeyed by what goes on behind them."""
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
        """Return whether something is under way for one of these messages."""
        return bool(self.busy_of(queue_key, key) & mask)

    def busy_of(self, queue_key: QueueKey, key: BatchKey) -> int:
        """Return the bits of a batch for which something is under way."""
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
        """Have `again` called when something of the queue has ended. Raises Refused at the
        limit."""
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
    """A connection through which pops are answered."""

    last_active_s: float  # when something arrived last, by the loop's clock


class Deliveries:
    """The batches told through each connection in the last seconds; one per broker."""

    def __init__(
        self, clock_s: Callable[[], float], is_there: Callable[[QueueKey, BatchKey], bool]
    ) -> None:
        """`clock_s` is the clock of `last_active_s`; `is_there`: whether a batch is in flight."""
        self._clock_s = clock_s
        self._is_there = is_there
        self._recent: dict[ActiveConnection, deque[tuple[float, QueueKey, BatchKey]]] = {}
        self._unconfirmed: set[tuple[QueueKey, BatchKey]] = set()

    def record(self, connection: ActiveConnection, queue_key: QueueKey, key: BatchKey) -> None:
        """Note that a batch was told through a connection."""
        recent = self._recent.setdefault(connection, deque(maxlen=BATCHES_MAX))
        self._drop_confirmed(connection, recent)
        recent.append((self._clock_s(), queue_key, key))

    def closed(self, connection: ActiveConnection) -> None:
        """Take what was told through a connection at its end for unheard."""
        recent = self._recent.pop(connection, None)
        if recent is not None:
            self._drop_confirmed(connection, recent)
            self._unconfirmed.update((queue_key, key) for _, queue_key, key in recent)
            self._unconfirmed = {one for one in self._unconfirmed if self._is_there(*one)}

    def is_unconfirmed(self, queue_key: QueueKey, key: BatchKey) -> bool:
        return (queue_key, key) in self._unconfirmed

    def clear(self) -> None:
        """Forget everything: another leader decides now."""
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
