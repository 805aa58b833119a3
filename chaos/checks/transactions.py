"""Checks of transactions that are lost, visible uncommitted, stored twice, left open or forgotten.

Violations:
- A producer committed (by END_TRANSACTION, or in its answer to a check-back), and the topic was
  drained completely without the message (lost). A lost request is no excuse, because the broker
  asks again. A rollback is one: of a half message with less than SEND_OK, by the client.
- A message is delivered without a commit. It may have been rolled back, undecided, not certainly
  stored or never sent.
- A message is delivered at more positions than the producer's attempts to store half messages.
- In the broker's own topics, after everything settled, a half message is open that was decided, or
  missing that was undecided.

A message takes about 0.4 KB of memory. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..history.deferred_events import COMMIT, UNDECIDED, Decision, Delivery, Post, Scanned, Stored
from ..history.events import HistoryError, Kind, Outcome, Position
from .postings import Postings, Sent, extra_copies
from .verdict import Check, Handlers, Offenders, at, judge, judge_lost

WORK = "transactions"


class Transaction:
    """A message, as its producer and the consumers observed it; `outcome` is the half message's."""

    __slots__ = ("commit_ns", "confirmed", "decided", "positions", "rolled_back", "sent")

    def __init__(self, post: Post) -> None:
        self.sent = Sent(post)
        self.commit_ns = 0  # when commit was said first; 0: never
        self.confirmed = False  # the broker answered that it has the commit
        self.decided = False  # commit or rollback was said
        self.rolled_back = False
        self.positions: set[Position] = set()


class TransactionBook:
    """The state that all checks of transactions share."""

    def __init__(self) -> None:
        self.sends = Postings(WORK, Transaction, self._delivered)
        self.entries = self.sends.entries
        self.too_early = Offenders()  # delivered without a commit
        self.open_at_end: set[str] = set()
        self.scanned = False

    @property
    def applies(self) -> bool:
        return self.sends.applies

    def handlers(self) -> Handlers:
        return {
            **self.sends.handlers(),
            Kind.DECIDED: self.decided,
            Kind.STORED: self.stored,
            Kind.SCANNED: self.scan,
        }

    def decided(self, decision: Decision) -> None:
        entry = self.entries.get(decision.id)
        if entry is None:
            raise HistoryError(f"transaction {decision.id} was decided before it began")
        if decision.decision == UNDECIDED:
            return
        entry.decided = True
        if decision.decision == COMMIT:
            entry.commit_ns = entry.commit_ns or decision.t_ns
            entry.confirmed = entry.confirmed or decision.outcome is Outcome.OK
        else:
            entry.rolled_back = True

    def _delivered(self, delivery: Delivery, entry: Transaction | None) -> None:
        if entry is None:
            self.too_early.add(f"{delivery.id} at {at(delivery.position)}: nobody sent it")
            return
        if not entry.commit_ns and not entry.positions:
            state = "rolled back" if entry.decided else "not decided"
            self.too_early.add(f"{delivery.id} at {at(delivery.position)}: it was {state}")
        entry.positions.add(delivery.position)

    def stored(self, copy: Stored) -> None:
        if copy.work == WORK:
            self.open_at_end.add(copy.id)

    def scan(self, scanned: Scanned) -> None:
        self.scanned = self.scanned or scanned.work == WORK


def committed_lost(book: TransactionBook, name: str) -> Check:
    committed = [(name, t) for name, t in book.entries.items() if t.commit_ns]
    missing = (
        (
            f"{name}: commit was said{' and confirmed' if entry.confirmed else ''}",
            entry.commit_ns,
            book.sends.drained_ns(entry),
        )
        for name, entry in committed
        if not entry.positions and not entry.rolled_back
    )
    detail = f"{len(committed)} committed of {len(book.entries)} transactions"
    return judge_lost(name, missing, len(committed), detail)


def without_commit(book: TransactionBook, name: str) -> Check:
    """Find transactions delivered without a commit."""
    silent = sum(1 for entry in book.entries.values() if not entry.commit_ns)
    detail = f"{book.sends.deliveries} deliveries; {silent} transactions without a commit"
    return book.too_early.check(name, detail, book.sends.deliveries)


def transaction_copies(book: TransactionBook, name: str) -> Check:
    """Find transactions stored more than once."""
    detail = f"{sum(1 for t in book.entries.values() if t.positions)} transactions delivered"
    return judge(name, extra_copies(book.sends), detail, book.sends.deliveries)


def halves_at_end(book: TransactionBook, name: str) -> Check:
    """Find wrong half messages at the end, where the broker's own topics were read."""
    kept = sum(1 for name in book.open_at_end if name in book.entries)
    detail = f"{len(book.entries)} transactions, {kept} half messages left open"
    return judge(name, _halves_at_end_wrong(book), detail, len(book.entries) if book.scanned else 0)


def _halves_at_end_wrong(book: TransactionBook) -> Iterator[str]:
    for name in sorted(book.open_at_end):
        entry = book.entries.get(name)
        if entry is None:
            yield f"{name} is open: nobody sent it"
        elif entry.decided:
            yield f"{name} is open although it was decided"
    for name, entry in book.entries.items():
        undecided = entry.sent.outcome is Outcome.OK and not entry.decided
        if undecided and name not in book.open_at_end and not entry.positions:
            yield f"{name} was acknowledged, not decided, and its half message is gone"
