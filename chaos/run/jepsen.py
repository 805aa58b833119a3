"""Runs the five schedules with which Jepsen broke NATS 2.12.1, on our brokers and on others, one
run after the other.

Each system gets its own new cluster for each schedule, the same number of servers, the same seed,
the same plan, the same senders and the same checks. A run that cannot be made is a row with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.client import ClientError

from ..cluster.clusterfile import ClusterError
from ..cluster.topology import Shape
from ..report.sidebyside import Outcome, Schedule, side_by_side_page
from ..workloads.base import Workload
from .runner import RunConfig, Say, run_scenario
from .scenario import JEPSEN, SCENARIOS
from .system import OURS, System

SLOTS, SLOT_S = 4, 30.0  # faults of a schedule; JetStream elects within 4 to 9 s of silence
WHOLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A system that is put through the schedules. `workloads` makes those for a cluster in that
    directory. `why_not`: why it cannot be had here; empty: it can."""

    name: str
    words: str
    shape: Shape
    workloads: Callable[[Path], Sequence[Workload]]
    system: System = OURS
    settings: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class JepsenConfig:
    """The runs to make. `repeats`: how often all SLOTS faults come."""

    directory: Path
    schedules: Sequence[str]
    contestants: Sequence[Contestant]
    seed: int
    repeats: int


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The result: every schedule's rows, and the page."""

    schedules: tuple[Schedule, ...]
    page: Path


async def run_jepsen(config: JepsenConfig, command: str, say: Say) -> SideBySide:
    """Run all schedules on all contestants; the page is written after each run. Raises
    ClusterError, OSError."""
    page = config.directory / "jepsen.html"
    if page.exists():
        raise ClusterError(f"{config.directory} holds such runs already")
    for name in config.schedules:
        if name not in JEPSEN:
            raise ClusterError(f"no schedule {name!r}; there are {', '.join(JEPSEN)}")
    done: list[Schedule] = []
    for name in config.schedules:
        scenario = SCENARIOS[name]
        outcomes: list[Outcome] = []
        done.append(Schedule(name, scenario.description, scenario.wishes, outcomes))
        for contestant in config.contestants:
            outcomes.append(await _outcome(name, contestant, config, command, say))
            page.write_text(side_by_side_page(done, command), encoding="utf-8")
    return SideBySide(tuple(done), page)


async def _outcome(
    name: str, contestant: Contestant, config: JepsenConfig, command: str, say: Say
) -> Outcome:
    if contestant.why_not:
        return Outcome(contestant.words, why_not=contestant.why_not)
    directory = config.directory / name / contestant.name
    rounds = config.repeats * max(1, SLOTS // len(SCENARIOS[name].wishes))
    slots = rounds * len(SCENARIOS[name].wishes)
    run = RunConfig(
        name,
        directory,
        lambda: contestant.workloads(directory / "cluster"),
        config.seed,
        slots * SLOT_S / 60,
        rounds,
        contestant.shape,
        contestant.settings,
        whole_timeout_s=WHOLE_TIMEOUT_S,
        system=contestant.system,
    )
    try:
        result = await run_scenario(
            run, command, lambda words: say(f"{name}, {contestant.name}: {words}")
        )
    except (ClusterError, ClientError) as error:
        say(f"{name}, {contestant.name}: {error}")
        return Outcome(contestant.words, why_not=str(error).splitlines()[0])
    say(f"{name}, {contestant.name}: {result.verdict.value}")
    return Outcome(contestant.words, result.data)
