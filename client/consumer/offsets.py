"""Consumed offsets: what to commit, and how to judge a broker's answers. Pure.

Offsets are kept by the broker. The table here holds, per queue, the offset this consumer has
finished and the one it has told the broker. A commit sends only the difference and never goes back,
except after an explicit reset.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from raftmq.remoting.headers import PullResponseHeader

from ..message import MessageQueue


class OffsetTable:
    """The finished and told offsets of the queues this consumer holds."""

    def __init__(self) -> None:
        self._finished: dict[MessageQueue, int] = {}
        self._sent: dict[MessageQueue, int] = {}

    def start(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` in a queue. The next commit tells it: a broker may have answered where
        a new group begins, which is nobody's offset until it is committed."""
        self._finished[queue] = offset
        self._sent.pop(queue, None)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Mark everything below `offset` as finished; ignored if smaller than before."""
        current = self._finished.get(queue)
        if current is not None and offset > current:
            self._finished[queue] = offset

    def dirty(self, queues: Iterable[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """Return the offsets the broker has not been told, of `queues` or of all."""
        chosen = self._finished if queues is None else queues
        return {
            queue: self._finished[queue]
            for queue in chosen
            if queue in self._finished and self._sent.get(queue) != self._finished[queue]
        }

    def sent(self, queue: MessageQueue, offset: int) -> None:
        """Take note that the broker was told `offset` (or confirmed it)."""
        if queue in self._finished:
            self._sent[queue] = offset

    def forget_sent(self, broker_name: str | None = None) -> None:
        """Have the next commit send all offsets of this broker group (None: of all) again: one-way
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
    """The place where a group begins in a queue for which it has no committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class OffsetMoved:
    """Decides whether to believe a PULL_OFFSET_MOVED.

    Forward (retention deleted our offset): believed at the second equal answer. Backward (the
    broker's queue ends before our offset): a replica that lags says this, too, so it is believed
    only after `backward_confirmations` equal answers in a row, each after asking for the route
    again. An answer whose own bounds contradict each other is never believed. Losing progress to
    one stale answer is the oldest complaint about RocketMQ's fail-over.
    """

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
        """Start counting anew, after any other answer."""
        self._last = None
        self._equal = 0
