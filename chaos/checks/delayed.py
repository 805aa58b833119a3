"""Checks of delayed messages for early delivery, loss and duplicates, and their lateness.

Violations:
- The store time in the real topic is before the store time in the broker's own topic plus the delay
  (early by the brokers' clocks), in the same broker group. The delay starts when the request
  arrives, and a busy broker stores it later, so the duration of the send is allowed for. A group
  may also move waiting messages to another group, which stores them later. Their delay starts at
  the latest when the send ends, by the born time. The harness reads the broker's own topic at the
  end of a run.
- A message is consumed before the send's start plus the delay (early by the harness's clock). This
  holds whatever time the brokers' clocks show.
- A message is acknowledged, and not delivered although the topic was drained completely (lost).
- A message is delivered at more positions than the client's attempts (stored more than once).

Both early checks allow TOLERANCE_MS, the difference between two leaders' clocks. Early messages are
UNKNOWN if faults moved clocks (clock-…). Lateness is measured and is no violation. A message takes
about 0.4 KB of memory. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..history.deferred_events import Delivery, Post, Stored
from ..history.events import Fault, Kind, Outcome, Position
from .postings import Postings, Sent, extra_copies, never_sent
from .verdict import Check, Handlers, Offenders, Verdict, at, judge_lost

WORK = "delayed"
TOLERANCE_MS = 10  # two readings of one machine's clock, while NTP slews it
NS_PER_MS = 1_000_000


class Delayed:
    """A delayed message. Milliseconds are of the brokers' clocks, nanoseconds of the harness's."""

    __slots__ = ("delay_ms", "positions", "sent", "waits_ms")

    def __init__(self, post: Post) -> None:
        self.sent = Sent(post)
        self.delay_ms = post.delay_ms
        # broker group → first store time in the broker's own topic, if known
        self.waits_ms: dict[str, int] = {}
        self.positions: dict[Position, int] = {}  # → store time for consumers

    @property
    def sending_ms(self) -> int:
        """Return the duration of the send, rounded up; 0 if it was not acknowledged."""
        return max(0, -(-(self.sent.acked_ns - self.sent.invoked_ns) // NS_PER_MS))

    @property
    def waited_ms(self) -> int | None:
        """Return the shortest time between the store times in a broker group; None if unknown. A
        client's retry may have stored the message in a second group."""
        times = [
            stored_ms - self.waits_ms[position[0]]
            for position, stored_ms in self.positions.items()
            if position[0] in self.waits_ms
        ]
        return min(times, default=None)


class DelayBook:
    """The state that all checks of delayed messages share."""

    def __init__(self) -> None:
        self.sends = Postings(WORK, Delayed, self._delivered)
        self.entries = self.sends.entries
        self.early = Offenders()  # by the harness's clock
        self.strangers = Offenders()  # delivered, but nobody sent it
        self.clocks_moved = False

    @property
    def applies(self) -> bool:
        return self.sends.applies

    def handlers(self) -> Handlers:
        return {**self.sends.handlers(), Kind.STORED: self.stored, Kind.FAULT: self.fault}

    def _delivered(self, delivery: Delivery, entry: Delayed | None) -> None:
        reason = never_sent(entry)
        if entry is None or reason:
            self.strangers.add(f"{delivery.id} at {at(delivery.position)}: {reason}")
            return
        passed_ms = (delivery.t_ns - entry.sent.invoked_ns) / NS_PER_MS
        if not entry.positions and passed_ms < entry.delay_ms - TOLERANCE_MS:
            self.early.add(f"{delivery.id} came {passed_ms:.0f} ms after its send began, "
                           f"not {entry.delay_ms}")  # fmt: skip
        entry.positions.setdefault(delivery.position, delivery.store_ms)

    def stored(self, copy: Stored) -> None:
        entry = self.entries.get(copy.id) if copy.work == WORK else None
        if entry is not None:
            began_ms = entry.waits_ms.get(copy.broker, copy.store_ms)
            if copy.born_ms:
                began_ms = min(began_ms, copy.born_ms + entry.sending_ms)
            entry.waits_ms[copy.broker] = min(began_ms, copy.store_ms)

    def fault(self, fault: Fault) -> None:
        self.clocks_moved = self.clocks_moved or fault.kind.startswith("clock")

    def lateness_ms(self) -> list[int]:
        """Return store times minus due times, ascending. Negative means early."""
        return sorted(
            waited_ms - entry.delay_ms
            for entry in self.entries.values()
            if (waited_ms := entry.waited_ms) is not None
        )


def delayed_early(book: DelayBook, name: str) -> Check:
    known = sum(1 for entry in book.entries.values() if entry.waits_ms)
    detail = f"{book.sends.deliveries} deliveries, {known} waiting times, {TOLERANCE_MS} ms off"
    check = book.early.and_more(_by_brokers(book)).check(name, detail, book.sends.deliveries)
    if check.verdict is Verdict.FAIL and book.clocks_moved:
        text = f"{detail}; clocks were moved, so this is not decided"
        return Check(name, Verdict.UNKNOWN, check.count, text, check.examples)
    return check


def _by_brokers(book: DelayBook) -> Iterator[str]:
    for name, entry in book.entries.items():
        waited_ms = entry.waited_ms
        if waited_ms is None or entry.sent.outcome is not Outcome.OK:
            continue
        if waited_ms < entry.delay_ms - entry.sending_ms - TOLERANCE_MS:
            yield f"{name} waited {waited_ms} ms by the brokers' clocks, not {entry.delay_ms}"


def delayed_lost(book: DelayBook, name: str) -> Check:
    """Find delayed messages that were lost."""
    acked = [(name, e) for name, e in book.entries.items() if e.sent.outcome is Outcome.OK]
    missing = (
        (
            f"{name} was acknowledged, and due {entry.delay_ms} ms later",
            entry.sent.acked_ns,
            book.sends.drained_ns(entry),
        )
        for name, entry in acked
        if not entry.positions
    )
    return judge_lost(name, missing, len(acked), f"{len(acked)} acknowledged")


def delayed_copies(book: DelayBook, name: str) -> Check:
    """Find delayed messages stored more than once, or delivered but not sent."""
    result = book.strangers.and_more(extra_copies(book.sends))
    retried = sum(1 for e in book.entries.values() if 1 < len(e.positions) <= e.sent.attempts)
    detail = f"{book.sends.deliveries} deliveries; {retried} twice by a client's own retry"
    return result.check(name, detail, book.sends.deliveries)


def delayed_late(book: DelayBook, name: str) -> Check:
    """Measures how late delayed messages were. Allowed."""
    late = book.lateness_ms()
    if not late:
        return Check(name, Verdict.PASS, 0, "no waiting time is known")
    shares = " ".join(
        f"p{share:g} {late[min(len(late) - 1, int(len(late) * share / 100))]}"
        for share in (50, 90, 99, 99.9)
    )
    detail = f"ms, by the brokers' clocks: {shares} max {late[-1]} (allowed)"
    return Check(name, Verdict.PASS, sum(1 for ms in late if ms > 1000), detail)
