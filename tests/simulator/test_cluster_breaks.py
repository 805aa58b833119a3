"""Whole clusters are tested with planted breaks of the programs: each must be caught within a
bounded number of seeds, and the same seed passes when the rule is back.

`make test` plants a third of them, some of each file, that show soon. `make test-long` plants all,
and it alone plays the seeds again with the rule back.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.simulator.apart import apart
from tests.simulator.cluster.breaks import BREAKS
from tests.simulator.cluster.invariants import CheckFailed
from tests.simulator.cluster.planting import Break
from tests.simulator.cluster.world import ClusterWorld

SEEDS_MAX = 40  # from the first named: a change of the programs moves where one shows
COUNT_MIN = 60
AT_ONCE = 6
QUICK = [one.name for one in BREAKS if not one.long]


def caught_at(broken: Break) -> int | None:
    """Return the first seed that catches a break."""
    for seed in range(broken.first, broken.first + SEEDS_MAX):
        try:
            ClusterWorld(seed, wish=broken.wish).run()
        except (CheckFailed, AssertionError):  # the programs' own assertions stop them, too
            return seed
    return None


def survivors(names: list[str]) -> list[str]:
    """Return the breaks, of those named, that no seed catches."""
    named = [one for one in BREAKS if one.name in names]
    return [broken.name for broken in named if caught_at(broken) is None]


@pytest.mark.parametrize("first", range(0, len(QUICK), AT_ONCE))
def test_planted_program_breaks_are_caught(first: int) -> None:
    assert not apart(survivors, QUICK[first : first + AT_ONCE])


def with_and_without(name: str) -> None:
    """Check that a break is caught, and that it is what was caught."""
    (broken,) = [one for one in BREAKS if one.name == name]
    seed = caught_at(broken)
    assert seed is not None
    ClusterWorld(seed, wish=replace(broken.wish, planted=nullcontext)).run()


@pytest.mark.long
@pytest.mark.parametrize("name", [one.name for one in BREAKS])
def test_each_planted_break_is_caught_and_its_seed_passes_without_it(name: str) -> None:
    apart(with_and_without, name)


def test_planted_breaks_are_many_and_have_distinct_names() -> None:
    assert len(BREAKS) >= COUNT_MIN
    assert len({one.name for one in BREAKS}) == len(BREAKS)


def test_every_run_plants_some_breaks_of_each_file() -> None:
    files = {one.plant.__module__ for one in BREAKS}
    assert {one.plant.__module__ for one in BREAKS if not one.long} == files
