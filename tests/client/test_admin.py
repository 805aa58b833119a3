"""Administration against fake servers."""

from __future__ import annotations

from typing import cast

import pytest

from raftmq.client import (
    Admin,
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    NameServerUnreachable,
    NoRoute,
)
from raftmq.client import metadata as directory
from raftmq.remoting.codes import RequestCode
from tests.client.fakes import FakeCluster, queue


async def test_admin_lists_clusters_topics_and_routes() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Admin(cluster.namesrv) as admin:
        info = await admin.cluster.info()
        assert info.clusters == {"c": ("g0",)}
        assert info.brokers["g0"].leader == cluster.brokers["g0"][0].address
        assert len(info.brokers["g0"].addresses) == 3
        assert await admin.cluster.topics() == ("T",)
        assert len((await admin.cluster.route("T")).write_queues("T")) == 4
        with pytest.raises(NoRoute):
            await admin.cluster.route("missing")


async def test_admin_reads_and_commits_offsets() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Admin(cluster.namesrv) as admin:
        cluster.logs["g0"].append("T", 0, b"x")
        assert await admin.offset.max(queue(0)) == 1
        assert await admin.offset.min(queue(0)) == 0
        assert await admin.offset.committed("g", queue(0)) is None
        await admin.offset.commit("g", queue(0), 1)
        assert await admin.offset.committed("g", queue(0)) == 1


async def test_topic_is_created_at_the_current_leader() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Admin(cluster.namesrv) as admin:
        cluster.lead("g0", 2, tell_route=False)
        await admin.topic.create("new", 6)
        request = cluster.brokers["g0"][2].requests[-1]
        assert request.code == RequestCode.UPDATE_AND_CREATE_TOPIC
        assert (request.ext or {})["readQueueNums"] == "6"


async def test_admin_reads_a_message_by_id_and_runtime_info() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Admin(cluster.namesrv) as admin:
        address = cluster.brokers["g0"][0].address
        _, position = cluster.logs["g0"].append("T", 0, b"look", "TAGS\x01A\x02")
        view = await admin.message.view_at(address, position)
        assert view.body == b"look" and view.tags == "A"
        with pytest.raises(BrokerRefused):
            await admin.message.view_at(address, 999)
        with pytest.raises(BrokerRefused):
            await admin.message.view("nonsense")
        assert (await admin.broker.runtime_info(address))["raftRole"] == "leader"
        assert await admin.group.consumers("nobody", address) == ()


async def test_unreachable_servers_raise_their_errors() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(NameServerUnreachable):
            await admin.cluster.info()
        with pytest.raises(BrokerUnreachable):
            await admin.invoke("127.0.0.1:1", 28)
    with pytest.raises(ClientClosed):
        await admin.invoke("127.0.0.1:1", 28)


class TrueOnce:
    def __init__(self) -> None:
        self._handlers = False

    def __bool__(self) -> bool:
        first, self._handlers = not self._handlers, True
        return first


async def test_slow_name_server_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "NAME_SERVER_TIMEOUTS_MS", (50, 60_000))
    async with FakeCluster({"g0": 1}) as cluster:
        server = cluster.name_server
        async with Admin(f"127.0.0.1:1;{cluster.namesrv}") as admin:
            server.silent = cast(bool, TrueOnce())
            assert (await admin.cluster.info()).clusters == {"c": ("g0",)}
            assert server.count(RequestCode.GET_BROKER_CLUSTER_INFO) == 2


async def test_all_name_servers_are_asked() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Admin(cluster.namesrv) as admin:
        assert admin.name_servers == admin.name_server.addresses == (cluster.namesrv,)
        with pytest.raises(BrokerRefused):
            await admin.name_server.ask(9999)


async def test_leaders_by_topic_and_of_all_groups() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Admin(cluster.namesrv) as admin:
        address = cluster.brokers["g0"][0].address
        assert await admin.cluster.leaders() == {"g0": address}
        assert await admin.cluster.leaders_of("T") == {"g0": address}
