"""Which links a cluster has: every way that its traffic takes from one process to another.

A link is directed by who dials: `n0>n1` is the connection that n0 dialled to n1's Raft listener
and carries n0's messages only, so a one-way cut is the cut of one link. All clients share one link
to each broker (`clients>n0`) and to each name server, whose requests and answers are its two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class Link:
    """Who dials `source` finds its way to `target` at the proxy's `port`. Ports on loopback."""

    source: str  # a node's name or CLIENTS
    target: str
    kind: str  # "peer", "ha", "client" or "names"
    port: int
    target_port: int

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"

    def touches(self, node: str) -> bool:
        return node in (self.source, self.target)


class Links:
    """The links of one cluster."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.all = tuple(links)
