"""The progress tracker: who counts, what a majority has reached, and whom it lets go."""

from __future__ import annotations

from itertools import product

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Change, ChangeKind, Configuration, founding
from raftmq.dledger.raft.quorum import majority
from raftmq.dledger.raft.tracker import Tracker

CONFIG = CoreConfig()
ADD_X = Change(ChangeKind.ADD_LEARNER, "x", "x:1")


def group(names: str) -> Configuration:
    return founding((name, f"{name}:1") for name in names)


def make(names: str = "abc") -> Tracker:
    tracker = Tracker("a", CONFIG)
    tracker.configure(group(names), 1, 0.0)
    return tracker


def test_tracker_tracks_all_peers_and_counts_only_voters() -> None:
    tracker = make()
    new = tracker.configure(group("abc").after(ADD_X), 5, 0.0)
    assert [(p.peer, p.next_index) for p in new] == [("x", 5)]
    assert list(tracker.progress) == ["b", "c", "x"]
    assert [p.peer for p in tracker.voting] == ["b", "c"]
    assert tracker.configure(group("abc").after(ADD_X), 9, 0.0) == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_tracker_commits_the_index_that_a_majority_has(count: int) -> None:
    names = "abcde"[:count]
    tracker = make(names)
    for reached in product(range(3), repeat=count):
        for progress, index in zip(tracker.voting, reached[1:], strict=True):
            progress.recovered_index = progress.recovered_round = index
            progress.heard_ms = float(index)
        enough = [i for i in range(3) if sum(r >= i for r in reached) >= majority(count)]
        assert tracker.committed(reached[0]) == max(enough)
        assert tracker.confirmed_round(reached[0]) == max(enough)
        assert tracker.heard_ms(float(reached[0])) == max(enough)


def test_tracker_excludes_a_leader_that_is_removed() -> None:
    tracker = make("abc")
    tracker.progress["b"].recovered_index = 4
    assert tracker.committed(9) == 4
    assert tracker.committed(None) == 0


def test_tracker_counts_only_recovered_voters_as_holders() -> None:
    tracker = make()
    tracker.configure(group("abc").after(ADD_X), 1, 0.0)
    for progress in tracker.progress.values():
        progress.recovered_index = 7
    assert tracker.holders(7) == 2
    assert tracker.holders(8) == 0
    tracker.progress["b"].recovering = 5
    assert tracker.holders(7) == 1


def test_removed_member_stays_tracked_until_it_acknowledges_or_times_out() -> None:
    without_c = group("abc").after(Change(ChangeKind.REMOVE, "c"))
    for match_index, now_ms, gone in (
        (0, 0.0, False),
        (6, 0.0, True),
        (5, 0.0, False),
        (0, CONFIG.departure_ms, True),
    ):
        tracker = make()
        tracker.configure(without_c, 1, 0.0)
        assert [p.peer for p in tracker.voting] == ["b"]
        tracker.progress["c"].match_index = match_index
        assert tracker.let_go(6, 6, now_ms) == gone
        assert ("c" in tracker.progress) != gone
    tracker = make()
    tracker.configure(without_c, 1, 0.0)
    tracker.configure(group("abc"), 1, 1.0)  # it came back into force
    assert not tracker.let_go(9, 0, 2 * CONFIG.departure_ms)


def test_successor_is_chosen_by_recovered_then_disk_space_then_match_index() -> None:
    assert make("a").successor() is None
    kinds = list(product((0, 7), (False, True), (1, 2)))
    for facts in product(kinds, repeat=2):
        tracker = make()
        for progress, (recovering, no_room, match_index) in zip(tracker.voting, facts, strict=True):
            progress.recovering, progress.match_index = recovering, match_index
            progress.no_room = no_room
        order = {p.peer: (not p.recovering, not p.no_room, p.match_index) for p in tracker.voting}
        successor = tracker.successor()
        assert successor is not None
        assert order[successor] == max(order.values())


def test_silent_or_recovering_voter_does_not_count_as_good() -> None:
    tracker = make("abcd")
    now_ms = CONFIG.election_ms_max
    tracker.progress["b"].heard_ms = now_ms
    tracker.progress["c"].heard_ms = now_ms
    tracker.progress["c"].recovering = 3
    assert tracker.good(frozenset("abcd"), now_ms) == 0  # b has said nothing of it yet
    tracker.progress["b"].recovered_index = 1
    assert tracker.good(frozenset("abcd"), now_ms) == 1
    tracker.progress["b"].recovering = 0
    assert tracker.good(frozenset("abcd"), now_ms) == 1
    assert tracker.good(frozenset("acd"), now_ms) == 0


def test_full_voters_are_listed_when_too_few_voters_accept_frames() -> None:
    """Of five with their leader; "f": full, "s": silent, "+": neither."""
    for facts, votes, named in (
        ("++++", True, ""),
        ("ff++", True, ""),
        ("fff+", True, "bcd"),
        ("ffff", True, "bcde"),
        ("fss+", True, "b"),
        ("fs++", True, ""),
        ("sss+", True, ""),  # a matter of who leads, not of disks
        ("ff++", False, "bc"),
        ("f+++", False, ""),
    ):
        tracker, now_ms = make("abcde"), 2 * CONFIG.election_ms_max
        for progress, fact in zip(tracker.voting, facts, strict=True):
            progress.full = fact == "f"
            progress.heard_ms = 0.0 if fact == "s" else now_ms
        assert "".join(tracker.full(votes, now_ms)) == named, facts
