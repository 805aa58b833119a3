"""A small cluster for commands: a name server and one broker, on a loop of their own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raftmq.mqadmin.cli import main
from raftmq.namesrv.routes import Registration
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.registration import DataVersion, TopicConfig
from tests.broker.cluster import Group
from tests.namesrv.http.nodes import NEVER_SILENT_MS
from tests.waiting import wait_until

STOP_S = 120  # a bound against hanging
CLUSTER = "TestCluster"
NOWHERE = "127.0.0.1:1"
OLD, NEW = "group-a", "group-b"  # of Two


class Small:
    """The cluster; `namesrv` is its name server's address."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stop = asyncio.Event()
        self._server = NameServer(NameServerConfig(bind="127.0.0.1", port=0, http_enable=False))
        self.namesrv = ""

    def start(self) -> None:
        self._thread.start()
        up = threading.Event()
        self._running = asyncio.run_coroutine_threadsafe(self._run(up), self._loop)
        while not up.wait(0.1):
            assert not self._running.done(), self._running.result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._running.result(STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        self._loop.close()

    async def _run(self, up: threading.Event) -> None:
        server = self._server
        await server.start()
        try:
            self.namesrv = server.address
            async with Group(self._root, 1, namesrvAddr=server.address) as group:
                await group.leading()
                up.set()
                await self._stop.wait()
        finally:
            await server.stop()

    def run(self, *arguments: str, **environment: str) -> Result:
        """Run mqadmin."""
        env = {"NAMESRV_ADDR": self.namesrv, **environment}
        return CliRunner().invoke(main, arguments, env=env, catch_exceptions=False)

    def make_topic(self, topic: str, queues: int = 2) -> None:
        """Make a topic, and wait until name servers know it."""
        requested = (
            "updateTopic",
            "-c",
            CLUSTER,
            "-t",
            topic,
            "-r",
            str(queues),
            "-w",
            str(queues),
        )
        wait_until(lambda: self.run(*requested).exit_code == 0)
        wait_until(lambda: self.run("topicRoute", "-t", topic).exit_code == 0)

    def add_headless(self, name: str, *topics: str) -> None:
        """Have a follower register: a broker group that has these topics, and no leader."""
        version, given = DataVersion(1, 0, 1), [TopicConfig(topic, 1, 1, 6) for topic in topics]
        registration = Registration(
            CLUSTER, name, NOWHERE, 1, version=version, topics=given, timeout_ms=NEVER_SILENT_MS
        )

        async def register() -> None:
            self._server.table.register(registration, time.monotonic_ns() // 1_000_000)

        asyncio.run_coroutine_threadsafe(register(), self._loop).result(STOP_S)


class Two(Small):
    """A name server, and a broker group of one beside another."""

    async def _run(self, up: threading.Event) -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(self._server)
            self.namesrv = server.address
            for name in (OLD, NEW):
                settings = {"namesrvAddr": server.address, "joinCluster": "false"}
                group = Group(self._root / name, 1, brokerName=name, **settings)
                await stack.enter_async_context(group)
                await group.leading()
                await group.create_topic(await group.leading(), f"only-{name}")
            up.set()
            await self._stop.wait()

    def at(self, name: str) -> str:
        """The address of a group's leader."""
        result = json.loads(self.run("clusterList", "--json").stdout)
        (address,) = (row["address"] for row in result if row["broker"] == name)
        return address

    def is_routed(self, topic: str, name: str) -> bool:
        """Return whether name servers know the topic in this group."""
        return name in self.run("topicRoute", "-t", topic).stdout

    def order_of(self, topic: str) -> str | None:
        """The queues of an order topic, as its clients read them."""
        processor = self._server.processor
        assert processor is not None
        return processor.kv.get("ORDER_TOPIC_CONFIG", topic)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    cluster = Small(tmp_path_factory.mktemp("small"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    cluster = Two(tmp_path_factory.mktemp("two"))
    cluster.start()
    wait_until(lambda: {OLD, NEW} <= set(cluster.run("clusterList").stdout.split()))
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the contexts of whoever runs the tests out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RAFTMQ_CONTEXT", raising=False)
