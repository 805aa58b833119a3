"""Plans, where the same seed gives the same plan and everything fits into its slot."""

from __future__ import annotations

import pytest

from raftmq.chaos.faults.base import Kind, Planned
from raftmq.chaos.faults.plan import FAULTS_MAX, PARTS_MAX, Want, plan

KILL = Kind("kill", "process", "…", ("leader", "follower"))
SLOW = Kind("slow", "network", "…", ("all",), lasts_s=(3, 9), params={"rate": (10, 20)})
ONCE = Kind("once", "process", "…", ("all",), oneoff=True)
WANTED = [(Want(KILL),), (Want(SLOW, "n1"), Want(KILL, "follower")), (Want(ONCE), Want(SLOW))]


def test_same_seed_gives_the_same_plan() -> None:
    assert plan(7, WANTED, 300, 4) == plan(7, WANTED, 300, 4)
    assert plan(7, WANTED, 300, 4) != plan(8, WANTED, 300, 4)


def test_plan_has_every_wish_once_per_round_in_a_random_order() -> None:
    result = plan(1, WANTED, 900, 10)
    assert len(result) == 10 * 5
    assert sorted(p.number for p in result) == list(range(1, 51))
    slots: list[list[Planned]] = [[] for _ in range(30)]
    for planned in result:
        slots[int(planned.at_s // 30)].append(planned)
    rounds = [tuple(tuple(p.kind for p in s) for s in slots[i : i + 3]) for i in range(0, 30, 3)]
    assert all(sorted(map(len, one)) == [1, 2, 2] for one in rounds)
    assert len(set(rounds)) > 1
    result = plan(1, WANTED, 900, 10, in_order=True)
    assert [p.kind for p in result] == [want.kind.name for parts in WANTED for want in parts] * 10


@pytest.mark.parametrize("seed", range(20))
def test_plan_slot_holds_its_faults_and_some_calm(seed: int) -> None:
    for seconds in (3, 300):
        slot_s = seconds / 6
        result = plan(seed, WANTED, seconds, 2)
        assert result
        for planned in result:
            begin_s = planned.at_s // slot_s * slot_s
            assert begin_s + 0.15 * slot_s <= planned.at_s
            assert planned.at_s + planned.for_s <= begin_s + 0.92 * slot_s
            assert 0 <= planned.choice < 1


def test_parts_of_a_composition_overlap() -> None:
    for seed in range(20):
        first, second = plan(seed, [WANTED[1]], 60, 1)
        assert (first.kind, second.kind) == ("slow", "kill")
        assert first.at_s < second.at_s < first.at_s + first.for_s


def test_plan_figures_are_drawn_or_given() -> None:
    (drawn,) = plan(1, [(Want(SLOW),)], 60, 1)
    rate = drawn.params["rate"]
    assert isinstance(rate, float) and 10 <= rate <= 20 and 3 <= drawn.for_s <= 9
    assert drawn.whom == "all"
    (given,) = plan(1, [(Want(SLOW, "n2", 5.0, {"rate": 3}),)], 60, 1)
    assert (given.params, given.for_s, given.whom) == ({"rate": 3}, 5.0, "n2")
    (once,) = plan(1, [(Want(ONCE),)], 60, 1)
    assert once.for_s == 0.0
    (other,) = plan(2, [(Want(SLOW),)], 60, 1)
    assert drawn.rng().random() == drawn.rng().random() != other.rng().random()


@pytest.mark.parametrize(
    ("wanted", "seconds", "repeats", "words"),
    [
        ([(Want(KILL),)], 10, -1, "holds 0 to"),
        ([(Want(KILL),)], 10, FAULTS_MAX + 1, "holds 0 to"),
        ([(Want(KILL),)], 0, 1, "must be positive"),
        ([()], 10, 1, "can be at the same time"),
        ([(Want(KILL),) * (PARTS_MAX + 1)], 10, 1, "can be at the same time"),
        ([(Want(KILL, for_s=5),)], 10, 1, "kill for 5 s does not fit"),
    ],
)
def test_plan_limits_are_enforced(
    wanted: list[tuple[Want, ...]], seconds: int, repeats: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan(1, wanted, seconds, repeats)


def test_plan_may_be_full_or_empty() -> None:
    assert len(plan(1, [(Want(KILL),)], 10, FAULTS_MAX)) == FAULTS_MAX
    assert plan(1, [(Want(KILL),)], 10, 0) == plan(1, [], 10, 5) == ()
