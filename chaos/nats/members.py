"""JetStream's members: a server that joins, and one that is taken out for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import orjson

from ..cluster import members
from ..cluster.cluster import Cluster
from ..cluster.clusterfile import ClusterError, Node
from ..cluster.timeouts import CHANGE_TIMEOUT_S
from .client import WRONG, connect
from .probe import HEALTHY, NatsProbe
from .servers import SYSTEM_USER

REMOVE = "$JS.API.SERVER.REMOVE"
ASK_TIMEOUT_S = 5.0
RETRY_S = 0.25
NO_PEER = 10044  # the code of "server is not a member of the cluster"


async def add(cluster: Cluster, group: str, say: Callable[[str], None]) -> Node:
    """Start one more server, which joins by itself; return once it says that it is healthy. It has
    no replica of the stream yet. Raises ClusterError."""
    node, process = members.start_new(cluster, group)
    say(f"started {node.name} (pid {process.pid}, {node.address})")
    deadline = time.monotonic() + CHANGE_TIMEOUT_S
    probe = NatsProbe(cluster.directory)
    try:
        while (said := await probe.health(node)) != HEALTHY:
            if time.monotonic() > deadline:
                raise ClusterError(f"{node.name} says of its health: {said}")
            await asyncio.sleep(RETRY_S)
    finally:
        await probe.close()
    return node


async def remove(cluster: Cluster, name: str) -> None:
    """End a server and take it out of the cluster, as NATS's documents say; its stream's replica
    goes to another server. Raises ClusterError."""
    await members.end_for_good(cluster, name)
    deadline = time.monotonic() + CHANGE_TIMEOUT_S
    client = await connect(cluster.directory, **SYSTEM_USER)
    why: dict[str, object] | None = {"description": "nobody was asked"}
    try:
        while time.monotonic() < deadline:
            try:
                answer = await client.request(
                    REMOVE, orjson.dumps({"peer": name}), timeout=ASK_TIMEOUT_S
                )
                why = orjson.loads(answer.data).get("error")
            except WRONG as error:
                why = {"description": repr(error)}
            if why is None or why.get("err_code") == NO_PEER:
                return
            await asyncio.sleep(RETRY_S)
    finally:
        await client.close()
    raise ClusterError(f"{name} is not removed: {why}")
