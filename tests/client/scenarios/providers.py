"""Clusters that the scenarios run against: a Raft group of three of ours, whose leader is killed in
the middle of each scenario, and Apache's broker 5.3 in one JVM, killed and started again."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any, Protocol

from raftmq.client import Admin
from raftmq.namesrv.server import NameServer, NameServerConfig
from tests.broker.cluster import Group
from tests.interop.apache import ApacheBroker

PATIENCE_S = 180.0  # a bound against hanging, not an expectation
# Levels 1 and 2 for delays, from 3 on for what comes again.
LEVELS = "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"


class Cluster(Protocol):
    """The cluster that a scenario runs against."""

    @property
    def namesrv(self) -> str: ...

    @property
    def torn_max(self) -> int:
        """How many half-written messages a kill may leave."""
        ...

    @property
    def forgets_pops(self) -> bool:
        """Whether a kill makes it forget acknowledgements of popped messages."""
        ...

    async def fail_over(self) -> None:
        """Kill whoever leads; returns when somebody does."""
        ...


def fresh(name: str) -> str:
    """A topic's or group's name that nobody has used."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def topic_of(cluster: Cluster, queue_count: int = 4) -> str:
    """A new topic that clients can route to."""
    topic = fresh("T")
    async with Admin(cluster.namesrv) as admin:
        await admin.topic.create(topic, queue_count)
    return topic


class RaftCluster:
    """A name server and three brokers on this loop."""

    torn_max = 0
    forgets_pops = False  # acknowledgements of popped messages, and who has which

    def __init__(self, directory: Path) -> None:
        self._server = NameServer(NameServerConfig("127.0.0.1", 0))
        self._directory = directory
        self._group: Any = None
        self.killed = 0

    @property
    def namesrv(self) -> str:
        return self._server.address

    async def __aenter__(self) -> RaftCluster:
        await self._server.start()
        self._group = Group(
            self._directory,
            3,
            namesrvAddr=self._server.address,
            messageDelayLevel=LEVELS,
            enablePropertyFilter="true",
            transactionTimeOut="500",
            transactionCheckInterval="500",
            transactionCheckMax="10000",  # who is busy is asked until it answers
        )
        await self._group.__aenter__()
        await self._group.leader()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._group.__aexit__()
        await self._server.stop()

    async def fail_over(self) -> None:
        """The replica comes back once there is another leader."""
        name = await self._group.leader()
        await self._group.kill(name)
        await self._group.leader()
        await self._group.start(name)
        self.killed += 1


class ApacheCluster:
    """Our name server and Apache's broker. It has nobody to fail over to: it is killed and started
    again over its store. What it acknowledged it has then (SYNC_FLUSH); offsets it writes every
    five seconds only, which is made up for before a kill: scenarios ask for those committed.
    `kills` False: nothing happens to it. Killed while it writes, it may keep a message whose
    properties are not there yet, and so its id: it was not acknowledged."""

    torn_max = 1
    forgets_pops = True

    def __init__(self, directory: Path) -> None:
        self._server = NameServer(NameServerConfig("127.0.0.1", 0))
        self._directory = directory
        self._broker: ApacheBroker | None = None
        self.kills = True
        self.killed = 0

    @property
    def namesrv(self) -> str:
        return self._server.address

    async def __aenter__(self) -> ApacheCluster:
        await self._server.start()
        self._broker = ApacheBroker(
            self._directory,
            self._server.address,
            brokerName="apache",
            flushDiskType="SYNC_FLUSH",
            mappedFileSizeCommitLog=str(4 << 20),
            maxMessageSize=str(1 << 20),
            messageDelayLevel=LEVELS,
            enablePropertyFilter="true",
            transactionTimeOut="500",
            transactionCheckInterval="500",
            transactionCheckMax="10000",  # who is busy is asked until it answers
            timerWheelEnable="true",
            recallMessageEnable="true",
        )
        try:
            await asyncio.to_thread(self._broker.start)
            await self._registered(True)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._broker is not None
        self._broker.kill()
        await self._server.stop()

    async def fail_over(self) -> None:
        assert self._broker is not None
        if not self.kills:
            return
        await asyncio.to_thread(self._broker.save_offsets)
        await asyncio.to_thread(self._broker.kill)
        await self._registered(False)
        await asyncio.to_thread(self._broker.start)
        await self._registered(True)
        self.killed += 1

    async def _registered(self, wanted: bool) -> None:
        """The name server lists it, or has seen that it is gone."""
        async with Admin(self.namesrv) as admin, asyncio.timeout(PATIENCE_S):
            while wanted is not ("apache" in (await admin.cluster.info()).brokers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
