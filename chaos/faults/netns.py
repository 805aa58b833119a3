"""Cuts below TCP, between the hosts of a cluster that has network namespaces of its own.

A directed cut gives the sender a wrong hardware address for the receiver. So its packets, and its
acknowledgements in connections of the reverse direction, are lost, as on a broken wire. This needs
no packet filter and no traffic control, which kernels may lack. The harness observes the cluster
from the clients' host, so it cannot reach a node that clients cannot reach.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from ..cluster import namespaces
from ..cluster.clusterfile import ClusterError, ClusterState, Node
from .base import Context, Factory, Hit, Kind, Need, Planned, Table, choose_nodes, chosen, in_thread
from .select import pick_some

HUB = "hub"  # the host of the clients and of the harness
_NOBODY = "02:00:00:00:00:fe"  # a hardware address that no host has

Pair = tuple[str, str]  # (sender, host that does not get it), names of nodes or HUB
PairsOf = Callable[[Hit, Planned, ClusterState], list[Pair]]


class WireCut:
    """Cuts directed pairs of hosts, so that the second receives nothing from the first."""

    def __init__(self, planned: Planned, context: Context, pairs_of: PairsOf, text: str) -> None:
        self._planned = planned
        self._context = context
        self.pairs_of = pairs_of
        self._text = text
        self._pairs: tuple[Pair, ...] = ()

    async def choose(self) -> Hit:
        hit = await choose_nodes(self._planned, self._context)
        state = self._context.cluster.state()
        self._pairs = tuple(self.pairs_of(hit, self._planned, state))
        if not self._pairs:
            raise ClusterError(
                f"{self._planned.kind}: {self._planned.whom} has nobody to be cut from"
            )
        return hit

    async def do(self, hit: Hit) -> None:
        await self._apply("replace {} lladdr " + _NOBODY + " nud permanent dev {}")

    async def undo(self, hit: Hit) -> None:
        await self._apply("flush to {} nud permanent dev {}")  # harmless where there is none

    def describe(self, targets: str) -> str:
        return f"{targets}: {self._text} (below TCP)"

    async def _apply(self, command: str) -> None:
        state = self._context.cluster.state()
        for source in dict.fromkeys(pair[0] for pair in self._pairs):
            device = "br0" if source == HUB else "eth0"
            targets = [target for sender, target in self._pairs if sender == source]
            commands = ["neigh " + command.format(_address(state, t), device) for t in targets]
            await in_thread(namespaces.ip, commands, f"{state.netns}-{source}")


def both_ways(some: Collection[str], others: Collection[str]) -> list[Pair]:
    return [*one_direction(some, others), *one_direction(others, some)]


def one_direction(senders: Collection[str], receivers: Collection[str]) -> list[Pair]:
    return [(sender, receiver) for sender in senders for receiver in receivers]


def _everybody_else(hit: Hit, planned: Planned, state: ClusterState) -> list[Pair]:
    others = [HUB, *(node.name for node in state.nodes if node.name not in hit.names)]
    return both_ways(hit.names, others)


def _sides(hit: Hit, planned: Planned, state: ClusterState) -> list[Pair]:
    first, *_ = hit.nodes
    others = [node for node in state.members(first.group) if node.name != first.name]
    with_first = pick_some(others, (len(others) - 1) // 2, planned.choice) if others else []
    side = [first.name, *(node.name for node in with_first)]
    return both_ways(side, [node.name for node in others if node.name not in side])


def _peers_in(hit: Hit, planned: Planned, state: ClusterState) -> list[Pair]:
    return one_direction(list(_peers(hit.nodes, state)), hit.names)


def _peers_out(hit: Hit, planned: Planned, state: ClusterState) -> list[Pair]:
    return one_direction(hit.names, list(_peers(hit.nodes, state)))


def _peers(nodes: Sequence[Node], state: ClusterState) -> Iterator[str]:
    names = {node.name for node in nodes}
    for member in state.members(nodes[0].group):
        if member.name not in names:
            yield member.name


def _address(state: ClusterState, name: str) -> str:
    return namespaces.HUB_ADDRESS if name == HUB else state.node(name).host


def _needs_netns(state: ClusterState | None) -> str | None:
    reason = namespaces.why_not()
    if reason is not None:
        return reason
    if state is None or state.netns:
        return None
    return "its processes have no network namespaces: start it with netns"


def _entry(
    name: str, description: str, text: str, pairs_of: PairsOf, whom: tuple[str, ...]
) -> tuple[Kind, Factory]:
    kind = Kind(name, "network", description, whom, frozenset({"netns"}), lasts_s=(2, 6))
    return kind, chosen(lambda planned, context: WireCut(planned, context, pairs_of, text))


_ONE = ("leader", "follower", "most-behind")
_ENTRIES = (
    _entry("wire-cut-node", "no packet to or from a node: as cut-node, below TCP",
        "no packet to it or from it", _everybody_else, (*_ONE, "minority")),
    _entry("wire-halves", "no packet between two halves of a group, the target in the smaller one",
        "no packet between its half and the other", _sides, ("leader", "follower")),
    _entry("wire-one-way-in",
        "packets of other brokers do not reach a node, acknowledgements neither",
        "no packet of its peers reaches it", _peers_in, _ONE),
    _entry("wire-one-way-out",
        "packets of a node do not reach other brokers, acknowledgements neither",
        "no packet of it reaches its peers", _peers_out, _ONE),
)  # fmt: skip
KINDS: Table = {kind.name: (kind, make) for kind, make in _ENTRIES}
NEEDS: dict[str, Need] = {"netns": _needs_netns}
