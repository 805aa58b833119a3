"""The messages of one queue between pull and commit. Pure; one owner.

Messages are taken out in offset order as batches; a batch is finished as a whole. The offset that
may be committed is the first one that is not finished: a batch that was taken but not finished
holds it back, so a crash re-delivers and never skips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from client.message import MessageExt


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
    """A queue stops pulling while it holds this many messages or bytes (flow control)."""

    messages_max: int = 1000
    size_bytes_max: int = 64 * 1024 * 1024


class ProcessQueue:
    """Pulled messages of one queue.

    Invariants: `next_pull >= committable`; `cached_count` and `cached_bytes` count everything that
    was added and is not yet finished.
    """

    def __init__(self, start: int, limits: CacheLimits) -> None:
        self._limits = limits
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
        self.cached_count += len(messages)
        self.cached_bytes += total
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
        self.cached_count -= len(batch.messages)
        self.cached_bytes -= batch.size_bytes
        while self._taken and self._taken[0].finished:
            self._finished_to = self._taken.popleft().end
        if not self._taken and not self._waiting:
            self._finished_to = self.next_pull  # what a later pull filtered out is done as well
        return self.committable

    def _next_offset(self) -> int:
        """Where the batch just taken ends: filtered offsets behind it belong to it."""
        return self._waiting[0][0].queue_offset if self._waiting else self.next_pull
