"""One world from one seed: nodes, network, disks, clients and faults on one clock.

`World(seed).run()` plays it and returns what happened as numbers; it raises CheckFailed (or the
AssertionError of the code under test) at the first event after which a promise is broken.

The plan of a seed: a few seconds of work under faults; then everything is healed and restarted,
and within a bounded simulated time a leader must exist, new proposals be acknowledged, every
replica catch up, and every acknowledged frame still be there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from google_crc32c import value as crc32c

from raftmq.dledger.configuration import Configuration
from raftmq.dledger.core import RaftCore
from raftmq.dledger.messages import Role
from raftmq.dledger.repair import RepairResponse
from raftmq.dledger.state import CoreConfig
from raftmq.dledger.wire import PeerMessage
from tests.simulator.checks import Checker
from tests.simulator.damage import Damage
from tests.simulator.faults import FaultPlan
from tests.simulator.members import Members
from tests.simulator.node import SimNode

FAULTS_MS = 3_500.0  # how long faults go on
HEAL_MS_MAX = 15_000.0  # by then a healed group must have made progress: > 10 elections
STEP_MS = 20.0  # how often progress is looked at after healing
HISTORY_MAX = 500  # messages that may be replayed
EVENTS_MAX = 60_000  # a world that does not end is a failure, not a hang


@dataclass(frozen=True, slots=True)
class Profile:
    """The roughness of a seed's world."""

    nodes: int
    durable: bool  # SYNC_FLUSH: acknowledged means synced; power cuts happen only here
    delay_ms: float
    spike: float  # probability of a delay that is twenty times as long
    loss: float
    duplication: float
    late_ms: float  # a duplicate comes up to this much later: over elections, if it is long
    ordered: bool  # links deliver in order, as TCP does
    sync_ms: float
    propose_every_ms: float
    window: int  # limits of the pipeline, in messages
    append_bytes_max: int
    fast: bool  # elections in a third of the time: more of them

    @staticmethod
    def draw(rng: Random) -> Profile:
        rough = rng.random() < 0.5
        delay_ms = rng.choice((0.2, 1.0, 5.0, 30.0))
        return Profile(
            nodes=rng.choice((3, 3, 3, 5)),
            durable=rng.random() < 0.7,
            delay_ms=delay_ms,
            spike=rng.choice((0.0, 0.02, 0.1)) if rough else 0.0,
            loss=rng.choice((0.0, 0.01, 0.1)) if rough else 0.0,
            duplication=rng.choice((0.0, 0.05, 0.3)) if rough else 0.0,
            late_ms=rng.choice((10.0, 300.0, 1500.0)),
            ordered=not rough,
            sync_ms=rng.choice((0.2, 2.0, 20.0)),
            propose_every_ms=rng.choice((40.0, 80.0, 150.0)),
            window=rng.choice((1, 2, 8)),
            append_bytes_max=rng.choice((1, 200, 4096)),
            fast=delay_ms < 10 and rng.random() < 0.5,
        )


class World:
    """See the module's docstring. `core_class` is replaced by tests that plant a break."""

    checker_class: type[Checker] = Checker
    flags = ""  # of the command that replays a seed of it

    def __init__(
        self,
        seed: int,
        core_class: type[RaftCore] = RaftCore,
        trace: Callable[[str], None] | None = None,
        node_class: type[SimNode] = SimNode,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_ms = 0.0
        self.trace = trace
        self.core_class = core_class
        self.profile = Profile.draw(self.rng)
        self.healed = False
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._arrival: dict[tuple[str, str], float] = {}
        self.history: deque[PeerMessage] = deque(maxlen=HISTORY_MAX)
        self.cut: set[tuple[str, str]] = set()
        self.config = CoreConfig(
            heartbeat_ms=25 if self.profile.fast else 75,
            election_ms_min=110 if self.profile.fast else 350,
            election_ms_max=220 if self.profile.fast else 700,
            append_bytes_max=self.profile.append_bytes_max,
            inflight_messages_max=self.profile.window,
            uncommitted_bytes_max=16_384,
        )
        self.checker = self.checker_class(self)
        self.damage = Damage(self)
        self.rots = self.damage.rng.random() < 0.5
        self.unit_ms = self.config.heartbeat_ms
        self.members = Members(self, "abcde"[: self.profile.nodes])
        names = frozenset(self.members.names)
        spare = Configuration()
        self.nodes = {
            name: node_class(
                self, name, names, spare if name in self.members.spares else self.members.founding
            )
            for name in self.members.names
        }
        self.plan = FaultPlan(self)
        self.proposed = 0
        self.acknowledged = 0
        self.acknowledged_before_healing = 0
        self.reads = 0
        self.losses = 0  # times a replica lost promises
        self.recoveries = 0  # and recovered, or for the first time

    # -- time -------------------------------------------------------------------------------------

    def at(self, when_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (when_ms, self._sequence, action, arguments))

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ms + delay_ms, action, *arguments)

    def _run_until(self, end_ms: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_ms:
            when_ms, _, action, arguments = heapq.heappop(queue)
            self.now_ms = when_ms
            self.events += 1
            assert self.events < EVENTS_MAX, "the world does not come to an end"
            action(*arguments)
        self.now_ms = end_ms

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now_ms:9.2f} {text}")

    # -- the plan ---------------------------------------------------------------------------------

    def run(self) -> dict[str, int]:
        """Play the seed. Raises at the first broken promise."""
        self.note(f"seed {self.seed} {self.profile}")
        for node in self.nodes.values():
            node.start()
        self.after(300.0, self._client)
        self.plan.schedule()
        self.members.schedule()
        self._run_until(FAULTS_MS)
        self._heal()
        self._await_progress()
        self.checker.at_end()
        return {
            "events": self.events,
            "proposed": self.proposed,
            "acknowledged": self.acknowledged,
            "reads": self.reads,
            "losses": self.losses,
            "recoveries": self.recoveries,
            "elections": self.checker.elections,
            "strikes": self.damage.strikes,
            "mended": self.damage.mended,
            "given_up": self.damage.given_up,
            "changes": self.members.changes,
        }

    def _heal(self) -> None:
        """No fault from here on. In half of the worlds everybody loses power (or dies) first."""
        self.note("heal")
        self.healed = True
        self.acknowledged_before_healing = self.acknowledged
        self.cut.clear()
        if self.rng.random() < 0.5:
            for node in self.nodes.values():
                node.crash(power=self.profile.durable)
        for node in self.nodes.values():
            node.heal()

    def _await_progress(self) -> None:
        """Liveness: a proposal made from now on is acknowledged and reaches every replica."""
        deadline_ms = self.now_ms + HEAL_MS_MAX
        while True:
            self._run_until(self.now_ms + STEP_MS)
            if self.acknowledged > self.acknowledged_before_healing and self._all_caught_up():
                return
            if self.now_ms >= deadline_ms:
                states = [str(node) for node in self.nodes.values()]
                self.checker.fail(f"no progress {HEAL_MS_MAX} ms after healing: {states}")

    def _all_caught_up(self) -> bool:
        nodes = self.members.current()
        if not all(node.up for node in nodes):
            return False
        commit = max(node.applied for node in nodes)
        return commit >= self.checker.acked_max and all(
            node.applied == commit and not node.lost and node.is_whole() for node in nodes
        )

    # -- clients ----------------------------------------------------------------------------------

    def _client(self) -> None:
        """Propose and read at whoever claims to lead; there may be two of them."""
        if self.healed and self.acknowledged > self.acknowledged_before_healing:
            return  # progress is made; now everybody must catch up
        self.after(self.profile.propose_every_ms * 2 * self.rng.random(), self._client)
        for node in self.nodes.values():
            if node.up and not node.paused and node.core.role is Role.LEADER:
                for _ in range(self.rng.choice((1, 1, 3))):
                    self.proposed += 1
                    size = self.rng.choice((0, 0, 20, 300, 1500))
                    node.propose(b"%d" % self.proposed + bytes(size))
                if node.up and self.rng.random() < 0.5:
                    node.read()

    # -- network ----------------------------------------------------------------------------------

    def send(self, message: PeerMessage) -> None:
        """Deliver later, more than once, out of order, or not at all."""
        link = (message.sender, message.to)
        profile, rng = self.profile, self.rng
        if link in self.cut:
            return
        delay_ms = profile.delay_ms * (0.5 + rng.random())
        if isinstance(message, RepairResponse) and not self.healed:
            message = self.damage.on_the_way(message)
        if not self.healed and not profile.ordered:
            self.history.append(message)
            if rng.random() < profile.loss:
                return
            if rng.random() < profile.spike:
                delay_ms *= 20 * (1 + rng.random())
            if rng.random() < profile.duplication:
                self.after(delay_ms + profile.late_ms * rng.random(), self.deliver, message)
        when_ms = self.now_ms + delay_ms
        if profile.ordered or self.healed:
            when_ms = max(when_ms, self._arrival.get(link, 0.0))
            self._arrival[link] = when_ms
        self.at(when_ms, self.deliver, message)

    def deliver(self, message: PeerMessage) -> None:
        if (message.sender, message.to) in self.cut:
            return
        node = self.nodes[message.to]
        if node.alive:
            if self.trace is not None:
                self.note(f"  {shown(message)}")
            node.receive(message)

    def tell_closed(self, about: str, to: str) -> None:
        node = self.nodes[to]
        if node.up:
            node.peer_closed(about)

    def tell_opened(self, about: str, to: str) -> None:
        node = self.nodes[to]
        if node.up and self.nodes[about].up:
            node.peer_opened(about)


def shown(message: PeerMessage) -> str:
    """For the trace: of a repair's bytes only how many they are, and their checksum."""
    if not isinstance(message, RepairResponse):
        return str(message)
    data = message.data
    return f"{replace(message, data=b'')} <{len(data)} bytes, crc {crc32c(data):08x}>"
