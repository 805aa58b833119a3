"""A candidacy: whom it asks again, and which answers are meant for it."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.election import Candidacy
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import VoteResponse
from raftmq.dledger.raft.quorum import Tally


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
