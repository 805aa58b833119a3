"""The interface of faults, with kinds in the catalogue, planned faults, and objects that act.

A *kind* is data, such as name, family, possible targets and requirements. A *planned* fault is a
kind with a time, a target and drawn numbers, made from a seed. A *fault* injects and heals a
planned fault on a cluster. `Injection` is the usual fault. Its `Deed` does and undoes the damage;
the injection itself writes the history records. It heals even after an `inject` that failed or was
cancelled, and when the history cannot be written.

Every module of faults has a table `KINDS: Table` and, if its kinds need a feature of the machine or
the cluster, a table `NEEDS`; chaos.faults.catalogue joins them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..cluster.cluster import Cluster, NodeStatus
from ..cluster.clusterfile import ClusterError, ClusterState, Node
from ..history.files import HistoryWriter
from .select import NobodyNow, leaders, select

if TYPE_CHECKING:
    from .links import Links

T = TypeVar("T")

PROCESS = "nemesis"
CHOOSE_TIMEOUT_S = 30.0  # many elections long, even on a busy machine
CHOOSE_POLL_S = 0.05
FAMILIES = ("process", "network", "disk", "damage", "clock", "names")


@dataclass(frozen=True, slots=True)
class Kind:
    """An entry of the catalogue. The usual selector is the first in `whom`.

    `needs` are names in the tables of needs ("links", "faultable", "root", "raft", …); `modes` are
    cluster modes, None: all. `lasts_s` bounds the drawn duration in seconds; without it the fault
    heals at once. `params` are further drawn numbers, name → (low, high).
    """

    name: str
    family: str
    description: str
    whom: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    oneoff: bool = False
    modes: frozenset[str] | None = None
    lasts_s: tuple[float, float] = (0.5, 2.0)
    params: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of a plan. Times are seconds from the start of the load; `choice` in [0, 1) picks
    targets. Faults with the same `slot` belong to a wish and happen together."""

    number: int
    at_s: float
    for_s: float
    kind: str
    whom: str
    choice: float
    params: Mapping[str, str | float] = field(default_factory=dict)
    slot: int = 0

    def figure(self, name: str, default: float) -> float:
        """Return a drawn or given number. Raises ClusterError if it is no number."""
        try:
            return float(self.params.get(name, default))
        except ValueError:
            raise ClusterError(f"{self.kind}: {name} must be a number") from None

    def rng(self) -> random.Random:
        """Return its own generator, the same whenever this plan is repeated."""
        return random.Random(f"{self.number}:{self.choice}")


class Fault(Protocol):
    """A failure of a cluster that can be injected and healed."""

    async def inject(self) -> None:
        """Inject it. Raises ClusterError without any damage if that is not possible."""
        ...

    async def heal(self) -> None:
        """Heal it, if injected and not healed. Repeatable after a ClusterError."""
        ...

    def describe(self) -> str:
        """Return a description for the user and the chart."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that faults use. `links` is None without proxies for the cluster's traffic.
    `left` has the nodes of removed broker groups, whose logs and stores are judged as well."""

    cluster: Cluster
    history: HistoryWriter
    links: Links | None = None
    rng: random.Random = field(default_factory=random.Random)
    say: Callable[[str], None] = lambda text: None
    left: list[Node] = field(default_factory=list)


Factory = Callable[[Planned, Context], Fault]
Table = Mapping[str, tuple[Kind, Factory]]
# Returns the requirement that this machine (None given) or this cluster lacks, or None.
Need = Callable[[ClusterState | None], str | None]


@dataclass(frozen=True, slots=True)
class Hit:
    """The nodes that a fault hits. `role` is the first node's role at the time of the choice."""

    nodes: tuple[Node, ...]
    role: str = ""

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    @property
    def pid(self) -> int:
        """The pid of the node; 0 unless there is exactly one."""
        only = self.nodes[0] if len(self.nodes) == 1 else None
        return only.process.pid if only is not None and only.process is not None else 0


class Deed(Protocol):
    """The work of a fault on the nodes that it hits.

    `undo` must be harmless after a `do` that failed or was cancelled, because it is called then,
    and for nodes that were restarted in between. No thread of `do` may still run then: `in_thread`
    waits for it.
    """

    async def do(self, hit: Hit) -> None:
        """Make it happen. Raises ClusterError or OSError."""

    async def undo(self, hit: Hit) -> None:
        """Put it right. Raises ClusterError or OSError."""

    def describe(self, targets: str) -> str:
        """Return a short description; `targets` has the nodes' names, or the selector."""


class Choosing(Deed, Protocol):
    async def choose(self) -> Hit:
        """Choose the nodes to hit. Raises ClusterError."""


async def choose_nodes(planned: Planned, context: Context) -> Hit:
    """Choose the nodes to hit by the planned selector.

    Waits up to `CHOOSE_TIMEOUT_S` while nobody leads, as during an election.
    """
    deadline = time.monotonic() + CHOOSE_TIMEOUT_S
    while True:
        statuses = await context.cluster.status()
        try:
            nodes = select(planned.whom, statuses, planned.choice)
        except NobodyNow:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(CHOOSE_POLL_S)
            continue
        return Hit(tuple(nodes), role_of(nodes[0], statuses) if nodes else "")


class Injection:
    """A fault that the history records, with a deed and the nodes that it hits.

    `choose` finds the nodes; without it, the planned selector does.
    """

    def __init__(
        self,
        planned: Planned,
        context: Context,
        deed: Deed,
        choose: Callable[[], Awaitable[Hit]] | None = None,
    ) -> None:
        self.planned = planned
        self.context = context
        self.deed = deed
        self._choose = choose or partial(choose_nodes, planned, context)
        self.hit: Hit | None = None  # the injection; None: no damage

    async def inject(self) -> None:
        """Choose, record the start, do it, record that it is done."""
        assert self.hit is None, f"{self.planned.kind} is injected already"
        hit = await self._choose()
        op = self._write("invoke", "inject", hit)
        self.hit = hit  # from here on `heal` has something to undo, also after a cancellation
        try:
            await self.deed.do(hit)
        except (ClusterError, OSError) as error:
            try:
                await self.deed.undo(hit)
            finally:
                self._write("fail", "inject", hit, op, error)
            self.hit = None
            raise ClusterError(f"{self.planned.kind}: {error}") from error
        self._write("ok", "inject", hit, op)

    async def heal(self) -> None:
        """Undo it, with the same two records. Raises OSError if they cannot be written."""
        if self.hit is None:
            return
        try:
            op = self._write("invoke", "heal", self.hit)
        except OSError:
            await self.deed.undo(self.hit)
            self.hit = None
            raise
        try:
            await self.deed.undo(self.hit)
        except (ClusterError, OSError) as error:
            self._write("fail", "heal", self.hit, op, error)
            raise ClusterError(f"{self.planned.kind} cannot be healed: {error}") from error
        # Restarted processes have new pids; a removed node is gone.
        now = {node.name: node for node in self.context.cluster.state().nodes}
        hit = Hit(tuple(now.get(node.name, node) for node in self.hit.nodes), self.hit.role)
        self._write("ok", "heal", hit, op)
        self.hit = None

    def describe(self) -> str:
        return self.deed.describe(self.targets())

    def targets(self) -> str:
        """Return the nodes' names once they are known, else the selector."""
        names = self.hit.names if self.hit is not None else []
        return ", ".join(names) or self.planned.whom

    def _write(
        self, type_: str, function: str, hit: Hit, op: int = 0, error: Exception | None = None
    ) -> int:
        history = self.context.history
        op = op or history.next_op()
        fields = {
            "fault": self.planned.number,
            "kind": self.planned.kind,
            "whom": self.planned.whom,
            "nodes": hit.names,
            "role": hit.role,
            "pid": hit.pid,
            "detail": self.describe(),
        }
        if error is not None:
            fields["error"] = str(error)
        history.event(type_, function, PROCESS, op, **fields)
        return op


def injected(deed: Callable[[Planned, Context], Deed]) -> Factory:
    """Return a factory of faults with such a deed, on the planned nodes."""
    return lambda planned, context: Injection(planned, context, deed(planned, context))


def chosen(deed: Callable[[Planned, Context], Choosing]) -> Factory:
    """Return a factory of faults with such a deed, on the nodes that it chooses."""

    def make(planned: Planned, context: Context) -> Fault:
        result = deed(planned, context)
        return Injection(planned, context, result, result.choose)

    return make


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even if this is cancelled, and raise the cancellation afterwards. A
    second cancellation reaches `work`."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def in_thread(function: Callable[..., T], *values: object) -> T:
    """Run a blocking function in a thread. A thread cannot be cancelled, so this returns after its
    end, and damage is never undone before it is done."""
    return await finished(asyncio.to_thread(function, *values))


def role_of(node: Node, statuses: Sequence[NodeStatus]) -> str:
    """Return "leader" (or classic master), "follower", or "" for a name server."""
    if node.kind != "broker":
        return ""
    return "leader" if node.name in {other.name for other in leaders(statuses)} else "follower"
