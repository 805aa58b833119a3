"""A cluster of real processes that do nothing, and a probe with answers of the test."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from raftmq.chaos.cluster import launch
from raftmq.chaos.cluster.clusterfile import Node
from raftmq.chaos.cluster.probe import ReplicaView

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)"
)
SLOW_TO_END = (
    "import signal, sys, time\n"
    "def end(*_): print('ends', flush=True); time.sleep(1); sys.exit()\n"
    "signal.signal(signal.SIGTERM, end); print('ready', flush=True); time.sleep(600)"
)
ENDS = "print('cannot open the store', flush=True); raise SystemExit(3)"


class Programs:
    """The command of each node: `programs[name]`, or a process that sleeps."""

    def __init__(self, **programs: str) -> None:
        self.programs = programs

    def __call__(self, directory: Path, node: Node) -> list[str]:
        launch.command(directory, node)  # also writes the node's configuration
        return [sys.executable, "-S", "-c", self.programs.get(node.name, SLEEPS)]


class StandInProbe:
    """Answers for brokers; `leader` is a node name, `registered` an address."""

    def __init__(self) -> None:
        self.leader: str | None = "n0"
        self.ready = True
        self.registered: str | None = None
        self.silent: set[str] = set()  # names that do not answer
        self.refusals: dict[str, str] = {}  # of those that are silent, by name
        self.term = 1

    async def replica(self, node: Node) -> ReplicaView | None:
        if node.name in self.silent:
            return None
        leads = self.leads(node)
        role = "leader" if leads else "follower"
        leader = self.leader or ""
        ready = leads and self.ready
        view = ReplicaView(node.name, node.group, role, self.term, leader, ready, 10, 10, 10, 10)
        return replace(view, slaves_in_sync=99)

    def refusal(self, node: Node) -> str:
        return self.refusals.get(node.name, "")

    async def listens(self, node: Node) -> bool:
        return node.name not in self.silent

    def leads(self, node: Node) -> bool:
        return node.name == self.leader

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        return self.registered

    async def close(self) -> None:
        pass


class AgreeingProbe(StandInProbe):
    """Answers at once that the first broker of each group leads, is ready and registered."""

    def __init__(self) -> None:
        super().__init__()
        self.leaders: dict[str, str] = {}  # group → address

    async def replica(self, node: Node) -> ReplicaView | None:
        if self.leads(node):
            self.leaders[node.group] = node.address
        return await super().replica(node)

    def leads(self, node: Node) -> bool:
        return node.broker_id == 0

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        return self.leaders.get(group)
