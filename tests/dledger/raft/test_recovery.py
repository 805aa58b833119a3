"""Whole and recovering replicas: each rule of dledger/raft/recovery.py by itself. (How they play
together is in scripts/ and in the simulator, where rules 1, 2 and the barrier are also taken away
one by one. What the simulator cannot show the want of, because it needs more losses at a time
than the promise covers, or two of them within one candidacy, is here only.)"""

from __future__ import annotations

from itertools import combinations

import pytest

from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import Busy
from raftmq.dledger.raft.messages import (
    AppendOrder,
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.raft.quorum import Outcome, Tally, majority, witnesses
from tests.dledger.group import Group, Member, make_frame, make_log
from tests.dledger.raft.test_membership import make

LOST = HardState(0, None, recovered=False)


def led(names: str = "abc") -> Group:
    group = Group(names)
    group.elect("a")
    group.run(75)
    return group


def lose_disk(group: Group, name: str) -> Member:
    """A blank replica in the place of `name`; its links are as they were."""
    member = group[name]
    member.log.clear()
    member.saved = LOST
    member.boot()
    return member


def blank(names: str = "abc") -> Group:
    group = Group(names)
    for name in names:
        group.add(name, hard_state=LOST)
    return group


# -- counting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 10))
def test_witnesses_overlap_every_majority_without_the_recovering_replica(count: int) -> None:
    others = count - 1
    assert witnesses(count, votes=True) + (majority(count) - 1) > others  # they overlap


@pytest.mark.parametrize("count", range(3, 10))
def test_witnesses_overlap_majorities_of_adjacent_configurations(count: int) -> None:
    """Less the one replica, and with one voter more or less: a change may be under way."""
    others = set(range(1, count))  # 0 is who lost its memory
    for voters in ({*others, 0}, {*others, 0, count}, {*others - {1}, 0}):
        for elected in combinations(voters, majority(len(voters))):
            for holding in combinations(others, witnesses(count, votes=True)):
                assert 0 not in elected or set(elected) & set(holding), (elected, holding)


@pytest.mark.parametrize("count", range(1, 10))
def test_witnesses_of_a_non_voter_overlap_the_majorities_with_its_vote(
    count: int,
) -> None:
    """A learner, or one whose removal is under way: 0, beside `count` voters."""
    voters = set(range(1, count + 1))
    for elected in combinations({0, *voters}, majority(count + 1)):
        for holding in combinations(voters, witnesses(count, votes=False)):
            assert 0 not in elected or set(elected) & set(holding), (elected, holding)


@pytest.mark.parametrize(
    ("voters", "grants", "outcome"),
    [
        ("abc", {"a": 0, "b": 0}, Outcome.WON),
        ("abc", {"a": 0, "b": 7}, Outcome.PENDING),
        ("abc", {"a": 5, "b": 7, "c": 8}, Outcome.WON),
        ("abc", {"a": 0, "b": 7, "c": 8}, Outcome.WON),
        ("abc", {"a": 5, "b": 0, "c": 0}, Outcome.WON),
        ("abcde", {"a": 0, "b": 0, "c": 7, "d": 8}, Outcome.PENDING),
        ("abcde", {"a": 0, "b": 0, "c": 7, "d": 8, "e": 9}, Outcome.WON),
        ("ab", {"a": 0}, Outcome.PENDING),
        ("ab", {"a": 0, "b": 7}, Outcome.WON),
        ("a", {"a": 7}, Outcome.WON),
    ],
)
def test_election_needs_a_majority_of_recovered_voters_or_all(
    voters: str, grants: dict[str, int], outcome: Outcome
) -> None:
    tally = Tally(frozenset(voters))
    for voter, recovering in grants.items():
        tally.record(voter, True, recovering)
    assert tally.outcome() is outcome
    recovered = sum(not recovering for recovering in grants.values())
    assert tally.by_majority is (recovered >= majority(len(voters)))


def test_election_by_all_voters_is_lost_at_the_first_refusal() -> None:
    tally = Tally(frozenset("abc"))
    tally.record("a", True, 5)
    tally.record("b", True, 6)
    assert tally.outcome() is Outcome.PENDING
    tally.record("c", False)
    assert tally.outcome() is Outcome.LOST
    tally = Tally(frozenset("abc"))
    tally.record("a", True)
    tally.record("b", True, 6)
    assert tally.outcome(unreachable=frozenset("c")) is Outcome.LOST
    tally = Tally(frozenset("abc"))
    tally.record("a", True)
    tally.record("b", False)
    assert tally.outcome() is Outcome.PENDING  # c may be recovered


# -- what a recovering replica does and what it is worth --------------------------------------


def test_recovering_replica_marks_every_answer() -> None:
    member = Member("a", list("abc"), hard_state=LOST)
    member.core.step(VoteRequest("b", "a", 1, 0, 0, False, incarnation=9), 0)
    member.core.step(Heartbeat("b", "a", 1, 0, 1), 0)
    member.core.step(AppendRequest("b", "a", 1, 0, 0, 0, tuple(make_log([1]))), 0)
    member.core.step(AppendRequest("b", "a", 1, 7, 1, 0, ()), 0)
    member.work()
    said = {(type(m), getattr(m, "recovering", None)) for m in member.outbox}
    assert said == {(VoteResponse, 1), (HeartbeatResponse, 1), (AppendResponse, True)}
    assert not member.saved.recovered


def test_copy_on_a_recovering_replica_does_not_count_for_commit() -> None:
    group = led()
    group["c"].down = True
    lose_disk(group, "b")
    group["a"].propose(b"x")
    group.run(300)
    assert group["b"].log == group["a"].log
    assert group["a"].core.commit_index == 1
    group["c"].down = False
    group.run(300)
    assert group["a"].core.commit_index == group["a"].core.last_index
    assert group["b"].core.recovered


def test_recovering_replica_confirms_no_read() -> None:
    group = led()
    group["c"].down = True
    lose_disk(group, "b")
    group.run(75)
    group["a"].core.read_index(1)
    group.run(300)
    assert group["a"].reads == []
    group["c"].down = False
    group.run(300)
    assert [token for token, _ in group["a"].reads] == [1]


def test_recovering_leader_does_not_confirm_reads_by_itself() -> None:
    group = led("abcde")
    core = group["a"].core
    core.ballot.recovered = False
    assert core._leading is not None
    core._leading._recovery._first_index = 99  # and not made to recover by what the others have
    core.read_index(1)
    group.work()
    for peer in "bc":
        core.step(HeartbeatResponse(peer, "a", 1, 1, core.round, 1, 1, 1), group.now_ms)
    group.work()
    assert group["a"].reads == []
    core.step(HeartbeatResponse("d", "a", 1, 1, core.round, 1, 1, 1), group.now_ms)
    group.work()
    assert len(group["a"].reads) == 1


def test_leadership_is_not_transferred_to_a_recovering_replica() -> None:
    group = led()
    lose_disk(group, "b")
    group["c"].down = True
    group.run(150)
    core = group["a"].core
    with pytest.raises(Busy, match="b is recovering"):
        core.transfer("b", group.now_ms)
    core.progress["b"].match_index = core.progress["c"].match_index + 1
    core.step_down("disk")
    orders = [m for r in group["a"].work() for m in r.messages if isinstance(m, TimeoutNow)]
    assert [m.to for m in orders] == ["c"]


def test_recovering_replica_commits_only_proven_frames() -> None:
    """The leader may not know yet that it forgot what it had acknowledged."""
    for recovered, commit_index in ((True, 3), (False, 0)):
        member = Member("a", list("abc"), [1, 1, 1], HardState(1, None, recovered))
        member.core.step(Heartbeat("b", "a", 2, 3, 1), 0)
        assert member.core.commit_index == commit_index


# -- votes and candidacies --------------------------------------------------------------------


def test_vote_counts_only_for_the_incarnation_that_requested_it() -> None:
    member = Member("a", list("abc"))
    member.core.step(TimeoutNow("b", "a", 0), 0)
    member.work()
    assert member.core.role is Role.CANDIDATE
    for incarnation, role in ((77, Role.CANDIDATE), (1, Role.LEADER)):
        answer = VoteResponse("b", "a", 1, 1, False, True, request_incarnation=incarnation)
        member.core.step(answer, 0)
        assert member.core.role is role


def test_vote_is_repeated_only_to_the_same_incarnation() -> None:
    """A candidate that lost its memory may have led that term already."""
    member = Member("a", list("abc"))

    def asked(incarnation: int) -> bool:
        member.core.step(VoteRequest("b", "a", 1, 0, 0, False, incarnation=incarnation), 0)
        member.work()
        return member.outbox.pop().granted  # type: ignore[union-attr]

    assert asked(5)
    assert asked(5)
    assert not asked(6)
    member.boot()
    assert not asked(5)  # it does not remember which: the candidate has to start a new term


# -- the barrier ------------------------------------------------------------------------------


def test_each_incarnation_gets_its_own_recovery_barrier() -> None:
    group = led()
    before = len(group["a"].log)
    lose_disk(group, "b")
    group["c"].holding = True
    group.run(1_000)
    assert len(group["a"].log) == before + 1
    assert not group["b"].core.recovered
    group["b"].boot()  # killed, and nothing was lost with that; but it is another incarnation
    group.run(1_000)
    assert len(group["a"].log) == before + 2
    assert not group["b"].core.recovered
    group["c"].holding = False
    group["c"].core.durable(len(group["c"].log))
    group.run(300)
    assert group["b"].core.recovered
    assert group["b"].saved == HardState(1, "a")
    group.run(1_000)
    assert len(group["a"].log) == before + 2


def test_recovery_needs_every_frame_before_the_barrier_durable() -> None:
    """It needs every frame up to it durable, not only sent."""
    group = led()
    member = lose_disk(group, "b")
    member.holding = True
    group.run(75)
    member.core.durable(1)
    group.run(300)
    assert len(member.log) == len(group["a"].log) == 2
    assert not member.core.recovered
    member.core.durable(len(member.log))
    group.run(300)
    assert member.core.recovered


@pytest.mark.parametrize(
    ("term", "certified", "recovered"), [(1, 1, True), (1, 2, False), (0, 1, False)]
)
def test_recovery_certificate_is_valid_for_one_incarnation_and_term(
    term: int, certified: int, recovered: bool
) -> None:
    member = Member("a", list("abc"), hard_state=HardState(1, None, recovered=False))
    member.core.step(Heartbeat("b", "a", 1, 0, 1), 0)
    member.core.step(Heartbeat("b", "a", term, 0, 1, certified), 0)
    member.work()
    assert member.core.recovered is recovered
    assert member.saved == HardState(1, "b" if recovered else None, recovered)


def test_recovered_replica_keeps_a_vote_that_it_had_stored() -> None:
    """After a power cut under ASYNC_FLUSH votes are known, if frames may not be."""
    member = Member("a", list("abc"), hard_state=HardState(1, "c", recovered=False))
    member.core.step(Heartbeat("b", "a", 1, 0, 1, certified=1), 0)
    member.work()
    assert member.saved == HardState(1, "c", recovered=True)


def test_acknowledgements_before_a_disk_loss_do_not_count_after_it() -> None:
    group = led()
    core = group["a"].core
    lose_disk(group, "b")
    group["b"].holding = True
    group["c"].holding = True
    group.run(150)
    progress = core.progress["b"]
    assert (progress.match_index, progress.recovered_index) == (0, 0)
    last = core.last_index
    core.step(AppendResponse("b", "a", 1, 1, True, last, last - 1, 0, 0, last), group.now_ms)
    late = HeartbeatResponse("b", "a", 1, 1, progress.round - 1, last, last, last)
    core.step(late, group.now_ms)
    assert (progress.match_index, progress.recovered_index) == (0, 0)
    assert core.commit_index < last


def test_frames_of_an_older_leader_do_not_delay_a_blank_replica() -> None:
    """It took frames that nobody committed where the leader believes that it has the right ones."""
    group = Group("abc")
    for name in "abc":
        group.add(name, [1, 1, 2], HardState(2, None))
    group.elect("a")
    group.run(75)
    member = lose_disk(group, "b")
    frames = make_log([1, 1])
    for index in range(3, 9):
        frames.append(make_frame(index, 1, frames[-1].end, b"an older leader's"))
    member.core.step(AppendRequest("c", "b", 1, 0, 0, 0, tuple(frames)), group.now_ms)
    member.work()
    assert len(member.log) == 8
    group.run(1_000)
    assert member.log == group["a"].log
    assert member.core.recovered


def test_recovering_leader_recovers_with_its_first_committed_frame() -> None:
    group = Group("abc")
    group.add("a", [1, 1], HardState(1, None, recovered=False))
    group.add("b", [1, 1], HardState(1, None))
    group.add("c", [1], HardState(1, None))
    group["a"].holding = True
    group.elect_unready("a")
    group.run(75)
    core = group["a"].core
    assert core.leader_ready  # by the other two
    assert not core.recovered
    core.durable(2)
    assert not core.recovered
    core.durable(3)
    group.run(75)
    assert core.recovered
    assert group["a"].saved.recovered


def test_replica_of_a_two_replica_group_recovers_from_its_peer() -> None:
    group = led("ab")
    group["a"].propose(b"x")
    group.settle()
    member = lose_disk(group, "b")
    group.run(300)
    assert member.core.recovered
    assert member.log == group["a"].log


def test_removed_replica_needs_both_remaining_voters_to_recover() -> None:
    """b leads term 2 by c's vote, and c forgets it, with a frame that b committed with it. a does
    not know of term 2 and removes c. Then a and b are the voters, and a alone has the barrier."""
    group = led()
    group.dropped = {("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")}
    for name in "bc":
        group[name].core.peer_closed("a", group.now_ms)
    group.campaign("b")
    group.settle()
    assert (group["b"].core.term, group["b"].core.commit_index) == (2, 2)
    member = lose_disk(group, "c")
    group.dropped = {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    make(group["a"], Change(ChangeKind.REMOVE, "c"))
    group.run(300)
    assert group["a"].core.membership.voters == {"a", "b"}
    assert group["a"].core.term == member.core.term == 1
    assert member.log == group["a"].log
    assert not member.core.recovered


def test_learner_of_a_two_replica_group_needs_both_voters_to_recover() -> None:
    group = led("ab")
    group.members["c"] = Member("c", [], hard_state=LOST)
    make(group["a"], Change(ChangeKind.ADD_LEARNER, "c", "c:1"))
    group["b"].holding = True
    group.run(300)
    assert group["c"].log == group["a"].log
    assert not group["c"].core.recovered
    group["b"].holding = False
    group["b"].core.durable(len(group["b"].log))
    group.run(300)
    assert group["c"].core.recovered


# -- founding ---------------------------------------------------------------------------------


def test_founding_waits_for_all_voters_before_the_first_commit() -> None:
    group = blank()
    group["c"].holding = True
    group.campaign("a")
    group.settle()
    group.run(5_000)
    core = group["a"].core
    assert core.role is Role.LEADER
    assert not core.leader_ready
    assert [m.core.recovered for m in group.members.values()] == [False] * 3
    group["c"].holding = False
    group["c"].core.durable(1)
    group.run(75)
    assert core.leader_ready
    assert [m.core.recovered for m in group.members.values()] == [True] * 3


def test_outdated_grant_does_not_complete_a_founding() -> None:
    """a is recovering, and all grant it a vote; but b gave its own long ago and follows another
    leader since. Elected by all, a is not recovered for that: b's log may hold what a never saw."""
    group = blank()
    group.campaign("a")
    while group["a"].core.role is not Role.CANDIDATE:
        group.work()
        group.deliver_one()
    core = group["a"].core
    for voter in "bc":
        core.step(VoteResponse(voter, "a", 1, 1, False, True, 1, 50), group.now_ms)
    group["a"].work()
    assert core.role is Role.LEADER
    core.step(HeartbeatResponse("c", "a", 1, 1, 1, 1, 1, 1, 50), group.now_ms)
    assert not core.recovered
    core.step(HeartbeatResponse("b", "a", 2, 1, 1, 1, 0, 0), group.now_ms)
    assert (core.role, core.term, core.recovered) == (Role.FOLLOWER, 2, False)


def test_founding_elects_the_best_remaining_log() -> None:
    group = Group("abc")
    for name, terms in (("a", [1, 1]), ("b", [1, 1, 1]), ("c", [1])):
        group.add(name, terms, HardState(1, None, recovered=False))
    group.run(5_000)
    leaders = [m.name for m in group.members.values() if m.core.role is Role.LEADER]
    assert leaders == ["b"]
    assert [m.terms for m in group.members.values()] == [[1, 1, 1, group["b"].core.term]] * 3
    assert all(m.core.recovered for m in group.members.values())


@pytest.mark.parametrize("returns", ["with its disk", "blank"])
def test_group_elects_after_a_power_cut_only_once_every_voter_returned(returns: str) -> None:
    """Two of three elect nobody, however long they try. The third may be a blank replacement: the
    best log that is left leads."""
    group = Group("abc")
    for name, terms in (("a", [1, 1]), ("b", [1, 1, 1]), ("c", [1, 1])):
        group.add(name, terms, HardState(1, "a", recovered=False))
    third = group["c"]
    third.down = True
    group.run(60_000)
    for name in "ab":
        assert (group[name].core.leader, group[name].core.recovered) == (None, False)
    third.down = False
    if returns == "blank":
        lose_disk(group, "c")
    group.run(5_000)
    leader = next(m for m in group.members.values() if m.core.leader_ready)
    assert leader.terms == [1, 1, 1, leader.core.term]
    assert all(m.core.recovered and m.log == leader.log for m in group.members.values())


def test_blank_replicas_elect_as_fast_as_recovered_ones() -> None:
    """To the millisecond: one more round trip to found the group takes none here."""
    ready_ms = []
    for hard_state in (HardState(0, None), LOST):
        group = Group("abc")
        for name in "abc":
            group.add(name, hard_state=hard_state)
        while not any(m.core.leader_ready for m in group.members.values()):
            group.run(1.0)
        ready_ms.append(group.now_ms)
    assert ready_ms[0] == ready_ms[1]


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_late_last_founder_delays_the_election_only_briefly(names: str) -> None:
    for seed in range(20):
        group = blank(names)
        for offset, name in enumerate(names):
            group.members[name] = Member(
                name, list(names), hard_state=LOST, seed=1000 * seed + offset
            )
        late = group[names[-1]]
        late.down = True
        group.run(3_000)
        assert not any(m.core.role is Role.LEADER for m in group.members.values())
        late.down = False
        late.now_ms = group.now_ms
        late.boot()
        group.run(1_500)
        assert any(m.core.leader_ready for m in group.members.values()), seed


# -- disks ------------------------------------------------------------------------------------


def test_replica_with_a_failing_disk_neither_leads_nor_campaigns() -> None:
    group = led()
    core = group["a"].core
    core.disk_fails("it hangs")
    assert core.role is Role.FOLLOWER
    assert core.election.unfit == "it hangs"
    for name in "bc":
        group[name].down = True
    group.run(10_000)
    core.step(TimeoutNow("b", "a", core.term), group.now_ms)
    assert (core.role, core.term) == (Role.FOLLOWER, 1)
    assert core.next_deadline_ms > group.now_ms
    core.disk_works()
    assert core.election.unfit is None
    group.run(1_000)
    assert core.role is Role.PRE_CANDIDATE
    core.disk_fails("again")
    assert core.role is Role.FOLLOWER


def test_replica_with_a_failing_disk_votes_and_follows() -> None:
    member = Member("a", list("abc"))
    member.core.disk_fails("it hangs")
    member.core.step(VoteRequest("b", "a", 1, 0, 0, False, incarnation=3), 0)
    member.core.step(AppendRequest("b", "a", 1, 0, 0, 0, tuple(make_log([1]))), 0)
    member.work()
    assert member.saved == HardState(1, "b")
    assert member.terms == [1]


def test_replica_with_a_full_disk_rejects_frames_and_answers_heartbeats() -> None:
    group = led()
    group["b"].core.disk_fails("no room", takes_frames=False)
    for _ in range(5):
        group["a"].propose(b"x" * 1000)
        group.run(2_000)
    assert group["b"].terms == [1]
    assert group["b"].core.leader == "a"
    assert group["a"].core.commit_index == 6
    sent = [m for r in group["a"].readies for m in r.messages if isinstance(m, AppendOrder)]
    assert len([m for m in sent if m.to == "b"]) < 25  # it is not fed for ever
    group["b"].core.disk_works()
    group.run(10_000)  # resends back off to 4.8 s
    assert group["b"].log == group["a"].log


def test_leader_lists_full_voters_that_prevent_commits() -> None:
    group = led()
    leader = group["a"].core
    for name, full in (("b", []), ("c", ["b", "c"])):
        group[name].core.disk_fails("no room", takes_frames=False)
        group.run(500)
        assert leader.full_voters(group.now_ms) == full
    assert all(progress.no_room for progress in leader.progress.values())
    group["b"].core.disk_works()
    group.run(500)
    assert leader.full_voters(group.now_ms) == []
    assert group["c"].core.full_voters(group.now_ms) == []
