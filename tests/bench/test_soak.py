"""bench.soak, the computation of growth, and every kind of churn."""

from __future__ import annotations

import pytest

from bench.soak import KINDS, growth_mib_hour, soak

MINUTES = [60.0 * number for number in range(60)]


@pytest.mark.parametrize(
    ("mib", "growth"),
    [
        ([100.0] * 60, 0.0),
        ([100.0 + number for number in range(60)], 60.0),
        ([50.0 + 5 * min(number, 14) for number in range(60)], 0.0),  # it warmed up
        ([100.0 + 50 * (number % 7 == 0) for number in range(60)], 0.0),  # peaks
        ([200.0 - number for number in range(60)], -60.0),
    ],
)
def test_growth_is_measured_after_the_warm_up(mib: list[float], growth: float) -> None:
    assert growth_mib_hour(MINUTES, mib) == pytest.approx(growth)


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_every_kind_of_churn_runs_and_memory_is_measured() -> None:
    watch = await soak(3, names=2)
    assert watch.done.keys() == KINDS.keys()
    assert all(watch.done.values())
    assert watch.memory_mib.keys() == {"leader", "follower", "namesrv"}
    assert all(len(mib) == len(watch.times_s) for mib in watch.memory_mib.values())
    assert all(min(mib) > 10 for mib in watch.memory_mib.values())
