"""The administration client: the requests that mqadmin's commands send to name servers and brokers.

async with Admin("127.0.0.1:9876") as admin:
    await admin.topic.create("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from .brokers import BrokerAdmin
from .cluster import ClusterAdmin
from .groups import GroupAdmin
from .messages import MessageAdmin
from .nameservers import NameServerAdmin
from .offsets import OffsetAdmin
from .requests import Requests
from .topics import TopicAdmin


class Admin:
    """An administration client for a cluster, by its parts: `cluster`, `topic`, `group`, `offset`,
    `message`, `broker`, `name_server`; `ask` and `invoke` send any request.

    Every method raises ClientError: NoRoute, NameServerUnreachable, BrokerRefused (with the
    response code), BrokerUnreachable."""

    def __init__(
        self, namesrv: str | Sequence[str], *, instance_config: InstanceConfig | None = None
    ) -> None:
        self._instance = instance = ClientInstance(namesrv, instance_config)
        self._requests = requests = Requests(instance)
        self.cluster = ClusterAdmin(instance)
        self.topic = TopicAdmin(instance, requests, self.cluster)
        self.group = GroupAdmin(requests, self.cluster)
        self.offset = OffsetAdmin(instance, requests)
        self.message = MessageAdmin(instance, requests)
        self.broker = BrokerAdmin(requests)
        self.name_server = NameServerAdmin(instance)
        self.invoke = requests.invoke
        self.ask = requests.ask

    __aenter__, __aexit__ = entered, left

    async def start(self) -> None:
        """Start, without waiting for a server. Raises TlsError."""
        await self._instance.start()

    async def stop(self) -> None:
        """Close every connection."""
        await self._instance.stop()

    @property
    def instance_config(self) -> InstanceConfig:
        """Return the connection settings, for further clients."""
        return self._instance.config

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Return the addresses of the configured name servers."""
        return self.name_server.addresses
