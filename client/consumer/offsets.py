"""Consumed offsets, which to commit, and which broker answers to trust.

Brokers keep the offsets. The table has per queue the offset that this consumer has finished and the
offset sent to the broker. A commit sends only changes and never goes back, except after an explicit
reset. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from raftmq.remoting.headers import PullResponseHeader

from ..message import MessageQueue


class OffsetTable:
    """The finished and sent offsets of the held queues."""

    def __init__(self) -> None:
        self._finished: dict[MessageQueue, int] = {}
        self._sent: dict[MessageQueue, int] = {}

    def start(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` in a queue. The next commit sends it, because the start offset of a
        new group belongs to no group until it is committed."""
        self._finished[queue] = offset
        self._sent.pop(queue, None)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Mark everything below `offset` as finished; smaller offsets are ignored."""
        current = self._finished.get(queue)
        if current is not None and offset > current:
            self._finished[queue] = offset

    def dirty(self, queues: Iterable[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """Return the unsent offsets of `queues` or of all."""
        chosen = self._finished if queues is None else queues
        return {
            queue: self._finished[queue]
            for queue in chosen
            if queue in self._finished and self._sent.get(queue) != self._finished[queue]
        }

    def sent(self, queue: MessageQueue, offset: int) -> None:
        """Record that the broker got `offset` (or confirmed it)."""
        if queue in self._finished:
            self._sent[queue] = offset

    def forget_sent(self, broker_name: str | None = None) -> None:
        """Let the next commit resend all offsets of this broker group (None for all), since one-way
        commits may have been lost with the old leader."""
        for queue in list(self._sent):
            if broker_name in (None, queue.broker_name):
                del self._sent[queue]

    def drop(self, queue: MessageQueue) -> None:
        self._finished.pop(queue, None)
        self._sent.pop(queue, None)

    def finished(self) -> dict[MessageQueue, int]:
        """Return the finished offset of every held queue."""
        return dict(self._finished)


class ConsumeFrom(Enum):
    """The start of a group in a queue without a committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class OffsetMoved:
    """Decides whether to trust a PULL_OFFSET_MOVED.

    Forward (retention deleted our offset): trusted at the second equal answer. Backward (the
    broker's queue ends before our offset): a lagging replica answers the same, so it is trusted
    only after `backward_confirmations` equal answers in a row, each after a route refresh. An
    answer with contradictory bounds is never trusted. Losing progress to a single stale answer is
    the oldest complaint about RocketMQ's fail-over."""

    def __init__(self, backward_confirmations: int = 10) -> None:
        self._backward_confirmations = backward_confirmations
        self._last: tuple[int, int] | None = None
        self._equal = 0

    def believes(self, requested: int, answer: PullResponseHeader) -> bool:
        """Return whether to move on an answer 21 to a pull at `requested`."""
        if not 0 <= answer.offset_min <= answer.next_offset <= answer.offset_max:
            self.clear()
            return False
        seen = (requested, answer.next_offset)
        self._equal = self._equal + 1 if seen == self._last else 1
        self._last = seen
        needed = 2 if answer.next_offset > requested else self._backward_confirmations
        if self._equal < needed:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Restart counting after any different answer."""
        self._last = None
        self._equal = 0
