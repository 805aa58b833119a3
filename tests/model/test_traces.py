"""What the real core does in the simulator's worlds is what the model allows, and a run with an
event that it does not allow is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

import pytest

from tests.model.checker import Refusal, validate
from tests.model.traces import Event, Kind, TracedWorld
from tests.simulator.apart import apart
from tests.simulator.cluster.corebreaks import (
    certified_without_a_barrier,
    recovering_copies_counted,
)
from tests.simulator.cluster.invariants import CheckFailed
from tests.simulator.cluster.planting import Plant
from tests.simulator.cluster.shellbreaks import old_stores_believed

LONG_SEEDS = 60  # of each kind
SEEDS = (
    *((seed, Kind.LOSING) for seed in (1, 2, 3)),
    *((seed, Kind.OPERATED) for seed in (2, 3)),
    (3, Kind.SET_BACK),
)
FOUNDERS = frozenset(("n0", "n1", "n2"))


def run_of(seed: int, kind: Kind, *planted: Plant) -> tuple[frozenset[str], list[Event]]:
    """Return the founders and the events of a seed's world, up to its end or failure."""
    world = TracedWorld(seed, kind, *planted)
    with suppress(*[CheckFailed for _ in planted]):
        world.run()
    return frozenset(world.groups[0].founders), world.recorder.events


def shown(refusal: Refusal, runs: list[list[Event]]) -> str:
    events = runs[refusal.run]
    return (
        f"{refusal.why}: {events[refusal.at]} behind {events[max(0, refusal.at - 20) : refusal.at]}"
    )


def runs_by_founders(
    seeds: Iterable[tuple[int, Kind]],
) -> dict[frozenset[str], list[list[Event]]]:
    runs: dict[frozenset[str], list[list[Event]]] = defaultdict(list)
    for seed, kind in seeds:
        founders, events = run_of(seed, kind)
        runs[founders].append(events)
    return runs


def test_simulated_runs_are_behaviours_of_the_model() -> None:
    runs = apart(runs_by_founders, SEEDS)
    assert set(runs) == {FOUNDERS}
    done = {event[0] for run in runs[FOUNDERS] for event in run}
    assert done >= {"campaign", "win", "meet", "recover", "lose", "restart"}
    assert done >= {"set back", "recognise"}
    refusal = validate(runs[FOUNDERS], FOUNDERS)
    assert refusal is None, shown(refusal, runs[FOUNDERS])


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", Kind)
def test_further_simulated_runs_are_behaviours_of_the_model(kind: Kind) -> None:
    seeds = [(seed, kind) for seed in range(LONG_SEEDS)]
    for founders, runs in apart(runs_by_founders, seeds).items():
        refusal = validate(runs, founders)
        assert refusal is None, shown(refusal, runs)


@pytest.mark.parametrize(
    ("planted", "kind", "event"),
    [
        (recovering_copies_counted, Kind.LOSING, "commit"),
        pytest.param(certified_without_a_barrier, Kind.LOSING, "recover", marks=pytest.mark.long),
        pytest.param(old_stores_believed, Kind.SET_BACK, "observe", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_trace_of_a_broken_core_is_rejected(planted: Plant, kind: Kind, event: str) -> None:
    _, events = apart(run_of, 1, kind, planted)
    refusal = validate([events], FOUNDERS)
    assert refusal is not None
    assert events[refusal.at][0] == event


# A run of one leader, up to its first frame.
GOOD: list[Event] = [
    ("restart", "n0", 1, 0, (0, FOUNDERS)),
    ("restart", "n1", 1, 0, (0, FOUNDERS)),
    ("restart", "n2", 1, 0, (0, FOUNDERS)),
    ("campaign", "n0", 1),
    ("grant", "n1", 1, "n0", 1),
    ("grant", "n2", 1, "n0", 1),
    ("win", "n0"),
    ("propose", "n0", frozenset()),
    ("acknowledge", "n0", 1),
    ("follow", "n1", 1, 1),
    ("acknowledge", "n1", 1),
    ("follow", "n2", 1, 1),
    ("acknowledge", "n2", 1),
    ("recover", "n0"),
    ("recover", "n1"),
    ("acknowledge", "n0", 1),
    ("acknowledge", "n1", 1),
    ("commit", "n0", 1),
    ("is", "n0", 1, "n0", True, 1, 1, FOUNDERS),
]


@pytest.mark.parametrize(
    ("at", "event"),
    [
        (5, ("win", "n0")),  # by two recovering voters of three
        (12, ("recover", "n0")),  # founded before c has the first frame
        (14, ("commit", "n0", 1)),  # on one recovered copy
        (16, ("is", "n0", 1, "n0", True, 2, 1, FOUNDERS)),  # with a frame that nobody proposed
        (17, ("grant", "n1", 1, "n2", 1)),  # to who never asked
        (18, ("propose", "n0", frozenset(("n0",)))),  # two voters less at once
        (18, ("lose", "n1", 2, 0, 7, "n0", (0, FOUNDERS))),  # into a term that it never was in
    ],
)
def test_trace_with_an_unknown_event_is_rejected(at: int, event: Event) -> None:
    refusal = validate([GOOD, [*GOOD[:at], event, *GOOD[at:]]], FOUNDERS)
    assert refusal == Refusal(1, at, "no step of the model")
