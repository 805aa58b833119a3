"""The figures of a load: operations by outcome, throughput, latency. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..history.deferred_events import all_sends
from ..history.events import History, Outcome
from .recovery import carried

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
    """Sends by outcome; `shed`: those of the failed ones that the load itself never sent.

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
        """Acknowledged sends a second."""
        return self.ok / self.seconds if self.seconds else 0.0

    def plain(self) -> dict[str, Any]:
        """Return the figures for verdict.json."""
        return asdict(self) | {"ok_per_s": self.ok_per_s}


def load_of(history: History) -> Load:
    """Compute the load of a history."""
    sends = all_sends(history)
    counts = {outcome: 0 for outcome in Outcome}
    for send in sends:
        counts[send.outcome] += 1
    begin_ns = min((send.due_ns for send in sends), default=0)
    end_ns = max((max(send.done_ns, send.due_ns) for send in sends), default=0)
    acknowledged = sorted(s.done_ns - s.due_ns for s in sends if s.outcome is Outcome.OK)
    in_ms = [took_ns / NS_PER_MS for took_ns in acknowledged]
    figures = [carried(in_ms, part) for part in (0.5, 0.99, 0.999, 1.0)]
    return Load(
        len(sends),
        counts[Outcome.OK],
        counts[Outcome.FAIL],
        counts[Outcome.UNKNOWN] + counts[Outcome.OPEN],
        sum(send.shed for send in sends),
        (end_ns - begin_ns) / NS_PER_S,
        Latency(*figures),
    )
