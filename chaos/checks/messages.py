"""Checks of messages: lost, invented, in two places, stored twice, handed out twice. Pure.

These are violations:
- lost: answered SEND_OK and never consumed, although a later position of its queue was consumed
  more than `settle_ns` ago (the definition that needs no drain), or its topic was drained
  completely afterwards (the final one).
- phantom: consumed, but nobody sent it, or its send was answered `fail`, or to another topic.
- two messages acknowledged at one queue offset; a queue offset that shows two messages; a message
  seen only in another place than it was acknowledged in.
- duplicates, by cause: only a broker can store a message more often than its client tried, and that
  is wrong. A client's own retry stored again is allowed and counted, unless it was sent
  idempotently. A send of unknown outcome that is delivered is no duplicate; it is counted, too, and
  so is a position handed out again.

A message answered FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE was stored with
less than is promised: losing it breaks no promise, and is counted separately.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftmq.chaos.checks.ledger import Entry, Ledger
from raftmq.chaos.checks.verdict import (
    EXAMPLES_MAX,
    Check,
    Checker,
    Handlers,
    LostMessage,
    Verdict,
    at,
    judge,
)
from raftmq.chaos.history.events import Kind, Outcome, Send

SETTLE_NS = 5_000_000_000  # a message may be in a consumer's hands while a later one is recorded


class MessageChecker(Checker):
    """The base of all checks of messages: they share a ledger, which a suite feeds once."""

    essential = True

    def __init__(self, ledger: Ledger | None = None) -> None:
        """Without a ledger it keeps its own, which `feed` feeds."""
        self.ledger = ledger or Ledger()
        self._own = ledger is None

    def handlers(self) -> Handlers:
        return ledger_handlers(self.ledger) if self._own else {}

    @property
    def applies(self) -> bool:
        return bool(self.ledger.entries) or self.ledger.deliveries > 0


def ledger_handlers(ledger: Ledger) -> Handlers:
    """Return the handlers that feed a ledger."""
    return {
        Kind.SEND_INVOKED: ledger.invoked,
        Kind.SEND_DECIDED: ledger.decided,
        Kind.CONSUMED: ledger.consumed,
        Kind.DRAINED: ledger.drained,
    }


class Lost(MessageChecker):
    """The check for messages acknowledged and lost."""

    name = "acknowledged but lost"

    def __init__(self, ledger: Ledger | None = None, settle_ns: int = SETTLE_NS) -> None:
        super().__init__(ledger)
        self._settle_ns = settle_ns

    def lost(self) -> Iterator[LostMessage]:
        """Yield every lost message, by queue and offset."""
        ledger = self.ledger
        settled_ns = ledger.now_ns - self._settle_ns
        for _, queue in sorted(ledger.queues.items()):
            if not queue.outstanding:
                continue
            passed = queue.passed_at(settled_ns)
            drained_ns = ledger.drains.get(queue.topic, -1)
            for send in sorted(queue.outstanding.values(), key=lambda send: send.offset):
                by_drain = send.done_ns <= drained_ns
                if by_drain or (send.offset <= passed and send.done_ns <= settled_ns):
                    yield LostMessage(
                        send.op,
                        send.id,
                        send.topic,
                        send.broker,
                        send.queue,
                        send.offset,
                        send.key,
                        send.done_ns,
                        by_drain,
                    )

    def result(self) -> Check:
        acknowledged = self.ledger.acknowledged
        lost = tuple(self.lost())
        detail = f"{acknowledged} acknowledged, {len(lost)} of them lost"
        if lost:
            examples = tuple(
                f"{message.id} at {at(message.position)}, acknowledged"
                for message in lost[:EXAMPLES_MAX]
            )
            return Check(self.name, Verdict.FAIL, len(lost), detail, examples, lost)
        waiting = sum(len(queue.outstanding) for queue in self.ledger.queues.values())
        if acknowledged == 0 or waiting:
            detail += f"; {waiting} not consumed yet and no complete drain to say why"
            return Check(self.name, Verdict.UNKNOWN, waiting, detail)
        return Check(self.name, Verdict.PASS, 0, detail)


class Phantoms(MessageChecker):
    """The check for messages consumed that were never sent, or whose send certainly failed."""

    name = "phantoms"

    def result(self) -> Check:
        words = (f"{name} {why}" for name, why in self.ledger.phantoms.items())
        seen = self.ledger.named_deliveries
        return judge(self.name, words, f"{seen} deliveries with their ids", seen)


class TwiceAcknowledged(MessageChecker):
    """The check for two messages acknowledged at one position: one has overwritten the other."""

    name = "two messages acknowledged at one position"

    def result(self) -> Check:
        clashes = self.ledger.twice_acked
        words = (f"{at(place)} was given to {one} and to {other}" for place, one, other in clashes)
        count = self.ledger.acknowledged
        return judge(self.name, words, f"{count} acknowledged positions", count)


class Positions(MessageChecker):
    """The check for one message per queue offset, and acknowledged messages at their place."""

    name = "queue positions"

    def result(self) -> Check:
        count = sum(len(queue.holder) for queue in self.ledger.queues.values())
        return judge(self.name, self._wrong(), f"{count} positions", count)

    def _wrong(self) -> Iterator[str]:
        for place, one, other in self.ledger.clashes:
            yield f"{at(place)} holds both {one} and {other}"
        for name, entry in self.ledger.misplaced.items():
            if not entry.promised or entry.at_ack or not entry.deliveries:
                continue
            assert entry.queue is not None
            # A retried message may lie in both places, the other copy being consumed already.
            drained = entry.queue.topic in self.ledger.drains
            if entry.attempts < 2 or drained or entry.queue.highest >= entry.offset:
                place = entry.queue.place(entry.offset)
                where = ", ".join(at(other) for other in entry.copies() if other != place)
                yield f"{name} was acknowledged at {at(place)} but lies at {where}"


class BrokerDuplicates(MessageChecker):
    """The check for messages stored more often than the client tried: brokers' doing."""

    name = "duplicates made by brokers"

    def result(self) -> Check:
        words = (
            f"{name} stored at {', '.join(map(at, entry.seen()))} after {entry.attempts} attempt(s)"
            for name, entry in self.ledger.multiple.items()
            if decided(entry) and len(entry.seen()) > max(1, entry.attempts)
        )
        count = len(self.ledger.entries)
        return judge(self.name, words, f"{count} messages", count)


class RetryDuplicates(MessageChecker):
    """Counts messages stored again by the client's own retry. Allowed."""

    name = "duplicates by client retry"

    def result(self) -> Check:
        extra = 0
        for entry in self.ledger.multiple.values():
            copies = len(entry.seen())
            if decided(entry) and 1 < copies <= entry.attempts:
                extra += copies - 1
        detail = "extra copies that a client's own retry stored (allowed)"
        return Check(self.name, Verdict.PASS, extra, detail)


class UnknownDelivered(MessageChecker):
    """Counts sends of unknown outcome that turned out to be stored. Allowed."""

    name = "unknown but delivered"

    def result(self) -> Check:
        ledger = self.ledger
        detail = f"of {ledger.vague + ledger.open} sends without a known outcome (allowed)"
        count = ledger.vague_delivered + ledger.open_delivered
        return Check(self.name, Verdict.PASS, count, detail)


class StoredWithLess(MessageChecker):
    """Counts messages not flushed or on no slave, and their losses. Nothing was promised."""

    name = "stored with less than promised"
    essential = False

    @property
    def applies(self) -> bool:
        return self.ledger.weakly_acknowledged > 0

    def result(self) -> Check:
        gone = sum(1 for send in self.ledger.weak.values() if self._is_lost(send))
        detail = f"not answered SEND_OK; {gone} of them lost (allowed)"
        return Check(self.name, Verdict.PASS, self.ledger.weakly_acknowledged, detail)

    def _is_lost(self, send: Send) -> bool:
        queue = self.ledger.queue(send.broker, send.topic, send.queue)
        drained_ns = self.ledger.drains.get(send.topic, -1)
        return send.done_ns <= drained_ns or send.offset <= queue.highest


class Redeliveries(MessageChecker):
    """Counts positions handed out more than once. Allowed (at least once)."""

    name = "redeliveries"

    def result(self) -> Check:
        detail = "deliveries of a position that had been consumed before (allowed)"
        return Check(self.name, Verdict.PASS, self.ledger.redeliveries, detail)


def decided(entry: Entry) -> bool:
    """Return whether the number of attempts is known."""
    return entry.outcome is not Outcome.OPEN
