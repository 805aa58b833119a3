"""Addition of a broker to a running cluster's Raft group, and removal.

`add` plans a node, starts it with raftJoin, has the leader add it as a learner, and promotes it
once it has caught up. `remove` removes a member, dead or alive, and ends its process. Names are
never reused, because directories stay. The founders' broker.conf is not changed
(`ClusterState.founders`), because an empty replica bootstraps its group from it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

from . import launch
from .cluster import HOST, Cluster, end_now
from .clusterfile import ClusterError, ClusterState, Node, locked, save_state
from .credentials import own_credentials
from .process import ProcessId
from .timeouts import CHANGE_TIMEOUT_S, DOWN_TIMEOUT_S
from .topology import MODES, RAFT, REPLICAS_MAX

ASK_TIMEOUT_MS = 15_000  # longer than a broker waits for the commit
POLL_S = 0.1
UNKNOWN = "[OUTCOME_UNKNOWN]"
# Change → the error by which a leader rejects a change that is done already.
DONE = {
    "add-learner": "already",
    "promote": "is a voter already",
    "remove": "is no member of this group",
}

Say = Callable[[str], None]


async def add(
    cluster: Cluster, group: str | None, say: Say, timeout_s: float = CHANGE_TIMEOUT_S
) -> Node:
    """Add a voter to `group`, by default the first. Raises ClusterError after undoing everything,
    or with the remaining state in its text. `say` prints the remaining state if the call is
    cancelled."""
    deadline = time.monotonic() + timeout_s
    node, process = start_new(cluster, group)
    sent = False
    try:
        say(f"started {node.name} (pid {process.pid}, {node.address})")
        await _until_answering(cluster, node, deadline)
        sent = True
        await _change(cluster, node, "add-learner", deadline)
    except BaseException as error:  # Ctrl-C included
        is_refusal = isinstance(error, ClusterError)
        if UNKNOWN not in str(error) if is_refusal else not sent:
            end_now([process])
            _forget(cluster, node)
            raise
        left = f"look, then promote or remove {node.name}"
        if is_refusal:
            raise ClusterError(f"{error}\n{left}") from error
        say(f"{node.name} runs, and may be a learner of {node.group}: {left}")
        raise
    say(f"{node.name} is a learner of {node.group}, and gets the log")
    try:
        await _change(cluster, node, "promote", deadline)
    except ClusterError as error:
        left = f"{node.name} stays a learner; promote or remove it. {error}"
        raise ClusterError(left) from error
    except asyncio.CancelledError:
        say(f"{node.name} stays a learner, or is a voter: look, then promote or remove it")
        raise
    return cluster.state().node(node.name)


async def remove(
    cluster: Cluster, name: str, timeout_s: float = CHANGE_TIMEOUT_S
) -> tuple[Node, str]:
    """Remove a member for good; return it and the end of its process. Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    with locked(cluster.directory):
        result = changeable(cluster.state())
        node = result.node(name)
        if node.kind != "broker":
            raise ClusterError(f"{name} is no broker")
        save_state(cluster.directory, _founded(result))
    await _change(cluster, node, "remove", deadline)
    return node, await end_for_good(cluster, name)


def start_new(cluster: Cluster, group: str | None) -> tuple[Node, ProcessId]:
    """Plan a node of `group` (the first), save it and start it. Raises ClusterError."""
    with locked(cluster.directory):
        state = _founded(changeable(cluster.state()))
        port, peer_port, http_port = cluster.ports.choose(3, random.Random())
        (name,) = free_names(cluster.directory, state, 1)
        node = planned(state, group or state.groups[0], name, (port, peer_port, http_port))
        save_state(cluster.directory, replace(state, nodes=(*state.nodes, node)))
        return node, cluster.start_locked(node.name)


async def end_for_good(cluster: Cluster, name: str) -> str:
    """End a node's process and forget the node; return how it ended. Raises ClusterError."""
    node = cluster.state().node(name)
    ended = await cluster.end([node], DOWN_TIMEOUT_S)
    _forget(cluster, node)
    return ended[name]


def planned(state: ClusterState, group: str, name: str, ports: tuple[int, int, int]) -> Node:
    """Plan a new member. `ports`: of clients, of peers, of HTTP. Raises ClusterError. Pure."""
    members = state.members(group)
    if len(members) >= REPLICAS_MAX:
        raise ClusterError(f"{group} has {REPLICAS_MAX} members, and may not have more")
    port, peer_port, http_port = ports
    ordinal = 1 + max(node.broker_id for node in members)
    return Node(name, "broker", HOST, port, peer_port, group, ordinal, None, http_port, joins=True)


def free_names(directory: Path, state: ClusterState, count: int) -> list[str]:
    """Return names for brokers that no broker had before."""
    taken = {node.name for node in state.nodes} | {path.name for path in directory.iterdir()}
    names = (f"n{number}" for number in itertools.count(len(state.brokers)))
    return list(itertools.islice((name for name in names if name not in taken), count))


def changeable(state: ClusterState) -> ClusterState:
    """Return the same state if its members may change. Raises ClusterError if not. Pure."""
    if MODES[state.mode].engine != RAFT:
        raise ClusterError(f"members change in Raft groups only, and this cluster is {state.mode}")
    if state.links or state.netns:
        raise ClusterError("members do not change in a cluster with links or network namespaces")
    return state


def _founded(state: ClusterState) -> ClusterState:
    """Return the state with the founders' peers recorded, before the first change."""
    missing = {g: launch.peers_of(state, g) for g in state.groups if g not in state.founders}
    return replace(state, founders=state.founders | missing)


def _forget(cluster: Cluster, node: Node) -> None:
    with locked(cluster.directory):
        result = cluster.state()
        nodes = tuple(one for one in result.nodes if one.name != node.name)
        save_state(cluster.directory, replace(result, nodes=nodes))


async def _until_answering(cluster: Cluster, node: Node, deadline: float) -> None:
    while True:
        status = next(s for s in await cluster.status() if s.node.name == node.name)
        if status.view is not None:
            return
        if not status.alive or time.monotonic() > deadline:
            raise ClusterError(f"{node.name} does not come up\n{cluster.log_tails([node])}")
        await asyncio.sleep(POLL_S)


async def _change(cluster: Cluster, node: Node, op: str, deadline: float) -> None:
    """Send the change to the leader until it is done. A change without a response is sent again,
    and the leader rejects it as done already. Raises ClusterError at the deadline with the last
    response."""
    ext = {"op": op, "memberId": node.name}
    if op == "add-learner":
        ext["memberAddress"] = f"{node.host}:{node.peer_port}"
    command = RemotingCommand.request(RequestCode.CHANGE_MEMBERS, ext)
    client = RemotingClient(connect_timeout_ms=ASK_TIMEOUT_MS, credentials=own_credentials())
    reason = "there is no leader"
    try:
        while True:
            leader = await cluster.leader(node.group)
            if leader is not None:
                reason = await _answer_of(client.invoke(leader.address, command, ASK_TIMEOUT_MS))
                if not reason or DONE[op] in reason:
                    return
            if time.monotonic() > deadline:
                raise ClusterError(f"{op} {node.name}: {reason}")
            await asyncio.sleep(POLL_S)
    finally:
        await client.close()


async def _answer_of(answering: Awaitable[RemotingCommand]) -> str:
    """Return why it is not done; "" if it is."""
    try:
        answer = await answering
    except RemotingError as error:
        return f"{UNKNOWN} {error}" if error.outcome_unknown else str(error)
    return "" if answer.code == ResponseCode.SUCCESS else answer.remark or f"code {answer.code}"
