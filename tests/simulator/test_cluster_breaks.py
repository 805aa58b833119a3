"""Whole clusters are tested with planted breaks of the shell: each must be caught within a bounded
number of seeds, and the same seed passes when the rule is back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.simulator.apart import apart
from tests.simulator.checks import CheckFailed
from tests.simulator.cluster.breaks import BREAKS
from tests.simulator.cluster.world import ClusterWorld

SEEDS_MAX = 40  # from the first named: a change of the programs moves where one shows
COUNT_MIN = 30


def caught_at(name: str) -> int | None:
    """Return the first seed that catches a break; it has passed with the rule back in place."""
    broken = next(one for one in BREAKS if one.name == name)
    for seed in range(broken.first, broken.first + SEEDS_MAX):
        try:
            ClusterWorld(seed, wish=broken.wish).run()
        except (CheckFailed, AssertionError):  # the programs' own assertions stop them, too
            ClusterWorld(seed, wish=replace(broken.wish, planted=nullcontext)).run()
            return seed
    return None


@pytest.mark.parametrize(
    "name",
    [pytest.param(one.name, marks=[pytest.mark.long] if one.long else []) for one in BREAKS],
)
def test_a_broken_shell_is_caught(name: str) -> None:
    assert apart(caught_at, name) is not None, f"{name} survives {SEEDS_MAX} seeds"


def test_there_are_enough_of_them() -> None:
    assert len(BREAKS) >= COUNT_MIN
    assert len({one.name for one in BREAKS}) == len(BREAKS)
