"""Leader placement: moving leadership to the preferred replica, and away from an unwilling one."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from raftmq.dledger.node.leadership_transfer import LAG_FRAMES_MAX, blocker_of
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Change, ChangeKind, founding
from raftmq.dledger.raft.leader_placement import (
    BACK_OFF_MS,
    BACK_OFF_MS_MAX,
    EXPECTED_MS,
    FORGET_MS,
    GroupView,
    PreferenceLimits,
    PreferredLeader,
    SuccessorSearch,
)

LIMITS = PreferenceLimits()
STEP_MS = 100.0
GOOD = GroupView("n0", 7, "n0", "n1", ready=True, caught_up=True)


class Replica:
    """A replica that looks every 100 ms, and does as it is told."""

    def __init__(self, limits: PreferenceLimits = LIMITS) -> None:
        self.preferred_leader = PreferredLeader(limits)
        self.now_ms = 1_000.0

    def poll(self, view: GroupView) -> str | None:
        self.now_ms += STEP_MS
        return self.preferred_leader.check(view, self.now_ms)

    def until_told(self, view: GroupView, for_ms: float) -> float | None:
        """After how long it is told to hand over; None: not within `for_ms`."""
        begun_ms = self.now_ms
        while self.now_ms - begun_ms < for_ms:
            if self.poll(view) is not None:
                return self.now_ms - begun_ms
        return None

    def passes(self, view: GroupView, for_ms: float) -> None:
        assert self.until_told(view, for_ms) is None


def led_by(leader: str, term: int) -> GroupView:
    return replace(GOOD, leader=leader, term=term, ready=leader == "n0")


def about(found: float | None, wanted_ms: float) -> bool:
    return found is not None and wanted_ms <= found <= wanted_ms + 3 * STEP_MS


def test_leadership_moves_to_the_preferred_replica_after_a_steady_time() -> None:
    replica = Replica()
    assert about(replica.until_told(GOOD, 60_000), LIMITS.steady_ms)
    assert replica.preferred_leader.reason == "leadership goes to n1"
    replica.passes(replace(GOOD, transferring=True), 800)
    replica.passes(led_by("n1", 8), 120_000)
    assert replica.preferred_leader.reason == "n1 leads"


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({"preferred": ""}, "nobody is preferred"),
        ({"preferred": "n0"}, "n0 leads"),
        ({"ready": False}, "the leader sees to it"),
        ({"leader": "n2", "ready": False}, "the leader sees to it"),
        ({"blocker": "n1 is recovering"}, "n1 is recovering"),
        ({"busy": "n2 is being refilled"}, "n2 is being refilled"),
        ({"transferring": True}, "leadership is being handed over"),
        ({"caught_up": False}, "n1 lacks the newest frames"),
    ],
)
def test_preferred_leader_reports_each_obstacle(changes: dict[str, object], standing: str) -> None:
    replica = Replica()
    against = replace(GOOD, **changes)  # type: ignore[arg-type]
    replica.passes(against, 120_000)
    assert replica.preferred_leader.reason == standing
    wait_ms = STEP_MS if changes == {"caught_up": False} else LIMITS.steady_ms
    assert about(replica.until_told(GOOD, 60_000), wait_ms)


def test_short_obstacle_restarts_the_steady_time() -> None:
    replica = Replica()
    for _ in range(10):
        replica.passes(GOOD, LIMITS.steady_ms - 2 * STEP_MS)
        assert replica.poll(replace(GOOD, blocker="n1 is silent")) is None
    assert about(replica.until_told(GOOD, 60_000), LIMITS.steady_ms)


def test_failed_transfer_doubles_the_wait_for_the_preferred_leader() -> None:
    replica = Replica()
    waits = []
    for _ in range(12):
        reported = replica.until_told(GOOD, 2 * LIMITS.back_off_ms_max)
        assert reported is not None
        waits.append(reported)
        replica.passes(replace(GOOD, transferring=True), 1_000)
    assert about(waits[0], LIMITS.steady_ms)
    for number, wait in enumerate(waits[1:]):
        expected = min(LIMITS.back_off_ms_max, LIMITS.back_off_ms * 2**number)
        per_minute = 60_000 if number == 1 else 0  # the third in a minute would be one too many
        assert expected <= wait <= max(expected + 300, per_minute), (number, wait)
    replica.preferred_leader.check(GOOD, replica.now_ms)
    assert replica.preferred_leader.reason.startswith("n1 has been able for 0 s")


def test_leadership_moves_per_minute_are_limited() -> None:
    limits = replace(LIMITS, moves_per_minute_max=3, settled_ms=0)  # no leadership is too short
    replica = Replica(limits)
    moves = []
    term = 7
    while replica.now_ms < 400_000:  # somebody takes leadership away from it all the time
        assert replica.until_told(replace(GOOD, term=term), 120_000) is not None
        moves.append(replica.now_ms)
        replica.passes(led_by("n1", term + 1), 500)
        term += 2
        replica.poll(led_by("n0", term))
    for first, fourth in zip(moves, moves[3:], strict=False):
        assert fourth - first >= 60_000
    assert len(moves) >= 16  # but so many


def test_follower_counts_leadership_moves_of_other_replicas() -> None:
    replica = Replica(replace(LIMITS, settled_ms=0))
    for term in (1, 3):
        replica.passes(led_by("n2", term), 8_000)
        replica.passes(led_by("n1", term + 1), 8_000)
    first_ms = 9_100.0  # when n1 led first
    assert replica.until_told(led_by("n0", 5), 120_000) is not None
    assert first_ms + 60_000 <= replica.now_ms <= first_ms + 60_000 + STEP_MS


def test_short_leadership_adds_back_off_and_a_long_one_clears_it() -> None:
    replica = Replica()
    replica.passes(led_by("n1", 1), 3_000)  # it led for a moment, and somebody else was elected
    assert about(replica.until_told(led_by("n0", 2), 60_000), LIMITS.back_off_ms - STEP_MS)
    replica.passes(led_by("n1", 3), 3_000)
    assert about(replica.until_told(led_by("n0", 4), 120_000), 2 * LIMITS.back_off_ms - STEP_MS)
    replica.passes(led_by("n1", 5), LIMITS.settled_ms + 1_000)
    assert about(replica.until_told(led_by("n0", 6), 60_000), LIMITS.steady_ms)


def test_election_of_an_unexpected_leader_adds_back_off() -> None:
    replica = Replica()
    assert replica.until_told(GOOD, 60_000) is not None
    replica.passes(led_by("n2", 8), 1_000)  # not the one it was handed to
    assert about(replica.until_told(led_by("n0", 9), 60_000), LIMITS.back_off_ms - 1_000)


def test_unknown_leader_does_not_change_leadership_placement() -> None:
    replica = Replica()
    replica.passes(led_by("n1", 1), LIMITS.settled_ms + 1_000)
    replica.passes(replace(led_by("n1", 2), leader=None), 2_000)
    replica.passes(led_by("n1", 2), 1_000)
    assert about(replica.until_told(led_by("n0", 3), 60_000), LIMITS.steady_ms)


def test_change_of_the_preferred_leader_clears_the_back_off() -> None:
    replica = Replica()
    assert replica.until_told(GOOD, 60_000) is not None
    replica.passes(GOOD, 4_000)  # given up
    other = replace(GOOD, preferred="n2")
    assert about(replica.until_told(other, 60_000), LIMITS.steady_ms)


NOW_MS = 10_000.0


@pytest.mark.parametrize(
    ("changes", "words", "caught_up"),
    [
        ({}, "", True),
        ({"match_index": 100 - LAG_FRAMES_MAX}, "", True),
        ({"match_index": 99 - LAG_FRAMES_MAX}, "", False),
        ({"lag_bytes": (1 << 20) + 1}, "n1 lacks 1048577 bytes of the log", True),
        ({"recovering": 4711}, "n1 is recovering", True),
        ({"recovering": None}, "n1 has not been heard yet", True),
        ({"heard_ms": NOW_MS - CoreConfig().election_ms_min}, "", True),
        ({"heard_ms": NOW_MS - CoreConfig().election_ms_min - 1}, "n1 is silent", True),
        ({"open": False}, "n1 is not connected", True),
        (
            {"no_room": True},
            "n1 should not lead: its disk is short of room or slow, or its clock is wrong",
            True,
        ),
    ],
)
def test_blocker_of_reports_why_a_replica_cannot_lead(
    changes: dict[str, object], words: str, caught_up: bool
) -> None:
    good: dict[str, object] = {
        "peer": "n1", "recovering": 0, "heard_ms": NOW_MS, "match_index": 100, "lag_bytes": 0,
        "open": True, "no_room": False,
    }  # fmt: skip
    other = SimpleNamespace(**(good | changes))
    configuration = founding([("n0", "h:1"), ("n1", "h:2")])
    core = SimpleNamespace(
        progress={"n1": other},
        membership=SimpleNamespace(voters=configuration.voters),
        config=CoreConfig(),
        last_index=100,
        lag_bytes=lambda progress: progress.lag_bytes,
    )
    result = blocker_of("n1", core, lambda peer: other.open, NOW_MS)  # type: ignore[arg-type]
    assert result == (words, caught_up)


def test_blocker_of_reports_removed_replicas_and_learners() -> None:
    learner = founding([("n0", "h:1")]).after(Change(ChangeKind.ADD_LEARNER, "n1", "h:2"))
    membership = SimpleNamespace(voters=learner.voters)
    core = SimpleNamespace(progress={"n1": None}, membership=membership)
    text, _ = blocker_of("n1", core, lambda peer: True, NOW_MS)  # type: ignore[arg-type]
    assert text == "n1 is no other voter of this group"


# -- an unwilling leader --------------------------------------------------------------------------

BOTH = ["n1", "n2"]


def test_leader_with_disk_space_keeps_leadership() -> None:
    search = SuccessorSearch()
    for now_ms in range(0, 20_000, 100):
        assert search.check(False, False, BOTH, BOTH, now_ms) is None
        assert not search.successor_expected


def test_full_leader_transfers_to_the_best_able_voter_at_once() -> None:
    search = SuccessorSearch()
    assert search.check(True, False, BOTH, ["n2", "n1"], 0) == "n2"
    assert search.successor_expected


def test_successor_search_names_no_replica_during_a_transfer() -> None:
    search = SuccessorSearch()
    assert search.check(True, True, BOTH, BOTH, 0) is None
    assert search.successor_expected


def test_successor_search_expects_none_when_all_disks_are_full() -> None:
    search = SuccessorSearch()
    assert search.check(True, False, [], [], 0) is None
    assert not search.successor_expected


def test_full_leader_accepts_sends_briefly_while_a_successor_catches_up() -> None:
    search = SuccessorSearch()
    for now_ms in range(0, 2 * EXPECTED_MS, 100):
        assert search.check(True, False, ["n1"], [], now_ms) is None
        assert search.successor_expected == (now_ms < EXPECTED_MS)
    assert search.check(True, False, ["n1"], ["n1"], 2 * EXPECTED_MS) == "n1"  # the search goes on


def test_failed_successor_is_retried_with_back_off_and_the_next_one_tried() -> None:
    search = SuccessorSearch()
    reported: dict[str, list[int]] = {"n1": [], "n2": []}
    for now_ms in range(0, 4 * FORGET_MS, 100):
        peer = search.check(True, False, BOTH, BOTH, now_ms)
        if peer is not None:
            reported[peer].append(now_ms)
    assert (reported["n1"][0], reported["n2"][0]) == (0, 100)
    for times in reported.values():
        gaps = [after - before for before, after in pairwise(times)]
        assert gaps[:4] == [BACK_OFF_MS, 2 * BACK_OFF_MS, 4 * BACK_OFF_MS, 8 * BACK_OFF_MS]
        assert max(gaps) == BACK_OFF_MS_MAX


def test_successor_back_off_ends_after_a_long_time() -> None:
    search = SuccessorSearch()
    for now_ms in range(0, 60_000, 100):
        search.check(True, False, BOTH, ["n1"], now_ms)
    later_ms = 60_000 + FORGET_MS
    assert search.check(True, False, BOTH, ["n1"], later_ms) == "n1"
    assert search.check(True, False, BOTH, ["n1"], later_ms + BACK_OFF_MS - 1) is None
    assert search.check(True, False, BOTH, ["n1"], later_ms + BACK_OFF_MS) == "n1"


@pytest.mark.parametrize("seed", range(20))
def test_leadership_transfers_are_few_when_every_successor_fails(seed: int) -> None:
    """Whatever replicas find, and however often each loses leadership again: in ten minutes a
    replica is told a few times, not hundreds."""
    rng = random.Random(seed)
    searches = {name: SuccessorSearch() for name in ("n0", "n1", "n2")}
    leader, moves = "n0", 0
    for now_ms in range(0, 600_000, 100):
        others = [name for name in searches if name != leader]
        able = [name for name in others if rng.random() < 0.9]
        for name, search in searches.items():
            peer = search.check(name == leader, False, others, able, now_ms)
            if peer is not None:
                moves += 1
                leader = peer if rng.random() < 0.5 else leader
                break
    assert 0 < moves <= 6 * 9, moves  # 5 s doubled is above ten minutes after eight times
