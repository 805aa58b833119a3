"""The messages of one queue between pull and commit. Pure; one owner.

Messages are taken out in offset order as batches; a batch is finished as a whole. The offset that
may be committed is the first one that is not finished: a batch that was taken but not finished
holds it back, so a crash re-delivers and never skips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftmq.client.message import MessageExt


@dataclass(slots=True, eq=False)
class Batch:
    """Messages handed to a listener together. `end` is the queue offset just behind them."""

    messages: list[MessageExt]
    first: int
    end: int
    size_bytes: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Flow control. A queue stops pulling while it holds this many messages or bytes, while its
    last message is `span_max` offsets behind the first unfinished one (what would come again after
    a crash), or while all queues of the consumer together hold `all_*`. What a pull brought is
    always kept, so each bound is passed by less than one pull per queue."""

    messages_max: int = 1000
    size_bytes_max: int = 64 * 1024 * 1024
    span_max: int = 2000
    all_messages_max: int = 100_000
    all_size_bytes_max: int = 512 * 1024 * 1024


class CacheBudget:
    """What all queues of one consumer hold together, and who waits for it to become less."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        self.count = 0
        self.size_bytes = 0
        self.waiting: dict[object, Callable[[], None]] = {}

    @property
    def full(self) -> bool:
        return (
            self.count >= self._limits.all_messages_max
            or self.size_bytes >= self._limits.all_size_bytes_max
        )

    def change(self, count: int, size_bytes: int) -> None:
        """Add what came, or with negative numbers what went; tells whoever waits for room."""
        was_full = self.full
        self.count += count
        self.size_bytes += size_bytes
        assert self.count >= 0
        if was_full and not self.full:
            for wake in list(self.waiting.values()):
                wake()


class ProcessQueue:
    """Pulled messages of one queue.

    Invariants: `next_pull >= committable`; `cached_count` and `cached_bytes` count everything that
    was added and is not yet finished, and the budget counts it, too, until `discard`.
    """

    def __init__(self, start: int, limits: CacheLimits, budget: CacheBudget | None = None) -> None:
        self._limits = limits
        self._budget = budget or CacheBudget(limits)
        self._discarded = False
        self._last = start - 1  # offset of the last message that was added
        self._waiting: deque[tuple[MessageExt, int]] = deque()  # message, bytes
        self._taken: deque[Batch] = deque()
        self._finished_to = start
        self.next_pull = start
        self.cached_count = 0
        self.cached_bytes = 0

    @property
    def full(self) -> bool:
        """At or over a limit: do not pull."""
        return (
            self.cached_count >= self._limits.messages_max
            or self.cached_bytes >= self._limits.size_bytes_max
            or self._last + 1 - self.committable >= self._limits.span_max
            or self._budget.full
        )

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def taken_count(self) -> int:
        """Batches that are out and hold back the commit, finished ones behind them included."""
        return len(self._taken)

    @property
    def committable(self) -> int:
        """The offset to commit: everything below it is finished."""
        if self._taken:
            return self._taken[0].first
        if self._waiting:
            return self._waiting[0][0].queue_offset
        return self._finished_to

    def add(self, messages: Sequence[MessageExt], next_pull: int) -> None:
        """Append a pull's messages (ascending); `next_pull` is where the next pull begins.

        Offsets below `next_pull` that are not among the messages were filtered out.
        """
        assert next_pull >= self.next_pull, (next_pull, self.next_pull)
        total = 0
        for message in messages:
            size = message.store_size_bytes
            self._waiting.append((message, size))
            total += size
        if messages:
            self._last = messages[-1].queue_offset
        self._account(len(messages), total)
        self.next_pull = next_pull
        if not self._taken and not self._waiting:
            self._finished_to = next_pull

    def take(self, count_max: int) -> Batch | None:
        """The next messages, at most `count_max`; None if nothing waits."""
        if not self._waiting:
            return None
        count = min(count_max, len(self._waiting))
        messages: list[MessageExt] = []
        size_bytes = 0
        for _ in range(count):
            message, size = self._waiting.popleft()
            messages.append(message)
            size_bytes += size
        batch = Batch(messages, messages[0].queue_offset, self._next_offset(), size_bytes)
        self._taken.append(batch)
        return batch

    def finish(self, batch: Batch) -> int:
        """Mark a taken batch as done; returns `committable`."""
        assert not batch.finished
        batch.finished = True
        self._account(-len(batch.messages), -batch.size_bytes)
        while self._taken and self._taken[0].finished:
            self._finished_to = self._taken.popleft().end
        if not self._taken and not self._waiting:
            self._finished_to = self.next_pull  # what a later pull filtered out is done as well
        return self.committable

    def discard(self) -> None:
        """It is given up: what it still holds counts for the whole no more. Batches in hand may
        still be finished."""
        if not self._discarded:
            self._budget.change(-self.cached_count, -self.cached_bytes)
            self._discarded = True

    def _account(self, count: int, size_bytes: int) -> None:
        self.cached_count += count
        self.cached_bytes += size_bytes
        if not self._discarded:
            self._budget.change(count, size_bytes)

    def _next_offset(self) -> int:
        """Where the batch just taken ends: filtered offsets behind it belong to it."""
        return self._waiting[0][0].queue_offset if self._waiting else self.next_pull
