"""Finds a short schedule that still fails in the same way (delta debugging, Zeller and Hildebrandt
2002), within a bounded number of worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulator.cluster import schedule
from tests.simulator.cluster.case import Case, Outcome, play
from tests.simulator.cluster.schedule import Schedule
from tests.simulator.cluster.world import Wish

RUNS_MAX = 200
AFTER_LAST_S = 0.5  # the last fault has this time to do its work before all is healed


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The shortest case found, what it came to, and how many worlds that took."""

    case: Case
    outcome: Outcome
    runs: int

    def report(self) -> str:
        strikes = self.case.schedule or ()
        return (
            f"{len(strikes)} strikes after {self.runs} worlds:\n{schedule.table(strikes)}\n"
            f"{self.outcome.failure}\n{self.case.command}"
        )


def shrink(
    case: Case,
    base: Wish | None = None,
    runs_max: int = RUNS_MAX,
    tell: Callable[[str], None] = lambda text: None,
) -> Shrunk | None:
    """Return the shortest case found that fails as this one; None if it does not fail."""
    outcome = play(case, base)
    if not outcome.failure:
        return None
    work = _Shrinking(replace(case, schedule=outcome.schedule), outcome, base, runs_max, tell)
    work.leave_out_strikes()
    work.simplify_profile()
    work.leave_out_strikes()
    return Shrunk(work.case, work.outcome, work.runs)


class _Shrinking:
    """The shortest case so far. Each attempt is a world."""

    def __init__(
        self,
        case: Case,
        outcome: Outcome,
        base: Wish | None,
        runs_max: int,
        tell: Callable[[str], None],
    ) -> None:
        self.case = case
        self.outcome = outcome
        self.runs = 1
        self._base = base
        self._runs_max = runs_max
        self._tell = tell

    def leave_out_strikes(self) -> None:
        """Leave out ever smaller parts, until no single strike can be left out."""
        size = max(1, len(self._strikes) // 2)
        while self._strikes and self.runs < self._runs_max:
            left_out = False
            end = len(self._strikes)
            while end > 0 and self.runs < self._runs_max:  # the last first: they are often late
                start = max(0, end - size)
                rest = self._strikes[:start] + self._strikes[end:]
                left_out |= self._attempt(replace(self.case, schedule=rest))
                end = start
            if size == 1 and not left_out:
                return
            size = max(1, size // 2)

    def simplify_profile(self) -> None:
        """Let the world be shorter and have fewer acts."""
        last_s = max((one.at_s for one in self._strikes), default=0.0)
        length_s = round(last_s + AFTER_LAST_S, 1)
        for change in ({"refilled": False}, {"operated": False}, {"half_healed": False},
                       {"faults_s": length_s}, {"spike": 0.0}, {"replicas": 3}):  # fmt: skip
            if self.runs < self._runs_max:
                self._attempt(replace(self.case, profile={**self.case.profile, **change}))

    @property
    def _strikes(self) -> Schedule:
        return self.case.schedule or ()

    def _attempt(self, case: Case) -> bool:
        """Keep this case if it fails as the first did."""
        self.runs += 1
        outcome = play(case, self._base)
        if outcome.kind != self.outcome.kind:
            return False
        self.case, self.outcome = replace(case, schedule=outcome.schedule), outcome
        self._tell(f"{self.runs} worlds: {len(self._strikes)} strikes")
        return True
