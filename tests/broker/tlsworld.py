"""Brokers and name servers that speak nothing but TLS."""

from __future__ import annotations

from pathlib import Path

from raftmq.namesrv.config import load as load_namesrv
from raftmq.namesrv.server import NameServer
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.tls import ClientTls, Renewed
from tests.broker.cluster import Group
from tests.certificates import Authority

PASSWORD = "open sesame"


class World:
    """Two CAs: one of what clients see, one of the Raft group."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory, "servers")
        self.group_ca = Authority(directory, "group")
        self.cert, self.key = self.ca.issue("server", password=PASSWORD)
        self.peer_cert, self.peer_key = self.group_ca.issue("peer")
        self.client = Renewed(ClientTls(self.ca.path, *self.ca.issue("test")), "test")
        self.more: dict[str, str] = {}  # settings of every process

    def common(self) -> dict[str, str]:
        """Of every process."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": self.cert,
            "tls.server.keyPath": self.key,
            "tls.server.keyPassword": PASSWORD,
            "tls.enable": "true",
            "tls.client.trustCertPath": self.ca.path,
            "httpTlsMode": "enforcing",
            **self.more,
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

    def asking(self) -> RemotingClient:
        return RemotingClient(tls=self.world.client)


def secure_group(world: World, root: Path, namesrv: str, count: int = 3) -> SecureGroup:
    group = SecureGroup(root, count, namesrvAddr=namesrv, **world.broker())
    group.world = world
    return group
