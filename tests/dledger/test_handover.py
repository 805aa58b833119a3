"""The choice of a replica that can take over from a leader at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raftmq.dledger.handover import HEARD_HEARTBEATS, LAG_FRAMES_MAX, able_successors, with_room
from raftmq.dledger.state import CoreConfig

NOW_MS = 10_000.0
CONFIG = CoreConfig()


def follower(name: str, **changes: object) -> SimpleNamespace:
    good = {"peer": name, "recovering": False, "heard_ms": NOW_MS, "match_index": 100}
    return SimpleNamespace(**(good | changes))


@pytest.mark.parametrize(
    ("changes", "able"),
    [
        ({}, True),
        ({"match_index": 100 - LAG_FRAMES_MAX}, True),
        ({"match_index": 99 - LAG_FRAMES_MAX}, False),  # it would keep senders waiting
        ({"recovering": True}, False),
        ({"heard_ms": NOW_MS - HEARD_HEARTBEATS * CONFIG.heartbeat_ms}, True),
        ({"heard_ms": NOW_MS - HEARD_HEARTBEATS * CONFIG.heartbeat_ms - 1}, False),
        ({"peer": "learner"}, False),
        ({"peer": "away"}, False),
    ],
)
def test_who_is_able(changes: dict[str, object], able: bool) -> None:
    other = follower("n1", **changes)
    core = SimpleNamespace(
        progress={other.peer: other},
        membership=SimpleNamespace(voters=frozenset({"n0", "n1", "away"})),
        config=CONFIG,
        last_index=100,
    )
    found = able_successors(core, lambda peer: peer != "away", NOW_MS)  # type: ignore[arg-type]
    assert found == ([other] if able else [])


@pytest.mark.parametrize(
    ("changes", "roomy"),
    [
        ({}, True),
        ({"no_room": True}, False),
        ({"recovering": None}, True),  # not heard yet
        ({"recovering": 4711}, False),
        ({"peer": "learner"}, False),
        ({"peer": "away"}, False),
    ],
)
def test_who_may_have_room(changes: dict[str, object], roomy: bool) -> None:
    other = follower("n1", **({"no_room": False} | changes))
    membership = SimpleNamespace(voters=frozenset({"n0", "n1", "away"}))
    core = SimpleNamespace(progress={other.peer: other}, membership=membership, config=CONFIG)
    found = with_room(core, lambda peer: peer != "away")  # type: ignore[arg-type]
    assert found == ([other.peer] if roomy else [])
