"""The links of a cluster, which are the directed connections between its processes.

A link is directed by its dialling end: `n0>n1` is the connection from n0 to n1's Raft listener. It
carries n0's messages only, so cutting a single link is a one-way cut. All clients share a link to
each broker (`clients>n0`) and to each name server; requests and responses are its two directions. A
classic slave's link to its master (`s0>m0`) carries replication. The slave's calls to the master's
ordinary listener use the clients' link, because the name server gave that address. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .clusterfile import ClusterState, Node

CLIENTS = "clients"
PEER, HA, CLIENT, NAMES = "peer", "ha", "client", "names"  # kinds of links


@dataclass(frozen=True, slots=True)
class Link:
    """A way from `source` to `target`, which `source` dials at the proxy's `port` on `host`."""

    source: str  # a node's name or CLIENTS
    target: str
    kind: str
    host: str
    port: int
    target_port: int

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"

    def touches(self, node: str) -> bool:
        return node in (self.source, self.target)


def links_of(state: ClusterState) -> tuple[Link, ...]:
    """Return all links, in a fixed order; none if the cluster was made without."""
    return tuple(_links(state)) if state.links else ()


def link_names(nodes: tuple[Node, ...]) -> list[str]:
    """Return the names of the links that these nodes will have."""
    return [f"{source}>{target.name}" for source, target, _, _ in _ways(nodes)]


def _links(state: ClusterState) -> Iterator[Link]:
    for source, target, kind, target_port in _ways(state.nodes):
        port = state.link_ports[f"{source}>{target.name}"]
        yield Link(source, target.name, kind, target.host, port, target_port)


def _ways(nodes: tuple[Node, ...]) -> Iterator[tuple[str, Node, str, int]]:
    """Yield (dialling end, dialled node, kind, the node's port) for each link."""
    brokers = [node for node in nodes if node.kind == "broker"]
    servers = [node for node in nodes if node.kind == "namesrv"]
    for target in brokers:
        for source in brokers:
            if source.name == target.name or source.group != target.group:
                continue
            if target.peer_port:
                yield source.name, target, PEER, target.peer_port
            elif target.broker_id == 0:
                yield source.name, target, HA, target.ha_port
    for target in brokers:
        yield CLIENTS, target, CLIENT, target.port
    for target in servers:
        yield CLIENTS, target, CLIENT, target.port
        for source in brokers:
            yield source.name, target, NAMES, target.port
