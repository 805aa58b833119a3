"""Runs all checkers over one history, while it is written or afterwards. Pure.

    suite = Suite()
    for record in records:
        suite.feed(record)
    suite.results(); suite.lost()

Every record is turned into an event once; the checks of messages share one ledger. Memory grows
with the number of messages (chaos.checks.ledger says how much), not with that of records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from raftmq.chaos.checks.delayed import (
    DelayBook,
    DelayedCopies,
    DelayedEarly,
    DelayedLate,
    DelayedLost,
)
from raftmq.chaos.checks.ledger import Ledger
from raftmq.chaos.checks.locks import Skipped, StoodStill, TwoAtOnce
from raftmq.chaos.checks.messages import (
    SETTLE_NS,
    BrokerDuplicates,
    Lost,
    Phantoms,
    Positions,
    Redeliveries,
    RetryDuplicates,
    StoredWithLess,
    TwiceAcknowledged,
    UnknownDelivered,
    ledger_handlers,
)
from raftmq.chaos.checks.metadata import MetadataBack
from raftmq.chaos.checks.offsets import OffsetsBack
from raftmq.chaos.checks.order import OrderConsumed, OrderPerKey, OrderPerQueue
from raftmq.chaos.checks.replicas import (
    EXPECTED_LINES,
    BadLogLines,
    ReplicasDiffer,
    TwoLeaders,
)
from raftmq.chaos.checks.retries import RetriesLost, RetriesOutOfTurn, RetryBook, RetryCopies
from raftmq.chaos.checks.transactions import (
    CommittedLost,
    HalvesAtEnd,
    TransactionBook,
    TransactionCopies,
    WithoutCommit,
)
from raftmq.chaos.checks.verdict import Check, Checker, Handlers, LostMessage, Verdict, merge
from raftmq.chaos.history.assembly import Assembler, Record
from raftmq.chaos.history.events import History, HistoryError, Kind


class Suite:
    """All checkers of one history.

    `expected`: names of checks that must not be left out; without evidence they are UNKNOWN.
    `settle_ns`: see chaos.checks.messages.
    """

    def __init__(
        self,
        *,
        settle_ns: int = SETTLE_NS,
        expected: Collection[str] = (),
        expected_lines: Mapping[str, Sequence[str]] = EXPECTED_LINES,
    ) -> None:
        self.ledger = Ledger()
        ledger = self.ledger
        self._lost = Lost(ledger, settle_ns)
        transactions, delays, retries = TransactionBook(), DelayBook(), RetryBook()
        self.checkers: tuple[Checker, ...] = (
            self._lost,
            Phantoms(ledger),
            TwiceAcknowledged(ledger),
            Positions(ledger),
            BrokerDuplicates(ledger),
            OrderPerQueue(ledger),
            OrderPerKey(ledger),
            OrderConsumed(ledger),
            TwoAtOnce(),
            Skipped(),
            CommittedLost(transactions),
            WithoutCommit(transactions),
            TransactionCopies(transactions),
            HalvesAtEnd(transactions),
            DelayedLost(delays),
            DelayedEarly(delays),
            DelayedCopies(delays),
            RetriesLost(retries),
            RetriesOutOfTurn(retries),
            RetryCopies(retries),
            OffsetsBack(),
            MetadataBack(),
            TwoLeaders(),
            ReplicasDiffer(),
            BadLogLines(expected_lines),
            RetryDuplicates(ledger),
            UnknownDelivered(ledger),
            StoredWithLess(ledger),
            Redeliveries(ledger),
            DelayedLate(delays),
            StoodStill(),
        )
        unknown = set(expected) - set(self.names())
        if unknown:
            raise ValueError(f"there is no check called {', '.join(sorted(unknown))}")
        self._expected = frozenset(expected)
        self._assembler = Assembler()
        self._table: list[tuple[Any, ...]] = [()] * len(Kind)
        shared = (transactions, delays, retries)
        for handlers in (
            ledger_handlers(ledger),
            *(book.handlers() for book in shared),
            *(checker.handlers() for checker in self.checkers),
        ):
            self._listen(handlers)
        self.records = 0

    def _listen(self, handlers: Handlers) -> None:
        for kind, handler in handlers.items():
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
        """Take one more record of the file, the meta line first. Raises HistoryError."""
        self.records += 1
        event = self._assembler.take(record)
        if event is not None:
            kind, found = event
            for handler in self._table[kind]:
                handler(found)

    def take(self, kind: Kind, event: Any) -> None:
        """Take one more event that is already assembled."""
        for handler in self._table[kind]:
            handler(event)

    def results(self) -> tuple[Check, ...]:
        """Return every check that was asked for or has something to look at, in a fixed order.

        The essential checks are left out if messages were promised only as transactions, delayed
        messages or retries.
        """
        elsewhere = any(
            checker.applies
            for checker in self.checkers
            if isinstance(checker, CommittedLost | DelayedLost | RetriesLost)
        )
        return tuple(
            checker.result()
            for checker in self.checkers
            if (checker.essential and not elsewhere)
            or checker.applies
            or checker.name in self._expected
        )

    def verdict(self) -> Verdict:
        """Return all results merged into one."""
        return merge(self.results())

    def lost(self) -> tuple[LostMessage, ...]:
        """Return every acknowledged and lost message, by queue and offset."""
        return tuple(self._lost.lost())


def check_all(history: History, settle_ns: int = SETTLE_NS) -> tuple[Check, ...]:
    """Return the checks of a history that is already read, in the order of Suite.results."""
    return suite_of(history, settle_ns).results()


def suite_of(history: History, settle_ns: int = SETTLE_NS) -> Suite:
    """Return a suite that was fed a whole history."""
    suite = Suite(settle_ns=settle_ns)
    for kind, event in history.timeline():
        suite.take(kind, event)
    return suite
