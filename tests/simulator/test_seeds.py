"""2,000 seeds of the simulator, and all that ever failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.world import World

SEEDS = 2_000
CHUNKS = 20


def failed_once() -> list[int]:
    lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk: int) -> None:
    count = SEEDS // CHUNKS
    acknowledged = elections = reads = 0
    for seed in range(chunk * count, (chunk + 1) * count):
        numbers = World(seed).run()  # a failure names the seed and the command to replay it
        acknowledged += numbers["acknowledged"]
        elections += numbers["elections"]
        reads += numbers["reads"]
    # The worlds are not idle: else their silence would prove nothing.
    assert acknowledged > 20 * count
    assert elections > 2 * count
    assert reads > 5 * count


@pytest.mark.parametrize("seed", failed_once())
def test_what_failed_once_holds(seed: int) -> None:
    World(seed).run()


def test_a_seed_repeats_to_the_bit() -> None:
    traces: list[list[str]] = [[], []]
    numbers = [World(7, trace=trace.append).run() for trace in traces]
    assert numbers[0] == numbers[1]
    assert traces[0] == traces[1]
