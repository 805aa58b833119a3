"""Election time-outs that prove too short grow, and only those."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.election_backoff import CALM_TIMEOUTS, FACTOR_MAX, ElectionBackOff
from raftmq.dledger.raft.messages import Heartbeat, Role, VoteRequest, VoteResponse
from tests.dledger.group import Group

CONFIG = CoreConfig()
MIN_MS, MAX_MS = CONFIG.election_ms_min, CONFIG.election_ms_max
CALM_MS = CALM_TIMEOUTS * MAX_MS


def tried(mistakes: int) -> ElectionBackOff:
    back_off = ElectionBackOff(MIN_MS, MAX_MS)
    for _ in range(mistakes):
        back_off.mistaken()
    return back_off


def led(back_off: ElectionBackOff, ms: float, silent_ms: float, since_ms: float = 0.0) -> int:
    """Somebody leads for `ms`, and is heard every `silent_ms`."""
    now_ms = since_ms
    while now_ms <= since_ms + ms:
        back_off.heard(now_ms, silent_ms)
        now_ms += silent_ms
    return back_off.factor


@pytest.mark.parametrize(
    ("mistakes", "factor"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 16), (99, 16)]
)
def test_each_mistake_but_the_first_doubles_up_to_the_limit(mistakes: int, factor: int) -> None:
    assert tried(mistakes).factor == factor
    assert tried(99).factor == FACTOR_MAX


def test_all_is_forgiven_after_calm_times() -> None:
    back_off = tried(99)
    assert led(back_off, CALM_MS - 1, CONFIG.heartbeat_ms) == FACTOR_MAX
    assert led(back_off, CONFIG.heartbeat_ms * 2, CONFIG.heartbeat_ms, CALM_MS) == 1
    assert not back_off.tried


def test_a_first_mistake_is_forgiven_too() -> None:
    back_off = tried(1)
    led(back_off, CALM_MS + CONFIG.heartbeat_ms, CONFIG.heartbeat_ms)
    back_off.mistaken()
    assert back_off.factor == 1


def test_heartbeats_at_half_of_the_shortest_time_out_are_calm() -> None:
    assert led(tried(99), CALM_MS + MIN_MS, MIN_MS / 2) == 1


def test_where_silences_are_still_long_a_step_is_forgiven_in_the_time_outs_in_use() -> None:
    back_off = tried(99)
    silent_ms = MIN_MS * 4  # 4 * MARGIN: a factor of 8 outlasts it, one of 4 does not
    assert led(back_off, CALM_MS * 15, silent_ms) == 16
    assert led(back_off, CALM_MS * 2, silent_ms, CALM_MS * 15) == 8
    assert led(back_off, CALM_MS * 40, silent_ms, CALM_MS * 17) == 8


def test_a_time_without_a_leader_is_not_calm() -> None:
    back_off = tried(99)
    led(back_off, CALM_MS - 100, CONFIG.heartbeat_ms)
    back_off.interrupted()
    assert led(back_off, 1_000, CONFIG.heartbeat_ms, CALM_MS) == FACTOR_MAX


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


def test_a_leader_that_speaks_after_all_was_slow() -> None:
    group = group_of_a()
    for expected in (1, 1, 2, 4, 8, 16, 16)[1:]:
        gives_up(group, "b")
        assert group["b"].core.role is Role.PRE_CANDIDATE
        group.inject(heartbeat(group, "b"))
        assert group["b"].core.timer.back_off.factor == expected
        wait_ms = group["b"].core.next_deadline_ms - group.now_ms
        assert expected * MIN_MS <= wait_ms <= expected * MAX_MS


def test_a_leader_that_is_gone_teaches_nothing() -> None:
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


def test_leadership_that_is_handed_over_teaches_nothing() -> None:
    group = group_of_a()
    for source, target in ("ab", "bc", "ca") * 3:
        group[source].core.transfer(target, group.now_ms)
        group.run(10)
        assert group[target].core.leader_ready
    group["a"].core.step_down("its disk fails")
    group.run(10)
    assert group["a"].core.leader in ("b", "c")
    assert [mistakes(group, name) for name in "abc"] == [0, 0, 0]


def test_whoever_is_cut_off_asks_in_vain_and_learns_nothing() -> None:
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


def test_votes_that_come_after_their_round_were_slow() -> None:
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


def test_a_vote_behind_the_deciding_one_is_not_late() -> None:
    group = group_of_a()
    core = group["a"].core
    group.inject(VoteResponse("c", "a", core.term, core.term, False, True, core.ballot.incarnation))
    assert mistakes(group, "a") == 0


def test_a_leader_that_is_deposed_and_lives_was_slow() -> None:
    group = group_of_a()
    group.dropped = {("a", "b"), ("a", "c")}
    group.run(2 * MAX_MS)
    group.dropped.clear()
    group.run(2 * CONFIG.heartbeat_ms)
    assert group["a"].core.role is Role.FOLLOWER
    assert all(mistakes(group, name) <= 1 for name in "abc")
    assert sum(mistakes(group, name) for name in "abc") >= 2


def test_a_leader_waits_for_its_majority_with_the_same_back_off() -> None:
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


def test_one_patient_replica_delays_nobody_else() -> None:
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


def test_an_election_that_is_lost_in_good_time_is_repeated_as_configured() -> None:
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


def test_whoever_yields_to_another_candidate_is_as_patient() -> None:
    group = Group("abc")
    core = group["a"].core
    for _ in range(3):
        core.timer.back_off.mistaken()
    core.timer.due_ms = group.now_ms
    core.step(VoteRequest("b", "a", 1, 0, 0, pre_vote=True), group.now_ms)
    assert core.next_deadline_ms - group.now_ms >= 4 * CONFIG.heartbeat_ms
