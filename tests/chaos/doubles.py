"""A cluster of real processes that do nothing, and a probe that says what the test wants."""

from __future__ import annotations

import sys
from pathlib import Path

from chaos.cluster.clusterfile import Node
from chaos.cluster.probe import ReplicaView

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)"
)
ENDS = "print('cannot open the store', flush=True); raise SystemExit(3)"


class Programs:
    """The command of each node: `programs[name]`, or a process that sleeps."""

    def __init__(self, **programs: str) -> None:
        self.programs = programs

    def __call__(self, directory: Path, node: Node) -> list[str]:
        return [sys.executable, "-S", "-c", self.programs.get(node.name, SLEEPS)]


class StandInProbe:
    """Answers for replicas by address; `leader` is a node name, `registered` an address."""

    def __init__(self) -> None:
        self.leader: str | None = "n0"
        self.ready = True
        self.registered: str | None = None
        self.nodes: dict[str, str] = {}  # address → name
        self.silent: set[str] = set()  # names that do not answer
        self.term = 1

    async def replica(self, address: str) -> ReplicaView | None:
        name = self.nodes.get(address, "n0")
        if name in self.silent:
            return None
        leads = name == self.leader
        role = "leader" if leads else "follower"
        leader = self.leader or ""
        return ReplicaView(name, role, self.term, leader, leads and self.ready, 10, 10, 10, 10)

    async def registered_leader(self, namesrv: str, group: str) -> str | None:
        return self.registered

    async def close(self) -> None:
        pass


class AgreeingProbe(StandInProbe):
    """Says at once that n0 leads, is ready and registered: a cluster that comes up."""

    async def replica(self, address: str) -> ReplicaView | None:
        self.nodes.setdefault(address, f"n{len(self.nodes)}")  # asked in the order of the file
        if self.nodes[address] == self.leader:
            self.registered = address
        return await super().replica(address)
