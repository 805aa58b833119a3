"""Zones and machines lead as many groups as they should, after few hand-overs."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from raftmq.ops.leader_balance import Group, Location, Voter, balanced, counts, targets

A, B, C = (Location("", name) for name in "abc")


def drawn(seed: int) -> list[Group]:
    rng = random.Random(seed)
    zones = rng.choice([[""], [""], ["east", "west"], ["east", "east", "west"], ["", "east"]])
    locations = [Location(rng.choice(zones), f"m{number}") for number in range(rng.randint(1, 5))]
    groups = []
    for number in range(rng.randint(1, 5)):
        voters = {f"n{i}": rng.choice(locations) for i in range(rng.randint(1, 3))}
        leader, preferred = rng.choice([*voters]), rng.choice(["", *voters])
        problem = rng.choice(["", "", "", "n1 is recovering"])
        groups.append(Group(f"g{number}", leader, voters, preferred, problem))
    return groups


def costs(groups: list[Group], locations: tuple[Location, ...]) -> tuple[int, int, int, int]:
    zones = sum(count**2 for count in Counter(location.domain for location in locations).values())
    machines = sum(count**2 for count in Counter(locations).values())
    pairs = list(zip(groups, locations, strict=True))
    moves = sum(location != group.location for group, location in pairs)
    changed = sum(group.locations.get(group.preferred) != location for group, location in pairs)
    return zones, machines, moves, changed


@pytest.mark.parametrize("seed", range(150))
def test_leader_balance_is_optimal_for_random_groups(seed: int) -> None:
    groups = drawn(seed)
    result = balanced(groups)
    assert all(result[group.name] in group.choices for group in groups)
    locations = tuple(result[group.name] for group in groups)
    every = itertools.product(*(group.choices for group in groups))
    assert costs(groups, locations) == min(costs(groups, one) for one in every)
    assert balanced(groups) == result


def test_leader_balance_of_a_hundred_groups_differs_by_at_most_one() -> None:
    rng = random.Random(7)
    locations = [
        Location(zone, f"{zone}{number}") for zone in ("x", "y", "z") for number in range(3)
    ]
    groups = [
        Group(f"g{n}", "n0", {f"n{i}": rng.choice(locations[3 * i : 3 * i + 3]) for i in range(3)})
        for n in range(100)
    ]
    result = balanced(groups).values()
    assert sorted(Counter(location.zone for location in result).values()) == [33, 33, 34]
    assert sorted(Counter(result).values()) == [11, 11, 11, 11, 11, 11, 11, 11, 12]


def test_leader_stays_on_a_machine_with_several_replicas() -> None:
    group = Group("g", "n1", {"n0": A, "n1": A, "n2": B}, "n0")
    assert (group.node(A), group.node(B)) == ("n1", "n2")
    assert Group("g", "n2", {"n0": A, "n1": A, "n2": B}, "n1").node(A) == "n1"


def test_groups_without_a_leader_or_with_a_problem_are_omitted() -> None:
    groups = [
        Group("down", "", {}, problem="nobody leads down at the moment"),
        Group("held", "n0", {"n0": A, "n1": B}, problem="n1 is recovering"),
        Group("free", "n0", {"n0": A, "n1": B, "n2": C}),
    ]
    after = targets(groups)
    assert after == {"down": "", "held": "n0", "free": "n1"}
    assert counts(groups, after) == [(A, 2, 2, 1), (B, 2, 0, 1), (C, 1, 0, 0)]


def test_balance_skips_a_group_for_its_first_voter_with_a_problem() -> None:
    def left(*voters: tuple[bool, bool, int | None]) -> str:
        listed = [Voter(f"n{number}", A, *voter) for number, voter in enumerate(voters)]
        return Group.of("g", "n0", listed, "").problem

    assert left((True, True, 0), (True, True, 100)) == ""
    assert left((True, True, 101), (True, False, 0)) == "n0 is 101 frames behind"
    assert left((True, True, 0), (True, False, 0)) == "n1 is recovering"
    assert left((True, True, None)) == "n0 is recovering"
    assert left((False, False, 101)) == "n0 does not answer"
