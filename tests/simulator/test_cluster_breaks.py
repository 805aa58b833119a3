"""Whole clusters are tested with planted breaks of the programs: each must be caught within a
bounded number of seeds, and the same seed passes when the rule is back.

`make test` plants a third of them, some of each file, that show soon; `make test-long` the others.
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
LONG = [one.name for one in BREAKS if one.long]


def caught_at(broken: Break) -> int | None:
    """Return the first seed that catches a break; it has passed with the rule back in place."""
    for seed in range(broken.first, broken.first + SEEDS_MAX):
        try:
            ClusterWorld(seed, wish=broken.wish).run()
        except (CheckFailed, AssertionError):  # the programs' own assertions stop them, too
            ClusterWorld(seed, wish=replace(broken.wish, planted=nullcontext)).run()
            return seed
    return None


def survivors(names: list[str]) -> list[str]:
    """Return the breaks, of those named, that no seed catches."""
    named = [one for one in BREAKS if one.name in names]
    return [broken.name for broken in named if caught_at(broken) is None]


@pytest.mark.parametrize("first", range(0, len(QUICK), AT_ONCE))
def test_broken_programs_are_caught(first: int) -> None:
    assert not apart(survivors, QUICK[first : first + AT_ONCE])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_what_takes_many_seeds_is_caught(name: str) -> None:
    assert not apart(survivors, [name])


def test_there_are_enough_of_them() -> None:
    assert len(BREAKS) >= COUNT_MIN
    assert len({one.name for one in BREAKS}) == len(BREAKS)


def test_some_of_each_file_are_planted_in_every_run() -> None:
    files = {one.plant.__module__ for one in BREAKS}
    assert {one.plant.__module__ for one in BREAKS if not one.long} == files
