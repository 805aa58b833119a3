"""Faults: what is done to a cluster on purpose, and how it is undone. Each is written down.

A fault is a small object {inject, heal, describe}; the history gets an invoke before the deed and
an ok behind it, with node, pid and role, so charts and checks need no other source. The schedule is
pure: the same seed gives the same times and targets.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from typing import Protocol

from chaos.cluster.cluster import Cluster
from chaos.cluster.clusterfile import ClusterError, Node
from chaos.history.files import HistoryWriter

PROCESS = "nemesis"
KILLS_MAX = 10_000


class Fault(Protocol):
    """One thing that goes wrong and is put right again."""

    async def inject(self) -> None:
        """Do it. Raises ClusterError if it could not be done: then nothing is wrong."""
        ...

    async def heal(self) -> None:
        """Undo it; harmless if it was not injected."""
        ...

    def describe(self) -> str:
        """What it does, for a person and for the chart."""
        ...


class Kill:
    """SIGKILL to one process: the leader of the moment, any follower, or a node by name."""

    def __init__(self, cluster: Cluster, history: HistoryWriter, target: str, choice: float = 0.0):
        """`target`: "leader", "follower" or a node's name; `choice` in [0, 1) picks a follower."""
        self._cluster = cluster
        self._history = history
        self._target = target
        self._choice = choice
        self.node: str | None = None  # who is down because of this fault

    async def inject(self) -> None:
        node, role = await self._victim()
        pid = node.process.pid if node.process else 0
        op = self._history.next_op()
        event = {"node": node.name, "pid": pid, "role": role}
        self._history.event("invoke", "kill", PROCESS, op, **event)
        try:
            process = self._cluster.signal(node.name, signal.SIGKILL)
        except ClusterError as error:
            self._history.event("fail", "kill", PROCESS, op, **event, error=str(error))
            raise
        self.node = node.name
        self._history.event("ok", "kill", PROCESS, op, **event)
        await self._cluster.wait_dead(process)

    async def heal(self) -> None:
        if self.node is None:
            return
        op = self._history.next_op()
        event = {"node": self.node, "role": ""}
        self._history.event("invoke", "start", PROCESS, op, **event, pid=0)
        try:
            process = self._cluster.start(self.node)
        except (ClusterError, OSError) as error:
            self._history.event("fail", "start", PROCESS, op, **event, pid=0, error=str(error))
            raise
        self._history.event("ok", "start", PROCESS, op, **event, pid=process.pid)
        self.node = None

    def describe(self) -> str:
        return f"kill -9 of {self._target}, started again later"

    async def _victim(self) -> tuple[Node, str]:
        statuses = [s for s in await self._cluster.status() if s.node.kind == "broker" and s.alive]
        leader = await self._cluster.leader()
        if self._target == "leader":
            if leader is None:
                raise ClusterError("there is no leader to kill")
            return leader, "leader"
        if self._target == "follower":
            others = [s.node for s in statuses if leader is None or s.node.name != leader.name]
            if not others:
                raise ClusterError("there is no follower to kill")
            return others[int(self._choice * len(others))], "follower"
        node = self._cluster.state().node(self._target)
        return node, next((s.role for s in statuses if s.node.name == node.name), "")


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """When, relative to the begin of the load, for how long, and whom."""

    at_s: float
    down_s: float
    target: str
    choice: float


def plan_kills(
    seed: int, count: int, seconds: float, targets: tuple[str, ...] = ("leader",)
) -> tuple[PlannedKill, ...]:
    """`count` kills spread over `seconds`: one per equal interval, at a seeded point of its middle.

    A victim stays down for a seeded 0.5 to 2 s, never more than a third of an interval, so that
    the group is whole again before the next kill. Raises ValueError outside the limits.
    """
    if not 0 <= count <= KILLS_MAX:
        raise ValueError(f"kills must be 0 to {KILLS_MAX}, not {count}")
    if seconds <= 0:
        raise ValueError(f"the time to spread kills over must be positive, not {seconds}")
    rng = random.Random(seed)
    interval_s = seconds / count if count else seconds
    plan = []
    for number in range(count):
        at_s = interval_s * (number + rng.uniform(0.3, 0.6))
        down_s = min(rng.uniform(0.5, 2.0), interval_s / 3)
        plan.append(PlannedKill(at_s, down_s, rng.choice(targets), rng.random()))
    return tuple(plan)
