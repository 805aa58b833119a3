"""Sends, deliveries and drains of a workload's messages, for the checks of transactions, delayed
messages, retries and pops. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Generic, Protocol, TypeVar

from ..history.deferred_events import Delivery, Post
from ..history.events import Drain, HistoryError, Kind, Outcome, Position
from .verdict import Handlers, at


class Sent:
    """A message's send, as its producer saw it."""

    __slots__ = ("acked_ns", "attempts", "invoked_ns", "outcome", "topic")

    def __init__(self, post: Post) -> None:
        self.topic = post.topic
        self.invoked_ns = post.t_ns
        self.acked_ns = 0
        self.outcome = Outcome.OPEN
        self.attempts = 0


class Entry(Protocol):
    sent: Sent


class Placed(Entry, Protocol):
    @property
    def positions(self) -> Collection[Position]: ...


E = TypeVar("E", bound=Entry)
P = TypeVar("P", bound=Placed)


class Postings(Generic[E]):
    """The messages of a workload, by id. `entry_of` makes one, `delivered` judges a delivery of one
    (None if nobody sent it)."""

    def __init__(
        self,
        work: str,
        entry_of: Callable[[Post], E],
        delivered: Callable[[Delivery, E | None], None],
    ) -> None:
        self._work = work
        self._entry_of = entry_of
        self._judge = delivered
        self.entries: dict[str, E] = {}
        self.drains: dict[str, int] = {}
        self.deliveries = 0

    @property
    def applies(self) -> bool:
        return bool(self.entries) or self.deliveries > 0

    def handlers(self) -> Handlers:
        return {
            Kind.POSTED: self._posted,
            Kind.DELIVERED: self._delivered,
            Kind.DRAINED: self._drained,
        }

    def _posted(self, post: Post) -> None:
        if post.work != self._work:
            return
        if post.outcome is Outcome.OPEN:
            if post.id in self.entries:
                raise HistoryError(f"two messages have the id {post.id}")
            self.entries[post.id] = self._entry_of(post)
            return
        sent = self.entries[post.id].sent
        sent.outcome, sent.attempts = post.outcome, post.attempts
        if post.outcome is Outcome.OK:
            sent.acked_ns = post.t_ns

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.work == self._work:
            self.deliveries += 1
            self._judge(delivery, self.entries.get(delivery.id))

    def _drained(self, drain: Drain) -> None:
        if drain.complete:
            self.drains[drain.topic] = drain.t_ns

    def drained_ns(self, entry: E) -> int:
        """Return when the message's topic was drained, or -1."""
        return self.drains.get(entry.sent.topic, -1)


def extra_copies(sends: Postings[P]) -> Iterator[str]:
    """Describe the messages at more positions than attempts to send them."""
    for name, entry in sends.entries.items():
        sent = entry.sent
        if sent.outcome is not Outcome.OPEN and len(entry.positions) > max(1, sent.attempts):
            positions = ", ".join(map(at, sorted(entry.positions)))
            yield f"{name} lies at {positions} after {sent.attempts} attempt(s)"


def never_sent(entry: Entry | None) -> str:
    """Return why a message cannot have been delivered, or an empty string."""
    if entry is None:
        return "nobody sent it"
    return "its send had failed for certain" if entry.sent.outcome is Outcome.FAIL else ""
