"""Seeds with retention and refilling, and the breaks that they catch."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.checks import CheckFailed
from tests.simulator.refill import RefilledNode, RefillWorld
from tests.simulator.refillbreaks import REFILL_BREAKS

SEEDS = 40
SEEDS_MAX = 300  # the rarest break is caught about once in fifty seeds


def test_no_promise_is_broken_by_refilling() -> None:
    """`python -m tests.simulator --refill --seeds N` runs more of them."""
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        totals.update(RefillWorld(seed).run())
    assert totals["installed"] > SEEDS / 3
    assert totals["torn"] > SEEDS / 6
    assert totals["trimmed"] > SEEDS
    assert totals["acknowledged"] > 20 * SEEDS


@pytest.mark.parametrize("seed", [2, 702, 1951, 2638])
def test_what_failed_once_holds(seed: int) -> None:
    """The leader's no-op waited for the stranded one; rot struck what nobody else kept; a log that
    was long, but another one, was probed and stranded in turns, and never offered anything."""
    RefillWorld(seed).run()


@pytest.mark.parametrize("broken", REFILL_BREAKS, ids=lambda cls: cls.__name__)
def test_a_broken_refill_is_caught(broken: type[RefilledNode]) -> None:
    for seed in range(SEEDS_MAX):
        try:
            RefillWorld(seed, node_class=broken).run()
        except (CheckFailed, AssertionError):
            RefillWorld(seed).run()
            return
    pytest.fail(f"{broken.__doc__} survives {SEEDS_MAX} seeds")
