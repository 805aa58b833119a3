"""Finds the brokers that a command is for: `-b ADDRESS`, `-c CLUSTER`, or all."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.route import LEADER_ID
from raftmq.mqadmin.command import Arguments, CommandError


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker process. `broker_id` 0 is the leader or master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


def replicas(info: ClusterInfo, cluster: str = "") -> list[Replica]:
    """Return all replicas of one cluster, or of all. Raises CommandError for an unknown cluster."""
    if cluster and cluster not in info.clusters:
        known = ", ".join(sorted(info.clusters)) or "none"
        raise CommandError(f"there is no cluster {cluster!r}; known: {known}")
    return [
        Replica(data.cluster, name, broker_id, address)
        for name, data in sorted(info.brokers.items())
        if not cluster or data.cluster == cluster
        for broker_id, address in sorted(data.addresses.items())
    ]


async def leaders(admin: Admin, cluster: str = "") -> list[Replica]:
    """Return the leader of each broker group. Raises CommandError if a group has none, because the
    command would be carried out only in part."""
    everybody = replicas(await admin.cluster.info(), cluster)
    found = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    headless = {r.broker_name for r in everybody} - {r.broker_name for r in found}
    if headless:
        raise CommandError(f"nobody leads {', '.join(sorted(headless))} at the moment")
    if not found:
        raise CommandError("the name server knows no broker")
    return found


async def writable(admin: Admin, arguments: Arguments) -> list[str]:
    """Return the addresses for a change: `-b`, or the leaders of `-c`. Raises CommandError."""
    address, cluster = _named(arguments)
    if address:
        return [address]
    return [replica.address for replica in await leaders(admin, cluster)]


async def named(admin: Admin, arguments: Arguments) -> list[str]:
    """Return the addresses of `-b`, or of every replica of `-c`. Raises CommandError."""
    return await everywhere(admin, *_named(arguments))


async def everywhere(admin: Admin, address: str, cluster: str) -> list[str]:
    """Return `address` if it is given; else the addresses of all replicas of a cluster, or of
    all."""
    if address:
        return [address]
    return [replica.address for replica in replicas(await admin.cluster.info(), cluster)]


def _named(arguments: Arguments) -> tuple[str, str]:
    """Return the values of `-b` and `-c`. Raises CommandError if neither is given."""
    address, cluster = arguments.text("brokerAddr"), arguments.text("clusterName")
    if not address and not cluster:
        raise CommandError("which brokers? Give -b HOST:PORT or -c CLUSTER", usage=True)
    return address, cluster
