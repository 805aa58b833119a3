"""Check that a chaos run counts, because load was sent, faults struck and healed, and it ended.

A run is INVALID if it sent too little, injected no fault, could not heal a fault, or was
interrupted. Such a run shows nothing about the cluster. Sends that the load skipped because its
backlog was full are normal during a fault; without faults they show that the machine could not
carry the load. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ..history.deferred_events import all_sends
from ..history.events import Fault, History, Outcome, Send
from .verdict import Check, Verdict

WAS_RUN = "the experiment took place"
PLANNED = "planned"  # key of a history's meta line for the number of planned faults
ENDS = "ends"  # key of a history's meta line, true if the run writes `end` when it is over
UNMADE_SHARE_MAX = 0.5  # of all sends
UNMADE_CALM_SHARE_MAX = 0.1  # of those that were due while no fault was in effect
CALM_SENDS_MIN = 100  # too few sends for a share
GRACE_NS = 5_000_000_000  # after a healed fault, for elections and the backlog


def was_run(history: History) -> Check:
    """Judge a history. Those from before `planned` was written are not asked about faults, those
    from before `ends` not whether they were interrupted."""
    sends = all_sends(history)
    faults = [fault for fault in history.faults if fault.kind != "start"]
    planned = history.meta.get(PLANNED)
    made = [send for send in sends if not send.shed]
    detail = f"{len(made):,} of {len(sends):,} sends made, {len(faults):,} faults"
    if isinstance(planned, int):
        detail += f" of {planned:,} planned"
    wrong = [
        *_unmade(sends, faults),
        *(["no send was acknowledged"] if made and not _acknowledged(made) else []),
        *(["no fault struck"] if planned and not faults else []),
        *(_unhealed(faults) if planned else []),
        *(["the run was interrupted"] if history.meta.get(ENDS) and not history.ended else []),
    ]
    if wrong:
        return Check(WAS_RUN, Verdict.INVALID, len(wrong), detail, tuple(wrong))
    return Check(WAS_RUN, Verdict.PASS, 0, detail)


def _acknowledged(sends: Sequence[Send]) -> bool:
    return any(send.outcome is Outcome.OK for send in sends)


def _unhealed(faults: Sequence[Fault]) -> list[str]:
    """Return a description of each fault that was never healed. A change of members may not even
    have happened, because its healing waits for the change."""
    return [
        f"{fault.kind} of {', '.join(fault.nodes) or fault.whom} was not healed"
        for fault in faults
        if not fault.healed_ns
    ]


def _unmade(sends: Sequence[Send], faults: Sequence[Fault]) -> list[str]:
    """Return a description of each missing part of the run."""
    result = []
    unmade = sum(send.shed for send in sends)
    if unmade > UNMADE_SHARE_MAX * len(sends):
        result.append(
            f"{unmade / len(sends):.0%} of the sends were never made: the backlog was full"
        )
    calm = _due_in_calm(sends, faults)
    unmade = sum(send.shed for send in calm)
    if len(calm) >= CALM_SENDS_MIN and unmade > UNMADE_CALM_SHARE_MAX * len(calm):
        result.append(
            f"{unmade / len(calm):.0%} of the sends that were due while no fault was in effect were"
            " never made: this machine cannot carry the load; lower --rate"
        )
    return result


def _due_in_calm(sends: Sequence[Send], faults: Sequence[Fault]) -> list[Send]:
    """Return the sends that were due outside of all faults and GRACE_NS after each."""
    spans: list[tuple[int, int]] = []
    for fault in sorted(faults, key=lambda fault: fault.invoked_ns):
        end_ns = (fault.healed_ns or fault.done_ns) + GRACE_NS
        if spans and fault.invoked_ns <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end_ns))
        else:
            spans.append((fault.invoked_ns, end_ns))
    starts = [start for start, _ in spans]

    def calm(send: Send) -> bool:
        number = bisect_right(starts, send.due_ns) - 1
        return number < 0 or send.due_ns > spans[number][1]

    return [send for send in sends if calm(send)]
