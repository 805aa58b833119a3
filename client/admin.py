"""Administration: the requests that mqadmin's commands send to name servers and brokers.

async with Admin("127.0.0.1:9876") as admin:
    await admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.client import adminbodies
from raftmq.client.adminbodies import BrokerStats, ConsumeStats, TopicOffset
from raftmq.client.decode import decode_messages
from raftmq.client.errors import BrokerRefused, BrokerUnreachable, NameServerUnreachable, NoRoute
from raftmq.client.instance import ClientInstance, InstanceConfig
from raftmq.client.lifecycle import entered, left
from raftmq.client.message import MessageExt, MessageQueue
from raftmq.client.route import BrokerData, TopicRouteData, parse_broker
from raftmq.remoting import fields
from raftmq.remoting.address import format_address
from raftmq.remoting.admin_headers import (
    ConsumeDirectlyHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicHeader,
)
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingError
from raftmq.remoting.fastjson import dumps, loads_object
from raftmq.remoting.headers import (
    ConsumerOffsetHeader,
    PullHeader,
    PullResponseHeader,
    QueueOffsetHeader,
)
from raftmq.remoting.signedregistration import ask_signer
from raftmq.store.record import decode_offset_message_id

PERM_READ_WRITE = 6
TIME_MS_MAX = (1 << 63) - 1  # a query without an end time
TO_END = -1  # as a reset's timestamp: after the last message
PULL_SUBSCRIPTION = 0x4  # a pull's sysFlag bit: the request carries its own subscription
MEMBERS_TIMEOUT_MS = 15_000  # longer than a broker waits for the commit
RETRY_PREFIX = "%RETRY%"
NAME_SERVER_TIMEOUT_MS = 3_000
# Requests that change a signed broker's routes: name servers accept them signed with the same key.
SIGNED_CODES = (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Broker groups by name, and the group names of each cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]


class Admin:
    """An administration client for a cluster.

    Every method raises ClientError: NoRoute, NameServerUnreachable, BrokerRefused (with the
    response code), BrokerUnreachable."""

    def __init__(
        self, namesrv: str | Sequence[str], *, instance_config: InstanceConfig | None = None
    ) -> None:
        self._instance = ClientInstance(namesrv, instance_config)

    __aenter__, __aexit__ = entered, left

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
        """Send one request to one address and return the response, whatever its code. Raises
        BrokerUnreachable."""
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
        """Do as `invoke`, but raise BrokerRefused for any answer except SUCCESS."""
        response = await self.invoke(address, code, ext, body, timeout_ms)
        return _successful(response, address)

    # ---- name servers

    async def route(self, topic: str) -> TopicRouteData:
        """Ask a name server for the topic's route and return it."""
        return await self._instance.directory.refresh(topic)

    async def cluster_info(self) -> ClusterInfo:
        """Return all broker groups with their replicas (106)."""
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
        """Return every topic the name server knows (206)."""
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
        """Return a replica's own figures (28)."""
        response = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = loads_object(response.body).get("table") or {}
        return {str(key): str(value) for key, value in table.items()}

    # ---- offsets

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get (30)."""
        return await self._queue_offset(queue, RequestCode.GET_MAX_OFFSET, None)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest offset the queue still holds (31)."""
        return await self._queue_offset(queue, RequestCode.GET_MIN_OFFSET, None)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after `timestamp_ms` (29)."""
        return await self._queue_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp_ms)

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset the group has committed (14); None if it has committed nothing."""
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
        """Commit an offset for a group (15) and wait for the broker's confirmation. A running
        consumer may overwrite it."""
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
        """Return the message with that offset message id, from the broker that stored it (33)."""
        try:
            (host, port), position = decode_offset_message_id(offset_msg_id)
        except ValueError as error:
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, str(error), "") from error
        return await self.view_message_at(format_address(host, port), position, broker_name)

    async def view_message_at(
        self, address: str, commit_log_offset: int, broker_name: str = ""
    ) -> MessageExt:
        """Return the record at a CommitLog offset of one replica (33)."""
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
        """Find messages by UNIQ_KEY or by one of their KEYS, stored between two times (12). Asks
        every broker group of the topic; returns the newest `max_num`, oldest first.

        `unique_key`: the key is a UNIQ_KEY, for which brokers have a separate limit. Raises if
        one group cannot be asked, because its messages would be missing from the result."""
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
            # Brokers other than ours compare only the key's hash.
            found += [m for m in decode_messages(body, name) if _has_key(m, topic, key)]
        found.sort(key=lambda m: (m.store_timestamp_ms, m.broker_name, m.commit_log_offset))
        return found[-max_num:] if max_num > 0 else []

    async def consumers(self, group: str, address: str) -> tuple[str, ...]:
        """Return the client ids of a group that one broker knows (38); empty if there are none."""
        response = await self.invoke(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
        )
        if response.code == ResponseCode.SYSTEM_ERROR:  # what brokers say for "none"
            return ()
        body = loads_object(_successful(response, address).body)
        return tuple(str(item) for item in body.get("consumerIdList") or ())

    # ---- name server state (every name server is asked: they do not talk to each other)

    async def ask_name_servers(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> dict[str, RemotingCommand]:
        """Send one request to every name server; return address → answer. Raises if one does not
        answer or refuses; those asked before it have carried out the request."""
        answers = {}
        for address in self.name_servers:
            command = RemotingCommand.request(code, dict(ext) if ext else None, body)
            try:
                response = await self._ask_name_server(address, command)
            except RemotingError as error:
                raise NameServerUnreachable(f"name server {address}: {error}") from error
            answers[address] = _successful(response, address)
        return answers

    async def _ask_name_server(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request, signed if its code calls for it and there is a key. Raises
        RemotingError."""
        remoting, key = self._instance.remoting, self._instance.config.registration_key
        if key and command.code in SIGNED_CODES:
            connection = await remoting.connect(address)
            signer = await ask_signer(connection, key, NAME_SERVER_TIMEOUT_MS)
            if signer is not None:
                signer.sign(command)
            return await connection.invoke(command, NAME_SERVER_TIMEOUT_MS)
        return await remoting.invoke(address, command, NAME_SERVER_TIMEOUT_MS)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(sorted(self._instance.name_servers.addresses))

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a key of a namespace on every name server (100)."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self.ask_name_servers(RequestCode.PUT_KV_CONFIG, ext)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key of a namespace on every name server (102)."""
        ext = {"namespace": namespace, "key": key}
        await self.ask_name_servers(RequestCode.DELETE_KV_CONFIG, ext)

    async def set_write_perm(self, broker_name: str, writable: bool) -> dict[str, int]:
        """Set whether routes offer a broker's queues for writing (205, 327). Returns, by name
        server, how many topics changed."""
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        name = "wipeTopicCount"
        if writable:
            code, name = RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"
        answers = await self.ask_name_servers(code, {"brokerName": broker_name})
        return {address: int((a.ext or {}).get(name, "0")) for address, a in answers.items()}

    async def name_server_configs(self) -> dict[str, dict[str, str]]:
        """Return each name server's configuration, by address (319)."""
        answers = await self.ask_name_servers(RequestCode.GET_NAMESRV_CONFIG)
        return {a: adminbodies.properties(r.body.decode()) for a, r in answers.items()}

    async def update_name_server_configs(self, key: str, value: str) -> None:
        """Set one configuration key on every name server (318)."""
        body = f"{key}={value}\n".encode()
        await self.ask_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    # ---- topics and groups of one broker

    async def topic_configs(self, address: str) -> dict[str, dict[str, Any]]:
        """Return Apache's TopicConfig beans by topic name (21)."""
        return await self._bean_table(address, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")

    async def topic_config(self, address: str, topic: str) -> dict[str, Any]:
        """Return the topic's TopicConfig bean (351)."""
        response = await self.ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        return loads_object(response.body)

    async def put_topic(self, address: str, header: TopicHeader) -> None:
        """Create or change a topic on one broker (17)."""
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())

    async def delete_topic(self, address: str, topic: str) -> None:
        """Delete a topic on one broker (215); `forget_topic` removes it from name servers."""
        await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    async def forget_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic on every name server (216)."""
        ext = {"topic": topic} | ({"clusterName": cluster} if cluster else {})
        await self.ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)

    async def groups(self, address: str) -> dict[str, dict[str, Any]]:
        """Return Apache's SubscriptionGroupConfig beans by group name (201)."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._bean_table(address, code, "subscriptionGroupTable")

    async def put_group(self, address: str, bean: Mapping[str, Any]) -> None:
        """Create or change a subscription group on one broker (200)."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self.ask(address, code, None, dumps(dict(bean)))

    async def delete_group(self, address: str, group: str, *, offsets: bool = False) -> None:
        """Delete a subscription group on one broker (207), with its offsets if `offsets`."""
        wanted = fields.from_boolean(offsets)
        ext = {"groupName": group, "cleanOffset": wanted, "removeOffset": wanted}
        await self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def leaders_of(self, topic: str) -> dict[str, str]:
        """Return broker name → leader's address, for the broker groups that have the topic."""
        route = await self._instance.directory.refresh(topic)
        found = {b.broker_name: b.leader for b in route.brokers}
        return {name: address for name, address in sorted(found.items()) if address}

    # ---- offsets and statistics

    async def topic_offsets(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the topic's offsets by queue (202), from all brokers that have the topic."""
        found: dict[MessageQueue, TopicOffset] = {}
        for address in (await self.leaders_of(topic)).values():
            response = await self.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            found |= adminbodies.topic_offsets(loads_object(response.body))
        return found

    async def consume_stats(self, group: str, topic: str = "") -> ConsumeStats:
        """Return the group's progress (208) in `topic`, or in all topics. Asks all brokers of
        `topic`, or of the group's retry topic. Raises BrokerRefused (26) if no broker knows the
        group."""
        try:
            leaders = await self.leaders_of(topic or RETRY_PREFIX + group)
        except NoRoute:
            if topic:
                raise
            leaders = {  # the group has no retry topic, or does not exist
                b.broker_name: b.leader
                for b in (await self.cluster_info()).brokers.values()
                if b.leader
            }
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        parts = []
        for address in leaders.values():
            response = await self.ask(address, RequestCode.GET_CONSUME_STATS, ext)
            parts.append(adminbodies.consume_stats(loads_object(response.body)))
        return adminbodies.merged(parts)

    async def broker_consume_stats(
        self, address: str, *, ordered: bool = False, timeout_ms: int = 50_000
    ) -> dict[str, list[ConsumeStats]]:
        """Return the progress of one broker's groups (317), by group."""
        ext = {"isOrder": fields.from_boolean(ordered)}
        code = RequestCode.GET_BROKER_CONSUME_STATS
        response = await self.ask(address, code, ext, timeout_ms=timeout_ms)
        return adminbodies.broker_consume_stats(loads_object(response.body))

    async def groups_of_topic(self, address: str, topic: str) -> tuple[str, ...]:
        """Return the groups that consume the topic, or did so once (300)."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        body = loads_object((await self.ask(address, code, {"topic": topic})).body)
        return tuple(sorted(str(group) for group in body.get("groupList") or ()))

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Return one of the broker's statistics (315); None if the broker does not have it."""
        ext = {"statsName": name, "statsKey": key}
        response = await self.invoke(address, RequestCode.VIEW_BROKER_STATS_DATA, ext)
        if response.code == ResponseCode.SYSTEM_ERROR:  # what brokers say for "none"
            return None
        return adminbodies.broker_stats(loads_object(_successful(response, address).body))

    # ---- clients

    async def consumer_connection(self, address: str, group: str) -> dict[str, Any]:
        """Return Apache's ConsumerConnection bean (203). Raises BrokerRefused (206) if no consumer
        of the group is connected."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        return loads_object((await self.ask(address, code, {"consumerGroup": group})).body)

    async def producer_connection(self, address: str, group: str) -> dict[str, Any]:
        """Return Apache's ProducerConnection bean (204)."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        return loads_object((await self.ask(address, code, {"producerGroup": group})).body)

    async def running_info(
        self, address: str, group: str, client_id: str, *, stack: bool = False
    ) -> dict[str, Any]:
        """Return a consumer's report on itself (307), through a broker it is connected to."""
        ext = RunningInfoHeader(group, client_id, stack).to_ext()
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return loads_object((await self.ask(address, code, ext, timeout_ms=10_000)).body)

    async def consume_directly(
        self, address: str, group: str, client_id: str, msg_id: str, broker_name: str = ""
    ) -> dict[str, Any]:
        """Have a consumer consume one stored message (309). Returns Apache's
        ConsumeMessageDirectlyResult."""
        ext = ConsumeDirectlyHeader(group, client_id, msg_id, broker_name or None).to_ext()
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return loads_object((await self.ask(address, code, ext, timeout_ms=10_000)).body)

    # ---- moving groups

    async def reset_offset(
        self,
        address: str,
        group: str,
        topic: str,
        timestamp_ms: int = TO_END,
        *,
        force: bool = True,
        queue_id: int = -1,
        offset: int = -1,
    ) -> dict[MessageQueue, int]:
        """Reset the group's offsets (222) to what was stored at `timestamp_ms`, or TO_END, in every
        queue of this broker; or in `queue_id` to `offset`. Running consumers follow. Without
        `force` offsets only move back. Returns the new offset of each queue."""
        header = ResetOffsetHeader(topic, group, timestamp_ms, force, queue_id, offset)
        ext = header.to_ext()
        if offset < 0:
            del ext["offset"]
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        response = await self.ask(address, code, ext)
        return adminbodies.queue_offsets(loads_object(response.body).get("offsetTable"))

    async def clone_offsets(self, address: str, source: str, target: str, topic: str) -> None:
        """Give group `target` the offsets that `source` committed in the topic (314)."""
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "false"}
        await self.ask(address, RequestCode.CLONE_GROUP_OFFSET, ext)

    # ---- messages by offset

    async def pull(
        self, queue: MessageQueue, offset: int, count: int = 32, expression: str = "*"
    ) -> tuple[list[MessageExt], int]:
        """Return messages of a queue from `offset` on (11), and the offset to continue at, which
        is the same one if there is nothing more. Commits nothing."""
        header = PullHeader(
            "TOOLS_CONSUMER", queue.topic, queue.queue_id, offset, count, PULL_SUBSCRIPTION,
            0, 0, expression, 0, "TAG", None, queue.broker_name,
        )  # fmt: skip
        await self._know(queue.topic)
        response = await self._instance.invoke_leader(
            queue.broker_name,
            lambda: RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext()),
        )
        nothing = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
        if response.code in (*nothing, ResponseCode.PULL_OFFSET_MOVED):
            return [], PullResponseHeader.parse(response.ext).next_offset
        body = _successful(response, queue.broker_name).body
        return decode_messages(body, queue.broker_name), PullResponseHeader.parse(
            response.ext
        ).next_offset

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str = ""
    ) -> dict[str, Any]:
        """Return entries of a ConsumeQueue as Apache's QueryConsumeQueueResponseBody (321)."""
        ext = {
            "topic": topic,
            "queueId": str(queue_id),
            "index": str(index),
            "count": str(count),
        } | ({"consumerGroup": group} if group else {})
        response = await self.ask(address, RequestCode.QUERY_CONSUME_QUEUE, ext)
        return loads_object(response.body)

    # ---- a broker itself

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's configuration (26)."""
        response = await self.ask(address, RequestCode.GET_BROKER_CONFIG)
        return adminbodies.properties(response.body.decode())

    async def update_broker_config(self, address: str, key: str, value: str) -> None:
        """Set one key of a broker's configuration (25)."""
        body = f"{key}={value}\n".encode()
        await self.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def clean_expired_queues(self, address: str) -> None:
        """Have a broker's queues drop what its log no longer holds (306)."""
        await self.ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout_ms=10_000)

    async def delete_expired_log(self, address: str) -> None:
        """Have a broker run now the retention that it runs at `deleteWhen` (329)."""
        await self.ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG, timeout_ms=10_000)

    async def transfer_leadership(self, address: str, target: str = "") -> str:
        """Start a leadership transfer (30001, ours) to `target`, or, if "", to the replica with
        the longest log. Returns the target."""
        ext = {"target": target} if target else {}
        response = await self.ask(address, RequestCode.TRANSFER_LEADERSHIP, ext)
        return (response.ext or {}).get("target", "")

    async def members(self, address: str) -> list[dict[str, Any]]:
        """Return the members of the broker's Raft group as it knows them (30002, ours): node_id,
        address, role (voter, learner), broker_id, preferred; from a leader also match, lag and
        whole (recovered)."""
        response = await self.ask(address, RequestCode.CHANGE_MEMBERS, {"op": "list"})
        return list(loads_object(response.body).get("members") or ())

    async def change_members(
        self, address: str, op: str, member_id: str, member_address: str = ""
    ) -> list[dict[str, Any]]:
        """Change the Raft group's members (30002), asking the leader at `address`. `op` is
        add-learner, promote, remove, move, or prefer (as leader; "": nobody); add-learner and move
        take `member_address` (host:port of its Raft listener). Returns the members once the change
        is committed."""
        ext = {"op": op, "memberId": member_id}
        if member_address:
            ext["memberAddress"] = member_address
        code = RequestCode.CHANGE_MEMBERS
        response = await self.ask(address, code, ext, timeout_ms=MEMBERS_TIMEOUT_MS)
        return list(loads_object(response.body).get("members") or ())

    # ---- inside

    async def _bean_table(
        self, address: str, code: RequestCode, table: str
    ) -> dict[str, dict[str, Any]]:
        body = loads_object((await self.ask(address, code)).body)
        return {str(name): dict(bean) for name, bean in (body.get(table) or {}).items()}

    async def _name_server_body(
        self, code: RequestCode, ext: Mapping[str, str] | None
    ) -> dict[str, Any]:
        command = RemotingCommand.request(code, dict(ext) if ext else None)
        response = await self._instance.name_servers.invoke(command)
        return loads_object(_successful(response, "name server").body)

    async def _learn_groups(self) -> tuple[str, ...]:
        """Return the names of all broker groups, and put their replicas into the directory."""
        info = await self.cluster_info()
        for name, broker in info.brokers.items():
            self._instance.directory.learn(name, dict(broker.addresses))
        return tuple(info.brokers)

    async def _know(self, topic: str) -> None:
        """Learn where the topic's broker groups are, unless that is known."""
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
