"""Raft section 5, sentence by sentence (the paraphrases are ours; numbers are the paper's)."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.errors import MessageRefused, NotLeader
from raftmq.dledger.raft.messages import (
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
from tests.dledger.group import Group, Member, make_frame, make_log


def led(names: str = "abc") -> Group:
    group = Group(names)
    group.elect("a")
    return group


def vote_request(term: int, last_index: int = 0, last_term: int = 0) -> VoteRequest:
    return VoteRequest("b", "a", term, last_index, last_term, pre_vote=False)


def voted(member: Member) -> VoteResponse:
    member.work()
    (response,) = member.outbox
    member.outbox.clear()
    assert isinstance(response, VoteResponse)
    return response


def append(
    term: int, prev_index: int, prev_term: int, terms: list[int], commit: int = 0
) -> AppendRequest:
    """A request of leader b whose frames have these terms, behind make_log's first ones."""
    position = sum(len(f.data) for f in make_log([1] * prev_index))
    frames = []
    for offset, frame_term in enumerate(terms):
        index = prev_index + 1 + offset
        frames.append(make_frame(index, frame_term, position, b"x%d" % index))
        position = frames[-1].end
    return AppendRequest("b", "a", term, prev_index, prev_term, commit, tuple(frames))


def appended(member: Member, request: AppendRequest) -> AppendResponse:
    member.core.step(request, member.now_ms)
    member.work()
    (response,) = member.outbox
    member.outbox.clear()
    assert isinstance(response, AppendResponse)
    return response


# -- 5.1 basics --------------------------------------------------------------------------------


def test_5_1_normally_one_leader_and_the_rest_are_followers() -> None:
    group = led("abcde")
    roles = [member.core.role for member in group.members.values()]
    assert roles == [Role.LEADER] + [Role.FOLLOWER] * 4
    assert {member.core.leader for member in group.members.values()} == {"a"}


def test_5_1_followers_issue_no_requests() -> None:
    group = led()
    with pytest.raises(NotLeader) as refused:
        group["b"].propose(b"x")
    assert refused.value.leader == "a"
    assert not group["b"].work()


@pytest.mark.parametrize(
    "message",
    [
        AppendRequest("b", "a", 5, 0, 0, 0, ()),
        Heartbeat("b", "a", 5, 0, 1),
        AppendResponse("b", "a", 5, 1, False, 0, 0, 1, 0, 0),
        HeartbeatResponse("b", "a", 5, 1, 1, 0),
        VoteResponse("b", "a", 5, 1, False, False),
        TimeoutNow("b", "a", 4),
    ],
    ids=lambda message: type(message).__name__,
)
def test_5_1_a_larger_term_is_adopted_and_a_leader_reverts_to_follower(message: object) -> None:
    group = led()
    core = group["a"].core
    core.step(message, group.now_ms)  # type: ignore[arg-type]
    group.work()
    assert core.role is not Role.LEADER
    assert core.term == 5
    assert group["a"].saved.term == 5


def test_5_1_a_request_of_a_stale_term_is_refused() -> None:
    member = Member("a", list("abc"), hard_state=HardState(3, None))
    member.core.step(vote_request(2), 0)
    assert not voted(member).granted
    response = appended(member, append(2, 0, 0, [2]))
    assert not response.success
    assert (response.term, response.request_term) == (3, 2)
    assert member.log == []


# -- 5.2 leader election -----------------------------------------------------------------------


def test_5_2_a_server_starts_as_a_follower() -> None:
    assert Group("abc")["a"].core.role is Role.FOLLOWER


def test_5_2_a_server_remains_follower_while_it_receives_heartbeats() -> None:
    group = led()
    group.run(10_000)
    assert {m.core.term for m in group.members.values()} == {1}


def test_5_2_heartbeats_go_to_all_followers_periodically() -> None:
    group = led()
    group.tick(75)
    assert sorted(m.to for m in group.queue if isinstance(m, Heartbeat)) == ["b", "c"]


def test_5_2_an_election_time_out_without_a_message_starts_an_election() -> None:
    group = Group("abc")
    group.run(699)
    assert any(member.core.role is Role.LEADER for member in group.members.values())


def test_5_2_a_candidate_increments_its_term_votes_for_itself_and_asks_all() -> None:
    group = Group("abc")
    group.campaign("a")
    group.work()
    while group["a"].core.role is not Role.CANDIDATE:
        group.deliver_one()
        group.work()
    assert group["a"].saved == HardState(1, "a")
    requests = [m for m in group.queue if isinstance(m, VoteRequest) and not m.pre_vote]
    assert sorted(m.to for m in requests) == ["b", "c"]


@pytest.mark.parametrize("names, needed", [("a", 0), ("ab", 1), ("abc", 1), ("abcde", 2)])
def test_5_2_a_candidate_wins_with_the_votes_of_a_majority(names: str, needed: int) -> None:
    group = Group(names)
    for name in names[needed + 1 :]:
        group[name].down = True
    group.campaign("a")
    group.settle()
    assert group["a"].core.role is Role.LEADER
    group = Group(names)
    if needed:
        for name in names[needed:]:
            group[name].down = True
        group.campaign("a")
        group.settle()
        assert group["a"].core.role is Role.PRE_CANDIDATE


def test_5_2_each_server_grants_one_vote_per_term_to_the_first_candidate() -> None:
    member = Member("a", list("abc"))
    member.core.step(vote_request(1), 0)
    assert voted(member).granted
    assert member.saved == HardState(1, "b")
    member.core.step(VoteRequest("c", "a", 1, 9, 9, pre_vote=False), 0)
    assert not voted(member).granted
    member.core.step(vote_request(1), 0)
    assert voted(member).granted  # the same candidate again: its answer may have been lost


def test_5_2_the_vote_survives_a_restart() -> None:
    member = Member("a", list("abc"))
    member.core.step(vote_request(1), 0)
    voted(member)
    member.boot()
    member.core.step(VoteRequest("c", "a", 1, 9, 9, pre_vote=False), 0)
    assert not voted(member).granted


def test_5_2_a_winner_sends_heartbeats_at_once() -> None:
    group = Group("abc")
    group.campaign("a")
    group.work()
    while group["a"].core.role is not Role.LEADER:
        group.deliver_one()
        group.work()
    assert sorted(m.to for m in group.queue if isinstance(m, Heartbeat)) == ["b", "c"]


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
def test_5_2_a_candidate_follows_a_leader_of_at_least_its_term(role: Role) -> None:
    group = Group("abc")
    group.campaign("a")
    group.work()
    while group["a"].core.role is not role:
        group.deliver_one()
        group.work()
    core = group["a"].core
    core.step(Heartbeat("b", "a", core.term, 0, 1), 0)
    assert (core.role, core.leader) == (Role.FOLLOWER, "b")


def test_5_2_a_candidate_ignores_a_leader_of_an_older_term() -> None:
    member = Member("a", ["a", "b"], hard_state=HardState(4, None))
    member.core.step(TimeoutNow("b", "a", 4), 0)
    member.work()
    member.core.step(Heartbeat("b", "a", 4, 0, 1), 0)
    assert (member.core.role, member.core.term) == (Role.CANDIDATE, 5)


def test_5_2_election_time_outs_are_random_within_their_bounds() -> None:
    dues = {Member("a", list("abc"), seed=seed).core.next_deadline_ms for seed in range(200)}
    assert len(dues) == 200
    assert all(350 <= due < 700 for due in dues)
    assert max(dues) - min(dues) > 300


# -- 5.3 log replication -----------------------------------------------------------------------


def test_5_3_the_leader_appends_and_sends_in_parallel() -> None:
    group = led()
    group["a"].propose(b"x")
    (ready,) = [r for r in group["a"].work() if r.append]
    assert [f.index for f in ready.append] == [2]
    assert sorted(m.to for m in ready.messages) == ["b", "c"]


def test_5_3_an_entry_is_committed_once_a_majority_has_it() -> None:
    group = led()
    group["a"].propose(b"x")
    group.work()
    assert group["a"].core.commit_index == 1
    group.deliver_one()  # to b
    group.work()
    assert group["a"].core.commit_index == 1
    group.deliver_one(1)  # b's answer
    assert group["a"].core.commit_index == 2


def test_5_3_the_leader_retries_until_all_followers_store_all_entries() -> None:
    group = led()
    group.dropped.add(("a", "b"))
    group["a"].propose(b"x")
    group.settle()
    group.dropped.clear()
    group.run(1_000)
    assert group["b"].log == group["a"].log


def test_5_3_followers_get_the_commit_index_in_later_messages() -> None:
    group = led()
    group["a"].propose(b"x")
    group.settle()
    assert group["b"].core.commit_index < 2
    group.run(75)
    assert {m.core.commit_index for m in group.members.values()} == {2}


def test_5_3_a_commit_index_counts_only_up_to_the_proven_match() -> None:
    member = Member("a", list("abc"), [1, 1, 1, 1])
    appended(member, append(2, 2, 1, [], commit=4))
    assert member.core.commit_index == 2


def test_5_3_a_follower_without_the_preceding_frame_refuses() -> None:
    member = Member("a", list("abc"), [1, 1])
    response = appended(member, append(2, 3, 1, [2]))
    assert not response.success
    assert (response.conflict_index, response.conflict_term) == (3, 1)
    response = appended(member, append(2, 2, 2, [2]))
    assert not response.success
    assert member.terms == [1, 1]


def test_5_3_conflicting_entries_are_deleted_and_overwritten() -> None:
    member = Member("a", list("abc"), [1, 1, 1, 1])
    response = appended(member, append(2, 1, 1, [1, 2]))
    assert response.success
    assert response.match_index == 3
    assert member.terms == [1, 1, 2]


@pytest.mark.parametrize("terms", [[], [1], [1, 1]])
def test_5_3_a_request_that_ends_before_the_last_frame_deletes_nothing(terms: list[int]) -> None:
    member = Member("a", list("abc"), [1, 1, 1, 1])
    response = appended(member, append(2, 1, 1, terms))
    assert response.match_index == 1 + len(terms)  # what this request proved, not more
    assert member.terms == [1, 1, 1, 1]


def test_5_3_a_leader_never_overwrites_or_deletes_its_own_entries() -> None:
    group = led()
    before = list(group["a"].log)
    for message in (
        append(1, 0, 0, []),
        AppendRequest("b", "a", 0, 0, 0, 0, (make_frame(1, 0, 0, b"other"),)),
    ):
        if message.term == 1:
            with pytest.raises(MessageRefused):  # two leaders in a term: one of them is none
                group["a"].core.step(message, group.now_ms)
        else:
            group["a"].core.step(message, group.now_ms)
    group.work()
    assert group["a"].log == before


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("follower", sorted(FIGURE_7))
def test_5_3_figure_7_every_follower_reaches_the_leaders_log(follower: str) -> None:
    group = Group("lxy")  # y never answers: x's vote and word are needed
    group.add("l", [1, 1, 1, 4, 4, 5, 5, 6, 6, 6], HardState(7, None))
    group.add("x", FIGURE_7[follower], HardState(7, None))
    group.add("y", [1], HardState(7, None))
    group.dropped |= {("x", "l"), ("l", "x")}
    group.campaign("l")
    group.settle()
    group.dropped.clear()
    group.run(1_500)
    assert group["x"].terms == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8]
    assert group["x"].log == group["l"].log


# -- 5.4 safety --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last_index, last_term, granted",
    [(2, 2, True), (3, 2, True), (1, 3, True), (1, 2, False), (9, 1, False), (0, 0, False)],
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_5_4_1_a_vote_goes_only_to_a_log_that_is_at_least_as_up_to_date(
    last_index: int, last_term: int, granted: bool, pre_vote: bool
) -> None:
    member = Member("a", list("abc"), [1, 2])
    member.core.step(VoteRequest("b", "a", 5, last_index, last_term, pre_vote), 0)
    assert voted(member).granted is granted


def test_5_4_2_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    group = Group("abc")
    group.add("a", [1, 2], HardState(2, None))
    group["c"].down = True
    group.campaign("a")
    group.settle()
    # b has acknowledged everything by now; look at the moment when it had 2@2 only.
    commits = [r.commit_index for r in group["a"].readies if r.commit_index is not None]
    assert commits == [3]  # 1@1 and 2@2 came with the first frame of term 3, never alone


# -- 5.5, 5.6 crashes, timing ------------------------------------------------------------------


def test_5_5_a_repeated_request_has_the_same_effect() -> None:
    member = Member("a", list("abc"), [1])
    first = appended(member, append(2, 1, 1, [2, 2]))
    second = appended(member, append(2, 1, 1, [2, 2]))
    assert first.match_index == second.match_index == 3
    assert member.terms == [1, 2, 2]


def test_5_6_safety_does_not_depend_on_timing() -> None:
    """A message from long ago, or a clock that stands still, changes nothing but progress."""
    group = led()
    core = group["a"].core
    term, commit = core.term, core.commit_index
    core.tick(-1_000.0)
    core.step(HeartbeatResponse("b", "a", 1, 1, 1, 0), -5.0)
    assert (core.term, core.commit_index, core.role) == (term, commit, Role.LEADER)
