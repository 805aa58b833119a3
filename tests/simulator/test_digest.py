"""The digest repeats, tells seeds apart, and does not depend on names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raftmq.dledger.messages import HardState, Role
from tests.simulator.digest import Make, digest_of, plain, refill, values_of


@dataclass(frozen=True, slots=True)
class Renamed:
    epoch: int
    chosen: str | None
    sound: bool


@pytest.mark.parametrize("make", [plain, refill])
def test_a_seed_has_one_digest(make: Make) -> None:
    assert digest_of(make, 3) == digest_of(make, 3) != digest_of(make, 4)


def test_names_do_not_count() -> None:
    assert values_of((HardState(3, "a"), Role.LEADER)) == ((3, "a", True), "leader")
    assert values_of(Renamed(3, "a", True)) == values_of(HardState(3, "a"))
