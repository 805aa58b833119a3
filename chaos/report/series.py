"""Chart series out of a history: rates and latencies per interval, downtimes. Pure.

Seconds are relative to the meta line's clock; latencies are milliseconds. Bounded whatever the size
of the history: at most `BUCKETS_MAX` intervals and `DOTS_PER_BUCKET` single sends in each.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from chaos.history.events import History, Outcome, Send
from chaos.report.recovery import percentile

BUCKETS_MAX = 400
BUCKET_SIZES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
DOTS_PER_BUCKET = 3
NS_PER_S = 1_000_000_000


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
    p99_ms: list[float]


@dataclass(frozen=True, slots=True)
class Dots:
    """Single sends of one outcome: when invoked, how long until the outcome."""

    at_s: list[float]
    ms: list[float]


@dataclass(frozen=True, slots=True)
class Downtime:
    """A node that was killed, until it was started again (or the end of the history)."""

    node: str
    role: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """All a page draws."""

    bucket_s: float
    end_s: float
    rates: dict[Outcome, Rate]
    consumed: Rate
    latency: Latency
    dots: dict[Outcome, Dots]
    downtimes: list[Downtime]
    leaders: list[tuple[float, str, int]]  # seconds, node, term


def series_of(history: History) -> Series:
    """Compute every series of a history."""
    zero = history.start_ns
    end_s = (_last_ns(history) - zero) / NS_PER_S
    bucket_s = bucket_size(end_s)
    done = [s for s in history.sends if s.outcome is not Outcome.OPEN]
    by_outcome = {
        outcome: [s for s in done if s.outcome is outcome]
        for outcome in (Outcome.OK, Outcome.UNKNOWN, Outcome.FAIL)
    }
    return Series(
        bucket_s,
        end_s,
        {
            outcome: _rate(((s.done_ns - zero, 1) for s in sends), bucket_s, end_s)
            for outcome, sends in by_outcome.items()
        },
        _rate(((c.t_ns - zero, len(c.offsets)) for c in history.consumes), bucket_s, end_s),
        _latency(by_outcome[Outcome.OK], zero, bucket_s),
        {outcome: _dots(sends, zero, bucket_s) for outcome, sends in by_outcome.items()},
        _downtimes(history, end_s),
        [((x.t_ns - zero) / NS_PER_S, x.node, x.term) for x in history.leaders],
    )


def bucket_size(end_s: float) -> float:
    """The smallest interval that needs at most BUCKETS_MAX of them."""
    for size in BUCKET_SIZES_S:
        if end_s / size <= BUCKETS_MAX:
            return size
    return end_s / BUCKETS_MAX


def _last_ns(history: History) -> int:
    times = [history.start_ns]
    times += [max(send.done_ns, send.invoked_ns) for send in history.sends]
    times += [consume.t_ns for consume in history.consumes]
    times += [fault.done_ns for fault in history.faults]
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
        buckets[int((send.invoked_ns - zero) / NS_PER_S / bucket_s)].append(send)
    return buckets


def _ms(send: Send) -> float:
    return (send.done_ns - send.invoked_ns) / 1_000_000


def _latency(sends: Iterable[Send], zero: int, bucket_s: float) -> Latency:
    latency = Latency([], [], [])
    for number, members in sorted(_by_bucket(sends, zero, bucket_s).items()):
        ordered = sorted(_ms(send) for send in members)
        latency.at_s.append((number + 0.5) * bucket_s)
        latency.p50_ms.append(percentile(ordered, 0.50))
        latency.p99_ms.append(percentile(ordered, 0.99))
    return latency


def _dots(sends: Iterable[Send], zero: int, bucket_s: float) -> Dots:
    dots = Dots([], [])
    for _, members in sorted(_by_bucket(sends, zero, bucket_s).items()):
        for send in heapq.nlargest(DOTS_PER_BUCKET, members, key=_ms):
            dots.at_s.append((send.invoked_ns - zero) / NS_PER_S)
            dots.ms.append(_ms(send))
    return dots


def _downtimes(history: History, end_s: float) -> list[Downtime]:
    zero = history.start_ns
    found = []
    for kill in history.kills():
        back = (
            fault.done_ns
            for fault in history.faults
            if fault.kind == "start" and fault.node == kill.node and fault.done_ns > kill.done_ns
        )
        back_ns = min(back, default=None)
        to_s = end_s if back_ns is None else (back_ns - zero) / NS_PER_S
        found.append(Downtime(kill.node, kill.role, (kill.invoked_ns - zero) / NS_PER_S, to_s))
    return found
