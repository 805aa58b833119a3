"""Which brokers a command is for: `-b ADDRESS`, `-c CLUSTER`, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.client.admin import Admin, ClusterInfo
from raftmq.client.route import LEADER_ID
from raftmq.mqadmin.command import Arguments, CommandError, Flag


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker process. `broker_id` 0 is the leader or master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


BROKER = Flag("b", "brokerAddr", "This broker, host:port.")
CLUSTER = Flag("c", "clusterName", "Every broker group of this cluster.")


def replicas(info: ClusterInfo, cluster: str = "") -> list[Replica]:
    """All of a cluster, or of all. Raises CommandError for a cluster that there is not."""
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
    """Who takes writes in each group. Raises CommandError when a group has nobody: what was asked
    would be done in part."""
    everybody = replicas(await admin.cluster_info(), cluster)
    found = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    headless = {r.broker_name for r in everybody} - {r.broker_name for r in found}
    if headless:
        raise CommandError(f"nobody leads {', '.join(sorted(headless))} at the moment")
    if not found:
        raise CommandError("the name server knows no broker")
    return found


async def writable(admin: Admin, arguments: Arguments) -> list[str]:
    """Addresses for a change: `-b`, or the leaders of `-c`. Raises CommandError."""
    address, cluster = arguments.text("brokerAddr"), arguments.text("clusterName")
    if not address and not cluster:
        raise CommandError("which brokers? Give -b HOST:PORT or -c CLUSTER", usage=True)
    if address:
        return [address]
    return [replica.address for replica in await leaders(admin, cluster)]


async def readable(admin: Admin, address: str, cluster: str) -> Sequence[str]:
    """Addresses to look at: `-b`, or all of a cluster, or all there are."""
    if address:
        return [address]
    return [replica.address for replica in replicas(await admin.cluster_info(), cluster)]


async def known_leaders(admin: Admin) -> dict[str, str]:
    """Broker name → leader's address, as far as there are leaders."""
    return {
        r.broker_name: r.address
        for r in replicas(await admin.cluster_info())
        if r.broker_id == LEADER_ID
    }
