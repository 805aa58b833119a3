"""The search for failing worlds: what it finds when a rule is broken, what shrinking leaves of it,
and that a changed schedule repeats."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.simulator.apart import apart, replays
from tests.simulator.cluster.case import Case, Outcome, kind_of, play
from tests.simulator.cluster.mutation import STRIKES_MAX, mutated
from tests.simulator.cluster.schedule import Schedule, drawn, from_json, to_json
from tests.simulator.cluster.search import KeptFile, Search
from tests.simulator.cluster.shellbreaks import sync_skipped
from tests.simulator.cluster.shrink import shrink
from tests.simulator.cluster.world import ClusterWorld, Wish

QUICK = {"replicas": 3, "faults_s": 3.0, "half_healed": False, "refilled": False, "operated": False}
FAULTS = ("isolate", "split", "freeze", "kill_leader")
BROKEN = Wish(
    ("log", "group"),
    ("power_cut_all", "isolate", "kill_leader"),
    {**QUICK, "faults_s": 2.0, "durable": True},
    sync_skipped,
)
WORLDS_MAX, RUNS_MAX, STRIKES_LEFT = 8, 9, 3


def test_search_finds_a_broken_rule_and_shrinks_its_schedule() -> None:
    apart(find_and_shrink)


def find_and_shrink() -> None:
    search = Search()
    for _ in range(WORLDS_MAX):
        case = search.next_case()
        outcome = play(case, BROKEN)
        search.take(case, outcome)
        if outcome.failure:
            break
    assert outcome.failure
    shrunk = shrink(replace(case, schedule=outcome.schedule), BROKEN, RUNS_MAX)
    assert shrunk is not None
    assert shrunk.runs <= RUNS_MAX
    assert shrunk.outcome.kind == outcome.kind
    assert len(shrunk.case.schedule or ()) <= STRIKES_LEFT
    again = play(shrunk.case, BROKEN)
    assert again.failure == shrunk.outcome.failure
    assert shrunk.case.command in shrunk.report()


def test_search_reaches_more_states_with_faults() -> None:
    quick = Wish(faults=FAULTS, profile=QUICK)
    struck, calm = apart(each_played, (Case(0), Case(0, schedule=())), quick)
    assert not struck.failure
    assert not calm.failure
    assert len(struck.states) > 2 * len(calm.states)


def each_played(cases: Sequence[Case], base: Wish) -> list[Outcome]:
    return [play(case, base) for case in cases]


def test_changed_schedule_repeats_to_the_bit_in_any_process() -> None:
    parent = Case(3, schedule_of(3), {"faults_s": 2.0})
    case = mutated(Random(4), parent, Case(4, schedule_of(4)), 3)
    assert case.schedule != parent.schedule
    traces = replays(shlex.split(case.command)[1:], ("1", "2"))
    assert b"'operations'" in traces[0]
    assert b"\ndigest " in traces[0]
    assert traces[0] == traces[1]


def test_schedule_without_one_strike_keeps_the_remaining_strikes() -> None:
    strikes = schedule_of(5)
    world = ClusterWorld(5, wish=Case(5, strikes[:3] + strikes[4:], QUICK).wish(Wish()))
    world.loop.close()
    assert world.plan.schedule == strikes[:3] + strikes[4:]


def test_schedule_mutations_are_bounded_and_in_order() -> None:
    rng = Random(1)
    case, other = Case(1, schedule_of(1)), Case(2, schedule_of(2))
    for seed in range(300):
        case = mutated(rng, case, other, seed)
        strikes = case.schedule or ()
        assert list(strikes) == sorted(strikes)
        assert len(strikes) <= STRIKES_MAX
        assert from_json(to_json(strikes)) == strikes


def test_search_keeps_cases_with_new_states_and_resumes(tmp_path: Path) -> None:
    file = KeptFile(tmp_path / "kept")
    search = file.resumed(7)
    case = search.next_case()
    strikes = schedule_of(7)
    kept = search.take(case, Outcome(strikes, frozenset({1, 2}), search.totals))
    assert kept == Case(7, strikes)
    assert search.take(Case(8), Outcome(strikes, frozenset({2}), search.totals)) is None
    failed = Outcome(strikes, frozenset({3}), search.totals, "a leader is lost", "a leader")
    assert search.take(Case(9), failed) is None

    file.add({"case": kept.to_json(), "states": [1, 2]})
    file.add({"totals": dict(search.totals), "next_seed": search.next_seed})
    resumed = file.resumed(0)
    assert resumed.kept == [kept]
    assert resumed.states == {1, 2}
    assert resumed.totals["worlds"] == 3
    assert resumed.next_seed == 8


def test_failures_of_one_kind_share_one_key() -> None:
    first = kind_of("seed 1 at 3.2000 s: tables differ at 77: those of n1:broker:2 and of n0\nand")
    second = kind_of("seed 23 at 9.1000 s: tables differ at 8: those of n2:broker:4 and of n1")
    assert first == second == "tables differ at #: those"


def schedule_of(seed: int) -> Schedule:
    return drawn(Random(seed), ("kill", "freeze", "isolate"), 0.25, 3.0)
