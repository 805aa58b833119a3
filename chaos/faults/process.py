"""Faults of processes (killed, stopped in order, frozen, restarted), and transfer of leadership.

Healing starts only the nodes that the fault stopped and that are still down.
"""

from __future__ import annotations

import signal

from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError, ClusterState, Node
from ..cluster.process import ProcessId, state
from ..cluster.restart import ORDERLY_S
from ..cluster.topology import MODES, RAFT
from ..cluster.transfer import transfer
from ..cluster.wait_healthy import wait_recovered
from .base import (
    Context,
    Factory,
    Hit,
    Kind,
    Need,
    Planned,
    Table,
    choose_nodes,
    chosen,
    injected,
    role_of,
)
from .select import select


class Kill:
    """A signal that ends all of them at once, SIGKILL or SIGTERM; healing starts them again."""

    def __init__(self, cluster: Cluster, number: signal.Signals = signal.SIGKILL) -> None:
        self._cluster = cluster
        self._number = number
        # Nodes that this fault has signalled, with their processes.
        self.taken: dict[str, ProcessId] = {}

    async def do(self, hit: Hit) -> None:
        processes = []
        cluster = self._cluster
        for node in hit.nodes:
            if (
                cluster.is_alive(node.name) or len(hit.nodes) == 1
            ):  # of several some may be down already
                process = self.taken[node.name] = cluster.signal(node.name, self._number)
                processes.append(process)
        if not processes:
            raise ClusterError("none of them is running")
        for process in processes:
            await self._wait_dead(process)

    async def undo(self, hit: Hit) -> None:
        """Start the nodes that this fault stopped and that are still down, after their processes
        have ended. Nodes that have left the cluster are skipped."""
        for name, process in list(self.taken.items()):
            if self._is_member(name):
                await self._wait_dead(process)
            if self._is_member(name) and not self._cluster.is_alive(name):
                self._cluster.start(name)
            del self.taken[name]

    def _is_member(self, name: str) -> bool:
        return name in {node.name for node in self._cluster.state().nodes}

    async def _wait_dead(self, process: ProcessId) -> None:
        if self._number == signal.SIGKILL:
            await self._cluster.wait_dead(process)
        else:
            await self._cluster.wait_dead(process, ORDERLY_S)

    def describe(self, targets: str) -> str:
        return f"kill -{self._number.value} of {targets}, started again later"


class Pause:
    """SIGSTOP: sockets stay open and nothing moves; healing sends SIGCONT."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._cluster = context.cluster

    async def do(self, hit: Hit) -> None:
        frozen = [self._cluster.signal(node.name, signal.SIGSTOP) for node in hit.nodes]
        for process in frozen:
            await self._cluster.wait_stopped(process)

    async def undo(self, hit: Hit) -> None:
        for name in hit.names:
            if self._cluster.is_alive(name):
                self._cluster.signal(name, signal.SIGCONT)

    def describe(self, targets: str) -> str:
        return f"{targets} frozen (SIGSTOP), let go on later"


class RollingRestart:
    """Restarts every broker in order, one by one, the leader last."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._cluster = context.cluster
        self._term = Kill(context.cluster, signal.SIGTERM)

    async def choose(self) -> Hit:
        statuses = await self._cluster.status()
        nodes = select(self._planned.whom, statuses, self._planned.choice)
        nodes.sort(key=lambda node: role_of(node, statuses) == "leader")
        return Hit(tuple(nodes), role_of(nodes[0], statuses) if nodes else "")

    async def do(self, hit: Hit) -> None:
        for node in hit.nodes:
            await self._term.do(Hit((node,)))
            await self.undo(hit)
            await wait_recovered(self._cluster)

    async def undo(self, hit: Hit) -> None:
        await self._term.undo(hit)

    def describe(self, targets: str) -> str:
        return f"rolling restart of {targets}"


class Transfer:
    """Hands leadership over on request; nothing to undo."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._planned = planned
        self._context = context
        self._to = ""

    async def choose(self) -> Hit:
        """Choose the leader as the node hit; the selector gives the new leader."""
        hit = await choose_nodes(self._planned, self._context)
        if hit.role == "leader":
            return hit
        (chosen,) = hit.nodes
        leader = await self._context.cluster.leader(chosen.group)
        if leader is None:
            raise ClusterError("there is no leader to take leadership from")
        self._to = chosen.name
        return Hit((leader,), "leader")

    async def do(self, hit: Hit) -> None:
        _, new = await transfer(self._context.cluster, hit.nodes[0].group, self._to)
        self._to = new.name

    async def undo(self, hit: Hit) -> None:
        """Do nothing, because a change of leader is no damage."""

    def describe(self, targets: str) -> str:
        return f"leadership taken from {targets}" + (f" to {self._to}" if self._to else "")


def _killed(number: signal.Signals = signal.SIGKILL) -> Factory:
    return injected(lambda _, context: Kill(context.cluster, number))


def alive(node: Node) -> bool:
    return node.process is not None and state(node.process) != "dead"


def _needs_raft(cluster: ClusterState | None) -> str | None:
    if cluster is None or MODES[cluster.mode].engine == RAFT:
        return None
    return f"mode {cluster.mode} elects no leader on request; raft does"


_ANY = ("leader", "follower", "most-behind", "minority", "majority", "all")

kill, _term = _killed(), _killed(signal.SIGTERM)

_ENTRIES = (
    (Kind("kill", "process", "kill -9, started again after a while", _ANY), kill),
    (Kind("term", "process", "kill -15: an orderly end; started again", _ANY), _term),
    (Kind("pause", "process", "frozen with its sockets open (SIGSTOP), let go on", _ANY,
        lasts_s=(1, 4)), injected(Pause)),
    (Kind("restart-all", "process", "every broker killed -9 at once; started", ("all",)), kill),
    (Kind("stop-all", "process", "every broker stopped in order; started", ("all",)), _term),
    (Kind("rolling-restart", "process",
        "one broker after the other stopped and started, the cluster whole in between", ("all",),
        oneoff=True), chosen(RollingRestart)),
    (Kind("transfer", "process",
        "leadership handed over on request: from the leader to who has most, or to whom it names",
        ("leader", "follower", "most-behind"), frozenset({"raft"}), oneoff=True),
        chosen(Transfer)),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
NEEDS: dict[str, Need] = {"raft": _needs_raft}
