"""Addition of a broker group to a running cluster, draining and removal (docs/scaling.md).

`add` plans a group with the ports, links or hosts of its cluster and starts it. Its brokers join
the other groups by themselves. `remove` has the broker remove an empty group, ends its processes
and forgets it. Names of brokers and groups are never reused, because their directories stay.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from raftmq.client.admin import Admin, until_empty
from raftmq.client.errors import ClientError

from . import launch, namespaces
from .cluster import HOST, Cluster, end_now
from .clusterfile import PROXY, ClusterError, ClusterState, Node, locked, save_state
from .credentials import signing
from .members import free_names
from .ports import choose_ports
from .process import ProcessId
from .timeouts import DOWN_TIMEOUT_S, UP_TIMEOUT_S
from .topology import (
    GROUPS_MAX,
    MODES,
    RAFT,
    group_name,
    new_links,
    standard_ports_of_group,
    with_group,
    without_group,
)

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAMED_IN_CONF = re.compile(r"^brokerName=(.+)$", re.MULTILINE)

Say = Callable[[str], None]


async def add(
    cluster: Cluster,
    name: str | None,
    replicas: int,
    say: Say,
    timeout_s: float = UP_TIMEOUT_S,
) -> tuple[Node, ...]:
    """Start a broker group, by default of the next name, and return its brokers once a send to it
    would be acknowledged. Raises ClusterError. After a failure the group's processes are ended, but
    it stays in the cluster, because a client may have sent to it."""
    with locked(cluster.directory):
        old = cluster.state()
        if all(cluster.process_state(node) == "dead" for node in old.nodes):
            raise ClusterError("the cluster does not run: start it first (up)")
        group = _checked_name(cluster.directory, old, name)
        new = _planned(cluster, old, group, replicas)
        brokers = new.members(group)
        if new.netns:
            namespaces.add(new.netns, {node.name: node.host for node in brokers})
        save_state(cluster.directory, new)
        started: list[ProcessId] = []
        with _stopped_after_failure(group, started, say):
            _change_links(cluster)
            for node in brokers:
                started.append(cluster.start_locked(node.name))
                say(f"{node.name} starts")
    with _stopped_after_failure(group, started, say):
        await cluster.wait_group(group, timeout_s, say)
    return cluster.state().members(group)


@contextmanager
def _stopped_after_failure(group: str, started: list[ProcessId], say: Say) -> Iterator[None]:
    """End the started processes of a group after an error or Ctrl-C, and name the choices left."""
    try:
        yield
    except BaseException as error:
        end_now(started)
        left = f"{group} is stopped: start it (up), or forget it (remove-group --lose)"
        if isinstance(error, ClusterError):
            raise ClusterError(f"{error}\n{left}") from error
        say(left)
        raise


async def drain(
    cluster: Cluster, group: str, options: Mapping[str, str] | None = None, *, cancel: bool = False
) -> dict[str, Any]:
    """Start or cancel the draining of a group; return its status. `options` are those of
    `raftmq.client.admin.drain_options`. Raises ClusterError."""
    async with _admin(cluster) as admin:
        address = await _leader(cluster, group)
        return await admin.broker.drain(address, "cancel" if cancel else "start", options)


async def remove(
    cluster: Cluster, group: str, say: Say, *, lose: bool = False, wait_s: float = 0.0
) -> list[Path]:
    """Remove a drained group, once it is empty, for good; return the directories that it leaves.
    `lose` removes it with its content, also if none of its brokers runs. Raises ClusterError."""
    old = cluster.state()
    nodes = old.members(group)
    if old.groups == (group,):
        raise ClusterError(f"{group} is the only group: down stops it")
    if not lose or any(cluster.process_state(node) != "dead" for node in nodes):
        await _removed(cluster, group, say, lose=lose, wait_s=wait_s)
    with locked(cluster.directory):
        nodes = cluster.state().members(group)
        new = without_group(cluster.state(), group)
        save_state(cluster.directory, new)  # nobody starts its brokers again while they end
        _change_links(cluster)
    await cluster.end(nodes, DOWN_TIMEOUT_S)
    if new.netns:
        namespaces.delete(new.netns, [node.name for node in nodes])
    return [launch.node_directory(cluster.directory, node) for node in nodes]


async def _removed(cluster: Cluster, group: str, say: Say, *, lose: bool, wait_s: float) -> None:
    async with _admin(cluster) as admin:

        async def leader() -> str | None:
            node = await cluster.leader(group)
            return node.address if node else None

        address = await _leader(cluster, group)
        status = await admin.broker.drain(address, "status")
        if wait_s and status["drainingMs"]:
            await until_empty(admin, leader, wait_s, say)
            address = await _leader(cluster, group)
        await admin.broker.drain(address, "remove", {"lose": "true"} if lose else None)


@asynccontextmanager
async def _admin(cluster: Cluster) -> AsyncIterator[Admin]:
    await cluster.leader()  # enters the cluster's network, if it has one
    try:
        async with Admin(cluster.state().namesrv, instance_config=signing()) as admin:
            yield admin
    except ClientError as error:
        raise ClusterError(error.message) from error


async def _leader(cluster: Cluster, group: str) -> str:
    node = await cluster.find(f"leader:{group}")
    return node.address


def _checked_name(directory: Path, state: ClusterState, name: str | None) -> str:
    """Return the new group's name. Raises ClusterError for a group that is or was here."""
    if MODES[state.mode].engine != RAFT:
        raise ClusterError(f"groups are added to Raft clusters only; this cluster is {state.mode}")
    if len(state.groups) >= GROUPS_MAX:
        raise ClusterError(f"a cluster has {GROUPS_MAX} groups at most")
    used = set(state.groups)
    for path in directory.glob("*/broker.conf"):
        used |= set(NAMED_IN_CONF.findall(path.read_text(encoding="utf-8")))
    if name is None:
        return next(each for each in map(group_name, itertools.count()) if each not in used)
    if not NAME.fullmatch(name):
        raise ClusterError(f"{name!r} is no name of a group: letters, digits, - and _ are")
    if name in used:
        raise ClusterError(f"{directory} has stores of a group {name}: choose a different name")
    return name


def _planned(cluster: Cluster, old: ClusterState, group: str, replicas: int) -> ClusterState:
    names = free_names(cluster.directory, old, replicas)
    ports = [0] * (3 * replicas)

    def brokers(free: list[int]) -> list[Node]:
        return [
            Node(name, "broker", host, free[3 * i], free[3 * i + 1], group, i,
                 http_port=free[3 * i + 2])
            for i, (name, host) in enumerate(zip(names, _hosts(old, replicas), strict=True))
        ]  # fmt: skip

    standard = standard_ports_of_group(old, replicas)
    count = len(ports) + len(new_links(old, brokers(ports)))
    if old.netns:  # no foreign process listens there
        ports = choose_ports(count, HOST, random.Random())
    else:
        ports = standard or cluster.ports.choose(count, random.Random())
    return with_group(old, brokers(ports), iter(ports[3 * replicas :]))


def _hosts(state: ClusterState, count: int) -> list[str]:
    """Return the addresses of further brokers. Raises ClusterError."""
    if not state.netns:
        return [HOST] * count
    numbers = {namespaces.address_of(n): n for n in range(namespaces.NODES_MAX)}
    first = 1 + max(numbers[node.host] for node in state.nodes)
    if first + count > namespaces.NODES_MAX:
        raise ClusterError(f"at most {namespaces.NODES_MAX} nodes")
    return [namespaces.address_of(first + number) for number in range(count)]


def _change_links(cluster: Cluster) -> None:
    """Have the proxy of a cluster with links open and close links for the present nodes."""
    state = cluster.state()
    if state.links:
        launch.prepare(cluster.directory, state, state.node(PROXY))
        cluster.signal(PROXY, signal.SIGHUP)
