"""Faults of the network, made by the proxies of a cluster's links.

Between brokers every direction is a link of its own; between clients and a broker the two
directions of a link carry requests and responses. As with TCP, cut bytes are held, not lost: they
arrive after the heal, unless an end closes the connection first. Loss, duplication and reordering
of single packets are invisible above TCP except as delay; chaos.faults.netns works below it.

A pure function of the links and the nodes computes each fault's rules; `KINDS` names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from ..cluster.clusterfile import ClusterError, ClusterState, Node
from ..cluster.linkmap import CLIENT, CLIENTS, HA, NAMES, PEER, Link
from .base import (
    Context,
    Deed,
    Factory,
    Fault,
    Hit,
    Injection,
    Kind,
    Need,
    Planned,
    Table,
    choose_nodes,
)
from .links import Links
from .rules import BACK, BOTH, FORWARD, Rule
from .select import pick, pick_some

RulesOf = Callable[[Links, Hit, Planned, ClusterState], list[Rule]]


class LinkFault:
    """A fault made of proxy rules that are in force from inject to heal."""

    def __init__(self, planned: Planned, context: Context, rules_of: RulesOf, text: str) -> None:
        self.planned = planned
        self._context = context
        self._rules_of = rules_of
        self._text = text
        self.rules: tuple[Rule, ...] = ()  # to be in force, once the nodes are chosen

    @property
    def links(self) -> Links:
        if self._context.links is None:
            raise ClusterError("this needs the cluster's links")
        return self._context.links

    async def choose(self) -> Hit:
        """Choose nodes and rules. Raises ClusterError without rules: nothing would be proved."""
        links, hit = self.links, await choose_nodes(self.planned, self._context)
        state = self._context.cluster.state()
        self.rules = tuple(self._rules_of(links, hit, self.planned, state))
        if not self.rules:
            raise ClusterError(f"{self.planned.kind}: {self.planned.whom} has no such link")
        return hit

    async def impose(self, rules: Sequence[Rule]) -> None:
        await self.links.impose(str(self.planned.number), rules)

    async def lift(self) -> None:
        await self.links.lift(str(self.planned.number))

    async def do(self, hit: Hit) -> None:
        await self.impose(self.rules)

    async def undo(self, hit: Hit) -> None:
        await self.lift()

    def describe(self, targets: str) -> str:
        figures = ", ".join(f"{name} {_short(v)}" for name, v in self.planned.params.items())
        return f"{targets}: {self._text}" + (f" ({figures})" if figures else "")


class Flapping:
    """Links cut and healed again every few moments."""

    def __init__(self, cut: LinkFault) -> None:
        self._cut = cut
        self._task: asyncio.Task[None] | None = None
        self.describe = cut.describe

    async def do(self, hit: Hit) -> None:
        await self._cut.do(hit)
        self._task = asyncio.create_task(self._flap(), name="flapping")

    async def undo(self, hit: Hit) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._cut.undo(hit)
        if task is not None and not task.cancelled():
            raise ClusterError(f"it did not flap to the end: {task.exception()}")

    async def _flap(self) -> None:
        every_s = self._cut.planned.figure("every_ms", 200) / 1000
        while True:
            await asyncio.sleep(every_s)
            await self._cut.lift()
            await asyncio.sleep(every_s)
            await self._cut.impose(self._cut.rules)


class Swizzle:
    """Cuts links one by one, and restores them one by one in a different order."""

    def __init__(self, cut: LinkFault) -> None:
        self._cut = cut
        self.describe = cut.describe

    async def do(self, hit: Hit) -> None:
        order = self._order(0)
        for count in range(1, len(order) + 1):
            await self._cut.impose(order[:count])
            await asyncio.sleep(self._step_s)

    async def undo(self, hit: Hit) -> None:
        order = self._order(1)
        while len(order) > 1:
            order.pop()
            await self._cut.impose(order)
            await asyncio.sleep(self._step_s)
        await self._cut.undo(hit)

    def _order(self, turn: int) -> list[Rule]:
        order = list(self._cut.rules)
        rng = self._cut.planned.rng()
        for _ in range(turn + 1):
            rng.shuffle(order)
        return order

    @property
    def _step_s(self) -> float:
        return self._cut.planned.figure("step_ms", 100) / 1000


class Reset:
    """Resets connections once; nothing to undo."""

    def __init__(self, cut: LinkFault) -> None:
        self._cut = cut
        self.describe = cut.describe

    async def do(self, hit: Hit) -> None:
        names = {rule.link for rule in self._cut.rules}
        await self._cut.links.reset([link for link in self._cut.links.all if link.name in names])

    async def undo(self, hit: Hit) -> None:
        """Do nothing, because a peer reconnects by itself."""


# ---- choice of rules ------------------------------------------------------------------------


def cut(links: Iterable[Link]) -> list[Rule]:
    return [Rule(link.name, cut=True) for link in links]


def around(links: Links, names: Collection[str]) -> list[Link]:
    """Return every link that crosses the border around these nodes."""
    return [ln for ln in links.all if (ln.source in names) != (ln.target in names)]


def around_peers(links: Links, names: Collection[str]) -> list[Link]:
    """Return the links of `around` that are between brokers."""
    result = set(links.replication())
    return [link for link in around(links, names) if link in result]


def one_way(links: Links, names: Collection[str], *, inward: bool) -> list[Rule]:
    """Cut the traffic of other brokers to these nodes (inward), or of these nodes to the rest."""
    rules = []
    for link in around_peers(links, names):
        towards = link.target in names
        if link.kind == PEER:
            if towards == inward:
                rules.append(Rule(link.name, cut=True))
        else:  # a single connection for both directions
            rules.append(Rule(link.name, FORWARD if towards == inward else BACK, cut=True))
    return rules


def two_sides(
    links: Links, first: Node, members: Sequence[Node], choice: float, *, bridge: bool
) -> list[Rule]:
    """Cut the group in two, `first` in the minority; with `bridge`, a further node reaches both
    sides. Raises ClusterError if the group is too small."""
    others = [node for node in members if node.name != first.name]
    if len(others) < (2 if bridge else 1):
        raise ClusterError(f"a group of {len(members)} is too small for that")
    if bridge:
        kept = pick(others, choice)
        others = [node for node in others if node.name != kept.name]
    with_first = pick_some(others, (len(others) - 1) // 2, choice)
    side = {first.name, *(node.name for node in with_first)}
    return cut(links.between(side, {node.name for node in others} - side))


def _halves(
    links: Links, hit: Hit, planned: Planned, state: ClusterState, *, bridge: bool
) -> list[Rule]:
    first = hit.nodes[0]
    return two_sides(links, first, state.members(first.group), planned.choice, bridge=bridge)


def cut_node(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    return cut(around(links, hit.names))


def _cut_peers(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    return cut(around_peers(links, hit.names))


def _one_way(
    links: Links, hit: Hit, planned: Planned, state: ClusterState, *, inward: bool
) -> list[Rule]:
    return one_way(links, hit.names, inward=inward)


def _clients(
    links: Links, hit: Hit, planned: Planned, state: ClusterState, *, way: str
) -> list[Rule]:
    return [Rule(link.name, way, cut=True) for link in links.to_clients(hit.names)]


def _lives(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    lives_s = planned.figure("lives_s", 1)
    return [Rule(link.name, lives_s=lives_s) for link in touching(links, hit, planned.whom)]


def _refuse(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    return [Rule(link.name, refuse=True) for link in links.all if link.target in hit.names]


def _delay(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    delay_ms, jitter_ms = planned.figure("delay_ms", 50), planned.figure("jitter_ms", 0)
    result = between_peers(links, hit, planned.whom)
    return [Rule(link.name, BOTH, delay_ms=delay_ms, jitter_ms=jitter_ms) for link in result]


def _slow(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    rate = planned.figure("rate", 500_000)
    return [Rule(link.name, rate=rate) for link in between_peers(links, hit, planned.whom)]


def _some_links(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    rng = planned.rng()
    result = between_peers(links, hit, planned.whom)
    return cut(link for link in result if rng.random() < 0.5) or cut(result[:1])


def _all_connections(links: Links, hit: Hit, planned: Planned, state: ClusterState) -> list[Rule]:
    return [Rule(link.name) for link in touching(links, hit, planned.whom)]


def touching(links: Links, hit: Hit, whom: str) -> list[Link]:
    """Return every link of these nodes; for "clients" those to brokers."""
    if whom == CLIENTS:
        servers = {link.target for link in links.all if link.kind == NAMES}
        return [ln for ln in links.all if ln.kind == CLIENT and ln.target not in servers]
    return [link for link in links.all if any(link.touches(name) for name in hit.names)]


def between_peers(links: Links, hit: Hit, whom: str) -> list[Link]:
    """Return these nodes' links to other brokers; for "clients" the clients' links to brokers."""
    result = touching(links, hit, whom)
    return result if whom == CLIENTS else [ln for ln in result if ln.kind in (PEER, HA)]


def _short(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _needs_links(state: ClusterState | None) -> str | None:
    if state is None or state.links:
        return None
    return "the cluster's traffic takes no proxies: start it with links"


# ---- the catalogue's entries --------------------------------------------------------------------

_ONE = ("leader", "follower", "most-behind", "minority")
_WIDE = ("leader", "follower", "all", "clients")
_LINKS = frozenset({"links"})


def _entry(
    name: str,
    description: str,
    text: str,
    rules_of: RulesOf,
    whom: tuple[str, ...] = _ONE,
    made_of: Callable[[LinkFault], Deed] = lambda cut: cut,
    *,
    lasts_s: tuple[float, float] = (2, 6),
    params: dict[str, tuple[float, float]] | None = None,
) -> tuple[Kind, Factory]:
    def make(planned: Planned, context: Context) -> Fault:
        links = LinkFault(planned, context, rules_of, text)
        return Injection(planned, context, made_of(links), links.choose)

    oneoff = made_of is Reset
    kind = Kind(
        name, "network", description, whom, _LINKS, oneoff, lasts_s=lasts_s, params=params or {}
    )
    return kind, make


_ENTRIES = (
    _entry("cut-node",
        "a node that nobody reaches and that reaches nobody: peers, clients, name servers",
        "cut off from everybody", cut_node),
    _entry("cut-peers",
        "a node cut off from its peers only: clients still reach it, a deposed leader too",
        "cut off from its peers", _cut_peers),
    _entry("halves",
        "the group in two halves that do not hear each other, the target on the smaller one",
        "in the smaller of two halves", partial(_halves, bridge=False), ("leader", "follower")),
    _entry("bridge", "two halves that one node alone still joins, the target in the smaller one",
        "joined to the other half by one node only", partial(_halves, bridge=True),
        ("leader", "follower")),
    _entry("one-way-in", "a node that hears no other broker, but is heard", "hears no peer",
        partial(_one_way, inward=True)),
    _entry("one-way-out", "a node that hears the other brokers, but is not heard",
        "is heard by no peer", partial(_one_way, inward=False)),
    _entry("clients-only", "clients cut off from a node that is well otherwise",
        "cut off from its clients", partial(_clients, way=BOTH), ("leader", "follower", "all")),
    _entry("answers-lost", "requests of clients arrive, answers do not: outcomes stay unknown",
        "its answers do not reach clients", partial(_clients, way=BACK), ("leader", "all"),
        lasts_s=(1, 4)),
    _entry("flapping", "a node cut off and let back again every few moments",
        "cut off and let back again and again", cut_node, made_of=Flapping,
        params={"every_ms": (50, 700)}),
    _entry("connection-loss",
        "every connection of a node, or of clients to brokers, is reset after a short life",
        "its connections die young", _lives, _WIDE, params={"lives_s": (0.2, 2)}),
    _entry("reset", "every connection of a node, or of clients to brokers, is reset, once",
        "all its connections reset", _all_connections, _WIDE, Reset),
    _entry("refuse", "a node takes no new connections; those it has go on",
        "takes no new connections", _refuse, ("leader", "follower", "all")),
    _entry("delay",
        "what a node and its peers, or clients and brokers, say to each other comes late, in order",
        "heard late, and hears late", _delay, _WIDE,
        params={"delay_ms": (5, 150), "jitter_ms": (0, 50)}),
    _entry("slow-link",
        "few bytes a second pass between a node and its peers, or clients and brokers, each way",
        "narrow links", _slow, _WIDE, params={"rate": (50_000, 2_000_000)}),
    _entry("swizzle", "links between brokers cut one by one, restored one by one in another order",
        "links cut one by one, restored in another order", _some_links,
        ("all", "leader", "follower"), Swizzle, params={"step_ms": (20, 200)}),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
NEEDS: dict[str, Need] = {"links": _needs_links}
