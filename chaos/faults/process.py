"""Faults of processes: killed, stopped in order, frozen, restarted, and leadership handed over.

Healing starts exactly what the fault took down: a node that somebody else killed, or has started
meanwhile, is left alone.
"""

from __future__ import annotations

import signal

from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState, Node
from raftmq.chaos.cluster.process import ProcessId, state
from raftmq.chaos.cluster.restart import ORDERLY_S
from raftmq.chaos.cluster.topology import MODES, RAFT
from raftmq.chaos.cluster.transfer import transfer
from raftmq.chaos.cluster.whole import wait_whole
from raftmq.chaos.faults.base import Context, Deed, Hit, Kind, Need, Planned, Table, role_of
from raftmq.chaos.faults.select import select


class Kill(Deed):
    """SIGKILL to all of them at once; healing starts them again."""

    number = signal.SIGKILL
    words = "kill -9 of"

    def __init__(self, planned: Planned, context: Context) -> None:
        super().__init__(planned, context)
        self._taken: list[str] = []  # down because of this fault

    async def do(self, hit: Hit) -> None:
        processes = []
        cluster = self.context.cluster
        for node in hit.nodes:
            if (
                cluster.is_alive(node.name) or len(hit.nodes) == 1
            ):  # of several some may be down already
                processes.append(cluster.signal(node.name, self.number))
                self._taken.append(node.name)
        if not processes:
            raise ClusterError("none of them is running")
        for process in processes:
            await self.wait_gone(process)

    async def wait_gone(self, process: ProcessId) -> None:
        await self.context.cluster.wait_dead(process)

    async def undo(self, hit: Hit) -> None:
        """Start the nodes that this fault took down and that are still down."""
        cluster = self.context.cluster
        for name in list(self._taken):
            if not cluster.is_alive(name):
                cluster.start(name)
            self._taken.remove(name)

    def describe(self) -> str:
        return f"{self.words} {self.targets()}, started again later"


class Term(Kill):
    """SIGTERM: an orderly end, with leadership handed over; healing starts it again."""

    number = signal.SIGTERM
    words = "kill -15 of"

    async def wait_gone(self, process: ProcessId) -> None:
        await self.context.cluster.wait_dead(process, ORDERLY_S)


class Pause(Deed):
    """SIGSTOP: sockets stay open and nothing moves; healing sends SIGCONT."""

    async def do(self, hit: Hit) -> None:
        frozen = [self.context.cluster.signal(node.name, signal.SIGSTOP) for node in hit.nodes]
        for process in frozen:
            await self.context.cluster.wait_stopped(process)

    async def undo(self, hit: Hit) -> None:
        for name in hit.names:
            if self.context.cluster.is_alive(name):
                self.context.cluster.signal(name, signal.SIGCONT)

    def describe(self) -> str:
        return f"{self.targets()} frozen (SIGSTOP), let go on later"


class RollingRestart(Term):
    """Restarts every broker in order, one after the other, the leader last."""

    async def choose(self) -> Hit:
        statuses = await self.context.cluster.status()
        nodes = select(self.planned.whom, statuses, self.planned.choice)
        nodes.sort(key=lambda node: role_of(node, statuses) == "leader")
        return Hit(tuple(nodes), role_of(nodes[0], statuses) if nodes else "")

    async def do(self, hit: Hit) -> None:
        for node in hit.nodes:
            await super().do(Hit((node,)))
            await self.undo(hit)
            await wait_whole(self.context.cluster)

    def describe(self) -> str:
        return f"rolling restart of {self.targets()}"


class Transfer(Deed):
    """Hands leadership over on request; nothing to undo."""

    to = ""

    async def choose(self) -> Hit:
        """Choose the leader as the node hit; the selector says who gets leadership."""
        hit = await super().choose()
        if hit.role == "leader":
            return hit
        (chosen,) = hit.nodes
        leader = await self.context.cluster.leader(chosen.group)
        if leader is None:
            raise ClusterError("there is no leader to take leadership from")
        self.to = chosen.name
        return Hit((leader,), "leader")

    async def do(self, hit: Hit) -> None:
        _, new = await transfer(self.context.cluster, hit.nodes[0].group, self.to)
        self.to = new.name

    async def undo(self, hit: Hit) -> None:
        """Do nothing: a change of leader is no damage."""

    def describe(self) -> str:
        return f"leadership taken from {self.targets()}" + (f" to {self.to}" if self.to else "")


def alive(node: Node) -> bool:
    return node.process is not None and state(node.process) != "dead"


def _needs_raft(cluster: ClusterState | None) -> str | None:
    if cluster is None or MODES[cluster.mode].engine == RAFT:
        return None
    return f"mode {cluster.mode} elects no leader on request; raft does"


_ANY = ("leader", "follower", "most-behind", "minority", "majority", "all")

_KILL = Kind("kill", "process", "kill -9, started again after a while", _ANY)
_TERM = Kind("term", "process", "kill -15: an orderly end; started again", _ANY)
_PAUSE = Kind(
    "pause", "process", "frozen with its sockets open (SIGSTOP), let go on", _ANY, lasts_s=(1, 4)
)
_RESTART_ALL = Kind("restart-all", "process", "every broker killed -9 at once; started", ("all",))
_STOP_ALL = Kind("stop-all", "process", "every broker stopped in order; started", ("all",))
_ROLLING = Kind(
    "rolling-restart",
    "process",
    "one broker after the other stopped and started, the cluster whole in between",
    ("all",),
    oneoff=True,
)
_TRANSFER = Kind(
    "transfer",
    "process",
    "leadership handed over on request: from the leader to who has most, or to whom it names",
    ("leader", "follower", "most-behind"),
    frozenset({"raft"}),
    oneoff=True,
)

KINDS: Table = {
    "kill": (_KILL, Kill),
    "term": (_TERM, Term),
    "pause": (_PAUSE, Pause),
    "restart-all": (_RESTART_ALL, Kill),
    "stop-all": (_STOP_ALL, Term),
    "rolling-restart": (_ROLLING, RollingRestart),
    "transfer": (_TRANSFER, Transfer),
}
NEEDS: dict[str, Need] = {"raft": _needs_raft}
