"""Worlds on starved machines: for a while every node runs for a moment only, now and then, or
every message takes longer than an election time-out. They ask for liveness, which `World` does not
before it has healed.

`StarvedWorld(seed, slow).run()` plays three times: quiet ones; STARVED_MS of starvation; quiet
ones again, and then the leader is cut off. In the second somebody must lead for KEPT_TIMEOUTS
without a break, with proposals acknowledged; and the failover afterwards must take the time-outs
that are configured. Every check of `World` holds meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from raftmq.dledger.configuration import Configuration
from raftmq.dledger.core import RaftCore
from raftmq.dledger.electionbackoff import CALM_TIMEOUTS
from raftmq.dledger.messages import Role
from raftmq.dledger.wire import PeerMessage
from tests.simulator.node import SimNode
from tests.simulator.world import World

QUIET_MS = 4_000.0
STARVED_MS = 70_000.0  # a hundred of the longest configured time-outs
KEPT_TIMEOUTS = 40  # of those
SLICE_MS = 10.0  # for how long a starved node runs
SAMPLE_MS = 20.0
ROUNDS_MAX = 3  # of configured time-outs, for a failover: the votes may be split


class Slow(Enum):
    """The part of a starved world that is slow."""

    PROCESSES = "processes"
    MESSAGES = "messages"


class StarvedNode(SimNode):
    """While it is starved it hears and ticks now and then, in whatever order. Its core is told
    the time as member.py tells it, if it `attends`; else as it is."""

    attends = True
    rest_ms = 0.0  # about how long it does not run; 0: it does

    def __init__(
        self, world: World, name: str, names: frozenset[str], founding: Configuration
    ) -> None:
        super().__init__(world, name, names, founding)
        self._rested_ms = 0.0  # since when
        self._missed_ms = 0.0  # what its core was not told of

    def core_ms(self) -> float:
        return self.world.now_ms - self._missed_ms

    def _tick(self) -> None:
        self._tick_at = 0.0
        # Not before the deadline that this event was scheduled for, whatever rounding does.
        self.core.tick(self.core_ms() + 1e-6)
        self._work()

    def pause(self) -> None:
        super().pause()
        self._rested_ms = self.world.now_ms

    def _attend(self) -> None:
        """Count one step however long it rested, as stallclock.py does."""
        rested_ms = self.world.now_ms - self._rested_ms
        if self.attends:
            self._missed_ms += max(0.0, rested_ms - self.world.config.heartbeat_ms)

    def resume(self) -> None:
        if self.paused:
            self._attend()
        super().resume()

    def starve(self, rest_ms: float) -> None:
        self.rest_ms = rest_ms
        self._rest()

    def _rest(self) -> None:
        self.pause()
        self.world.after(self.rest_ms * (0.2 + 1.6 * self.world.rng.random()), self._run)

    def _run(self) -> None:
        if not self.paused:
            return  # the starvation is over
        if self.world.rng.random() < 0.5:
            self.resume()
        else:  # what has arrived comes first
            self._attend()
            self.paused = False
            waiting, self._waiting = self._waiting, []
            for kind, what in waiting:
                getattr(self, kind)(what)
            self._tick()
        self.offer(b"starved")
        self.world.after(SLICE_MS, self._rest)


class Restless(StarvedNode):
    """Its core is told the time as it is."""

    attends = False


class StarvedWorld(World):
    """See the module."""

    def __init__(
        self,
        seed: int,
        slow: Slow,
        core_class: type[RaftCore] = RaftCore,
        trace: Callable[[str], None] | None = None,
        node_class: type[StarvedNode] = StarvedNode,
    ) -> None:
        self.flags = f" (tests/simulator/test_starved.py, {slow}):"
        self.slow = slow
        self.slow_ms = 0.0  # how long messages take
        super().__init__(seed, core_class, trace, node_class)
        self.profile = replace(
            self.profile, durable=False, ordered=True, delay_ms=1.0, loss=0.0, spike=0.0
        )
        self.config = replace(self.config, append_bytes_max=4_096, inflight_messages_max=8)
        self.rots = False

    def run(self) -> dict[str, int]:
        for node in self.nodes.values():
            node.start()
        self.after(300.0, self._client)
        self._run_until(QUIET_MS)
        self._starve()
        acknowledged = self.acknowledged
        kept_ms = self._longest_kept_ms(self.now_ms + STARVED_MS)
        if kept_ms < KEPT_TIMEOUTS * self.config.election_ms_max:
            self.checker.fail(f"no leader is kept: the longest lasted {kept_ms:.0f} ms")
        if self.acknowledged == acknowledged:
            self.checker.fail("nothing is acknowledged")
        back_off = max(node.core.timer.back_off.factor for node in self.nodes.values())
        self._feed()
        self._run_until(self.now_ms + 2 * (CALM_TIMEOUTS + 1) * self.config.election_ms_max)
        return {
            "acknowledged": self.acknowledged - acknowledged,
            "kept_ms": round(kept_ms),
            "elections": self.checker.elections,
            "back_off": back_off,
            "failover_ms": round(self._fail_over()),
        }

    def _longest_kept_ms(self, end_ms: float) -> float:
        """Return how long the longest leadership until then lasted, in ms."""
        leader, since_ms, longest_ms = self.leader(), self.now_ms, 0.0
        while self.now_ms < end_ms:
            self._run_until(self.now_ms + SAMPLE_MS)
            if self.leader() != leader:
                leader, since_ms = self.leader(), self.now_ms
            elif leader is not None:
                longest_ms = max(longest_ms, self.now_ms - since_ms)
        return longest_ms

    def leader(self) -> tuple[str, int] | None:
        """Return the leader by the newest term that has one."""
        leading = [
            (node.core.term, name)
            for name, node in self.nodes.items()
            if node.up and node.core.role is Role.LEADER and node.core.leader_ready
        ]
        return (max(leading)[1], max(leading)[0]) if leading else None

    def _starve(self) -> None:
        if self.slow is Slow.MESSAGES:
            self.slow_ms = self.config.election_ms_max * (0.8 + 0.6 * self.rng.random())
            self._cut_off_leader()
            return
        for node in self.nodes.values():
            assert isinstance(node, StarvedNode)
            node.starve(self.config.election_ms_max * (1 + 2 * self.rng.random()))

    def _feed(self) -> None:
        self.cut.clear()
        self.slow_ms = 0.0
        for node in self.nodes.values():
            node.resume()

    def _cut_off_leader(self) -> None:
        """Nobody is told: connections stay open."""
        found = self.leader()
        if found is None:
            self.checker.fail("nobody leads")
        others = self.nodes.keys() - {found[0]}
        self.cut = {(found[0], o) for o in others} | {(o, found[0]) for o in others}

    def _fail_over(self) -> float:
        """Return how long the others are without a leader when it is cut off."""
        before = self.leader()
        began_ms = self.now_ms
        self._cut_off_leader()
        while self.leader() == before:
            if self.now_ms - began_ms > ROUNDS_MAX * self.config.election_ms_max:
                back_off = {
                    name: node.core.timer.back_off.factor for name, node in self.nodes.items()
                }
                self.checker.fail(f"no failover in the configured time: {back_off}")
            self._run_until(self.now_ms + SAMPLE_MS)
        return self.now_ms - began_ms

    def send(self, message: PeerMessage) -> None:
        if not self.slow_ms:
            super().send(message)
        elif (message.sender, message.to) not in self.cut:
            link = (message.sender, message.to)
            when_ms = self.now_ms + self.slow_ms * (0.5 + self.rng.random())
            when_ms = max(when_ms, self._arrival.get(link, 0.0))
            self._arrival[link] = when_ms
            self.at(when_ms, self.deliver, message)
