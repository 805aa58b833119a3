from __future__ import annotations

import itertools

import pytest

from raftmq.dledger.raft.quorum import Outcome, Tally, majority, reached_by_majority


@pytest.mark.parametrize("count, enough", [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority_of_each_voter_count(count: int, enough: int) -> None:
    assert majority(count) == enough


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_reached_by_majority_returns_the_largest_index_of_a_majority(count: int) -> None:
    for values in itertools.product(range(4), repeat=count):
        by_definition = max(
            value for value in values if sum(v >= value for v in values) >= majority(count)
        )
        assert reached_by_majority(list(values)) == by_definition


def test_tally_counts_a_voter_once() -> None:
    tally = Tally(frozenset("abcde"))
    for _ in range(5):
        tally.record("a", True)
    tally.record("b", True)
    assert tally.outcome() is Outcome.PENDING
    tally.record("c", True)
    assert tally.outcome() is Outcome.WON


def test_tally_ignores_a_non_member() -> None:
    tally = Tally(frozenset("abc"))
    tally.record("a", True)
    tally.record("x", True)
    assert tally.outcome() is Outcome.PENDING


def test_tally_keeps_a_grant_and_replaces_a_refusal() -> None:
    tally = Tally(frozenset("abc"))
    tally.record("a", True)
    tally.record("b", False)
    tally.record("b", True)
    assert tally.outcome() is Outcome.WON
    tally.record("b", False)
    assert tally.outcome() is Outcome.WON


def test_tally_is_lost_when_the_remaining_votes_do_not_suffice() -> None:
    tally = Tally(frozenset("abc"))
    tally.record("a", True)
    tally.record("b", False)
    assert tally.outcome() is Outcome.PENDING
    assert tally.outcome(unreachable=frozenset("c")) is Outcome.LOST
    tally.record("c", False)
    assert tally.outcome() is Outcome.LOST
