"""Administration: what mqadmin's commands ask name servers and brokers for.

async with Admin("127.0.0.1:9876") as admin:
    await admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from client.decode import decode_messages
from client.errors import BrokerRefused, BrokerUnreachable
from client.instance import ClientInstance, InstanceConfig
from client.message import MessageExt, MessageQueue
from client.route import BrokerData, TopicRouteData, parse_broker
from remoting import fields
from remoting.address import format_address
from remoting.admin_headers import QueryMessageHeader, TopicHeader
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import HeaderError, RemotingError
from remoting.fastjson import loads_object
from remoting.headers import ConsumerOffsetHeader, QueueOffsetHeader
from store.record import decode_offset_message_id

PERM_READ_WRITE = 6
TIME_MS_MAX = (1 << 63) - 1  # the end of time of a query


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Broker groups by name, and the group names of each cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]


class Admin:
    """Every method raises ClientError: NoRoute, NameServerUnreachable, BrokerRefused (with the
    response code), BrokerUnreachable."""

    def __init__(
        self, namesrv: str | Sequence[str], *, instance_config: InstanceConfig | None = None
    ) -> None:
        self._instance = ClientInstance(namesrv, instance_config)

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        await self._instance.start()

    async def stop(self) -> None:
        await self._instance.stop()

    # ---- any request

    async def invoke(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """One request to one address; the response whatever its code. Raises BrokerUnreachable."""
        command = RemotingCommand.request(code, dict(ext) if ext else None, body)
        try:
            return await self._instance.remoting.invoke(address, command, timeout_ms)
        except RemotingError as error:
            raise BrokerUnreachable(f"{address}: {error}", error.outcome_unknown) from error

    async def ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """As `invoke`, but any answer except SUCCESS raises BrokerRefused."""
        response = await self.invoke(address, code, ext, body, timeout_ms)
        return _successful(response, address)

    # ---- name servers

    async def route(self, topic: str) -> TopicRouteData:
        """The topic's route, asked for now."""
        return await self._instance.directory.refresh(topic)

    async def cluster_info(self) -> ClusterInfo:
        """All broker groups with their replicas (106)."""
        body = await self._name_server_body(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        brokers = {
            name: parse_broker({"brokerName": name, **data})
            for name, data in (body.get("brokerAddrTable") or {}).items()
        }
        clusters = {
            name: tuple(names) for name, names in (body.get("clusterAddrTable") or {}).items()
        }
        return ClusterInfo(brokers, clusters)

    async def topics(self) -> tuple[str, ...]:
        """Every topic the name server knows (206)."""
        body = await self._name_server_body(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        return tuple(body.get("topicList") or ())

    # ---- topics

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        write_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        broker_name: str | None = None,
    ) -> None:
        """Create or change the topic (17) on one broker group, or on every one."""
        names = [broker_name] if broker_name else list(await self._learn_groups())
        if not names:
            raise BrokerUnreachable("the name server knows no broker group")
        header = TopicHeader(topic, queues, queues if write_queues is None else write_queues, perm)
        for name in names:
            await self._ask_leader(
                name, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(), leader_only=True
            )

    # ---- brokers

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """A replica's own figures (28)."""
        response = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = loads_object(response.body).get("table") or {}
        return {str(key): str(value) for key, value in table.items()}

    # ---- offsets

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset the next message of the queue gets (30)."""
        return await self._queue_offset(queue, RequestCode.GET_MAX_OFFSET, None)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there (31)."""
        return await self._queue_offset(queue, RequestCode.GET_MIN_OFFSET, None)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after `timestamp_ms` (29)."""
        return await self._queue_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp_ms)

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """What the group has committed (14); None if nothing."""
        header = ConsumerOffsetHeader(group, queue.topic, queue.queue_id, zero_if_not_found=False)
        await self._know(queue.topic)
        response = await self._instance.invoke_leader(
            queue.broker_name,
            lambda: RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext()),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(_successful(response, queue.broker_name), queue.broker_name)

    async def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit for a group (15), confirmed; a running consumer may commit over it."""
        header = ConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset)
        await self._know(queue.topic)
        await self._ask_leader(
            queue.broker_name,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header.to_ext(),
            leader_only=True,
        )

    # ---- messages and groups

    async def view_message(self, offset_msg_id: str, broker_name: str = "") -> MessageExt:
        """The message with that offset message id, from the broker that stored it (33)."""
        try:
            (host, port), position = decode_offset_message_id(offset_msg_id)
        except ValueError as error:
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, str(error), "") from error
        return await self.view_message_at(format_address(host, port), position, broker_name)

    async def view_message_at(
        self, address: str, commit_log_offset: int, broker_name: str = ""
    ) -> MessageExt:
        """The record at a CommitLog offset of one replica (33)."""
        ext = {"offset": str(commit_log_offset)}
        response = await self.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        messages = decode_messages(response.body, broker_name)
        if len(messages) != 1:
            raise BrokerRefused(response.code, f"{len(messages)} records in the answer", address)
        return messages[0]

    async def query_message(
        self,
        topic: str,
        key: str,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int = TIME_MS_MAX,
        *,
        unique_key: bool = False,
    ) -> list[MessageExt]:
        """Messages by UNIQ_KEY or one of their KEYS, stored between two times (12): of every
        broker group of the topic, oldest first, the newest `max_num` of them.

        `unique_key`: the key is a UNIQ_KEY, for which brokers have a limit of their own. Raises
        when one group cannot be asked: what it holds would be missing."""
        ext = QueryMessageHeader(topic, key, max_num, begin_ms, end_ms, unique_key).to_ext()
        route = await self._instance.directory.route(topic)
        found: list[MessageExt] = []
        for name in sorted(broker.broker_name for broker in route.brokers):
            response = await self._instance.invoke_leader(
                name, lambda: RemotingCommand.request(RequestCode.QUERY_MESSAGE, dict(ext))
            )
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            body = _successful(response, name).body
            # Brokers of others go by the key's hash alone.
            found += [m for m in decode_messages(body, name) if _has_key(m, topic, key)]
        found.sort(key=lambda m: (m.store_timestamp_ms, m.broker_name, m.commit_log_offset))
        return found[-max_num:] if max_num > 0 else []

    async def consumers(self, group: str, address: str) -> tuple[str, ...]:
        """Client ids of a group that one broker knows (38); empty when nobody is there."""
        response = await self.invoke(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
        )
        if response.code == ResponseCode.SYSTEM_ERROR:  # what brokers say for "none"
            return ()
        body = loads_object(_successful(response, address).body)
        return tuple(str(item) for item in body.get("consumerIdList") or ())

    # ---- inside

    async def _name_server_body(
        self, code: RequestCode, ext: Mapping[str, str] | None
    ) -> dict[str, Any]:
        command = RemotingCommand.request(code, dict(ext) if ext else None)
        response = await self._instance.name_servers.invoke(command)
        return loads_object(_successful(response, "name server").body)

    async def _learn_groups(self) -> tuple[str, ...]:
        """Names of all broker groups, their replicas taken into the directory."""
        info = await self.cluster_info()
        for name, broker in info.brokers.items():
            self._instance.directory.learn(name, dict(broker.addresses))
        return tuple(info.brokers)

    async def _know(self, topic: str) -> None:
        """Learn where the topic's groups are, if not known."""
        await self._instance.directory.route(topic)

    async def _ask_leader(
        self, broker_name: str, code: int, ext: dict[str, str], *, leader_only: bool = False
    ) -> RemotingCommand:
        response = await self._instance.invoke_leader(
            broker_name,
            lambda: RemotingCommand.request(code, dict(ext)),
            leader_only=leader_only,
        )
        return _successful(response, broker_name)

    async def _queue_offset(
        self, queue: MessageQueue, code: RequestCode, timestamp_ms: int | None
    ) -> int:
        await self._know(queue.topic)
        header = QueueOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        response = await self._ask_leader(queue.broker_name, code, header.to_ext())
        return _offset(response, queue.broker_name)


def _has_key(message: MessageExt, topic: str, key: str) -> bool:
    return message.topic == topic and (
        message.msg_id == key or key in (message.keys or "").split(" ")
    )


def _successful(response: RemotingCommand, who: str) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise BrokerRefused(response.code, response.remark or "", who)
    return response


def _offset(response: RemotingCommand, who: str) -> int:
    try:
        return fields.integer(response.ext, "offset")
    except HeaderError as error:
        raise BrokerRefused(response.code, str(error), who) from error
