"""Checks of a history: what a run promised against what it saw. Pure; nothing but the history.

Each check answers with a `Check`: a verdict, how many offenders, and a few of them in words.
Verdicts merge as Jepsen's do: a failure beats not knowing, not knowing beats a pass. A check that
had nothing to look at says UNKNOWN rather than pass: a harness that never fails proves nothing.

What counts as wrong:
- lost: an acknowledged position that no consumer got, although one of a later position of the
  same queue was got, or the group was drained completely afterwards (the second needs the drain).
- phantom: a consumed message that nobody sent, or one whose send was answered `fail`.
- position clash: two different messages at one queue offset, or a message consumed elsewhere than
  acknowledged without a second copy to explain it.
- duplicates, by cause: stored again by a client's retry (allowed, counted), stored again although
  it was attempted once (the brokers' doing: wrong), handed out again (allowed, counted).
- offset went back: a consumer offset, committed or answered, below one seen before.
- order: within an order key the first copies lie in one queue, in the order they were sent. A send
  of unknown outcome stays concurrent with later ones, so it cannot be late.
- two leaders: one term claimed by two nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from chaos.history.events import History, Outcome, Position, Send

EXAMPLES_MAX = 10


class Verdict(Enum):
    PASS = "pass"
    UNKNOWN = "unknown"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to a history, answered."""

    name: str
    verdict: Verdict
    count: int  # offenders; for counts that are allowed, how many there were
    detail: str
    examples: tuple[str, ...] = ()


def check_all(history: History) -> tuple[Check, ...]:
    """Every check, in the order a reader wants them."""
    return tuple(check(history) for check in CHECKS)


def merge(checks: Iterable[Check]) -> Verdict:
    """FAIL if any failed, else UNKNOWN if any could not say, else PASS; UNKNOWN for none."""
    found = {check.verdict for check in checks}
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN):
        if verdict in found:
            return verdict
    return Verdict.PASS if found else Verdict.UNKNOWN


def check_lost(history: History) -> Check:
    """Acknowledged, never consumed, although a later offset was or the drain was complete."""
    consumed: set[Position] = set()
    highest: dict[tuple[str, int], int] = {}
    for position in _consumed_positions(history):
        consumed.add(position)
        queue = position[:2]
        highest[queue] = max(position[2], highest.get(queue, -1))
    drained = {drain.topic for drain in history.drains if drain.complete}
    lost: list[Send] = []
    waiting = 0
    acknowledged = 0
    for send in history.sends:
        if send.outcome is not Outcome.OK:
            continue
        acknowledged += 1
        if (send.topic, send.queue, send.offset) in consumed:
            continue
        passed = send.offset <= highest.get((send.topic, send.queue), -1)
        if passed or send.topic in drained:
            lost.append(send)
        else:
            waiting += 1
    detail = f"{acknowledged} acknowledged, {len(lost)} of them lost"
    if lost:
        examples = (f"{send.id} at {_place(send)}, acknowledged" for send in lost)
        return _failed("acknowledged but lost", len(lost), detail, examples)
    if acknowledged == 0 or waiting:
        detail += f"; {waiting} not consumed yet and no complete drain to say why"
        return Check("acknowledged but lost", Verdict.UNKNOWN, waiting, detail)
    return Check("acknowledged but lost", Verdict.PASS, 0, detail)


def check_phantom(history: History) -> Check:
    """Consumed, but never sent, or sent with the answer that it was certainly not stored."""
    sends = {send.id: send for send in history.sends}
    phantoms: list[str] = []
    seen = 0
    for place, message_id in history.consumed_ids():
        seen += 1
        send = sends.get(message_id)
        if send is None:
            phantoms.append(f"{message_id} at {_at(place)}: nobody sent it")
        elif send.outcome is Outcome.FAIL:
            phantoms.append(f"{message_id} at {_at(place)}: its send had failed for certain")
        elif send.topic != place[0]:
            phantoms.append(f"{message_id} at {_at(place)}: it was sent to {send.topic}")
    return _judge("phantoms", phantoms, f"{seen} deliveries with their ids", seen)


def check_positions(history: History) -> Check:
    """One message per queue offset, and an acknowledged message where it was said to be."""
    holder: dict[Position, str] = {}
    clashes: list[str] = []
    places: dict[str, set[Position]] = defaultdict(set)
    for send in history.sends:
        if send.outcome is Outcome.OK:
            _hold(holder, clashes, (send.topic, send.queue, send.offset), send.id)
    for place, message_id in history.consumed_ids():
        places[message_id].add(place)
        _hold(holder, clashes, place, message_id)
    for send in history.sends:
        found = places.get(send.id)
        if send.outcome is not Outcome.OK or not found:
            continue
        if (send.topic, send.queue, send.offset) not in found:
            where = ", ".join(_at(place) for place in sorted(found))
            clashes.append(f"{send.id} was acknowledged at {_place(send)} but lies at {where}")
    return _judge("queue positions", clashes, f"{len(holder)} positions", len(holder))


def check_broker_duplicates(history: History) -> Check:
    """Messages stored more often than their client attempted: only a broker can have done that."""
    sends = {send.id: send for send in history.sends}
    copies = history.stored_copies()
    wrong: list[str] = []
    for message_id, found in copies.items():
        send = sends.get(message_id)
        if send is None or len(found) < 2 or send.outcome is Outcome.OPEN:
            continue  # phantoms are another check's; an open send's attempts were not written
        if len(found) > max(1, send.attempts):
            where = ", ".join(_at(place) for place in sorted(found))
            wrong.append(f"{message_id} stored at {where} after {send.attempts} attempt(s)")
    return _judge("duplicates made by brokers", wrong, f"{len(copies)} messages", len(copies))


def count_retry_duplicates(history: History) -> Check:
    """Messages stored again because the client had to ask again. Allowed; counted."""
    attempts = {send.id: send.attempts for send in history.sends}
    extra = 0
    for message_id, found in history.stored_copies().items():
        if 1 < len(found) <= attempts.get(message_id, 0):
            extra += len(found) - 1
    detail = "extra copies that a client's own retry stored (allowed)"
    return Check("duplicates by client retry", Verdict.PASS, extra, detail)


def count_redeliveries(history: History) -> Check:
    """Positions handed out more than once. Allowed (at least once); counted."""
    times = Counter(_consumed_positions(history))
    again = sum(count - 1 for count in times.values())
    detail = "deliveries of a position that had been consumed before (allowed)"
    return Check("redeliveries", Verdict.PASS, again, detail)


def count_unknown_delivered(history: History) -> Check:
    """Sends of unknown outcome that turned out to be stored. Allowed; counted."""
    copies = history.stored_copies()
    vague = [s for s in history.sends if s.outcome in (Outcome.UNKNOWN, Outcome.OPEN)]
    stored = sum(1 for send in vague if send.id in copies)
    detail = f"of {len(vague)} sends without a known outcome (allowed)"
    return Check("unknown but delivered", Verdict.PASS, stored, detail)


def check_offsets(history: History) -> Check:
    """A consumer offset, once seen, never goes back: not as committed, not as answered."""
    top: dict[tuple[str, str, int], int] = {}
    back: list[str] = []
    for commit in history.commits:
        queue = (commit.topic, commit.group, commit.queue)
        before = top.get(queue, -1)
        if commit.offset < before:
            verb = "read" if commit.fetched else "committed"
            back.append(
                f"{commit.group} {commit.topic}-{commit.queue}: {commit.process} {verb} "
                f"{commit.offset} after {before}"
            )
        else:
            top[queue] = commit.offset
    return _judge("consumer offsets going back", back, f"{len(top)} queues", len(history.commits))


def check_order(history: History) -> Check:
    """Within an order key: one queue, and first copies in the order in which they were sent."""
    first = _first_copies(history)
    keys: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.order:
            keys[send.topic, send.order].append(send)
    wrong: list[str] = []
    compared = 0
    for (topic, order), sends in keys.items():
        sends.sort(key=lambda send: send.seq)
        previous: tuple[Send, Position] | None = None
        for send in sends:
            place = first.get(send.id)
            if place is None or send.outcome is not Outcome.OK:
                continue
            if previous is not None:
                compared += 1
                wrong += _order_fault(topic, order, previous, (send, place))
            previous = (send, place)
    return _judge("order per key", wrong, f"{len(keys)} keys, {compared} neighbours", compared)


def check_leaders(history: History) -> Check:
    """Election safety as seen from outside: at most one leader per term (Raft 5.2)."""
    terms: dict[int, set[str]] = defaultdict(set)
    for leader in history.leaders:
        terms[leader.term].add(leader.node)
    wrong = [
        f"term {term}: {', '.join(sorted(nodes))}"
        for term, nodes in sorted(terms.items())
        if len(nodes) > 1
    ]
    return _judge("two leaders in one term", wrong, f"{len(terms)} terms seen", len(terms))


CHECKS: tuple[Callable[[History], Check], ...] = (
    check_lost,
    check_phantom,
    check_positions,
    check_broker_duplicates,
    check_order,
    check_offsets,
    check_leaders,
    count_retry_duplicates,
    count_unknown_delivered,
    count_redeliveries,
)


def _order_fault(
    topic: str, order: str, earlier: tuple[Send, Position], later: tuple[Send, Position]
) -> Iterator[str]:
    (sent_first, place_first), (sent_second, place_second) = earlier, later
    if sent_first.done_ns > sent_second.invoked_ns:
        yield (
            f"{topic} {order}: {sent_second.seq} was sent before {sent_first.seq} was answered: "
            "the workload itself did not keep the order"
        )
    elif place_first[1] != place_second[1] or place_first[2] >= place_second[2]:
        yield (
            f"{topic} {order}: {sent_first.seq} lies at {_at(place_first)}, "
            f"{sent_second.seq} at {_at(place_second)}"
        )


def _first_copies(history: History) -> dict[str, Position]:
    return {message_id: min(places) for message_id, places in history.stored_copies().items()}


def _consumed_positions(history: History) -> Iterator[Position]:
    for consume in history.consumes:
        for offset in consume.offsets:
            yield consume.topic, consume.queue, offset


def _hold(
    holder: dict[Position, str], clashes: list[str], place: Position, message_id: str
) -> None:
    other = holder.setdefault(place, message_id)
    if other != message_id:
        clashes.append(f"{_at(place)} holds both {other} and {message_id}")


def _judge(name: str, offenders: list[str], detail: str, evidence: int) -> Check:
    if offenders:
        return _failed(name, len(offenders), detail, iter(offenders))
    verdict = Verdict.PASS if evidence else Verdict.UNKNOWN
    return Check(name, verdict, 0, detail)


def _failed(name: str, count: int, detail: str, examples: Iterator[str]) -> Check:
    chosen = tuple(text for text, _ in zip(examples, range(EXAMPLES_MAX), strict=False))
    return Check(name, Verdict.FAIL, count, detail, chosen)


def _place(send: Send) -> str:
    return _at((send.topic, send.queue, send.offset))


def _at(place: Position) -> str:
    topic, queue, offset = place
    return f"{topic}-{queue}@{offset}"
