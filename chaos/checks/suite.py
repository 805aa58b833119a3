"""All checks of a history, run while it is written or afterwards.

    suite = Suite()
    for record in records:
        suite.feed(record)
    suite.results(); suite.lost()

Checks share their books, and the checks of messages share a ledger. Memory grows with the number of
messages (see chaos.checks.ledger), and not with the number of records. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..history.assembly import Assembler, Record
from ..history.events import History, HistoryError, Kind
from . import delayed, messages, pops, retries, transactions
from .ledger import Ledger
from .locks import WorkBook
from .messages import SETTLE_NS
from .mutex import LockRequests
from .offsets import OffsetsBack
from .order import OrderConsumed, OrderPerKey, OrderPerQueue
from .registers import MetadataRegisters, OffsetRegisters
from .replicas import BadLogLines, ReplicasDiffer, TwoLeaders
from .verdict import Book, Check, Checker, LostMessage, Verdict, merge

# Checks that a scenario's statement names.
LOST = "acknowledged but lost"
MADE_BY_BROKERS = "duplicates made by brokers"
SENT_ONCE = "idempotent sends stored again"
BY_CLIENT_RETRY = "duplicates by client retry"
OFFSETS_BACK = "consumer offsets going back"
OFFSETS = "linearizable consumer offsets"
METADATA = "linearizable metadata"
LOCKS = "linearizable queue locks"


class Suite:
    """`settle_ns`: see chaos.checks.messages."""

    def __init__(self, *, settle_ns: int = SETTLE_NS) -> None:
        self.ledger = Ledger()
        self._settle_ns = settle_ns
        posted = (
            transactions.TransactionBook(),
            delayed.DelayBook(),
            retries.RetryBook(),
            pops.PopBook(),
        )
        self._posted: tuple[Book, ...] = posted
        self._metadata = MetadataRegisters()
        self.checkers = all_checkers(self.ledger, *posted, self._metadata, settle_ns)
        self._assembler = Assembler()
        self._table: list[tuple[Any, ...]] = [()] * len(Kind)
        # Each book once; the ledger first, because other books read it.
        for book in dict.fromkeys(checker.book for checker in self.checkers):
            for kind, handler in book.handlers().items():
                self._table[kind] = (*self._table[kind], handler)

    def names(self) -> tuple[str, ...]:
        """Return the names of all checks, in the order of `results`."""
        return tuple(checker.name for checker in self.checkers)

    @property
    def meta(self) -> dict[str, Any]:
        """The history's meta line. Raises HistoryError before it was fed."""
        if self._assembler.meta is None:
            raise HistoryError("a history begins with a meta line")
        return self._assembler.meta

    def feed(self, record: Record) -> None:
        """Process the next record of the file, the meta line first. Raises HistoryError."""
        event = self._assembler.take(record)
        if event is not None:
            kind, result = event
            for handler in self._table[kind]:
                handler(result)

    def take(self, kind: Kind, event: Any) -> None:
        for handler in self._table[kind]:
            handler(event)

    def results(self) -> tuple[Check, ...]:
        """Return every check that has something to look at, in a fixed order.

        The essential checks are left out if messages were promised only as transactions, delayed
        messages, retries or popped messages, and if there were none and only metadata was written.
        """
        elsewhere = any(book.applies for book in self._posted) or (
            self._metadata.applies and not self.ledger.applies
        )
        return tuple(
            checker.result()
            for checker in self.checkers
            if (checker.essential and not elsewhere) or checker.applies
        )

    def verdict(self) -> Verdict:
        return merge(self.results())

    def lost(self) -> tuple[LostMessage, ...]:
        """Return every acknowledged and lost message, by queue and offset."""
        return tuple(messages.lost(self.ledger, self._settle_ns))


def all_checkers(
    ledger: Ledger,
    transaction_book: transactions.TransactionBook,
    delay_book: delayed.DelayBook,
    retry_book: retries.RetryBook,
    pop_book: pops.PopBook,
    metadata: MetadataRegisters,
    settle_ns: int,
) -> tuple[Checker[Any], ...]:
    """Return every check there is, in the order of a report."""
    work = WorkBook()
    lost = partial(messages.acknowledged_and_lost, settle_ns=settle_ns)
    return (
        Checker(LOST, ledger, lost, essential=True),
        Checker("phantoms", ledger, messages.phantoms, essential=True),
        Checker(
            "two messages acknowledged at one position",
            ledger,
            messages.twice_acknowledged,
            essential=True,
        ),
        Checker("queue positions", ledger, messages.positions, essential=True),
        Checker(MADE_BY_BROKERS, ledger, messages.broker_duplicates, essential=True),
        Checker(SENT_ONCE, ledger, messages.once_again, only_if=lambda book: book.once > 0),
        Checker("order per queue", OrderPerQueue(ledger), OrderPerQueue.result),
        Checker("order per key", OrderPerKey(ledger), OrderPerKey.result),
        Checker("order as consumed", OrderConsumed(ledger), OrderConsumed.result),
        Checker("two consumers in one queue", work, WorkBook.two_at_once),
        Checker("skipped in an orderly queue", work, WorkBook.skipped),
        Checker(LOCKS, LockRequests(), LockRequests.result),
        Checker("committed but lost", transaction_book, transactions.committed_lost),
        Checker("delivered without a commit", transaction_book, transactions.without_commit),
        Checker(
            "transactions stored more than once", transaction_book, transactions.transaction_copies
        ),
        Checker(
            "half messages at the end",
            transaction_book,
            transactions.halves_at_end,
            only_if=lambda book: book.scanned,
        ),
        Checker("delayed and lost", delay_book, delayed.delayed_lost),
        Checker("delayed but early", delay_book, delayed.delayed_early),
        Checker("delayed and stored more than once", delay_book, delayed.delayed_copies),
        Checker("given back and lost", retry_book, retries.retries_lost),
        Checker("retries out of turn", retry_book, retries.retries_out_of_turn),
        Checker("retries stored more than once", retry_book, retries.retry_copies),
        Checker("popped and lost", pop_book, pops.pops_lost),
        Checker("popped again though acknowledged", pop_book, pops.pops_again),
        Checker("popped before its time", pop_book, pops.pops_early),
        Checker(OFFSETS, OffsetRegisters(), OffsetRegisters.result),
        Checker(OFFSETS_BACK, OffsetsBack(), OffsetsBack.result),
        Checker(METADATA, metadata, MetadataRegisters.result),
        Checker("two leaders in one term", TwoLeaders(), TwoLeaders.result),
        Checker("replicas differ", ReplicasDiffer(), ReplicasDiffer.result),
        Checker("failures in server logs", BadLogLines(), BadLogLines.result),
        Checker(BY_CLIENT_RETRY, ledger, messages.retry_duplicates, essential=True),
        Checker("unknown but delivered", ledger, messages.unknown_delivered, essential=True),
        Checker(
            "stored with less than promised",
            ledger,
            messages.stored_with_less,
            only_if=lambda book: book.weakly_acknowledged > 0,
        ),
        Checker("redeliveries", ledger, messages.redeliveries, essential=True),
        Checker("lateness of delayed messages", delay_book, delayed.delayed_late),
        Checker("orderly queues standing still", work, WorkBook.stood_still),
    )


def check_all(history: History) -> tuple[Check, ...]:
    """Return the checks of a history that is already read, in the order of Suite.results."""
    return suite_of(history).results()


def suite_of(history: History) -> Suite:
    suite = Suite()
    for kind, event in history.timeline():
        suite.take(kind, event)
    return suite
