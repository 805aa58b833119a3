"""When a leader whose disk is full hands over, and to whom: the decision."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from raftmq.dledger.raft.leader_relief import (
    BACK_OFF_MS,
    BACK_OFF_MS_MAX,
    FORGET_MS,
    HOPE_MS,
    Relief,
)

BOTH = ["n1", "n2"]


def test_a_leader_with_room_keeps_leadership() -> None:
    relief = Relief()
    for now_ms in range(0, 20_000, 100):
        assert relief.look(False, False, BOTH, BOTH, now_ms) is None
        assert not relief.hoped


def test_the_best_that_is_able_is_told_at_once() -> None:
    relief = Relief()
    assert relief.look(True, False, BOTH, ["n2", "n1"], 0) == "n2"
    assert relief.hoped


def test_nobody_is_told_during_a_transfer() -> None:
    relief = Relief()
    assert relief.look(True, True, BOTH, BOTH, 0) is None
    assert relief.hoped


def test_when_nobody_has_room_there_is_no_hope() -> None:
    relief = Relief()
    assert relief.look(True, False, [], [], 0) is None
    assert not relief.hoped


def test_sends_are_taken_while_somebody_with_room_catches_up_and_for_so_long_only() -> None:
    relief = Relief()
    for now_ms in range(0, 2 * HOPE_MS, 100):
        assert relief.look(True, False, ["n1"], [], now_ms) is None
        assert relief.hoped == (now_ms < HOPE_MS)
    assert relief.look(True, False, ["n1"], ["n1"], 2 * HOPE_MS) == "n1"  # the search goes on


def test_who_did_not_take_it_is_told_less_and_less_often_and_the_other_meanwhile() -> None:
    relief = Relief()
    told: dict[str, list[int]] = {"n1": [], "n2": []}
    for now_ms in range(0, 4 * FORGET_MS, 100):
        peer = relief.look(True, False, BOTH, BOTH, now_ms)
        if peer is not None:
            told[peer].append(now_ms)
    assert (told["n1"][0], told["n2"][0]) == (0, 100)
    for times in told.values():
        gaps = [after - before for before, after in pairwise(times)]
        assert gaps[:4] == [BACK_OFF_MS, 2 * BACK_OFF_MS, 4 * BACK_OFF_MS, 8 * BACK_OFF_MS]
        assert max(gaps) == BACK_OFF_MS_MAX


def test_after_a_long_while_everything_is_forgiven() -> None:
    relief = Relief()
    for now_ms in range(0, 60_000, 100):
        relief.look(True, False, BOTH, ["n1"], now_ms)
    later_ms = 60_000 + FORGET_MS
    assert relief.look(True, False, BOTH, ["n1"], later_ms) == "n1"
    assert relief.look(True, False, BOTH, ["n1"], later_ms + BACK_OFF_MS - 1) is None
    assert relief.look(True, False, BOTH, ["n1"], later_ms + BACK_OFF_MS) == "n1"


@pytest.mark.parametrize("seed", range(20))
def test_leadership_that_nobody_keeps_does_not_go_round_and_round(seed: int) -> None:
    """Whatever replicas find, and however often each loses leadership again: in ten minutes a
    replica is told a few times, not hundreds."""
    rng = random.Random(seed)
    reliefs = {name: Relief() for name in ("n0", "n1", "n2")}
    leader, moves = "n0", 0
    for now_ms in range(0, 600_000, 100):
        others = [name for name in reliefs if name != leader]
        able = [name for name in others if rng.random() < 0.9]
        for name, relief in reliefs.items():
            peer = relief.look(name == leader, False, others, able, now_ms)
            if peer is not None:
                moves += 1
                leader = peer if rng.random() < 0.5 else leader
                break
    assert 0 < moves <= 6 * 9, moves  # 5 s doubled is above ten minutes after eight times
