"""The ways of a send that bench.proxies measures: which proxies it goes through, to which brokers.

All of them run at the same time and are loaded one at a time, so that Apache's have been up for as
long as ours. What a way that rests costs, it costs each of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.group import RaftGroup, raft_group
from bench.peers.apache import DLEDGER, HEAP, Started
from bench.peers.remoting import QUEUES, TOPIC
from bench.peers.system import Failed, Missing
from raftmq.chaos.cluster.clusterfile import Node
from raftmq.client import ClientError
from raftmq.client.admin import Admin
from raftmq.remoting.admin_headers import TopicHeader

ROUTE_TIMEOUT_S = 120.0
RETRY_S = 0.2
PERMISSIONS = 6  # to read and to write
APACHE = "Apache's, DLedger"
APACHE_AT_OURS = "Apache's, Raft"


@dataclass(frozen=True, slots=True)
class Way:
    """A name, the proxies' addresses, and the processes that a send costs something. `count`: how
    many of our proxies there are, 0 if they are Apache's."""

    name: str
    count: int
    addresses: Sequence[str]
    proxies: Sequence[int]
    brokers: Sequence[int]


def our_way(count: int) -> str:
    """Return the name of the way through so many of our proxies to our brokers."""
    return f"{count} mqproxy, Raft"


@asynccontextmanager
async def all_ways(directory: Path, counts: Sequence[int]) -> AsyncIterator[list[Way]]:
    """Run everything while the block runs: our group of three behind our proxies, as many of them
    as each of `counts` says, and behind Apache's; and Apache's three behind their own. Raises
    Missing or Failed."""
    async with (
        raft_group(proxies=max(counts)) as ours,
        DLEDGER.started(directory / "dledger") as theirs,
    ):
        name = _cluster_name()
        async with Admin(ours.namesrv) as admin:
            # Apache's proxy does not start before it knows a topic that is called so.
            for topic in (TOPIC, name):
                await admin.topic.put(ours.address, TopicHeader(topic, QUEUES, QUEUES, PERMISSIONS))
        await _routed(ours.namesrv, TOPIC, name)
        await _routed(theirs.namesrv, TOPIC, name)
        async with (
            _apache_proxy(directory / "proxy-at-ours", ours.namesrv) as at_ours,
            _apache_proxy(directory / "proxy", theirs.namesrv) as at_theirs,
        ):
            yield _ways(ours, theirs, counts, at_ours, at_theirs)


@dataclass(frozen=True, slots=True)
class _Proxy:
    address: str
    pid: int


def _ways(
    ours: RaftGroup, theirs: Started, counts: Sequence[int], at_ours: _Proxy, at_theirs: _Proxy
) -> list[Way]:
    state = ours.cluster.state()
    our_brokers = [_pid(node) for node in state.brokers]
    found = []
    for count in counts:
        proxies = state.grpc_proxies[:count]
        addresses, pids = [node.address for node in proxies], [_pid(node) for node in proxies]
        found.append(Way(our_way(count), count, addresses, pids, our_brokers))
    their_brokers = [broker.pid for broker in theirs.brokers]
    found.append(Way(APACHE_AT_OURS, 0, [at_ours.address], [at_ours.pid], our_brokers))
    found.append(Way(APACHE, 0, [at_theirs.address], [at_theirs.pid], their_brokers))
    return found


def _pid(node: Node) -> int:
    assert node.process is not None, node.name
    return node.process.pid


def _cluster_name() -> str:
    from tests.interop.apache_proxy import PROXY

    return str(PROXY["rocketMQClusterName"])


@asynccontextmanager
async def _apache_proxy(directory: Path, namesrv: str) -> AsyncIterator[_Proxy]:
    """Run Apache's proxy while the block runs. Raises Missing or Failed."""
    try:
        from tests.interop import apache_proxy

        jars = apache_proxy.fetch(apache_proxy.IVY_FILE, apache_proxy.JARS)
        assert jars, "no jars"
    except (ImportError, AssertionError, OSError) as error:
        raise Missing(f"Apache's proxy cannot be fetched: {error}") from error
    try:
        proxy = await asyncio.to_thread(apache_proxy.ApacheProxy, directory, namesrv, HEAP)
    except Exception as error:  # Py4J's, among others
        raise Failed(f"Apache's proxy did not start: {error}") from error
    try:
        yield _Proxy(f"127.0.0.1:{proxy.port}", proxy.pid)
    finally:
        await asyncio.to_thread(proxy.kill)


async def _routed(namesrv: str, *topics: str) -> None:
    """Return once the name server knows the topics. Raises Failed."""
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    async with Admin(namesrv) as admin:
        for topic in topics:
            while True:
                try:
                    await admin.cluster.route(topic)
                    break
                except ClientError as error:
                    if time.monotonic() > deadline:
                        raise Failed(f"{topic} has no route: {error}") from error
                await asyncio.sleep(RETRY_S)
