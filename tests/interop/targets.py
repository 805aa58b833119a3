"""The targets of foreign clients: a Raft group of ours, in three processes, whose leader
is killed while they work; or Apache's broker, unharmed, which shows that a driver is right.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import GRPC_PROXY, ClusterError, ClusterState
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.client import Admin, ClientError, MessageQueue, NoRoute
from raftmq.client.admin.bodies import TopicOffset
from raftmq.namesrv.server import NameServer, NameServerConfig
from tests.interop.apache import ApacheBroker
from tests.waiting import until

T = TypeVar("T")
UP_S = 240.0
OVER_S = 240.0  # until another one leads: a bound against hanging
POLL_S = 0.05
SETTINGS = {
    "mappedFileSizeCommitLog": "16777216",
    "maxIndexNum": "100000",
    "diskSpaceWarningLevelRatio": "100",  # however full the machine's disk is
}

Offsets = dict[MessageQueue, int]


class Target(Protocol):
    namesrv: str
    broker: str

    def strike(self) -> None:
        """Kill the leader, where there is one to kill; return when another one leads."""

    def heal(self) -> None:
        """Bring back what `strike` killed."""


def ask(namesrv: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Work, which may be repeated, with an Admin of its own, from any thread. The machine
    may be busy, and nobody lead: it is patient."""

    async def asked() -> T:
        async with Admin(namesrv) as admin:
            return await again(lambda: work(admin))

    return asyncio.run(asked())


async def again(request: Callable[[], Awaitable[T]]) -> T:
    """Return what a request is answered; it is asked again until it is. Work of many requests has
    this for each: where few are answered in time, all of them never are in a row."""
    deadline = time.monotonic() + OVER_S
    while True:
        try:
            return await request()
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(POLL_S)


def make_topic(namesrv: str, topic: str, queues: int) -> None:
    """Return when the name server, too, knows it."""

    async def work(admin: Admin) -> None:
        await admin.topic.create(topic, queues)
        await admin.cluster.route(topic)

    ask(namesrv, work)


async def leader_of(admin: Admin, topic: str, broker: str) -> str:
    """Its address. Raises NoRoute while nobody leads."""
    result = (await admin.cluster.leaders_of(topic)).get(broker)
    if result is None:
        raise NoRoute(topic, f"nobody leads {broker}")
    return result


async def _offsets(admin: Admin, topic: str) -> dict[MessageQueue, TopicOffset]:
    """Of all its queues. Raises NoRoute while somewhere nobody leads: queues would be missing."""
    route = await again(lambda: admin.cluster.route(topic))
    expected = {broker.broker_name for broker in route.brokers}
    result = await again(lambda: admin.topic.offsets(topic))
    if not expected or {queue.broker_name for queue in result} != expected:
        raise NoRoute(topic, f"not all of {sorted(expected)} have a leader")
    return result


async def _committed(admin: Admin, group: str, topic: str) -> Offsets:
    offsets = await again(lambda: _offsets(admin, topic))
    result = {q: await again(partial(admin.offset.committed, group, q)) for q in offsets}
    return {queue: offset for queue, offset in result.items() if offset is not None}


def committed(namesrv: str, group: str, topic: str) -> Offsets:
    """The group's offsets; queues in which it never committed are left out."""
    return ask(namesrv, lambda admin: _committed(admin, group, topic))


def all_committed(namesrv: str, of: list[tuple[str, str]]) -> dict[tuple[str, str], Offsets]:
    """The same of several (group, topic)."""

    async def work(admin: Admin) -> dict[tuple[str, str], Offsets]:
        return {key: await _committed(admin, *key) for key in of}

    return ask(namesrv, work)


def ends(namesrv: str, topic: str) -> Offsets:
    """Where each queue ends."""

    async def work(admin: Admin) -> Offsets:
        return {queue: o.max_offset for queue, o in (await _offsets(admin, topic)).items()}

    return ask(namesrv, work)


class RaftGroup:
    """Three brokers and a name server, each a process (mqcluster), below `directory`."""

    def __init__(
        self,
        directory: Path,
        shape: Shape | None = None,
        proxy: Mapping[str, str] | None = None,
        /,
        **settings: str,
    ) -> None:
        """`proxy`: settings of the gRPC proxies that `shape` has."""
        self.directory = directory
        self.broker = "broker-a"
        self._killed: list[str] = []
        self._held = HeldPorts("127.0.0.1")  # while a node is killed, too

        async def up(cluster: Cluster) -> ClusterState:
            given = {**SETTINGS, **settings}
            result = await cluster.up(shape or Shape(), given, UP_S, proxy_settings=proxy)
            cluster.ports, self._held = self._held, cluster.ports  # or they were let go of here
            return result

        state = self._do(up)
        self.namesrv = state.namesrv
        self.proxies = [node.address for node in state.nodes if node.kind == GRPC_PROXY]

    def strike(self) -> None:
        async def work(cluster: Cluster) -> None:
            node = await until(cluster.leader, patience_s=OVER_S, pause_s=POLL_S)
            process = cluster.signal(node.name, signal.SIGKILL)
            self._killed.append(node.name)
            await cluster.wait_dead(process)
            await until(lambda: self._serves(cluster, node.name), patience_s=OVER_S, pause_s=POLL_S)

        self._do(work)

    async def _serves(self, cluster: Cluster, killed: str) -> bool:
        """Whether another one leads, and the name server says so."""
        try:
            leader = await cluster.leader()
            if leader is None or leader.name == killed:
                return False
            async with Admin(self.namesrv) as admin:
                brokers = (await admin.cluster.info()).brokers
            result = brokers.get(self.broker)
            return result is not None and result.leader == leader.address
        except (ClusterError, ClientError):  # whoever was too busy is asked again
            return False

    def heal(self) -> None:
        async def work(cluster: Cluster) -> None:
            for name in self._killed:
                cluster.start(name)
            await wait_recovered(cluster, OVER_S)

        self._do(work)
        self._killed.clear()

    def down(self) -> None:
        self._do(lambda cluster: cluster.down())
        self._held.close()

    def _do(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def done() -> T:
            cluster = Cluster(self.directory)
            try:
                return await work(cluster)
            finally:
                await cluster.close()

        return asyncio.run(done())


class ApacheTarget:
    """Apache's broker, 5.3, with a name server of ours."""

    def __init__(self, broker: ApacheBroker, namesrv: str) -> None:
        self.namesrv = namesrv
        self.broker = broker.settings["brokerName"]

    def strike(self) -> None:
        """Nobody dies."""

    def heal(self) -> None:
        """Nobody died."""


@contextmanager
def name_server() -> Iterator[str]:
    """One of ours, for a broker that is not."""
    loop = asyncio.new_event_loop()
    server = NameServer(NameServerConfig("127.0.0.1", 0))
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
