"""Which leader counts as slow, in simulated groups: slow writes, slow flushes, distance."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.raft.pace import FORGET_MS, KNOWN_MS, PERIOD_MS, REST_MS, Pace, Paces

FAST_MS = 0.1
MINUTES = 60_000.0


class Calls:
    """Calls that always take as long; `ms` is None while there are none."""

    def __init__(self, ms: float | None) -> None:
        self.ms = ms

    def period(self) -> float | None:
        return self.ms


class World:
    """A group in simulated time. A slow leader hands over, once a second, to a replica that is
    faster and not slow; `moves` has who led from when on."""

    def __init__(self, names: str = "abc", preferred: str = "", flushes: bool = True) -> None:
        self.now = 1_000.0
        self.voters = frozenset(names)
        self.writes = {name: Calls(FAST_MS) for name in names}
        self.flushes = {name: Calls(FAST_MS) for name in names}
        self.far_ms = dict.fromkeys(names, 0.0)  # one way, between a replica and all others
        self.down: set[str] = set()
        self.waiting: list[tuple[float, Pace]] = []
        self.moves: list[tuple[float, str]] = []
        configurations = SimpleNamespace(current=SimpleNamespace(preferred=preferred or None))
        self.paces = {}
        for name in names:
            membership = SimpleNamespace(
                voters=self.voters,
                peers=sorted(self.voters - {name}),
                configurations=configurations,
            )
            made = cast(Any, Paces)  # of parts that only look like the real ones
            own = self.flushes[name].period if flushes else None
            self.paces[name] = made(
                name, membership, self.writes[name].period, own, lambda: self.now, self._send
            )
        self.leader = names[0]

    def _send(self, message: Pace) -> None:
        took = 0.1 + self.far_ms[message.sender] + self.far_ms[message.to]
        self.waiting.append((self.now + took, message))

    def run(self, ms: float) -> None:
        end = self.now + ms
        while self.now < end:
            second = self.now
            for name in sorted(self.voters - self.down):
                self.now = second + 10 * "abcde".index(name)
                self._deliver()
                self.paces[name].poll(self.now)
            self.now = second + PERIOD_MS / 2
            self._deliver()
            self._relieve()
            self.now = second + PERIOD_MS

    def run_until(self, condition: Callable[[], object]) -> float:
        """Return how long it took."""
        began = self.now
        while not condition():
            assert self.now < began + 120 * MINUTES
            self.run(PERIOD_MS)
        return self.now - began

    def _deliver(self) -> None:
        until, self.waiting = self.now, sorted(self.waiting, key=lambda one: one[0])
        while self.waiting and self.waiting[0][0] <= until:
            self.now, message = self.waiting.pop(0)
            if message.to not in self.down:
                self.paces[message.to].take(message)
        self.now = until

    def _relieve(self) -> None:
        pace = self.paces[self.leader]
        if pace.reason:
            for name in sorted(self.voters - self.down - {self.leader}):
                if pace.is_faster(name) and not self.paces[name].reason:
                    self.leader = name
                    self.moves.append((self.now, name))
                    return


DELAYS = (2.0, 5.0, 15.0, 50.0, 200.0)


@pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("delay_ms", DELAYS)
@pytest.mark.parametrize(
    ("slow", "moves"),
    [
        ("", 0),
        ("a", 1),  # the leader
        ("b", 0),
        ("ab", 0),  # whoever leads, a majority has a slow replica
        ("bc", 0),
        ("abc", 0),
    ],
)
def test_leader_with_slow_writes_transfers_once_to_a_faster_majority(
    sync: bool, delay_ms: float, slow: str, moves: int
) -> None:
    world = World(flushes=sync)
    world.run(20_000)
    for name in slow:
        world.writes[name].ms = FAST_MS + delay_ms
    world.run(5 * MINUTES)
    assert len(world.moves) == moves
    if moves:
        assert world.moves[0][0] < 1_000 + 20_000 + 12_000
        assert "a commit takes" in world.paces["a"].reason
        assert world.paces["a"].disk_is_slow


@pytest.mark.parametrize("delay_ms", DELAYS)
@pytest.mark.parametrize("slow", ["a", "b", "ab", "bc", "abc"])
def test_slow_flushes_change_no_leader(delay_ms: float, slow: str) -> None:
    """The other two make a majority without the slow one; of two slow ones every majority has
    one."""
    world = World()
    for name in slow:
        world.flushes[name].ms = FAST_MS + delay_ms
    world.run(5 * MINUTES)
    assert world.moves == []


@pytest.mark.parametrize("delay_ms", DELAYS)
def test_leader_transfers_with_two_slow_replicas_of_five(delay_ms: float) -> None:
    world = World("abcde")
    for name in "ab":
        world.writes[name].ms = FAST_MS + delay_ms
    world.run(5 * MINUTES)
    assert [name for _, name in world.moves] == ["c"]


@pytest.mark.parametrize("preferred", ["", "a"])
def test_distant_leader_transfers_unless_it_is_preferred(
    preferred: str,
) -> None:
    world = World(preferred=preferred)
    world.far_ms["a"] = 15.0
    world.run(5 * MINUTES)
    assert len(world.moves) == (not preferred)
    assert not world.paces["a"].disk_is_slow
    world.writes["a"].ms = 15.0
    world.run(MINUTES)
    assert len(world.moves) == 1
    assert world.paces["a"].disk_is_slow


def test_slow_leader_keeps_leadership_while_a_follower_is_down() -> None:
    world = World()
    world.down.add("c")
    world.writes["a"].ms = 15.0
    world.run(MINUTES)
    assert world.moves == []
    world.down.clear()
    world.run(MINUTES)
    assert len(world.moves) == 1


def test_group_with_a_slow_disk_at_every_leader_has_few_transfers_per_hour() -> None:
    """Slow because it leads: another leader does not help, and leadership does not go to and
    fro."""
    world = World()
    for _ in range(3_600):
        for name, writes in world.writes.items():
            writes.ms = 15.0 if name == world.leader else FAST_MS
        world.run(PERIOD_MS)
    assert len(world.moves) <= 12
    second_half = [at for at, _ in world.moves if at > 30 * MINUTES]
    assert len(second_half) <= 3


def test_intermittently_slow_leader_transfers_once_per_hour() -> None:
    world = World()
    for minute in range(60):
        world.writes["a"].ms = FAST_MS if minute % 2 else 50.0
        world.run(MINUTES)
    assert len(world.moves) == 1


def test_slow_replica_stays_marked_longer_after_each_relapse() -> None:
    world = World()
    pace, writes = world.paces["a"], world.writes["a"]

    def rest() -> float:
        writes.ms = 15.0
        world.run_until(lambda: pace.reason)
        writes.ms = FAST_MS
        return world.run_until(lambda: not pace.reason)

    rests = [rest(), rest(), rest()]
    assert rests == pytest.approx([REST_MS, 4 * REST_MS, 16 * REST_MS], abs=2 * PERIOD_MS)
    world.now += FORGET_MS
    assert rest() == pytest.approx(REST_MS, abs=2 * PERIOD_MS)


def test_single_slow_second_does_not_mark_a_replica() -> None:
    world = World()
    world.run(20_000)
    for _ in range(60):
        world.writes["a"].ms = 500.0
        world.run(4 * PERIOD_MS)  # for so long one slow call counts (dledger/storage/durations.py)
        world.writes["a"].ms = FAST_MS
        world.run(2 * PERIOD_MS)
    assert world.moves == []


@pytest.mark.parametrize("silent", ["a", "bc"])
def test_replica_without_writes_does_not_count_as_slow(silent: str) -> None:
    world = World()
    world.run(20_000)
    world.writes["a"].ms = 50.0
    for name in silent:
        world.writes[name].ms = None
    world.run(MINUTES)
    assert world.moves == []


def test_times_of_a_silent_peer_are_ignored() -> None:
    world = World()
    world.run(20_000)
    world.down |= {"b", "c"}
    world.run(KNOWN_MS + PERIOD_MS)
    world.writes["a"].ms = 50.0
    world.run(MINUTES)
    assert world.paces["a"].reason == ""


def test_times_of_a_non_member_are_ignored() -> None:
    world = World()
    world.run(20_000)
    world.paces["a"].take(Pace("z", "a", 1, 0, 0, 1, 1, 1))
    world.run(PERIOD_MS)
    assert not world.paces["a"].is_faster("z")
