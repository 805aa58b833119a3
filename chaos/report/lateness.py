"""The lateness of delayed messages over a run, for verdict.json. Pure.

Lateness of a message: the time at which it was stored for consumers, minus the time at which it was
stored to wait, minus its delay; all by the brokers' clocks. Milliseconds; negative is early.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ..checks.delayed import WORK
from ..history.events import History, Kind
from .recovery import carried, percentile

NS_PER_S = 1_000_000_000
BUCKET_S = 5


def lateness_of(history: History) -> dict[str, Any]:
    """Return percentiles (None: too few), and p50 and max for each five seconds of arrivals; {} for
    none."""
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
        "ms": {name: carried(late, part) for name, part in figures.items()},
        "series": {
            "at_s": [at_s for at_s, _ in series],
            "p50_ms": [percentile(values, 0.5) for _, values in series],
            "max_ms": [values[-1] for _, values in series],
        },
    }
