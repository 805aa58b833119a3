"""Brokers, name server and clients with TLS everywhere: Raft's links mutual, ports enforcing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from raftmq.broker.health import warnings_of
from raftmq.client import Message, Producer
from raftmq.client.instance import InstanceConfig
from raftmq.namesrv.server import NameServer
from raftmq.remoting import process_tls
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import ConnectError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.tls import ClientTls, Renewed
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic, log_bytes
from tests.broker.tlsworld import PASSWORD, World, secure_group
from tests.certificates import Authority
from tests.waiting import until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def _files_are_checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tls, "RELOAD_S", 0.02)


async def test_killed_leader_of_a_tls_group_loses_no_message(world: World, tmp_path: Path) -> None:
    """Everything speaks TLS: replicas among themselves, brokers with the name server, the name
    server with the brokers' HTTP, the client with both."""
    async with world.name_server() as names:
        address = f"127.0.0.1:{names.port}"
        async with secure_group(world, tmp_path, address) as group:
            broker = await group.leading()
            assert (await group.create_topic(broker, "T")).code == 0
            await until(lambda: names.table.broker_count == 3)
            config = InstanceConfig(tls=ClientTls(world.ca.path))
            sent: list[bytes] = []
            async with Producer("pg", address, instance_config=config) as producer:

                async def send(numbers: range) -> None:
                    for number in numbers:
                        body = b"%d" % number
                        await producer.send(Message("T", body), timeout_ms=60_000)
                        sent.append(body)

                await send(range(50))
                sending = asyncio.create_task(send(range(50, 250)))
                await until(lambda: len(sent) > 80)
                await group.kill(await group.leader())
                await sending
            leading = await group.leading()
            stored = await bodies(group, leading, "T")
            assert set(sent) <= set(stored)
            assert len(sent) == 250
            await same_everywhere(group, len(stored))
            for one in group.brokers.values():
                counts = one.server.arrivals
                assert (counts.plain, one.tls.error) == (0, "")
                network = one.engine.config.links.network
                assert network.listener.counts.plain == 0
                assert network.fallen_back_count == 0
            await seen_over_https(world, names)


async def bodies(group: Group, broker: object, topic: str) -> list[bytes]:
    result: list[bytes] = []
    for queue in range(4):
        offset = 0
        while True:
            answer = await group.pull(broker, topic, offset, queue=queue)
            if answer.code != 0:
                break
            records = [decode_record(answer.body, at) for at, _ in walk_records(answer.body)]
            result += [record.body for record in records]
            offset += len(records)
    return result


async def same_everywhere(group: Group, count: int) -> None:
    def have(broker: object) -> int:
        return sum(broker.store.queues.end_of("T", queue) for queue in range(4))  # type: ignore[attr-defined]

    await until(lambda: all(have(broker) == count for broker in group.brokers.values()))


async def seen_over_https(world: World, names: NameServer) -> None:
    """The dashboard's API, over HTTPS, knows what it asked brokers over HTTPS; and tells nobody a
    key's password."""
    assert names.http is not None
    assert names.http.url.startswith("https://127.0.0.1:")
    url = f"{names.http.url}api/v1/cluster"
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url, ssl=world.client.context) as answer:
                assert answer.status == 200
                groups = (await answer.json())["groups"]
            answered = [one for group in groups for one in group["brokers"] if one["node"]]
            if len(answered) >= 2:
                assert all(one["httpAddress"].startswith("https://") for one in answered)
                break
            await asyncio.sleep(0.05)
    async with aiohttp.ClientSession() as session:
        async with session.get(
            f"{names.http.url}api/v1/config", ssl=world.client.context
        ) as answer:
            shown = {one["key"]: one["value"] for one in (await answer.json())["items"]}
    assert shown["tlsServerKeyPassword"] == "******"
    assert shown["tlsServerMode"] == "enforcing"


class SecurePair(Classic):
    """A classic master and its slave: the HA link, and what a slave asks its master."""

    world: World

    def asking(self) -> RemotingClient:
        return RemotingClient(tls=self.world.client)


async def test_classic_slave_follows_over_tls(world: World, tmp_path: Path) -> None:
    pair = SecurePair(tmp_path, **world.common())
    pair.world = world
    async with pair:
        await pair.followed()
        assert (await pair.create_topic(pair.master, "T")).code == 0
        for number in range(20):
            assert (await pair.send(pair.master, "T", b"%d" % number)).code == 0
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        await until(lambda: pair.slave.state.topics.get("T") is not None)  # asked of the master
        counts = pair.master.server.arrivals
        assert counts is not None
        assert (counts.plain, counts.plain_refused) == (0, 0)
        assert counts.tls >= 3  # the test, the HA link, the tables


async def test_expiring_certificate_is_reported_while_the_broker_serves(tmp_path: Path) -> None:
    """Of every port and link; and no more when there is another."""
    world = World(tmp_path)
    world.ca.issue("server", days=13, password=PASSWORD)
    world.group_ca.issue("peer", days=12)
    async with secure_group(world, tmp_path, "", count=1) as group:
        broker = await group.leading()

        async def warnings() -> list[str]:
            answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
            return warnings_of(loads_object(answer.body)["table"])

        (said,) = await warnings()
        parts = [part.partition(": the certificate expires at 2") for part in said.split("; ")]
        assert [name for name, _, _ in parts] == [
            "TLS: server",
            "http",
            "raft server",
            "raft client",
        ]
        url = f"{broker.http.address}/health/ready"
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=world.client.context) as answer:
                assert (answer.status, (await answer.json())["warnings"]) == (200, [said])
        world.ca.issue("server", password=PASSWORD)
        world.group_ca.issue("peer")
        await until(lambda: not broker.tls.expiring)
        assert await warnings() == []


async def test_certificates_are_renewed_without_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with secure_group(world, tmp_path, "", count=1) as group:
        broker = await group.leading()
        old = world.client

        async def told() -> str:
            answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
            return loads_object(answer.body)["table"]["tlsFilesRefused"]

        def refused(what: str) -> set[str]:
            lines = broker.metrics.render()[0].decode().splitlines()
            result = [line for line in lines if "tls_files_refused{" in line and what in line]
            return {line.rpartition(" ")[2] for line in result}

        assert await told() == ""
        spoil(world.cert)
        await until(lambda: refused('"server"') == {"1.0"})  # each looks for itself
        assert "holds no certificate" in await told()
        assert refused('"raft server"') == {"0.0"}

        second = Authority(tmp_path, "second")
        second.issue(
            "server", password=PASSWORD
        )  # the files that the broker was told of, signed by another CA
        await until(lambda: not broker.tls.error)
        assert await told() == ""  # over the connection that was there
        command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        for tls, believed in ((old, False), (Renewed(ClientTls(second.path), "new"), True)):
            client = RemotingClient(tls=tls)
            if believed:
                assert (await client.invoke(broker.address, command, 60_000)).code == 0
            else:
                with pytest.raises(ConnectError, match="the certificate is refused"):
                    await client.invoke(broker.address, command, 60_000)
            await client.close()


def spoil(path: str) -> None:
    Path(path).write_text("no certificate")
