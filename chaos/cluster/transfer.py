"""Transfer of leadership, a planned change of leader that stops no broker."""

from __future__ import annotations

import asyncio
import time

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

from .cluster import Cluster
from .clusterfile import ClusterError, Node
from .credentials import own_credentials

TRANSFER_TIMEOUT_S = 30.0
ASK_TIMEOUT_MS = 15_000
POLL_S = 0.02


async def transfer(
    cluster: Cluster, group: str | None = None, target: str = ""
) -> tuple[Node, Node]:
    """Transfer the leadership of `group` (None: the first) to `target` ("": the follower with
    most).

    Returns (old leader, new leader) once the new leader is ready. Raises ClusterError; after a
    time-out either may lead.
    """
    old = await cluster.leader(group)
    if old is None:
        raise ClusterError("there is no leader to take leadership from")
    desired = await _ask(old, target)
    deadline = time.monotonic() + TRANSFER_TIMEOUT_S
    while True:
        new = await cluster.leader(old.group)
        if new is not None and new.name != old.name:
            return old, new
        if time.monotonic() > deadline:
            raise ClusterError(f"{old.name} still leads; it did not hand over to {desired}")
        await asyncio.sleep(POLL_S)


async def _ask(leader: Node, target: str) -> str:
    """Send the transfer to the leader; return the name of the new leader in the response."""
    client = RemotingClient(connect_timeout_ms=ASK_TIMEOUT_MS, credentials=own_credentials())
    command = RemotingCommand.request(
        RequestCode.TRANSFER_LEADERSHIP, {"target": target} if target else {}
    )
    try:
        answer = await client.invoke(leader.address, command, ASK_TIMEOUT_MS)
    except RemotingError as error:
        raise ClusterError(f"{leader.name} was asked to hand over: {error}") from error
    finally:
        await client.close()
    if answer.code != ResponseCode.SUCCESS or answer.ext is None:
        raise ClusterError(f"{leader.name} does not hand over: {answer.remark}")
    return answer.ext["target"]
