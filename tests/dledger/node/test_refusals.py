"""Why a replica takes no frames, and for how long that counts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.refusals import STANDS_MS, Refusals


def core(**values: object) -> Any:
    state = {"takes_frames": True, "last_index": 7, "leader": "b"} | values
    election = SimpleNamespace(founders_differ=state.pop("founders_differ", False))
    return SimpleNamespace(**state, election=election)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, ""),
        ({"unfit": "a sync hangs"}, ""),
        ({"takes_frames": False, "founders_differ": True}, "its disk is full"),
        (
            {"takes_frames": False, "founders_differ": True, "last_index": 0, "unfit": "it hangs"},
            "its founders differ",
        ),
    ],
)
def test_frames_are_dropped_with_a_full_disk_and_before_the_first_index(
    values: dict[str, object], why: str
) -> None:
    assert Refusals(cast(Any, core(**values))).why(0.0) == why


@pytest.mark.parametrize(
    ("values", "at_ms", "stands"),
    [
        ({}, 0, True),
        ({"leader": None}, STANDS_MS - 1, True),  # its connection was closed
        ({}, STANDS_MS, False),
        ({"last_index": 8}, 0, False),  # some were taken since
        ({"leader": "c"}, 0, False),  # another one leads
    ],
)
def test_refusal_reason_is_reported_until_frames_are_accepted_again(
    values: dict[str, object], at_ms: float, stands: bool
) -> None:
    state = core()
    refusals = Refusals(state)
    refusals.note("b", "other segments", 0.0)
    state.__dict__.update(values)
    assert refusals.why(at_ms) == ("it refuses those of b: other segments" if stands else "")
