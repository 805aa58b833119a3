"""Whole clusters are tested with planted breaks of the shell: each must be caught within a bounded
number of seeds, and the same seed passes when the rule is back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.simulator.checks import CheckFailed
from tests.simulator.cluster.breaks import BREAKS, Break
from tests.simulator.cluster.world import ClusterWorld

SEEDS_MAX = 40  # from the first named: a change of the programs moves where one shows
COUNT_MIN = 30


def caught_at(broken: Break) -> int | None:
    """Return the first seed that catches it."""
    for seed in range(broken.first, broken.first + SEEDS_MAX):
        try:
            ClusterWorld(seed, wish=broken.wish).run()
        except (CheckFailed, AssertionError):  # the programs' own assertions stop them, too
            return seed
    return None


@pytest.mark.parametrize(
    "broken",
    [pytest.param(one, marks=[pytest.mark.long] if one.long else []) for one in BREAKS],
    ids=lambda one: one.name,
)
def test_a_broken_shell_is_caught(broken: Break) -> None:
    seed = caught_at(broken)
    assert seed is not None, f"{broken.name} survives {SEEDS_MAX} seeds"
    ClusterWorld(seed, wish=replace(broken.wish, planted=nullcontext)).run()


def test_there_are_enough_of_them() -> None:
    assert len(BREAKS) >= COUNT_MIN
    assert len({one.name for one in BREAKS}) == len(BREAKS)
