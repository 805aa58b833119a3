"""2,000 seeds of the simulator, and all that ever failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.apart import replays
from tests.simulator.members import MEMBERS_FROM
from tests.simulator.world import World

SEEDS = 2_000
CHUNKS = 20
MEMBER_SEEDS = 120
MEMBER_CHUNKS = 4


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


@pytest.mark.parametrize("chunk", range(MEMBER_CHUNKS))
def test_no_promise_is_broken_while_members_change(chunk: int) -> None:
    count = MEMBER_SEEDS // MEMBER_CHUNKS
    acknowledged = changes = 0
    for seed in range(MEMBERS_FROM + chunk * count, MEMBERS_FROM + (chunk + 1) * count):
        numbers = World(seed).run()
        acknowledged += numbers["acknowledged"]
        changes += numbers["changes"]
    assert acknowledged > 20 * count
    assert changes > 4 * count


@pytest.mark.parametrize("seed", failed_once())
def test_what_failed_once_holds(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("seed", ["19", "946"])  # 946: half of a fork is cut off
def test_a_seed_repeats_to_the_bit_in_any_process(seed: str) -> None:
    """Also where strings hash differently: no order may come out of a set."""
    traces = replays(["-m", "tests.simulator", "--verbose", seed], ("1", "2", "3"))
    assert len(traces[0]) > 10_000
    assert traces[0] == traces[1] == traces[2]
