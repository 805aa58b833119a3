"""How long writes stood still after each kill, from the history alone. Pure.

Recovery of a kill, for a set of clients: from the moment the nemesis began to kill (before the
signal, so nothing is flattered) to the first acknowledgement that the dead leader cannot have
given: of a send invoked after the kill, or of one that needed another attempt. An answer that was
already on its way when the leader died therefore does not count. The client's own retries are
inside. `everybody` takes all clients as one (a lucky client ends it); `per_client` does not, and
its worst is the honest figure for a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.history.events import Fault, History, Outcome, Send

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill and what followed. Milliseconds; None: no such acknowledgement in this history."""

    node: str
    role: str
    killed_ns: int
    everybody_ms: float | None
    per_client_ms: dict[str, float | None]
    longest_gap_ms: float  # longest time between two acknowledgements until the next kill

    @property
    def worst_client_ms(self) -> float | None:
        """The slowest client's recovery; None if one never recovered or there was none."""
        values = list(self.per_client_ms.values())
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles (nearest rank) over many values, in ms."""

    count: int
    p50: float
    p99: float
    max: float


def recoveries(history: History) -> list[Recovery]:
    """One Recovery for each kill, in the order of the kills."""
    acknowledged = sorted(
        (send for send in history.sends if send.outcome is Outcome.OK),
        key=lambda send: send.done_ns,
    )
    clients = sorted({send.process for send in history.sends})
    kills = history.kills()
    found = []
    for number, kill in enumerate(kills):
        until = kills[number + 1].invoked_ns if number + 1 < len(kills) else None
        found.append(_recovery(kill, until, acknowledged, clients))
    return found


def spread(values: Iterable[float]) -> Spread | None:
    """p50, p99 and max of `values`; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(len(ordered), percentile(ordered, 0.50), percentile(ordered, 0.99), ordered[-1])


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest rank in an ascending, non-empty sequence."""
    rank = -(-len(ordered) * fraction // 1)  # ceiling
    return ordered[max(0, int(rank) - 1)]


def summary(found: Sequence[Recovery]) -> dict[str, Any]:
    """The figures as plain data for verdict.json: all raw values kept."""
    everybody = [r.everybody_ms for r in found if r.everybody_ms is not None]
    worst = [r.worst_client_ms for r in found if r.worst_client_ms is not None]
    return {
        "kills": len(found),
        "recovered": len(everybody),
        "everybody_ms": [r.everybody_ms for r in found],
        "worst_client_ms": [r.worst_client_ms for r in found],
        "longest_gap_ms": [r.longest_gap_ms for r in found],
        "everybody": _plain(spread(everybody)),
        "worst_client": _plain(spread(worst)),
    }


def _plain(found: Spread | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"count": found.count, "p50_ms": found.p50, "p99_ms": found.p99, "max_ms": found.max}


def _recovery(
    kill: Fault, until_ns: int | None, acknowledged: Sequence[Send], clients: Sequence[str]
) -> Recovery:
    first: dict[str, float] = {}
    gap_ns = 0
    last_ns = kill.invoked_ns
    for send in acknowledged:
        if send.done_ns < kill.invoked_ns:
            continue
        if until_ns is not None and send.done_ns >= until_ns:
            break
        gap_ns = max(gap_ns, send.done_ns - last_ns)
        last_ns = send.done_ns
        if send.process in first:
            continue
        if send.invoked_ns >= kill.invoked_ns or send.attempts > 1:
            first[send.process] = (send.done_ns - kill.invoked_ns) / NS_PER_MS
    return Recovery(
        kill.node,
        kill.role,
        kill.invoked_ns,
        min(first.values()) if first else None,
        {client: first.get(client) for client in clients},
        gap_ns / NS_PER_MS,
    )
