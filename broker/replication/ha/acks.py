"""Stored batches of sends that wait for their acknowledgement conditions.

A batch may need a log that is durable up to its end (SYNC_FLUSH), and a slave with it
(SYNC_MASTER). Both are watermarks, so the batches of each condition wait in log order. A batch is
answered once no condition is left, even before an earlier batch.

A condition not met in time changes the code of the answer and is never an error, because the
message is stored. If both fail, the slave's code is returned, as in Apache's broker. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from raftmq.remoting.codes import ResponseCode

T = TypeVar("T")

OK = int(ResponseCode.SUCCESS)
FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


class SlaveWish(Enum):
    NOTHING = "nothing"
    WAIT = "wait"
    UNAVAILABLE = "wanted, but there is none that could"


class _Waiting(Generic[T]):
    __slots__ = ("batch", "code", "end", "open", "since_ms")

    def __init__(self, batch: T, end: int, since_ms: int) -> None:
        self.batch = batch
        self.end = end
        self.since_ms = since_ms
        self.code = OK
        self.open = 0  # unsettled conditions


Answered = tuple[T, int]  # the batch and its response code


class AckBook(Generic[T]):
    """The waiting batches, limited by waitingBytesMax."""

    def __init__(self, flush_timeout_ms: int, slave_timeout_ms: int) -> None:
        self._flush_timeout_ms = flush_timeout_ms
        self._slave_timeout_ms = slave_timeout_ms
        self._flushing: deque[_Waiting[T]] = deque()
        self._replicating: deque[_Waiting[T]] = deque()
        self._flushed = 0
        self._replicated = 0
        self._last_end = 0

    def __len__(self) -> int:
        """Return the number of open conditions."""
        return len(self._flushing) + len(self._replicating)

    def add(
        self, batch: T, end: int, *, flush: bool, slave: SlaveWish, now_ms: int
    ) -> list[Answered[T]]:
        """Add a written batch that ends at `end`. Return it if it need not wait."""
        assert end > self._last_end, (end, self._last_end)
        self._last_end = end
        waiting = _Waiting(batch, end, now_ms)
        if slave is SlaveWish.UNAVAILABLE:
            waiting.code = SLAVE_NOT_AVAILABLE
        elif slave is SlaveWish.WAIT and end > self._replicated:
            waiting.open += 1
            self._replicating.append(waiting)
        if flush and end > self._flushed:
            waiting.open += 1
            self._flushing.append(waiting)
        return [] if waiting.open else [(waiting.batch, waiting.code)]

    def flushed(self, offset: int) -> list[Answered[T]]:
        """Settle the batches durable below `offset`; return those to answer."""
        self._flushed = max(self._flushed, offset)
        return _settle(_take(self._flushing, lambda waiting: waiting.end <= offset), OK)

    def replicated(self, offset: int) -> list[Answered[T]]:
        """Settle the batches that a slave has below `offset`; return those to answer."""
        self._replicated = max(self._replicated, offset)
        return _settle(_take(self._replicating, lambda waiting: waiting.end <= offset), OK)

    def expire(self, now_ms: int) -> list[Answered[T]]:
        """Drop overdue conditions; return the batches to answer."""
        slave_ms, flush_ms = now_ms - self._slave_timeout_ms, now_ms - self._flush_timeout_ms
        late = _take(self._replicating, lambda waiting: waiting.since_ms <= slave_ms)
        answered = _settle(late, FLUSH_SLAVE_TIMEOUT)
        late = _take(self._flushing, lambda waiting: waiting.since_ms <= flush_ms)
        return answered + _settle(late, FLUSH_DISK_TIMEOUT)

    def give_up(self) -> list[Answered[T]]:
        """Drop all conditions before a stop; return the batches to answer."""
        answered = _settle(_take(self._replicating, lambda _: True), FLUSH_SLAVE_TIMEOUT)
        return answered + _settle(_take(self._flushing, lambda _: True), FLUSH_DISK_TIMEOUT)


def _take(queue: deque[_Waiting[T]], is_done: Callable[[_Waiting[T]], bool]) -> list[_Waiting[T]]:
    """Remove and return the front of the queue while `is_done`."""
    taken: list[_Waiting[T]] = []
    while queue and is_done(queue[0]):
        taken.append(queue.popleft())
    return taken


def _settle(done: list[_Waiting[T]], code: int) -> list[Answered[T]]:
    """Settle a condition of each with `code`; return those without a further condition."""
    answered: list[Answered[T]] = []
    for waiting in done:
        if code != OK and waiting.code in (OK, FLUSH_DISK_TIMEOUT):
            waiting.code = code
        waiting.open -= 1
        if not waiting.open:
            answered.append((waiting.batch, waiting.code))
    return answered
