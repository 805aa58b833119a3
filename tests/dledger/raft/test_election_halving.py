"""Election time-outs are halved after calm times, and only then."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.election_backoff import CALM_TIMEOUTS, MARGIN
from raftmq.dledger.raft.election_halving import WAIT_FACTOR_MAX, ElectionHalving
from tests.dledger.group import Group

CONFIG = CoreConfig()
MIN_MS, MAX_MS = CONFIG.election_ms_min, CONFIG.election_ms_max
CALM_MS = CALM_TIMEOUTS * MAX_MS
BEAT_MS = CONFIG.heartbeat_ms


def led(halving: ElectionHalving, ms: float, since_ms: float, silent_ms: float = BEAT_MS) -> float:
    """Somebody leads for `ms`, and is heard every `silent_ms`. Return the time then."""
    now_ms = since_ms
    while now_ms < since_ms + ms:
        now_ms += silent_ms
        halving.heard(now_ms, silent_ms)
    return now_ms


def calm() -> tuple[ElectionHalving, float]:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    now_ms = led(halving, CALM_MS + BEAT_MS, 0.0)
    assert halving.holds
    return halving, now_ms


def test_halves_have_to_be_earned() -> None:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    now_ms = led(halving, CALM_MS - BEAT_MS, 0.0)
    assert (halving.holds, halving.scale) == (False, 1.0)
    led(halving, 3 * BEAT_MS, now_ms)
    assert (halving.holds, halving.scale) == (True, 0.5)


def test_a_silence_near_half_of_the_shortest_time_out_ends_them() -> None:
    halving, now_ms = calm()
    near_ms = MIN_MS / 2 / MARGIN
    halving.heard(now_ms + near_ms - 1, near_ms - 1)
    assert halving.holds
    halving.heard(now_ms + 2 * near_ms, near_ms)
    assert not halving.holds
    now_ms = led(halving, CALM_MS - BEAT_MS, now_ms + 2 * near_ms)
    assert not halving.holds
    led(halving, 2 * BEAT_MS, now_ms)
    assert halving.holds


def test_where_heartbeats_are_too_far_apart_they_never_hold() -> None:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    led(halving, 100 * CALM_MS, 0.0, silent_ms=MIN_MS / 2)
    assert not halving.holds


def test_whoever_has_no_leader_has_no_calm() -> None:
    halving, now_ms = calm()
    halving.interrupted()
    assert not halving.holds
    led(halving, CALM_MS - BEAT_MS, now_ms)
    assert not halving.holds


@pytest.mark.parametrize(("mistakes", "factor"), [(1, 2), (2, 4), (3, 8), (9, WAIT_FACTOR_MAX)])
def test_each_mistake_doubles_the_calm_that_is_asked_for(mistakes: int, factor: int) -> None:
    halving, now_ms = calm()
    for _ in range(mistakes):
        halving.mistaken()
    now_ms = led(halving, factor * CALM_MS - BEAT_MS, now_ms)
    assert not halving.holds
    led(halving, 3 * BEAT_MS, now_ms)
    assert halving.holds


def test_a_calm_group_misses_a_frozen_leader_in_half_of_the_time() -> None:
    group = Group("abc")
    group.elect("a")
    group.run(CALM_MS + 4 * BEAT_MS)
    assert [group[name].core.timer.halving.holds for name in "bc"] == [True, True]
    group.dropped = {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}  # and no connection closes
    group.run(MAX_MS / 2 + BEAT_MS)
    assert sorted(group[name].core.role.value for name in "bc") == ["follower", "leader"]
    assert not any(group[name].core.timer.halving.holds for name in "bc")
