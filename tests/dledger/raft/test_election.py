"""A candidacy: whom it asks again, and which answers are meant for it."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.election import Candidacy
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import Role, VoteRequest, VoteResponse
from raftmq.dledger.raft.quorum import Tally
from tests.dledger.group import Group, Member


def make(pre_vote: bool = False, term: int = 4) -> Candidacy:
    candidacy = Candidacy("a", 7, term, pre_vote, False, Tally(frozenset("abc")), 0.0)
    candidacy.tally.record("a", True)
    return candidacy


def asked(candidacy: Candidacy) -> list[str]:
    return [request.to for request in candidacy.requests("bcx", LogIndex())]


@pytest.mark.parametrize("pre_vote", [True, False])
def test_candidate_repeats_a_refused_pre_vote_and_not_a_refused_vote(pre_vote: bool) -> None:
    candidacy = make(pre_vote)
    assert asked(candidacy) == ["b", "c"]  # no learner
    candidacy.tally.record("b", False)
    assert asked(candidacy) == (["b", "c"] if pre_vote else ["c"])
    candidacy.tally.record("c", True)
    assert asked(candidacy) == (["b"] if pre_vote else [])


def test_vote_request_has_the_last_entry_and_the_incarnation() -> None:
    index = LogIndex(6, 3)
    (request,) = make(pre_vote=True).requests("b", index)
    assert (request.sender, request.term, request.pre_vote) == ("a", 4, True)
    assert (request.last_index, request.last_term, request.incarnation) == (5, 3, 7)


@pytest.mark.parametrize(
    ("term", "pre_vote", "answers"),
    [(4, False, True), (4, True, False), (3, False, False), (5, False, False)],
)
def test_candidate_ignores_vote_answers_of_other_rounds(
    term: int, pre_vote: bool, answers: bool
) -> None:
    response = VoteResponse("b", "a", 4, term, pre_vote, True, 7)
    assert make().is_answered_by(response) == answers


PREFERRED = CoreConfig(first_leader="b")


def test_preferred_replica_of_a_new_group_campaigns_without_a_time_out() -> None:
    group = Group("abc", PREFERRED)
    group.run(PREFERRED.close_jitter_ms)
    assert group["b"].core.role is Role.LEADER


def test_preferred_replica_of_an_old_group_waits_for_its_leader() -> None:
    group = Group("", PREFERRED)
    group.names = list("abc")
    for name in group.names:
        group.add(name, [1])
    group.run(PREFERRED.election_ms_min - 1)
    assert [member.core.role for member in group.members.values()] == [Role.FOLLOWER] * 3


@pytest.mark.parametrize(
    ("terms", "sender", "yields"), [([], "b", True), ([], "c", False), ([1], "b", False)]
)
def test_candidates_of_a_new_group_yield_to_the_preferred_replica(
    terms: list[int], sender: str, yields: bool
) -> None:
    """Otherwise they split the vote when the last replica starts."""
    core = Member("a", list("abc"), terms, config=PREFERRED).core
    core.tick(PREFERRED.election_ms_max)
    assert core.role is Role.PRE_CANDIDATE
    index, term = len(terms), len(terms)
    core.step(VoteRequest(sender, "a", term + 1, index, term, True), PREFERRED.election_ms_max)
    assert core.role is (Role.FOLLOWER if yields else Role.PRE_CANDIDATE)
