"""Faults of the time of day, where a node's wall clock jumps once, or back and forth.

The fault layer moves the wall clock only, because monotonic clocks do not jump. The wall clock
stamps messages and frames and decides retention; none of our time-outs may depend on it.
"""

from __future__ import annotations

from ..cluster.clusterfile import ClusterError
from .base import Context, Factory, Hit, Kind, Planned, Table, injected
from .disk import faults_of
from .fault_control import Steering

MONTH_S = 30 * 86_400.0
STROBE_MS_MIN = 1


class ClockStep:
    """The clock is off by `sign` times step_s seconds until it is healed."""

    def __init__(self, planned: Planned, context: Context, sign: int, step_s: float) -> None:
        self._context = context
        self._step_s = sign * planned.figure("step_s", step_s)

    async def do(self, hit: Hit) -> None:
        for node in hit.nodes:
            Steering(faults_of(self._context, node)).set_clock(round(self._step_s * 1000))

    async def undo(self, hit: Hit) -> None:
        for node in hit.nodes:
            Steering(faults_of(self._context, node)).set_clock(0)

    def describe(self, targets: str) -> str:
        return f"clock of {targets} off by {self._step_s:+.3f} s"


class ClockStrobe:
    """The clock is off by delta_ms for period_ms, right for period_ms, and so on."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._context = context
        self._delta_ms = round(planned.figure("delta_ms", 1000))
        self._period_ms = round(planned.figure("period_ms", 20))
        if self._period_ms < STROBE_MS_MIN:
            raise ClusterError(f"{planned.kind}: period_ms must be {STROBE_MS_MIN} or more")

    async def do(self, hit: Hit) -> None:
        for node in hit.nodes:
            steering = Steering(faults_of(self._context, node))
            steering.set_clock(0, self._delta_ms, self._period_ms)

    async def undo(self, hit: Hit) -> None:
        for node in hit.nodes:
            Steering(faults_of(self._context, node)).set_clock(0)

    def describe(self, targets: str) -> str:
        every = f"{self._delta_ms:+d} ms every other {self._period_ms} ms"
        return f"clock of {targets} off by {every}"


def _step(sign: int, step_s: float = 60.0) -> Factory:
    return injected(lambda planned, context: ClockStep(planned, context, sign, step_s))


def _kind(name: str, description: str, params: dict[str, tuple[float, float]]) -> Kind:
    whom = ("leader", "follower", "minority", "majority", "all")
    needs = frozenset({"faultable"})
    return Kind(name, "clock", description, whom, needs, lasts_s=(1.0, 4.0), params=params)


_SPAN = {"step_s": (1.0, 600.0)}
_MONTH = {"step_s": (MONTH_S, MONTH_S)}
_STROBE = {"delta_ms": (50.0, 5000.0), "period_ms": (5.0, 100.0)}
_ENTRIES = (
    (_kind("clock-forward", "its clock jumps ahead by step_s", _SPAN), _step(1)),
    (_kind("clock-back", "its clock jumps back by step_s", _SPAN), _step(-1)),
    (_kind("clock-month", "its clock jumps ahead by 30 days", _MONTH), _step(1, MONTH_S)),
    (_kind("clock-strobe", "its clock jumps ahead by delta_ms and back, every period_ms", _STROBE),
        injected(ClockStrobe)),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
