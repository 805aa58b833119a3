"""Checks of retries. A message sent back is redelivered once, and ends as a dead letter.

Violations:
- An acknowledged message is neither consumed nor a dead letter; or a message sent back, which the
  broker acknowledged, was not redelivered with an incremented reconsumption count (or as a dead
  letter after the last), although the topic was drained completely (lost).
- A retry or dead letter has fewer send-backs than its count (out of turn).
- A message is at more positions than requests that can have stored it (stored more than once). A
  dead letter may be in several broker groups, because it moves when its group is drained.

A client that redelivers a message itself, because no broker took it back, counts on beyond the
stored record's count. So for its next send-back a range of counts is right. Memory: 0.6 KB a
message. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ..history.deferred_events import Delivery, GivenBack, Post
from ..history.events import HistoryError, Kind, Outcome, Position
from .postings import Postings, Sent, never_sent
from .verdict import Check, Handlers, Missing, Offenders, at, judge, judge_lost

WORK = "retries"
DLQ_PREFIX = "%DLQ%"
RETRY_PREFIX = "%RETRY%"


class Retried:
    """A message; `backs` are its send-backs, each with its outcome."""

    __slots__ = ("accepted", "again", "backs", "began", "dead", "first", "sent")

    def __init__(self, post: Post) -> None:
        self.sent = Sent(post)
        self.accepted = False
        self.backs: list[GivenBack] = []
        self.began: list[tuple[int, int, bool]] = []  # times, seen, dead
        self.first: set[Position] = set()  # where it lies in its own topic
        self.again: dict[int, set[Position]] = defaultdict(set)  # by times
        self.dead: set[Position] = set()


class RetryBook:
    """The state that all checks of retries share."""

    def __init__(self) -> None:
        self.sends = Postings(WORK, Retried, self._delivered)
        self.entries = self.sends.entries
        self.out_of_turn = Offenders()
        self.given_back = 0

    @property
    def applies(self) -> bool:
        return self.sends.applies

    def handlers(self) -> Handlers:
        return {**self.sends.handlers(), Kind.GIVEN_BACK: self.back}

    def back(self, back: GivenBack) -> None:
        if back.work != WORK:
            return
        entry = self.entries.get(back.id)
        if entry is None:
            raise HistoryError(f"{back.id} was given back and never sent")
        if back.outcome is Outcome.OPEN:
            entry.began.append((back.times, back.seen, back.dead))
        else:
            entry.backs.append(back)
            self.given_back += back.outcome is Outcome.OK

    def _delivered(self, delivery: Delivery, entry: Retried | None) -> None:
        where = f"{delivery.id} at {at(delivery.position)}"
        reason = never_sent(entry)
        if entry is None or reason:
            self.out_of_turn.add(f"{where}: {reason}")
        elif delivery.topic.startswith(DLQ_PREFIX):
            if not any(dead for _, _, dead in entry.began):
                self.out_of_turn.add(f"{where}: a dead letter that was not tried often enough")
            entry.dead.add(delivery.position)
        else:
            entry.accepted = entry.accepted or delivery.accepted
            if delivery.topic.startswith(RETRY_PREFIX):
                self._again(entry, delivery, where)
            else:
                entry.first.add(delivery.position)

    def _again(self, entry: Retried, delivery: Delivery, where: str) -> None:
        times = delivery.times
        if not any(low < times <= high + 1 for low, high, _ in entry.began):
            self.out_of_turn.add(f"{where}: time {times}, which nobody had given back")
        entry.again[times].add(delivery.position)


def came_again(entry: Retried, back: GivenBack) -> bool:
    """Return whether a message given back is there again."""
    if back.dead and entry.dead:
        return True
    return any(entry.again.get(times) for times in range(back.times + 1, back.seen + 2))


def retries_lost(book: RetryBook, name: str) -> Check:
    """Find messages lost, at first or after they were given back."""
    acked = sum(1 for entry in book.entries.values() if entry.sent.outcome is Outcome.OK)
    dead = sum(1 for entry in book.entries.values() if entry.dead)
    detail = (
        f"{acked} acknowledged, {book.given_back} times given back, {dead} dead letters in the end"
    )
    return judge_lost(name, _missing(book), acked, detail)


def _missing(book: RetryBook) -> Iterator[Missing]:
    for name, entry in book.entries.items():
        drained_ns = book.sends.drained_ns(entry)
        if entry.sent.outcome is Outcome.OK and not entry.accepted and not entry.dead:
            seen = "given back" if entry.began else "never delivered"
            yield (
                f"{name}: neither consumed nor a dead letter ({seen})",
                entry.sent.acked_ns,
                drained_ns,
            )
        for back in entry.backs:
            if back.outcome is Outcome.OK and not came_again(entry, back):
                what = "it is no dead letter" if back.dead else "it did not come again"
                yield f"{name}: given back at time {back.times}, {what}", back.t_ns, drained_ns


def retries_out_of_turn(book: RetryBook, name: str) -> Check:
    """Find retries that nobody had given back so often."""
    detail = f"{book.sends.deliveries} deliveries"
    return book.out_of_turn.check(name, detail, book.sends.deliveries)


def retry_copies(book: RetryBook, name: str) -> Check:
    """Find retries stored more than once."""
    detail = f"{book.given_back} times given back"
    return judge(name, _retry_copies_wrong(book), detail, book.sends.deliveries)


def _retry_copies_wrong(book: RetryBook) -> Iterator[str]:
    for name, entry in book.entries.items():
        if len(entry.began) > len(entry.backs) or entry.sent.outcome is Outcome.OPEN:
            continue  # the number of attempts is not known
        if len(entry.first) > max(1, entry.sent.attempts):
            yield f"{name} lies at {_listed(entry.first)} after {entry.sent.attempts} attempt(s)"
        for times, positions in entry.again.items():
            tries = sum(b.tries for b in entry.backs if b.times < times <= b.seen + 1)
            if len(positions) > max(1, tries):
                yield f"{name} time {times} lies at {_listed(positions)} after {tries} request(s)"
        tries = sum(back.tries for back in entry.backs if back.dead)
        # A group that is drained moves its dead letters to another group.
        in_a_group = Counter(position[0] for position in entry.dead)
        if max(in_a_group.values(), default=0) > max(1, tries):
            yield f"{name} is a dead letter at {_listed(entry.dead)} after {tries} request(s)"


def _listed(positions: set[Position]) -> str:
    return ", ".join(map(at, sorted(positions)))
