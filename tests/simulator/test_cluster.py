"""Whole clusters in the simulator: seeds, those that ever failed, and that a seed repeats."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.apart import apart, replays
from tests.simulator.cluster.world import ClusterWorld

CHUNKS = 10
SEEDS_A_CHUNK = 4
OPERATIONS_MIN, FAULTS_MIN = 500, 20  # of a seed, on average over a chunk


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk: int) -> None:
    totals = apart(played, range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK))
    # The worlds are not idle: else their silence would prove nothing.
    assert totals["operations"] >= OPERATIONS_MIN * SEEDS_A_CHUNK
    assert totals["faults"] >= FAULTS_MIN * SEEDS_A_CHUNK
    assert totals["acknowledged"] > 0
    assert totals["tables compared"] > 0


def played(seeds: range) -> Counter[str]:
    """Play these seeds; return their numbers, summed up."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        totals.update(ClusterWorld(seed).run())
    return totals


def test_a_seed_repeats_to_the_bit_in_any_process() -> None:
    """Also where strings hash differently: no order may come out of a set."""
    traces = replays(["-m", "tests.simulator", "--cluster", "--verbose", "3"], ("1", "2"))
    assert b"'operations'" in traces[0]
    assert traces[0] == traces[1]
