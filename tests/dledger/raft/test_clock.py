"""A time in which a process did not run is not the others' silence."""

from __future__ import annotations

from pathlib import Path

from raftmq.dledger.raft.clock import StallAwareClock
from raftmq.dledger.raft.messages import Role
from tests.dledger.group import Group
from tests.dledger.members import Group as Members

STEP_MS = 75.0


class Hands:
    now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


def test_stall_aware_clock_follows_the_wall_clock_while_turns_are_short() -> None:
    hands = Hands()
    clock = StallAwareClock(hands, STEP_MS)
    for _ in range(1_000):
        hands.now_ms += 10
        assert clock() == hands.now_ms
        assert clock.turn() == hands.now_ms
    hands.now_ms += STEP_MS
    assert clock.turn() == clock() == hands.now_ms


def test_stall_aware_clock_returns_when_its_next_turn_is_due() -> None:
    hands = Hands()
    clock = StallAwareClock(hands, STEP_MS)
    for passed_ms in (10, 60, 10_000):
        hands.now_ms += passed_ms
        turned_ms = clock.turn()
        assert turned_ms < clock.turn_due_ms < turned_ms + STEP_MS


def test_stall_aware_clock_counts_a_long_turn_as_one_step() -> None:
    hands = Hands()
    clock = StallAwareClock(hands, STEP_MS)
    began_ms = clock()
    for _ in range(100):
        hands.now_ms += 20
        assert began_ms <= clock() <= began_ms + STEP_MS
    assert clock.turn() == began_ms + STEP_MS
    hands.now_ms += 20
    assert clock() == began_ms + STEP_MS + 20


def test_election_time_out_takes_a_bounded_number_of_late_turns() -> None:
    """A follower that runs once in ten seconds gives up a silent leader in the end."""
    hands = Hands()
    group = Group("abc")
    group.elect("a")
    core = group["b"].core
    hands.now_ms = group.now_ms
    clock = StallAwareClock(hands, core.config.heartbeat_ms)
    turns = 0
    while core.role is Role.FOLLOWER:
        hands.now_ms += 10_000
        turns += 1
        core.tick(clock.turn())
    shortest = core.config.election_ms_min / core.config.heartbeat_ms
    longest = core.config.election_ms_max / core.config.heartbeat_ms
    assert shortest <= turns <= longest + 1


async def test_stalled_group_keeps_its_leader(tmp_path: Path) -> None:
    """Time passes for all at once, in which nobody could say a word."""
    async with Members(tmp_path) as group:
        leader = await group.leader()
        core = leader.member.core
        term, rounds = core.term, core.round
        group.clock.skip(60_000)
        # Rounds of heartbeats that all have answered; or it does not lead any more.
        await group.until(
            lambda: all(progress.round > rounds + 3 for progress in core.progress.values())
        )
        assert core.role is Role.LEADER
        assert {node.member.core.term for node in group.nodes} == {term}
        assert leader.member.status()["election_backoff"] == 1
