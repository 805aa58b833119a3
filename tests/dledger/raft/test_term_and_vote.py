"""The ballot: terms only rise, one vote a term, and every change goes into the outbox."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.raft.ready import Outbox
from raftmq.dledger.raft.term_and_vote import Ballot

NEW = HardState(3, None)


def make(state: HardState = NEW, last_term: int = 0) -> tuple[Ballot, Outbox]:
    outbox = Outbox(0)
    return Ballot(state, 7, last_term, outbox), outbox


def test_stored_hard_state_is_not_saved_again() -> None:
    ballot, outbox = make(HardState(3, "b", recovered=False))
    assert (ballot.term, ballot.voted_for, ballot.recovered) == (3, "b", False)
    assert outbox.take() is None


def test_log_with_a_later_term_raises_the_term_and_clears_the_vote() -> None:
    ballot, outbox = make(HardState(3, "b"), last_term=5)
    assert (ballot.term, ballot.voted_for) == (5, None)
    assert outbox.hard_state == HardState(5, None)


def test_new_term_has_no_vote() -> None:
    ballot, outbox = make(HardState(3, "b"))
    ballot.enter(4)
    assert outbox.hard_state == HardState(4, None)
    assert outbox.dirty
    for term in (3, 4):
        with pytest.raises(AssertionError):
            ballot.enter(term)


def test_vote_of_a_term_is_repeated_only_to_the_same_candidacy() -> None:
    ballot, outbox = make()
    assert ballot.is_free_for("b", 1)
    ballot.vote_for("b", 1)
    assert outbox.hard_state == HardState(3, "b")
    free = {(who, which): ballot.is_free_for(who, which) for who in "bc" for which in (1, 2)}
    assert free == {("b", 1): True, ("b", 2): False, ("c", 1): False, ("c", 2): False}
    with pytest.raises(AssertionError):
        ballot.vote_for("c", 1)


def test_vote_of_an_earlier_process_is_not_repeated() -> None:
    ballot, _ = make(HardState(3, "b"))
    assert not ballot.is_free_for("b", 1)


@pytest.mark.parametrize("voted_for", [None, "c"])
def test_recovered_replica_has_a_vote_in_its_term(voted_for: str | None) -> None:
    ballot, outbox = make(HardState(3, voted_for, recovered=False))
    assert ballot.recovering == 7
    ballot.mark_recovered("b")
    assert ballot.recovering == 0
    assert outbox.hard_state == HardState(3, voted_for or "b")
    with pytest.raises(AssertionError):
        ballot.mark_recovered("b")
