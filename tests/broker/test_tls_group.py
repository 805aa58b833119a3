"""Brokers, name server and clients with TLS everywhere: Raft's links mutual, ports enforcing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from client import Message, Producer
from client.instance import InstanceConfig
from namesrv.config import load as load_namesrv
from namesrv.server import NameServer
from remoting.client import RemotingClient
from remoting.tls import ClientTls, Renewed
from store.record import decode_record, walk_records
from tests.broker.cluster import Group, until
from tests.certificates import Authority


class World:
    """Two CAs: one of what clients see, one of the Raft group."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory, "servers")
        self.group_ca = Authority(directory, "group")
        self.cert, self.key = self.ca.issue("server")
        self.peer_cert, self.peer_key = self.group_ca.issue("peer")
        self.client = Renewed(ClientTls(self.ca.path), "test")

    def common(self) -> dict[str, str]:
        """Of every process."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": self.cert,
            "tls.server.keyPath": self.key,
            "tls.enable": "true",
            "tls.client.trustCertPath": self.ca.path,
            "httpTlsMode": "enforcing",
            "tlsReloadIntervalMs": "20",
        }

    def broker(self) -> dict[str, str]:
        return {
            **self.common(),
            "httpPort": "0",
            "raftTlsMode": "enforcing",
            "raftTlsCertPath": self.peer_cert,
            "raftTlsKeyPath": self.peer_key,
            "raftTlsTrustCertPath": self.group_ca.path,
        }

    def name_server(self) -> NameServer:
        settings = {**self.common(), "listenPort": "0", "bindAddress": "127.0.0.1", "httpPort": "0"}
        overrides = [f"{key}={value}" for key, value in settings.items()]
        return NameServer(load_namesrv(None, overrides).config)


class SecureGroup(Group):
    """As Group, and what the test asks with speaks TLS."""

    world: World

    async def __aenter__(self) -> SecureGroup:
        self.client = RemotingClient(tls=self.world.client)
        for name in self.names:
            await self.start(name)
        return self


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tls"))


def secure_group(world: World, root: Path, namesrv: str, count: int = 3) -> SecureGroup:
    group = SecureGroup(root, count, namesrvAddr=namesrv, **world.broker())
    group.world = world
    return group


async def test_a_leader_is_killed_and_nothing_is_lost(world: World, tmp_path: Path) -> None:
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
                        await producer.send(Message("T", body))
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
                counts = one.server.arrivals[0]
                assert (counts.plain, one.tls.error) == (0, "")
                network = one.engine.config.links.network
                assert network.listener.counts.plain == 0
                assert network.fallen_back_count == 0
            await seen_over_https(world, names)


async def bodies(group: Group, broker: object, topic: str) -> list[bytes]:
    found: list[bytes] = []
    for queue in range(4):
        offset = 0
        while True:
            answer = await group.pull(broker, topic, offset, queue=queue)
            if answer.code != 0:
                break
            records = [decode_record(answer.body, at) for at, _ in walk_records(answer.body)]
            found += [record.body for record in records]
            offset += len(records)
    return found


async def same_everywhere(group: Group, count: int) -> None:
    def have(broker: object) -> int:
        return sum(broker.queue_end("T", queue) for queue in range(4))  # type: ignore[attr-defined]

    await until(lambda: all(have(broker) == count for broker in group.brokers.values()))


async def seen_over_https(world: World, names: NameServer) -> None:
    """The dashboard's API, over HTTPS, knows what it asked brokers over HTTPS."""
    assert names.http is not None
    assert names.http.url.startswith("https://127.0.0.1:")
    url = f"{names.http.url}api/v1/cluster"
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url, ssl=world.client.context) as answer:
                assert answer.status == 200
                groups = (await answer.json())["groups"]
            answered = [one for group in groups for one in group["brokers"] if one["node"]]
            if len(answered) >= 2:
                assert all(one["httpAddress"].startswith("https://") for one in answered)
                return
            await asyncio.sleep(0.05)
