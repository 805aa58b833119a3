"""Chart series of a history with rates, latencies and availability per interval, and faults.

Seconds are relative to the meta line's clock. Latencies are milliseconds from a send's due time (so
an open loop's latency includes its wait). A history of any size has at most `BUCKETS_MAX` intervals
with `DOTS_PER_BUCKET` single sends each. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..history.deferred_events import all_sends
from ..history.events import History, Kind, Outcome, Send
from .recovery import carried, percentile

BUCKETS_MAX = 400
BUCKET_SIZES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
DOTS_PER_BUCKET = 3
NS_PER_S = 1_000_000_000
AVAILABLE_WITHIN_NS = 1_000_000_000  # a send acknowledged later counts as not served


@dataclass(frozen=True, slots=True)
class Rate:
    """Events a second, by interval."""

    at_s: list[float]
    per_s: list[float]


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of acknowledged sends by the interval in which they were invoked."""

    at_s: list[float]
    p50_ms: list[float]
    p99_ms: list[float | None]  # None with too few sends for a p99


@dataclass(frozen=True, slots=True)
class Dots:
    """Single sends of an outcome, by time of the invocation and latency."""

    at_s: list[float]
    ms: list[float]


@dataclass(frozen=True, slots=True)
class Band:
    """A fault, until it was healed (or the end of the history)."""

    kind: str
    nodes: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Strip:
    """A client's availability, the share of the sends due in each interval that was acknowledged
    within a second; None without due sends."""

    client: str
    at_s: list[float]
    share: list[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Everything that a page draws."""

    bucket_s: float
    end_s: float
    rates: dict[Outcome, Rate]
    consumed: Rate
    latency: Latency
    dots: dict[Outcome, Dots]
    strips: list[Strip]
    bands: list[Band]
    leaders: list[tuple[float, str, int]]  # seconds, node, term


def series_of(history: History) -> Series:
    zero = history.start_ns
    end_s = (_last_ns(history) - zero) / NS_PER_S
    bucket_s = bucket_size(end_s)
    sends = all_sends(history)
    done = [s for s in sends if s.outcome is not Outcome.OPEN]
    by_outcome = {
        outcome: [s for s in done if s.outcome is outcome]
        for outcome in (Outcome.OK, Outcome.UNKNOWN, Outcome.FAIL)
    }
    return Series(
        bucket_s,
        end_s,
        {
            outcome: _rate(((s.done_ns - zero, 1) for s in of_one), bucket_s, end_s)
            for outcome, of_one in by_outcome.items()
        },
        _rate(_consumed(history, zero), bucket_s, end_s),
        _latency(by_outcome[Outcome.OK], zero, bucket_s),
        {outcome: _dots(of_one, zero, bucket_s) for outcome, of_one in by_outcome.items()},
        _strips(sends, zero, bucket_s, end_s),
        _bands(history, end_s),
        [((x.t_ns - zero) / NS_PER_S, x.node, x.term) for x in history.leaders],
    )


def _consumed(history: History, zero: int) -> Iterator[tuple[int, int]]:
    """Yield when messages were consumed, and how many at once."""
    for batch in history.consumes:
        yield batch.t_ns - zero, len(batch.offsets)
    for kind, event in history.later:
        if kind is Kind.DELIVERED:
            yield event.t_ns - zero, 1


def bucket_size(end_s: float) -> float:
    """Return the smallest interval size of which at most BUCKETS_MAX are needed."""
    for size in BUCKET_SIZES_S:
        if end_s / size <= BUCKETS_MAX:
            return size
    return end_s / BUCKETS_MAX


def _last_ns(history: History) -> int:
    times = [history.start_ns]
    times += [max(send.done_ns, send.invoked_ns) for send in history.sends]
    times += [consume.t_ns for consume in history.consumes]
    times += [event.t_ns for _, event in history.later]
    times += [max(fault.done_ns, fault.healed_ns) for fault in history.faults]
    times += [drain.t_ns for drain in history.drains]
    return max(times)


def _rate(events: Iterable[tuple[int, int]], bucket_s: float, end_s: float) -> Rate:
    counts: dict[int, int] = defaultdict(int)
    for t_ns, count in events:
        counts[int(t_ns / NS_PER_S / bucket_s)] += count
    if not counts:
        return Rate([], [])
    span = range(int(end_s / bucket_s) + 1)  # silent intervals are drawn as zero
    return Rate(
        [(number + 0.5) * bucket_s for number in span],
        [counts.get(number, 0) / bucket_s for number in span],
    )


def _by_bucket(sends: Iterable[Send], zero: int, bucket_s: float) -> dict[int, list[Send]]:
    buckets: dict[int, list[Send]] = defaultdict(list)
    for send in sends:
        buckets[int((send.due_ns - zero) / NS_PER_S / bucket_s)].append(send)
    return buckets


def _ms(send: Send) -> float:
    return (send.done_ns - send.due_ns) / 1_000_000


def _latency(sends: Iterable[Send], zero: int, bucket_s: float) -> Latency:
    latency = Latency([], [], [])
    for number, members in sorted(_by_bucket(sends, zero, bucket_s).items()):
        ordered = sorted(_ms(send) for send in members)
        latency.at_s.append((number + 0.5) * bucket_s)
        latency.p50_ms.append(percentile(ordered, 0.50))
        latency.p99_ms.append(carried(ordered, 0.99))
    return latency


def _dots(sends: Iterable[Send], zero: int, bucket_s: float) -> Dots:
    dots = Dots([], [])
    for _, members in sorted(_by_bucket(sends, zero, bucket_s).items()):
        for send in heapq.nlargest(DOTS_PER_BUCKET, members, key=_ms):
            dots.at_s.append((send.due_ns - zero) / NS_PER_S)
            dots.ms.append(_ms(send))
    return dots


def _strips(sends: Iterable[Send], zero: int, bucket_s: float, end_s: float) -> list[Strip]:
    served: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for send in sends:
        counts = served[send.process][int((send.due_ns - zero) / NS_PER_S / bucket_s)]
        counts[0] += 1
        if send.outcome is Outcome.OK and send.done_ns - send.due_ns <= AVAILABLE_WITHIN_NS:
            counts[1] += 1
    strips = []
    span = range(int(end_s / bucket_s) + 1)
    for client, buckets in sorted(served.items()):
        counts_of = [buckets.get(number) for number in span]
        share = [None if counts is None else counts[1] / counts[0] for counts in counts_of]
        strips.append(Strip(client, [(number + 0.5) * bucket_s for number in span], share))
    return strips


def _bands(history: History, end_s: float) -> list[Band]:
    zero = history.start_ns
    result = []
    for fault in history.faults:
        to_s = (fault.healed_ns - zero) / NS_PER_S if fault.healed_ns else end_s
        nodes = ", ".join(fault.nodes)
        result.append(Band(fault.kind, nodes, (fault.invoked_ns - zero) / NS_PER_S, to_s))
    return result
