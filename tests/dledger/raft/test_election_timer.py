"""The election timer: how long it waits, whom it believes silent, and what changes a time-out."""

from __future__ import annotations

import random

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.election_backoff import CALM_TIMEOUTS, FACTOR_MAX, ElectionBackOff
from raftmq.dledger.raft.election_halving import ElectionHalving
from raftmq.dledger.raft.election_timer import ElectionTimer

CONFIG = CoreConfig()
MIN_MS, MAX_MS = CONFIG.election_ms_min, CONFIG.election_ms_max


def make(factor: int = 1) -> ElectionTimer:
    back_off = ElectionBackOff(MIN_MS, MAX_MS)
    while back_off.factor < factor:
        back_off.mistaken()
    halving = ElectionHalving(MIN_MS, MAX_MS)
    timer = ElectionTimer(CONFIG, random.Random(1), back_off, halving)
    timer.reset(0.0)
    return timer


@pytest.mark.parametrize("factor", [1, 2, 16])
def test_a_time_out_is_drawn_between_its_bounds(factor: int) -> None:
    timer = make(factor)
    drawn = set()
    for _ in range(50):
        timer.reset(100.0)
        assert factor * MIN_MS <= timer.due_ms - 100.0 <= factor * MAX_MS == timer.longest_ms
        drawn.add(timer.due_ms)
    assert len(drawn) > 40


def test_a_leader_is_heard_while_it_is_connected_and_not_silent() -> None:
    timer = make(factor=4)  # which makes no difference here
    assert not timer.hears("a", 0.0)
    timer.leader_heard(10.0)
    assert timer.hears("a", 10.0 + MIN_MS - 1)
    assert not timer.hears("a", 10.0 + MIN_MS)
    assert not timer.hears(None, 10.0)
    timer.peer_closed("a")
    assert not timer.hears("a", 10.0)
    timer.heard("a", 11.0)
    assert timer.hears("a", 11.0)


@pytest.mark.parametrize(
    ("closed", "speaker", "after_ms", "mistakes"),
    [
        ((), "b", 1.0, 1),
        ((), "c", 1.0, 0),  # was not given up
        (("b",), "b", 1.0, 0),  # it was cut off, not slow
        ((), "b", FACTOR_MAX * MAX_MS, 0),  # too late to be a matter of time-outs
    ],
)
def test_a_peer_that_was_only_slow_is_a_mistake(
    closed: tuple[str, ...], speaker: str, after_ms: float, mistakes: int
) -> None:
    timer = make()
    for peer in closed:
        timer.peer_closed(peer)
    timer.give_up(("b",), 100.0)
    timer.heard(speaker, 100.0 + after_ms)
    assert timer.back_off.tried == bool(mistakes)
    timer.heard(speaker, 100.0 + after_ms)  # counts once
    assert timer.back_off.factor == 1


def test_a_close_after_the_silence_is_no_mistake() -> None:
    timer = make()
    timer.give_up(("b",), 0.0)
    timer.peer_closed("b")
    timer.heard("b", 1.0)
    assert not timer.back_off.tried


def test_it_yields_and_stands_back_once_a_time_out() -> None:
    timer = make(factor=2)
    timer.due_ms = 0.0
    timer.yield_once(0.0)
    yielded_ms = timer.due_ms
    assert 2 * CONFIG.heartbeat_ms <= yielded_ms <= 2 * CONFIG.heartbeat_ms + CONFIG.close_jitter_ms
    timer.yield_once(1_000.0)
    assert timer.due_ms == yielded_ms
    assert timer.stands_back(5.0)
    assert timer.due_ms == 5.0 + 2 * MAX_MS
    assert not timer.stands_back(6.0)
    timer.reset(0.0)
    assert timer.stands_back(0.0)


def test_the_leaders_close_only_shortens() -> None:
    timer = make()
    timer.leader_closed(0.0)
    assert timer.due_ms <= CONFIG.close_jitter_ms
    timer.due_ms = -1.0
    timer.leader_closed(0.0)
    assert timer.due_ms == -1.0


@pytest.mark.parametrize(
    ("closed", "lasted_ms", "low_ms", "high_ms"),
    [
        (True, MIN_MS, CONFIG.close_jitter_ms / 2, CONFIG.close_jitter_ms * 1.5),
        (False, MIN_MS - 1, MIN_MS, MAX_MS),  # peers answer fast: as configured
        (False, MIN_MS, 4 * MIN_MS, 4 * MAX_MS),
    ],
)
def test_after_a_lost_election(
    closed: bool, lasted_ms: float, low_ms: float, high_ms: float
) -> None:
    timer = make(factor=4)
    if closed:
        timer.peer_closed("c")
    timer.reset(lasted_ms)
    timer.lost_election(0.0, lasted_ms)
    assert low_ms <= timer.due_ms - lasted_ms <= high_ms


def test_in_calm_times_half_of_the_configured_time_outs_holds() -> None:
    timer = make()
    now_ms = 0.0
    while not timer.halving.holds:
        now_ms += CONFIG.heartbeat_ms
        timer.leader_heard(now_ms)
    assert now_ms >= CALM_TIMEOUTS * MAX_MS
    timer.reset(now_ms)
    assert MIN_MS / 2 <= timer.due_ms - now_ms <= MAX_MS / 2
    assert timer.hears("a", now_ms + MIN_MS / 2 - 1)
    assert not timer.hears("a", now_ms + MIN_MS / 2)
    assert timer.longest_ms == MAX_MS  # a leader waits for its majority as long as ever
    timer.give_up(("a",), now_ms)
    timer.reset(now_ms)
    assert timer.due_ms - now_ms >= MIN_MS


def test_a_peer_that_was_only_slow_ends_halves_too() -> None:
    timer = make()
    for beat in range(200):
        timer.leader_heard(beat * CONFIG.heartbeat_ms)
    assert timer.halving.holds
    timer.give_up(("a",), 15_000.0)
    timer.heard("a", 15_001.0)
    assert not timer.halving.holds and timer.back_off.tried
