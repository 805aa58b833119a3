"""Faults of containers, and the reasons for which other faults are impossible there.

A cut disconnects a container from its networks, so its name, address and published ports are
unreachable.
"""

from __future__ import annotations

from ..cluster.clusterfile import ClusterError
from ..cluster.compose import ComposeCluster
from .base import Context, Factory, Hit, Kind, Planned, in_thread, injected

_BY_FAMILY = {
    "process": "",
    "names": "",
    "network": "a container's links have no proxies: it can only be cut off from everybody",
    "disk": "a container's broker runs over its disk, not over the fault layer",
    "damage": "a container's volume is the engine's: nobody else writes into it",
    "clock": "containers have the machine's clock",
}
_CAN = {"cut-node"}  # of the families above that cannot
_CANNOT = {
    "namesrv-cut": "clients and brokers reach name servers without proxies",
    "replace-member": "the containers are the ones that compose.yml names",
    "add-group": "the containers are the ones that compose.yml names",
    "remove-group": "the containers are the ones that compose.yml names",
}


def why_not(kind: Kind) -> str | None:
    """Return why this kind of fault cannot be made on containers; None if it can."""
    if kind.name in _CAN:
        return None
    return _CANNOT.get(kind.name) or _BY_FAMILY[kind.family] or None


class CutContainers:
    """Disconnects containers from all networks; healing reconnects them with the same names."""

    def __init__(self, planned: Planned, context: Context) -> None:
        self._context = context
        self._networks: dict[str, list[tuple[str, list[str]]]] = {}

    @property
    def cluster(self) -> ComposeCluster:
        cluster = self._context.cluster
        if not isinstance(cluster, ComposeCluster):
            raise ClusterError("these are no containers")
        return cluster

    async def do(self, hit: Hit) -> None:
        for name in hit.names:
            self._networks[name] = await in_thread(self.cluster.networks_of, name)
            await in_thread(self.cluster.cut_off, name, self._networks[name])

    async def undo(self, hit: Hit) -> None:
        for name, networks in list(self._networks.items()):
            await in_thread(self.cluster.join, name, networks)
            del self._networks[name]

    def describe(self, targets: str) -> str:
        return f"{targets}: off its networks"


MADE_BY: dict[str, Factory] = {"cut-node": injected(CutContainers)}
