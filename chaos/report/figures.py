"""The figures of a load, such as operations by outcome, throughput, latency and lateness.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from ..checks.delayed import WORK
from ..history.deferred_events import all_sends
from ..history.events import History, Kind, Outcome
from .recovery import carried, percentile

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of acknowledged sends, in ms from the moment each was due; None where there are
    too few for it (recovery.carried)."""

    p50: float | None
    p99: float | None
    p999: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """Sends by outcome; `shed` counts the failed sends that the load skipped.

    `seconds`: from the first send due to the last outcome.
    """

    sent: int
    ok: int
    fail: int
    unknown: int
    shed: int
    seconds: float
    latency_ms: Latency

    @property
    def ok_per_s(self) -> float:
        """Acknowledged sends per second."""
        return self.ok / self.seconds if self.seconds else 0.0

    def plain(self) -> dict[str, Any]:
        """Return the figures for verdict.json."""
        return asdict(self) | {"ok_per_s": self.ok_per_s}


def load_of(history: History) -> Load:
    sends = all_sends(history)
    counts = {outcome: 0 for outcome in Outcome}
    for send in sends:
        counts[send.outcome] += 1
    start_ns = min((send.due_ns for send in sends), default=0)
    end_ns = max((max(send.done_ns, send.due_ns) for send in sends), default=0)
    acknowledged = sorted(s.done_ns - s.due_ns for s in sends if s.outcome is Outcome.OK)
    in_ms = [took_ns / NS_PER_MS for took_ns in acknowledged]
    figures = [carried(in_ms, quantile) for quantile in (0.5, 0.99, 0.999, 1.0)]
    return Load(
        len(sends),
        counts[Outcome.OK],
        counts[Outcome.FAIL],
        counts[Outcome.UNKNOWN] + counts[Outcome.OPEN],
        sum(send.shed for send in sends),
        (end_ns - start_ns) / NS_PER_S,
        Latency(*figures),
    )


BUCKET_S = 5


def lateness_of(history: History) -> dict[str, Any]:
    """Return percentiles (None if too few), and p50 and max for each five seconds of arrivals; {}
    without delayed messages."""
    delays: dict[str, int] = {}
    waiting: dict[str, int] = {}
    came: dict[str, tuple[int, int]] = {}  # → store time for consumers, when it was consumed
    for kind, event in history.later:
        if kind is Kind.POSTED and event.work == WORK:
            delays[event.id] = event.delay_ms
        elif kind is Kind.STORED and event.work == WORK:
            waiting[event.id] = min(waiting.get(event.id, event.store_ms), event.store_ms)
        elif kind is Kind.DELIVERED and event.work == WORK:
            came.setdefault(event.id, (event.store_ms, event.t_ns))
    buckets: dict[int, list[int]] = defaultdict(list)
    for name, (store_ms, t_ns) in came.items():
        if name in waiting and name in delays:
            bucket = (t_ns - history.start_ns) // NS_PER_S // BUCKET_S * BUCKET_S
            buckets[bucket].append(store_ms - waiting[name] - delays[name])
    late = sorted(ms for values in buckets.values() for ms in values)
    if not late:
        return {}
    figures = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    series = [(at_s, sorted(values)) for at_s, values in sorted(buckets.items())]
    return {
        "count": len(late),
        "ms": {name: carried(late, quantile) for name, quantile in figures.items()},
        "series": {
            "at_s": [at_s for at_s, _ in series],
            "p50_ms": [percentile(values, 0.5) for _, values in series],
            "max_ms": [values[-1] for _, values in series],
        },
    }
