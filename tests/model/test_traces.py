"""What the real core does in the simulator's worlds is what the model allows, and a run with an
event that it does not allow is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from raftmq.dledger.core import RaftCore
from tests.model.checker import Refusal, validate
from tests.model.traces import Event, TracedWorld
from tests.simulator.breaks import CertifiesWithoutBarrier, CountsRecoveringCopies
from tests.simulator.members import MEMBERS_FROM

LONG_SEEDS = 150  # of each kind; those whose files rot are left out
# Memory is lost and recovered in 38, 59 and, as members, in the last ones, where voters also come
# and go; leaders change often in 17 and 105.
SEEDS = (17, 38, 49, 59, 105, *(MEMBERS_FROM + seed for seed in (14, 16, 22, 45)))
FOUNDERS = frozenset("abc")


def run_of(seed: int) -> tuple[frozenset[str], list[Event]] | None:
    """The founders and the events of a seed's world; None if its files rot."""
    world = TracedWorld(seed)
    if world.rots:
        return None
    world.run()
    return world.members.founding.voters, world.recorder.events


def shown(refusal: Refusal, runs: list[list[Event]]) -> str:
    events = runs[refusal.run]
    return (
        f"{refusal.why}: {events[refusal.at]} behind {events[max(0, refusal.at - 20) : refusal.at]}"
    )


def runs_by_founders(seeds: Iterable[int]) -> dict[frozenset[str], list[list[Event]]]:
    runs: dict[frozenset[str], list[list[Event]]] = defaultdict(list)
    for seed in seeds:
        run = run_of(seed)
        if run is not None:
            runs[run[0]].append(run[1])
    return runs


def test_real_runs_are_behaviours_of_the_model() -> None:
    runs = runs_by_founders(SEEDS)
    assert set(runs) == {FOUNDERS}
    done = {event[0] for run in runs[FOUNDERS] for event in run}
    assert done >= {"campaign", "win", "meet", "recover", "lose", "restart"}
    refusal = validate(runs[FOUNDERS], FOUNDERS)
    assert refusal is None, shown(refusal, runs[FOUNDERS])


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", [0, MEMBERS_FROM])
def test_more_real_runs_are(first: int) -> None:
    for founders, runs in runs_by_founders(range(first, first + LONG_SEEDS)).items():
        refusal = validate(runs, founders)
        assert refusal is None, shown(refusal, runs)


@pytest.mark.parametrize(
    ("broken", "event"),
    [(CertifiesWithoutBarrier, "recover"), (CountsRecoveringCopies, "commit")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_core_is_refused_where_the_checker_sees_nothing(
    broken: type[RaftCore], event: str
) -> None:
    world = TracedWorld(38, core_class=broken)
    world.run()
    refusal = validate([world.recorder.events], FOUNDERS)
    assert refusal is not None
    assert world.recorder.events[refusal.at][0] == event


# A run of one leader, up to its first frame.
GOOD: list[Event] = [
    ("restart", "a", 1, 0, (0, FOUNDERS)),
    ("restart", "b", 1, 0, (0, FOUNDERS)),
    ("restart", "c", 1, 0, (0, FOUNDERS)),
    ("campaign", "a", 1),
    ("grant", "b", 1, "a", 1),
    ("grant", "c", 1, "a", 1),
    ("win", "a"),
    ("propose", "a", frozenset()),
    ("acknowledge", "a", 1),
    ("follow", "b", 1, 1),
    ("acknowledge", "b", 1),
    ("follow", "c", 1, 1),
    ("acknowledge", "c", 1),
    ("recover", "a"),
    ("recover", "b"),
    ("acknowledge", "a", 1),
    ("acknowledge", "b", 1),
    ("commit", "a", 1),
    ("is", "a", 1, "a", True, 1, 1, FOUNDERS),
]


@pytest.mark.parametrize(
    ("at", "event"),
    [
        (5, ("win", "a")),  # by two recovering voters of three
        (12, ("recover", "a")),  # founded before c has the first frame
        (14, ("commit", "a", 1)),  # on one recovered copy
        (16, ("is", "a", 1, "a", True, 2, 1, FOUNDERS)),  # with a frame that nobody proposed
        (17, ("grant", "b", 1, "c", 1)),  # to who never asked
        (18, ("propose", "a", frozenset("a"))),  # two voters less at once
        (18, ("lose", "b", 2, 0, 7, "a", (0, FOUNDERS))),  # into a term that it never was in
    ],
)
def test_a_run_with_an_event_that_is_no_step_is_refused(at: int, event: Event) -> None:
    refusal = validate([GOOD, [*GOOD[:at], event, *GOOD[at:]]], FOUNDERS)
    assert refusal == Refusal(1, at, "no step of the model")
