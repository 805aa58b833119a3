"""Checks of messages that are lost, invented, misplaced, stored twice or delivered twice.

Violations:
- A message is lost if it was answered SEND_OK and never consumed, although a later position of its
  queue was consumed more than `settle_ns` ago (needs no drain), or its topic was drained completely
  (final).
- A phantom is consumed, but not sent, or its send was answered `fail`, or had a different topic.
- Two messages are acknowledged at a queue offset, or delivered at it; or a message is delivered
  only at a position that differs from the acknowledged position.
- The broker stored a message more often than the client's attempts. A stored retry of the client is
  allowed and counted, as are delivered sends of unknown outcome and redeliveries.
- An idempotent send has two effects. It is stored once, whatever the number of attempts.

A message answered FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE is on fewer disks
or brokers than SEND_OK promises. Its loss breaks no promise and is counted separately. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..history.events import Outcome, Send
from .ledger import Entry, Ledger
from .verdict import EXAMPLES_MAX, Check, LostMessage, Verdict, at, judge

SETTLE_NS = 5_000_000_000  # a consumer may hold a message while a later message is recorded


def lost(ledger: Ledger, settle_ns: int) -> Iterator[LostMessage]:
    settled_ns = ledger.now_ns - settle_ns
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


def acknowledged_and_lost(ledger: Ledger, name: str, *, settle_ns: int = SETTLE_NS) -> Check:
    acknowledged = ledger.acknowledged
    result = tuple(lost(ledger, settle_ns))
    detail = f"{acknowledged} acknowledged, {len(result)} of them lost"
    if result:
        examples = tuple(
            f"{message.id} at {at(message.position)}, acknowledged"
            for message in result[:EXAMPLES_MAX]
        )
        return Check(name, Verdict.FAIL, len(result), detail, examples, result)
    waiting = sum(len(queue.outstanding) for queue in ledger.queues.values())
    if acknowledged == 0 or waiting:
        detail += f"; {waiting} not consumed yet and no complete drain to say why"
        return Check(name, Verdict.UNKNOWN, waiting, detail)
    return Check(name, Verdict.PASS, 0, detail)


def phantoms(ledger: Ledger, name: str) -> Check:
    """Find consumed messages that were never sent, or with a certainly failed send."""
    text = (f"{name} {reason}" for name, reason in ledger.phantoms.items())
    seen = ledger.named_deliveries
    return judge(name, text, f"{seen} deliveries with their ids", seen)


def twice_acknowledged(ledger: Ledger, name: str) -> Check:
    """Find two messages acknowledged at the same position, where the second overwrote the first."""
    clashes = ledger.twice_acked
    text = (f"{at(position)} was given to {one} and to {other}" for position, one, other in clashes)
    count = ledger.acknowledged
    return judge(name, text, f"{count} acknowledged positions", count)


def positions(ledger: Ledger, name: str) -> Check:
    """Find offsets with two messages, and acknowledged messages at wrong positions."""
    count = sum(len(queue.holder) for queue in ledger.queues.values())
    return judge(name, _positions_wrong(ledger), f"{count} positions", count)


def _positions_wrong(ledger: Ledger) -> Iterator[str]:
    for position, one, other in ledger.clashes:
        yield f"{at(position)} holds both {one} and {other}"
    for name, entry in ledger.misplaced.items():
        if not entry.promised or entry.at_ack or not entry.deliveries:
            continue
        assert entry.queue is not None
        # A retried message may be at both positions, and its second copy consumed already.
        drained = entry.queue.topic in ledger.drains
        if entry.attempts < 2 or drained or entry.queue.highest >= entry.offset:
            position = entry.queue.position(entry.offset)
            where = ", ".join(at(other) for other in entry.copies() if other != position)
            yield f"{name} was acknowledged at {at(position)} but lies at {where}"


def broker_duplicates(ledger: Ledger, name: str) -> Check:
    """Find messages that brokers stored more often than the client's attempts."""
    text = (
        f"{name} stored at {', '.join(map(at, entry.seen()))} after {entry.attempts} attempt(s)"
        for name, entry in ledger.multiple.items()
        if decided(entry) and not entry.once and len(entry.seen()) > max(1, entry.attempts)
    )
    count = len(ledger.entries) - ledger.once
    return judge(name, text, f"{count} messages", len(ledger.entries))


def once_again(ledger: Ledger, name: str) -> Check:
    """Find idempotent sends that are stored in several places, whatever their outcome."""
    text = (
        f"{name} was sent idempotently and lies at {', '.join(map(at, entry.seen()))}"
        for name, entry in ledger.multiple.items()
        if entry.once and len(entry.seen()) > 1
    )
    detail = f"{ledger.once} idempotent sends, {ledger.once_again} of them sent several times"
    return judge(name, text, detail, ledger.once)


def retry_duplicates(ledger: Ledger, name: str) -> Check:
    """Counts messages stored again by the client's own retry. Allowed."""
    extra = 0
    for entry in ledger.multiple.values():
        copies = len(entry.seen())
        if decided(entry) and 1 < copies <= entry.attempts:
            extra += copies - 1
    detail = "extra copies that a client's own retry stored (allowed)"
    return Check(name, Verdict.PASS, extra, detail)


def unknown_delivered(ledger: Ledger, name: str) -> Check:
    """Counts sends of unknown outcome that turned out to be stored. Allowed."""
    detail = f"of {ledger.vague + ledger.open} sends without a known outcome (allowed)"
    count = ledger.vague_delivered + ledger.open_delivered
    return Check(name, Verdict.PASS, count, detail)


def stored_with_less(ledger: Ledger, name: str) -> Check:
    """Counts messages not flushed or on no slave, and their losses. Nothing was promised."""
    gone = sum(1 for send in ledger.weak.values() if _is_lost(ledger, send))
    detail = f"not answered SEND_OK; {gone} of them lost (allowed)"
    return Check(name, Verdict.PASS, ledger.weakly_acknowledged, detail)


def _is_lost(ledger: Ledger, send: Send) -> bool:
    queue = ledger.queue(send.broker, send.topic, send.queue)
    drained_ns = ledger.drains.get(send.topic, -1)
    return send.done_ns <= drained_ns or send.offset <= queue.highest


def redeliveries(ledger: Ledger, name: str) -> Check:
    """Counts positions handed out more than once. Allowed (at least once)."""
    detail = "deliveries of a position that had been consumed before (allowed)"
    return Check(name, Verdict.PASS, ledger.redeliveries, detail)


def decided(entry: Entry) -> bool:
    """Return whether the number of attempts is known."""
    return entry.outcome is not Outcome.OPEN
