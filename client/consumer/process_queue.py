"""The messages of a queue between pull and commit.

Messages are taken in offset order as batches, and a batch finishes as a whole. The committable
offset is the first unfinished offset. An unfinished batch holds it back, so a crash causes
redelivery and never a gap. Pure, without I/O; for a single owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..message import MessageExt


@dataclass(slots=True, eq=False)
class Batch:
    """Messages passed to a listener together. `end` is the queue offset behind them."""

    messages: list[MessageExt]
    first: int
    end: int
    size_bytes: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Flow control limits. A queue stops pulling at this many messages or bytes, with its last
    message `span_max` offsets after the first unfinished message (redelivered after a crash), or
    with `all_*` in all queues of the consumer. The result of a pull is always kept, so each limit
    is exceeded by less than a pull per queue."""

    messages_max: int = 1000
    size_bytes_max: int = 64 * 1024 * 1024
    span_max: int = 2000
    all_messages_max: int = 100_000
    all_size_bytes_max: int = 512 * 1024 * 1024


class CacheBudget:
    """The messages and bytes in a consumer's queues, and callbacks awaiting capacity."""

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
        """Add to the totals, also negative numbers, and call the waiters when there is capacity."""
        was_full = self.full
        self.count += count
        self.size_bytes += size_bytes
        assert self.count >= 0
        if was_full and not self.full:
            for wake in list(self.waiting.values()):
                wake()


class ProcessQueue:
    """Pulled messages of a queue. Invariants: `next_pull >= committable`; `cached_count` and
    `cached_bytes` count everything added and not finished, as does the budget until `discard`."""

    def __init__(self, start: int, limits: CacheLimits, budget: CacheBudget | None = None) -> None:
        self._limits = limits
        self._budget = budget or CacheBudget(limits)
        self._discarded = False
        self._last = start - 1  # offset of the last added message
        self._waiting: deque[MessageExt] = deque()
        self._taken: deque[Batch] = deque()
        self._finished_to = start
        self.next_pull = start
        self.cached_count = 0
        self.cached_bytes = 0

    @property
    def full(self) -> bool:
        """Return whether a limit is reached and pulling has to stop."""
        return (
            self.cached_count >= self._limits.messages_max
            or self.cached_bytes >= self._limits.size_bytes_max
            or self._last + 1 - self.committable >= self._limits.span_max
            or self._budget.full
        )

    @property
    def taken_count(self) -> int:
        """Return the number of batches that hold back the commit."""
        return len(self._taken)

    @property
    def committable(self) -> int:
        """Return the offset to commit, below which everything is finished."""
        if self._taken:
            return self._taken[0].first
        if self._waiting:
            return self._waiting[0].queue_offset
        return self._finished_to

    def add(self, messages: Sequence[MessageExt], next_pull: int) -> None:
        """Append a pull's messages (ascending); `next_pull` is the next pull's offset. Missing
        offsets below it were filtered out."""
        assert next_pull >= self.next_pull, (next_pull, self.next_pull)
        self._waiting.extend(messages)
        if messages:
            self._last = messages[-1].queue_offset
        size_bytes = 0
        for message in messages:
            size_bytes += message.store_size_bytes
        self._account(len(messages), size_bytes)
        self.next_pull = next_pull
        if not self._taken and not self._waiting:
            self._finished_to = next_pull

    def take(self, count_max: int) -> Batch | None:
        """Take the next messages, at most `count_max`; None if nothing waits."""
        if not self._waiting:
            return None
        messages: list[MessageExt] = []
        size_bytes = 0  # kept with the batch, because the user may change its messages
        for _ in range(min(count_max, len(self._waiting))):
            message = self._waiting.popleft()
            messages.append(message)
            size_bytes += message.store_size_bytes
        batch = Batch(messages, messages[0].queue_offset, self._next_offset(), size_bytes)
        self._taken.append(batch)
        return batch

    def finish(self, batch: Batch) -> int:
        assert not batch.finished
        batch.finished = True
        self._account(-len(batch.messages), -batch.size_bytes)
        while self._taken and self._taken[0].finished:
            self._finished_to = self._taken.popleft().end
        if not self._taken and not self._waiting:
            # offsets that a later pull filtered out are also finished
            self._finished_to = self.next_pull
        return self.committable

    def discard(self) -> None:
        """Release the queue, its messages from the budget. Taken batches may still finish."""
        if not self._discarded:
            self._budget.change(-self.cached_count, -self.cached_bytes)
            self._discarded = True

    def _account(self, count: int, size_bytes: int) -> None:
        self.cached_count += count
        self.cached_bytes += size_bytes
        if not self._discarded:
            self._budget.change(count, size_bytes)

    def _next_offset(self) -> int:
        """Return the end of the batch just taken, including following filtered offsets."""
        return self._waiting[0].queue_offset if self._waiting else self.next_pull
