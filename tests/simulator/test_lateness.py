"""The judge of how late messages come: from when, and how long it lets them be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.cluster.lateness import ORDERLY_WITHIN_S, WITHIN_S, late

SENT = [
    {"type": "invoke", "f": "send", "op": 1, "id": "a", "t_ns": 0},
    {"type": "ok", "f": "send", "op": 1, "t_ns": 1_000_000_000},
]
POSTED = [{"type": "ok", "f": "post", "work": "delayed", "id": "a", "delay_ms": 2000, "t_ns": 0}]
GIVEN_BACK = [{"type": "ok", "f": "give_back", "id": "a", "dead": False, "t_ns": 1_000_000_000}]


def came(seconds: float, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "ok", "f": "consume", "ids": ["a"], "t_ns": int(seconds * 1e9), **more}]


@pytest.mark.parametrize(
    ("records", "healed_s", "is_late"),
    [
        (SENT + came(1 + WITHIN_S), 0, False),
        (SENT + came(2 + WITHIN_S), 0, True),
        (SENT + came(2 + WITHIN_S), 2, False),
        (came(0.5) + SENT + came(99), 0, False),
        (SENT + came(2 + WITHIN_S, orderly=True), 0, False),
        (SENT + came(2 + ORDERLY_WITHIN_S, orderly=True), 0, True),
        (POSTED + came(2 + WITHIN_S), 0, False),
        (POSTED + came(3 + WITHIN_S), 0, True),
        (SENT + came(1) + GIVEN_BACK + came(2 + WITHIN_S), 0, False),
        (SENT + came(1) + GIVEN_BACK + came(3 + WITHIN_S), 0, True),
    ],
)
def test_lateness_check_allows_the_stated_time_after_healing(
    records: list[dict[str, Any]], healed_s: float, is_late: bool
) -> None:
    assert bool(late(records, int(healed_s * 1e9))) is is_late
