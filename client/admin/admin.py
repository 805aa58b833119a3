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
    response code), BrokerUnreachable. Methods of `Admin` itself other than these are the parts'
    methods under their names of version 0.1, kept for one version."""

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
        # The names of 0.1.
        self.route = self.cluster.route
        self.cluster_info = self.cluster.info
        self.topics = self.cluster.topics
        self.leaders_of = self.cluster.leaders_of
        self.create_topic = self.topic.create
        self.topic_configs = self.topic.configs
        self.topic_config = self.topic.config
        self.put_topic = self.topic.put
        self.delete_topic = self.topic.delete
        self.topic_offsets = self.topic.offsets
        self.groups_of_topic = self.topic.groups
        self.groups = self.group.configs
        self.put_group = self.group.put
        self.delete_group = self.group.delete
        self.consume_stats = self.group.stats
        self.consumers = self.group.consumers
        self.consumer_connection = self.group.connection
        self.running_info = self.group.running_info
        self.consume_directly = self.group.consume_directly
        self.max_offset = self.offset.max
        self.min_offset = self.offset.min
        self.search_offset = self.offset.search
        self.consumer_offset = self.offset.committed
        self.update_consumer_offset = self.offset.commit
        self.reset_offset = self.offset.reset
        self.clone_offsets = self.offset.clone
        self.view_message = self.message.view
        self.view_message_at = self.message.view_at
        self.query_message = self.message.query
        self.pull = self.message.pull
        self.consume_queue = self.message.consume_queue
        self.broker_runtime_info = self.broker.runtime_info
        self.broker_config = self.broker.config
        self.update_broker_config = self.broker.update_config
        self.broker_stats = self.broker.stats
        self.broker_consume_stats = self.broker.consume_stats
        self.producer_connection = self.broker.producer_connection
        self.clean_expired_queues = self.broker.clean_expired_queues
        self.delete_expired_log = self.broker.delete_expired_log
        self.transfer_leadership = self.broker.transfer_leadership
        self.members = self.broker.members
        self.change_members = self.broker.change_members
        self.forget_topic = self.name_server.forget_topic
        self.put_kv = self.name_server.put_kv
        self.delete_kv = self.name_server.delete_kv
        self.set_write_perm = self.name_server.set_write_perm
        self.name_server_configs = self.name_server.configs
        self.update_name_server_configs = self.name_server.update_configs
        self.ask_name_servers = self.name_server.ask

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
