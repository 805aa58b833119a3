"""Checks of popped messages, which are redelivered until acknowledged, and not afterwards.

Violations:
- An acknowledged message was acknowledged by no consumer and is no dead letter, although the topic
  was drained completely (lost). An acknowledgement of unknown outcome may count.
- A pop that started after the message's acknowledgement was answered returned it (redelivered).
- A pop returned a message that was still invisible (early). A message is invisible at least from
  the start of its pop for the invisible time, or until its changed time. The check uses the
  harness's clock only.

A message sent in several attempts may have several copies, and each copy is popped by itself. Only
its loss is judged.

Pure. Memory: 0.6 KB a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..history.deferred_events import Delivery, Ended, Popped
from ..history.events import HistoryError, Kind, Outcome
from .postings import Postings, Sent, never_sent
from .verdict import Check, Handlers, Missing, Offenders, Verdict, judge, judge_lost

WORK = "pop"
NS_PER_MS = 1_000_000
BROKER_CLOCK_MS = 1  # brokers count in whole milliseconds
ACK, CHANGE = "ack", "change"


@dataclass(slots=True)
class Message:
    """The state of a message."""

    sent: Sent
    hidden_until_ns: int = 0  # it must not be delivered before
    done_ns: int | None = None  # when its consumer's acknowledgement was answered
    maybe_done: set[int] = field(default_factory=set)  # acknowledgements that may count
    dead: bool = False
    pops: int = 0
    again: list[str] = field(default_factory=list)  # descriptions of violations
    early: list[str] = field(default_factory=list)


class PopBook:
    """The state that all checks of popped messages share; a suite feeds it once."""

    def __init__(self) -> None:
        self.sends = Postings(WORK, lambda post: Message(Sent(post)), self._dead)
        self.entries = self.sends.entries
        self.strange = Offenders()
        self.pops = 0
        self.acks = 0

    @property
    def applies(self) -> bool:
        return bool(self.entries) or self.pops > 0

    def handlers(self) -> Handlers:
        return {**self.sends.handlers(), Kind.POPPED: self.popped, Kind.POP_ENDED: self.ended}

    def popped(self, pop: Popped) -> None:
        self.pops += 1
        message = self.entries.get(pop.id)
        reason = never_sent(message)
        if message is None or reason:
            self.strange.add(f"{pop.id} popped by {pop.process}: {reason}")
            return
        message.pops += 1
        where = f"{pop.id} popped by {pop.process} (time {pop.times})"
        if message.done_ns is not None and pop.began_ns > message.done_ns:
            message.again.append(f"{where} after its acknowledgement was answered")
        elif (early_ms := (message.hidden_until_ns - pop.t_ns) / NS_PER_MS) >= BROKER_CLOCK_MS:
            message.early.append(f"{where} {early_ms:.0f} ms before its time")
        message.hidden_until_ns = pop.began_ns + pop.invisible_ms * NS_PER_MS

    def ended(self, end: Ended) -> None:
        message = self.entries.get(end.id)
        if message is None:
            raise HistoryError(f"{end.id} was popped and never sent")
        if end.what == CHANGE:
            until_ns = end.t_ns + end.invisible_ms * NS_PER_MS
            if end.outcome is Outcome.OPEN:  # from now on it may count
                message.hidden_until_ns = min(message.hidden_until_ns, until_ns)
        elif end.outcome is Outcome.OK:
            self.acks += 1
            message.done_ns = message.done_ns or end.t_ns
        elif end.outcome in (Outcome.OPEN, Outcome.UNKNOWN):
            message.maybe_done.add(end.op)
        else:
            message.maybe_done.discard(end.op)

    def _dead(self, _: Delivery, message: Message | None) -> None:
        if message is not None:
            message.dead = True


def pops_lost(book: PopBook, name: str) -> Check:
    """Find messages that nobody is done with."""
    acked = sum(message.sent.outcome is Outcome.OK for message in book.entries.values())
    dead = sum(message.dead for message in book.entries.values())
    detail = f"{acked} sent, {book.acks} acknowledged, {dead} dead letters"
    return judge_lost(name, _missing(book), acked, detail)


def _missing(book: PopBook) -> Iterator[Missing]:
    for name, message in book.entries.items():
        done = message.done_ns is not None or bool(message.maybe_done) or message.dead
        if message.sent.outcome is Outcome.OK and not done:
            text = f"{name}: popped {message.pops} times, neither acknowledged nor a dead letter"
            yield text, message.sent.acked_ns, book.sends.drained_ns(message)


def pops_again(book: PopBook, name: str) -> Check:
    """Find messages that were redelivered although they were acknowledged."""
    wrong = (text for message in _alone(book) for text in message.again)
    return judge(name, wrong, f"{book.pops} messages popped", book.pops)


def pops_early(book: PopBook, name: str) -> Check:
    """Find messages that two consumers had at the same time, and those that nobody sent."""
    wrong = (text for message in _alone(book) for text in message.early)
    strange = book.strange.check(name, "", book.pops)
    if strange.verdict is Verdict.FAIL:
        return strange
    return judge(name, wrong, f"{book.pops} messages popped", book.pops)


def _alone(book: PopBook) -> Iterator[Message]:
    """Yield the messages that certainly have a single copy."""
    return (message for message in book.entries.values() if message.sent.attempts == 1)
