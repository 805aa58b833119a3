"""Planned restarts, broker by broker without effect on clients, or all at once."""

from __future__ import annotations

import signal
from collections.abc import Callable

from .cluster import Cluster
from .clusterfile import ClusterError, Node
from .credentials import who_refuses
from .probe import leader_of
from .wait_healthy import wait_recovered

ORDERLY_S = 60.0  # within which a process must obey SIGTERM


async def restart_rolling(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Restart every broker in order, one at a time, and wait for recovery after each. The leader of
    each group is last, so leadership moves once. Name servers and then gRPC proxies follow. Raises
    ClusterError; the failed process stays down."""
    result = cluster.state()
    for node in (*await _leaders_last(cluster), *result.name_servers, *result.grpc_proxies):
        await _restart(cluster, node)
        say(f"restarted {node.name}")


async def restart_all(cluster: Cluster) -> None:
    """Stop everything in order and start it again; return once a send would be acknowledged. Raises
    ClusterError before it stops anything if brokers reject status requests, because their return
    could not be observed."""
    refused = next((s for s in await cluster.status() if s.refusal), None)
    if refused is not None:
        raise ClusterError(who_refuses(refused.node.name, refused.refusal))
    await cluster.down()
    await cluster.up()


async def _restart(cluster: Cluster, node: Node) -> None:
    await wait_recovered(cluster)
    await cluster.wait_dead(cluster.signal(node.name, signal.SIGTERM), ORDERLY_S)
    cluster.start(node.name)
    await wait_recovered(cluster)


async def _leaders_last(cluster: Cluster) -> list[Node]:
    statuses = [s for s in await cluster.status() if s.node.kind == "broker"]
    views = [s.view for s in statuses]
    result = (leader_of(views, group) for group in cluster.state().groups)
    leading = {view.node for view in result if view is not None}
    return sorted((s.node for s in statuses), key=lambda node: node.name in leading)
