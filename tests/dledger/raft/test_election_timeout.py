"""Election time-outs: drawn between bounds, lengthened after mistakes, halved in calm times."""

from __future__ import annotations

import random

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.election_timeout import (
    CALM_TIMEOUTS,
    FACTOR_MAX,
    MARGIN,
    WAIT_FACTOR_MAX,
    ElectionBackOff,
    ElectionHalving,
    ElectionTimer,
)
from raftmq.dledger.raft.messages import Heartbeat, Role, VoteRequest, VoteResponse
from tests.dledger.group import Group

CONFIG = CoreConfig()
MIN_MS, MAX_MS = CONFIG.election_ms_min, CONFIG.election_ms_max
CALM_MS = CALM_TIMEOUTS * MAX_MS
BEAT_MS = CONFIG.heartbeat_ms


def make(factor: int = 1) -> ElectionTimer:
    timer = ElectionTimer(CONFIG, random.Random(1))
    while timer.back_off.factor < factor:
        timer.back_off.mistaken()
    timer.reset(0.0)
    return timer


@pytest.mark.parametrize("factor", [1, 2, 16])
def test_election_time_out_is_drawn_between_its_bounds(factor: int) -> None:
    timer = make(factor)
    drawn = set()
    for _ in range(50):
        timer.reset(100.0)
        assert factor * MIN_MS <= timer.due_ms - 100.0 <= factor * MAX_MS == timer.longest_ms
        drawn.add(timer.due_ms)
    assert len(drawn) > 40


def test_leader_counts_as_alive_while_connected_and_not_silent() -> None:
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
def test_suspected_peer_that_was_only_slow_counts_as_a_mistake(
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


def test_connection_closed_after_the_silence_is_no_mistake() -> None:
    timer = make()
    timer.give_up(("b",), 0.0)
    timer.peer_closed("b")
    timer.heard("b", 1.0)
    assert not timer.back_off.tried


def test_election_timer_yields_and_stands_back_once_per_time_out() -> None:
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


def test_closed_leader_connection_only_shortens_the_time_out() -> None:
    timer = make()
    timer.expect_no_leader(0.0)
    assert timer.due_ms <= CONFIG.close_jitter_ms
    timer.due_ms = -1.0
    timer.expect_no_leader(0.0)
    assert timer.due_ms == -1.0


@pytest.mark.parametrize(
    ("closed", "lasted_ms", "low_ms", "high_ms"),
    [
        (True, MIN_MS, CONFIG.close_jitter_ms / 2, CONFIG.close_jitter_ms * 1.5),
        (False, MIN_MS - 1, MIN_MS, MAX_MS),  # peers answer fast: as configured
        (False, MIN_MS, 4 * MIN_MS, 4 * MAX_MS),
    ],
)
def test_time_out_after_a_lost_election(
    closed: bool, lasted_ms: float, low_ms: float, high_ms: float
) -> None:
    timer = make(factor=4)
    if closed:
        timer.peer_closed("c")
    timer.reset(lasted_ms)
    timer.lost_election(0.0, lasted_ms)
    assert low_ms <= timer.due_ms - lasted_ms <= high_ms


def test_election_time_out_is_halved_in_calm_times() -> None:
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


def test_slow_peer_ends_halved_time_outs() -> None:
    timer = make()
    for beat in range(200):
        timer.leader_heard(beat * CONFIG.heartbeat_ms)
    assert timer.halving.holds
    timer.give_up(("a",), 15_000.0)
    timer.heard("a", 15_001.0)
    assert not timer.halving.holds and timer.back_off.tried


# -- the back-off ---------------------------------------------------------------------------------


def tried(mistakes: int) -> ElectionBackOff:
    back_off = ElectionBackOff(MIN_MS, MAX_MS)
    for _ in range(mistakes):
        back_off.mistaken()
    return back_off


def back_off_led(
    back_off: ElectionBackOff, ms: float, silent_ms: float, since_ms: float = 0.0
) -> int:
    """Somebody leads for `ms`, and is heard every `silent_ms`."""
    now_ms = since_ms
    while now_ms <= since_ms + ms:
        back_off.heard(now_ms, silent_ms)
        now_ms += silent_ms
    return back_off.factor


@pytest.mark.parametrize(
    ("mistakes", "factor"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 16), (99, 16)]
)
def test_election_back_off_doubles_from_the_second_mistake_to_its_limit(
    mistakes: int, factor: int
) -> None:
    assert tried(mistakes).factor == factor
    assert tried(99).factor == FACTOR_MAX


def test_election_back_off_ends_after_calm_times() -> None:
    back_off = tried(99)
    assert back_off_led(back_off, CALM_MS - 1, CONFIG.heartbeat_ms) == FACTOR_MAX
    assert back_off_led(back_off, CONFIG.heartbeat_ms * 2, CONFIG.heartbeat_ms, CALM_MS) == 1
    assert not back_off.tried


def test_first_mistake_is_cleared_after_calm_times() -> None:
    back_off = tried(1)
    back_off_led(back_off, CALM_MS + CONFIG.heartbeat_ms, CONFIG.heartbeat_ms)
    back_off.mistaken()
    assert back_off.factor == 1


def test_heartbeats_at_half_the_shortest_time_out_count_as_calm() -> None:
    assert back_off_led(tried(99), CALM_MS + MIN_MS, MIN_MS / 2) == 1


def test_back_off_falls_one_step_while_silences_fit_the_lower_time_out() -> None:
    back_off = tried(99)
    silent_ms = MIN_MS * 4  # 4 * MARGIN: a factor of 8 outlasts it, one of 4 does not
    assert back_off_led(back_off, CALM_MS * 15, silent_ms) == 16
    assert back_off_led(back_off, CALM_MS * 2, silent_ms, CALM_MS * 15) == 8
    assert back_off_led(back_off, CALM_MS * 40, silent_ms, CALM_MS * 17) == 8


def test_time_without_a_leader_does_not_count_as_calm() -> None:
    back_off = tried(99)
    back_off_led(back_off, CALM_MS - 100, CONFIG.heartbeat_ms)
    back_off.interrupted()
    assert back_off_led(back_off, 1_000, CONFIG.heartbeat_ms, CALM_MS) == FACTOR_MAX


# -- what a replica learns from ----------------------------------------------------------------


def group_of_a() -> Group:
    group = Group("abc")
    group.elect("a")
    return group


def mistakes(group: Group, name: str) -> int:
    return group[name].core.timer.back_off._mistakes


def gives_up(group: Group, name: str) -> None:
    """Its time-out is over, and nobody hears of it."""
    core = group[name].core
    group.now_ms = max(group.now_ms, core.timer.due_ms)
    core.tick(group.now_ms)
    group[name].work()
    group[name].outbox.clear()


def heartbeat(group: Group, to: str) -> Heartbeat:
    return Heartbeat("a", to, group["a"].core.term, 0, 99)


def test_leader_that_speaks_after_suspicion_was_slow() -> None:
    group = group_of_a()
    for expected in (1, 1, 2, 4, 8, 16, 16)[1:]:
        gives_up(group, "b")
        assert group["b"].core.role is Role.PRE_CANDIDATE
        group.inject(heartbeat(group, "b"))
        assert group["b"].core.timer.back_off.factor == expected
        wait_ms = group["b"].core.next_deadline_ms - group.now_ms
        assert expected * MIN_MS <= wait_ms <= expected * MAX_MS


def test_dead_leader_adds_no_back_off() -> None:
    group = group_of_a()
    group["a"].down = True
    for name in "bc":
        group[name].core.peer_closed("a", group.now_ms)
    group.run(5 * MAX_MS)
    assert {group["b"].core.role, group["c"].core.role} == {Role.LEADER, Role.FOLLOWER}
    group["a"].boot()
    group["a"].down = False
    group.run(MAX_MS)
    assert [mistakes(group, name) for name in "abc"] == [0, 0, 0]


def test_transferred_leadership_adds_no_back_off() -> None:
    group = group_of_a()
    for source, target in ("ab", "bc", "ca") * 3:
        group[source].core.transfer(target, group.now_ms)
        group.run(10)
        assert group[target].core.leader_ready
    group["a"].core.step_down("its disk fails")
    group.run(10)
    assert group["a"].core.leader in ("b", "c")
    assert [mistakes(group, name) for name in "abc"] == [0, 0, 0]


def test_partitioned_replica_adds_no_back_off() -> None:
    group = group_of_a()
    others = {("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}
    group.dropped = set(others)
    group.run(100 * MAX_MS)
    assert group["c"].core.role is Role.PRE_CANDIDATE
    group.dropped.clear()
    group.run(2 * CONFIG.heartbeat_ms)
    core = group["c"].core
    assert (core.leader, core.timer.back_off.factor) == ("a", 1)
    assert (group["a"].core.term, core.next_deadline_ms - group.now_ms <= MAX_MS) == (1, True)
    # A silence that no back-off outlasts proves nothing.
    assert mistakes(group, "c") == 0


def test_vote_after_its_round_counts_as_a_slow_voter() -> None:
    group = Group("abc")
    core = group["a"].core
    for expected in (1, 2, 4):
        group.campaign("a")
        core.step(VoteResponse("b", "a", core.term, core.term + 1, True, True, 1), group.now_ms)
        assert core.role is Role.CANDIDATE
        term = core.term
        gives_up(group, "a")
        late = VoteResponse("c", "a", term, term, False, True, core.ballot.incarnation)
        for _ in range(3):  # asked again, it answers again: that is one mistake
            core.step(late, group.now_ms)
        assert core.timer.back_off.factor == expected


def test_vote_after_the_deciding_one_is_not_late() -> None:
    group = group_of_a()
    core = group["a"].core
    group.inject(VoteResponse("c", "a", core.term, core.term, False, True, core.ballot.incarnation))
    assert mistakes(group, "a") == 0


def test_deposed_leader_that_lives_was_slow() -> None:
    group = group_of_a()
    group.dropped = {("a", "b"), ("a", "c")}
    group.run(2 * MAX_MS)
    group.dropped.clear()
    group.run(2 * CONFIG.heartbeat_ms)
    assert group["a"].core.role is Role.FOLLOWER
    assert all(mistakes(group, name) <= 1 for name in "abc")
    assert sum(mistakes(group, name) for name in "abc") >= 2


def test_leader_waits_for_its_majority_with_the_same_back_off() -> None:
    group = group_of_a()
    core = group["a"].core
    for _ in range(3):
        core.timer.back_off.mistaken()
    assert core.timer.back_off.factor == 4
    group["b"].down = group["c"].down = True
    group.run(4 * MAX_MS - 1)
    assert core.role is Role.LEADER
    group.run(CONFIG.heartbeat_ms + 1)
    assert core.role is not Role.LEADER
    # Should they answer now, they were slow once more.
    group["b"].down = False
    group.run(2 * CONFIG.heartbeat_ms)
    assert core.timer.back_off.factor == 8


# -- what it may cost --------------------------------------------------------------------------


def test_back_off_of_one_replica_does_not_delay_elections_of_its_peers() -> None:
    """Its own time-out is long; what it answers to others goes by what is configured."""
    group = group_of_a()
    for _ in range(9):
        group["c"].core.timer.back_off.mistaken()
    group.run(CONFIG.heartbeat_ms)
    group["a"].down = True  # and no connection closes
    began_ms = group.now_ms
    group.run(MAX_MS)
    assert group["b"].core.role is Role.LEADER
    assert group.now_ms - began_ms == MAX_MS


def test_election_lost_in_time_is_repeated_without_back_off() -> None:
    group = Group("abc")
    core = group["a"].core
    for _ in range(9):
        core.timer.back_off.mistaken()
    group.campaign("a")
    core.step(VoteResponse("b", "a", core.term, core.term + 1, True, True, 1), group.now_ms)
    for voter in "bc":
        refusal = VoteResponse(voter, "a", core.term, core.term, False, False, 1)
        core.step(refusal, group.now_ms + 5)
    assert core.role is Role.FOLLOWER
    assert MIN_MS <= core.next_deadline_ms - (group.now_ms + 5) <= MAX_MS


def test_replica_that_yields_to_a_candidate_uses_its_back_off() -> None:
    group = Group("abc")
    core = group["a"].core
    for _ in range(3):
        core.timer.back_off.mistaken()
    core.timer.due_ms = group.now_ms
    core.step(VoteRequest("b", "a", 1, 0, 0, pre_vote=True), group.now_ms)
    assert core.next_deadline_ms - group.now_ms >= 4 * CONFIG.heartbeat_ms


# -- the halving ----------------------------------------------------------------------------------


def halving_led(
    halving: ElectionHalving, ms: float, since_ms: float, silent_ms: float = BEAT_MS
) -> float:
    """Somebody leads for `ms`, and is heard every `silent_ms`. Return the time then."""
    now_ms = since_ms
    while now_ms < since_ms + ms:
        now_ms += silent_ms
        halving.heard(now_ms, silent_ms)
    return now_ms


def calm() -> tuple[ElectionHalving, float]:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    now_ms = halving_led(halving, CALM_MS + BEAT_MS, 0.0)
    assert halving.holds
    return halving, now_ms


def test_halved_time_outs_need_a_calm_period() -> None:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    now_ms = halving_led(halving, CALM_MS - BEAT_MS, 0.0)
    assert (halving.holds, halving.scale) == (False, 1.0)
    halving_led(halving, 3 * BEAT_MS, now_ms)
    assert (halving.holds, halving.scale) == (True, 0.5)


def test_silence_near_half_the_shortest_time_out_ends_halved_time_outs() -> None:
    halving, now_ms = calm()
    near_ms = MIN_MS / 2 / MARGIN
    halving.heard(now_ms + near_ms - 1, near_ms - 1)
    assert halving.holds
    halving.heard(now_ms + 2 * near_ms, near_ms)
    assert not halving.holds
    now_ms = halving_led(halving, CALM_MS - BEAT_MS, now_ms + 2 * near_ms)
    assert not halving.holds
    halving_led(halving, 2 * BEAT_MS, now_ms)
    assert halving.holds


def test_time_outs_are_not_halved_with_sparse_heartbeats() -> None:
    halving = ElectionHalving(MIN_MS, MAX_MS)
    halving_led(halving, 100 * CALM_MS, 0.0, silent_ms=MIN_MS / 2)
    assert not halving.holds


def test_loss_of_the_leader_ends_halved_time_outs() -> None:
    halving, now_ms = calm()
    halving.interrupted()
    assert not halving.holds
    halving_led(halving, CALM_MS - BEAT_MS, now_ms)
    assert not halving.holds


@pytest.mark.parametrize(("mistakes", "factor"), [(1, 2), (2, 4), (3, 8), (9, WAIT_FACTOR_MAX)])
def test_each_mistake_doubles_the_calm_period_for_halved_time_outs(
    mistakes: int, factor: int
) -> None:
    halving, now_ms = calm()
    for _ in range(mistakes):
        halving.mistaken()
    now_ms = halving_led(halving, factor * CALM_MS - BEAT_MS, now_ms)
    assert not halving.holds
    halving_led(halving, 3 * BEAT_MS, now_ms)
    assert halving.holds


def test_calm_group_detects_a_frozen_leader_in_half_the_time() -> None:
    group = Group("abc")
    group.elect("a")
    group.run(CALM_MS + 4 * BEAT_MS)
    assert [group[name].core.timer.halving.holds for name in "bc"] == [True, True]
    group.dropped = {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}  # and no connection closes
    group.run(MAX_MS / 2 + BEAT_MS)
    assert sorted(group[name].core.role.value for name in "bc") == ["follower", "leader"]
    assert not any(group[name].core.timer.halving.holds for name in "bc")
