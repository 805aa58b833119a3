"""The choice of a replica that can take over from a leader at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from raftmq.dledger.node.leadership_transfer import (
    HEARD_HEARTBEATS,
    LAG_FRAMES_MAX,
    able_successors,
    best_successor,
    willing_voters,
)
from raftmq.dledger.raft.config import CoreConfig

NOW_MS = 10_000.0
CONFIG = CoreConfig()


def follower(name: str, **changes: object) -> SimpleNamespace:
    good = {
        "peer": name,
        "recovering": False,
        "heard_ms": NOW_MS,
        "match_index": 100,
        "no_room": False,
    }
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
def test_able_successors_excludes_lagging_recovering_and_silent_voters(
    changes: dict[str, object], able: bool
) -> None:
    other = follower("n1", **changes)
    core = SimpleNamespace(
        progress={other.peer: other},
        membership=SimpleNamespace(voters=frozenset({"n0", "n1", "away"})),
        config=CONFIG,
        last_index=100,
    )
    result = able_successors(core, lambda peer: peer != "away", NOW_MS)  # type: ignore[arg-type]
    assert result == ([other] if able else [])


@pytest.mark.parametrize(
    ("followers", "best"),
    [
        ([], None),
        ([follower("learner")], None),
        ([follower("learner"), follower("n1", match_index=99)], "n1"),
        ([follower("n1", match_index=99), follower("n2")], "n2"),
        ([follower("n1", match_index=99), follower("n2", recovering=True)], "n1"),
        ([follower("n1", match_index=99), follower("n2", heard_ms=0.0)], "n1"),
        ([follower("n1", match_index=99), follower("n2", no_room=True)], "n1"),
        ([follower("n1", no_room=True)], "n1"),
    ],
)
def test_best_successor_has_the_highest_match_index(
    followers: list[SimpleNamespace], best: str | None
) -> None:
    core = SimpleNamespace(
        progress={one.peer: one for one in followers},
        membership=SimpleNamespace(voters=frozenset({"n0", "n1", "n2"})),
        config=CONFIG,
        last_index=100,
    )
    assert best_successor(core, lambda _: True, NOW_MS) == best  # type: ignore[arg-type]


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
def test_willing_voters_excludes_followers_with_a_full_disk(
    changes: dict[str, object], roomy: bool
) -> None:
    other = follower("n1", **({"no_room": False} | changes))
    membership = SimpleNamespace(voters=frozenset({"n0", "n1", "away"}))
    core = SimpleNamespace(progress={other.peer: other}, membership=membership, config=CONFIG)
    result = willing_voters(core, lambda peer: peer != "away")  # type: ignore[arg-type]
    assert result == ([other.peer] if roomy else [])
