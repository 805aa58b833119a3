"""Finds the target brokers of a command by `-b ADDRESS`, `-c CLUSTER`, or all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.client.admin import Admin, ClusterInfo, headless, leaders_in
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.route import LEADER_ID

from .command import Arguments, CommandError

AT_ONCE_MAX = 16  # requests in flight


@dataclass(frozen=True, slots=True)
class Replica:
    """A broker process. `broker_id` 0 is the leader or master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


def replicas(info: ClusterInfo, cluster: str = "") -> list[Replica]:
    """Return all replicas of a cluster, or of all. Raises CommandError for an unknown one."""
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
    command would be incomplete."""
    everybody = replicas(await admin.cluster.info(), cluster)
    result = [replica for replica in everybody if replica.broker_id == LEADER_ID]
    without = {r.broker_name for r in everybody} - {r.broker_name for r in result}
    if without:
        raise CommandError(no_leader(sorted(without)))
    if not result:
        raise CommandError("the name server knows no broker")
    return result


async def leader_of(admin: Admin, name: str) -> str:
    """Return the address of a broker group's leader. Raises CommandError."""
    info = await admin.cluster.info()
    if name not in info.brokers:
        raise CommandError(f"the name server knows no broker group {name!r}")
    if name not in info.leaders:
        raise CommandError(no_leader([name]))
    return info.leaders[name]


async def leaders_of(admin: Admin, topic: str) -> dict[str, str]:
    """Return broker name → leader's address for the broker groups of a topic. Raises CommandError
    if a group has no leader."""
    groups = await admin.cluster.groups_of(topic)
    if without := headless(groups):
        raise CommandError(no_leader(without))
    return leaders_in(groups)


async def cluster_groups(
    admin: Admin, info: ClusterInfo, cluster: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return broker name → leader's address of a cluster's broker groups, and the names of the
    groups without a leader. Draining groups are left out. "" is the only cluster. Raises
    CommandError."""
    if not cluster and len(info.clusters) != 1:
        known = ", ".join(sorted(info.clusters)) or "none"
        raise CommandError(f"which cluster? Give -c CLUSTER; known: {known}", usage=True)
    (name,) = (cluster,) if cluster else info.clusters
    groups = {
        replica.broker_name: info.brokers[replica.broker_name] for replica in replicas(info, name)
    }
    result = {}
    for broker, address in leaders_in(groups).items():
        try:
            if (await admin.broker.drain(address, "status"))["drainingMs"]:
                continue
        except BrokerRefused:  # Apache's and classic brokers are not drained
            pass
        result[broker] = address
    return result, headless(groups)


def no_leader(names: Sequence[str]) -> str:
    return f"nobody leads {', '.join(names)} at the moment"


async def writable(admin: Admin, arguments: Arguments) -> list[str]:
    """Return a change's addresses, `-b`, or the leaders of `-c`. Raises CommandError."""
    address, cluster = _named(arguments)
    if address:
        return [address]
    return [replica.address for replica in await leaders(admin, cluster)]


async def named(admin: Admin, arguments: Arguments) -> list[str]:
    """Return the addresses of `-b`, or of every replica of `-c`. Raises CommandError."""
    return await everywhere(admin, *_named(arguments))


async def everywhere(admin: Admin, address: str, cluster: str) -> list[str]:
    """Return `address` if given, else all replicas' addresses of one or all clusters."""
    if address:
        return [address]
    return [replica.address for replica in replicas(await admin.cluster.info(), cluster)]


def _named(arguments: Arguments) -> tuple[str, str]:
    """Return the values of `-b` and `-c`. Raises CommandError if neither is given."""
    address, cluster = arguments.text("brokerAddr"), arguments.text("clusterName")
    if not address and not cluster:
        raise CommandError("which brokers? Give -b HOST:PORT or -c CLUSTER", usage=True)
    return address, cluster


async def runtime_infos(
    admin: Admin, requested: Sequence[Replica], *, one_answers: bool = True
) -> list[dict[str, str]]:
    """Return each replica's runtime information (28), in order, or {"error": reason}. Raises
    ClientError if no replica answers, unless `one_answers` is False."""
    turn = asyncio.Semaphore(AT_ONCE_MAX)
    failures: list[ClientError] = []

    async def figures(replica: Replica) -> dict[str, str]:
        async with turn:
            try:
                return await admin.broker.runtime_info(replica.address)
            except ClientError as error:
                failures.append(error)
                silent = "" if isinstance(error, BrokerRefused) else "no answer: "
                return {"error": f"{silent}{error.message}"}

    result = await asyncio.gather(*(figures(replica) for replica in requested))
    if one_answers and requested and len(failures) == len(requested):
        raise failures[0]
    return list(result)
