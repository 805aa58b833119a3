"""Recovery times of faults that interrupt writes.

The recovery time of a fault, for a set of clients, is the longest time without an acknowledgement,
from the start of the injection (before the signal) to the first acknowledgement that proves the end
of the fault. That is the acknowledgement of a send invoked after the fault was done, or of a send
that needed a second attempt. A response in flight does not count, because it may be the lost
leader's. Sends served during a long injection (a rolling restart) divide the time and do not end
it, so such a fault costs its longest outage. The client's own retries are included. `everybody`
treats all clients as one, so the first served client ends it. `per_client` treats each by itself;
the slowest client's time is the honest figure for a user. `normal` is the time at which the earlier
rate of acknowledgements was reached again. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..history.deferred_events import all_sends
from ..history.events import Fault, History, Outcome, Send

NS_PER_MS = 1_000_000
NORMAL_SHARE = 0.99  # share of the earlier acknowledgements a second
BEFORE_NS = 2_000_000_000  # length of the span before the fault
WINDOW_NS = 500_000_000  # over which the rate is taken


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault and its recovery. Figures are milliseconds, or None without such an acknowledgement.

    `whom` is the planned selector ("leader", "all", …)."""

    kind: str
    whom: str
    node: str
    role: str
    injected_ns: int
    everybody_ms: float | None
    per_client_ms: dict[str, float | None]
    # Longest time between two acknowledgements until the next fault, or until nobody asked any
    # more; the silence at its end counts.
    longest_gap_ms: float
    normal_ms: float | None  # None if the earlier rate was not reached

    @property
    def name(self) -> str:
        """The fault in mqchaos' notation, KIND:WHOM."""
        return f"{self.kind}:{self.whom}" if self.whom else self.kind

    @property
    def worst_client_ms(self) -> float | None:
        """The slowest client's recovery; None without clients, or if a client never recovered."""
        values = list(self.per_client_ms.values())
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Nearest-rank percentiles in ms; p99 is None with too few values (`carried`)."""

    count: int
    p50: float
    p99: float | None
    max: float


def recoveries(history: History) -> list[Recovery]:
    """Return a Recovery for each fault, in the order of injection; starts are no faults."""
    sends = all_sends(history)
    acknowledged = sorted(
        (send for send in sends if send.outcome is Outcome.OK),
        key=lambda send: send.done_ns,
    )
    done = [send.done_ns for send in acknowledged]
    clients = sorted({send.process for send in sends})
    end_ns = max((max(send.invoked_ns, send.done_ns) for send in sends), default=0)
    faults = sorted(history.faults, key=lambda fault: fault.invoked_ns)
    result = []
    for number, fault in enumerate(faults):
        last = number + 1 == len(faults)
        until_ns = end_ns if last else faults[number + 1].invoked_ns
        first = bisect_left(done, fault.invoked_ns)
        end = len(done) if last else bisect_left(done, until_ns)
        normal_ms = _normal_ms(done, fault.invoked_ns, first, end)
        result.append(_recovery(fault, acknowledged[first:end], until_ns, clients, normal_ms))
    return result


def by_kind(recoveries: Iterable[Recovery]) -> dict[str, list[Recovery]]:
    """Group the recoveries by name (`kill:leader`), sorted."""
    groups: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in recoveries:
        groups[recovery.name].append(recovery)
    return dict(sorted(groups.items()))


def spread(values: Iterable[float]) -> Spread | None:
    """Return p50, p99 and max of `values`; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(len(ordered), percentile(ordered, 0.50), carried(ordered, 0.99), ordered[-1])


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Return the nearest rank in an ascending, non-empty sequence."""
    rank = -(-len(ordered) * fraction // 1)  # ceiling
    return ordered[max(0, int(rank) - 1)]


def carried(ordered: Sequence[float], fraction: float) -> float | None:
    """Return the percentile if at least one value is beyond it, from 100 values for p99, from 1,000
    for p99.9, or None. A median needs one value."""
    needed = 1 if fraction <= 0.5 or fraction == 1.0 else round(1 / (1 - fraction))
    return percentile(ordered, fraction) if len(ordered) >= needed else None


def ms_text(value: float | None, digits: int = 0) -> str:
    """Format a time for a person; `-` where there are too few values for it."""
    return "-" if value is None else f"{value:,.{digits}f} ms"


def summary(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    """Return the figures for verdict.json, of all and of each kind, with raw values."""
    kinds = {name: _summary(of_kind) for name, of_kind in by_kind(recoveries).items()}
    return _summary(recoveries) | {"kinds": kinds}


def _summary(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    everybody = [r.everybody_ms for r in recoveries if r.everybody_ms is not None]
    worst = [r.worst_client_ms for r in recoveries if r.worst_client_ms is not None]
    return {
        "faults": len(recoveries),
        "recovered": len(everybody),
        "everybody_ms": [r.everybody_ms for r in recoveries],
        "worst_client_ms": [r.worst_client_ms for r in recoveries],
        "longest_gap_ms": [r.longest_gap_ms for r in recoveries],
        "normal_ms": [r.normal_ms for r in recoveries],
        "everybody": _plain(spread(everybody)),
        "worst_client": _plain(spread(worst)),
    }


def _plain(spread_: Spread | None) -> dict[str, float | None] | None:
    if spread_ is None:
        return None
    return {
        "count": spread_.count,
        "p50_ms": spread_.p50,
        "p99_ms": spread_.p99,
        "max_ms": spread_.max,
    }


def _recovery(
    fault: Fault,
    until_next: Sequence[Send],
    until_ns: int,
    clients: Sequence[str],
    normal_ms: float | None,
) -> Recovery:
    of_client: dict[str, list[Send]] = {client: [] for client in clients}
    for send in until_next:
        of_client[send.process].append(send)
    moments = (fault.invoked_ns, *(send.done_ns for send in until_next), until_ns)
    gap_ns = max(0, *(later - earlier for earlier, later in pairwise(moments)))
    return Recovery(
        fault.kind,
        fault.whom,
        fault.node,
        fault.role,
        fault.invoked_ns,
        _outage_ms(fault, until_next),
        {client: _outage_ms(fault, sends) for client, sends in of_client.items()},
        gap_ns / NS_PER_MS,
        normal_ms,
    )


def _outage_ms(fault: Fault, acknowledged: Iterable[Send]) -> float | None:
    """Return the longest time without an acknowledgement until the fault's end; None if no
    acknowledgement proves its end."""
    longest_ns, last_ns = 0, fault.invoked_ns
    for send in acknowledged:
        again = send.attempts > 1
        if send.invoked_ns < fault.invoked_ns and not again:
            continue  # its answer was in flight
        longest_ns = max(longest_ns, send.done_ns - last_ns)
        last_ns = send.done_ns
        if (send.done_ns if again else send.invoked_ns) >= fault.done_ns:
            return longest_ns / NS_PER_MS
    return None


def _normal_ms(done: Sequence[int], injected_ns: int, start: int, end: int) -> float | None:
    """Return the time from the injection until the acknowledgement rate is back.

    The rate is normal at the first acknowledgement from which on the window has at least the
    earlier average (times NORMAL_SHARE).
    """
    before = start - bisect_left(done, injected_ns - BEFORE_NS)
    desired = NORMAL_SHARE * before * WINDOW_NS / BEFORE_NS
    if before == 0:
        return None
    for at in range(start, end):
        if bisect_left(done, done[at] + WINDOW_NS, at, end) - at >= desired:
            return (done[at] - injected_ns) / NS_PER_MS
    return None
