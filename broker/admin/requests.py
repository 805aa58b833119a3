"""Administration requests for topics (17, 18, 215, 21, 305, 351), groups (200, 225, 201, 207, 352),
clients (203, 204, 328), 26, 28, 907, leadership (30001, ours) and emptying a topic (30008, ours).

Changes are answered once they are committed and applied, so they survive a failover. Reads are
served from the applied state, by a leader behind a barrier (broker.error_responses).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fast_json import dumps, loads_request
from raftmq.remoting.fields import boolean_or, text
from raftmq.remoting.names import TRACE_TOPIC
from raftmq.remoting.topic_attributes import AttributesRefused, parse_changes

from ..clients import ClientTable
from ..context import Context
from ..errors import Refused, StateError
from ..tables import pop_sync as popcopy
from ..tables import queue_ends_sync as queueends
from ..tables.groups import SubscriptionGroup, group_from_json
from ..tables.snapshot import twin_of
from ..tables.state import Table
from ..tables.topics import DEFAULT_TOPIC, TopicConfig, topic_from_json
from ..tables.versioned import CREATED_KEY, DELETED_KEY
from .pass_on import PassOn
from .topics_and_groups import Catalog, check_count

BEHIND_BYTES_MAX = 256 * 1024 * 1024  # Apache's haMaxGapNotInSync
QUEUE_COUNT = 16  # Apache's default of a topic in a list


@dataclass(frozen=True, slots=True)
class Admin:
    """The request handlers of administration."""

    context: Context
    catalog: Catalog
    clients: ClientTable
    template: TopicConfig | None  # template of auto-created topics, shown to tools
    runtime_info: Callable[[], dict[str, str]]
    pass_on: PassOn
    answering_table: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            int(code.UPDATE_AND_CREATE_TOPIC): self.pass_on(self.put_topic),
            int(code.UPDATE_AND_CREATE_TOPIC_LIST): self.pass_on(self.put_topics),
            int(code.DELETE_TOPIC_IN_BROKER): self.pass_on(self.delete_topic),
            int(code.EMPTY_TOPIC): self.empty_topic,
            int(code.GET_ALL_TOPIC_CONFIG): self.all_topics,
            int(code.GET_TOPIC_CONFIG): self.topic,
            int(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER): self.system_topics,
            int(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP): self.pass_on(self.put_group),
            int(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST): self.pass_on(self.put_groups),
            int(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): self.all_groups,
            int(code.GET_SUBSCRIPTIONGROUP_CONFIG): self.group,
            int(code.DELETE_SUBSCRIPTIONGROUP): self.pass_on(self.delete_group),
            int(code.GET_BROKER_CONFIG): self.broker_config,
            int(code.GET_BROKER_RUNTIME_INFO): self.runtime,
            int(code.GET_CONSUMER_CONNECTION_LIST): self.consumer_connections,
            int(code.GET_PRODUCER_CONNECTION_LIST): self.producer_connections,
            int(code.GET_ALL_PRODUCER_INFO): self.all_producers,
            int(code.GET_ALL_CONSUMER_OFFSET): self.all_offsets,
            int(code.GET_ALL_DELAY_OFFSET): self.all_delay_offsets,
            int(code.GET_BROKER_HA_STATUS): self.broker_ha_status,
            int(code.TRANSFER_LEADERSHIP): self.transfer,
        }

    async def put_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create or change a topic (17); answered once committed."""
        header = TopicHeader.parse(request.ext)
        topic = TopicConfig(
            header.topic,
            header.read_queue_count,
            header.write_queue_count,
            header.perm,
            header.filter_type,
            header.sys_flag,
            header.order,
        )
        try:
            changes = parse_changes(header.attributes)
        except AttributesRefused as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        await self.catalog.change_topic(
            topic, changes=changes, keep_messages=bool(header.keep_messages)
        )
        return RemotingCommand.response_to(request)

    async def put_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create or change several topics (18), all or none; attributes by signed name."""
        defaults = {"readQueueNums": QUEUE_COUNT, "writeQueueNums": QUEUE_COUNT}
        changes = []
        for bean in _beans(request, "topicConfigList"):
            try:
                topic = topic_from_json(defaults | bean)
            except StateError as error:
                raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
            changes.append((topic, dict(topic.attributes)))
        await self.catalog.change_topics(changes)
        return RemotingCommand.response_to(request)

    async def delete_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a topic (215); answered once committed."""
        await self.catalog.remove_topic(text(request.ext, "topic"))
        return RemotingCommand.response_to(request)

    async def empty_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a topic's messages and its groups' offsets (30008); answered once committed, with
        the counts."""
        emptied = await self.catalog.empty_topic(text(request.ext, "topic"))
        return RemotingCommand.response_to(request, body=orjson.dumps(emptied._asdict()))

    async def all_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer all topics (21), including the broker's own and the template."""
        more = [*self.context.state.topics.internal.values()]
        if self.template is not None:
            more.append(self.template)
        return await self._answer_table(
            request,
            self.context.state.topics,
            {"topicConfigTable": {topic.name: topic.to_json() for topic in more}},
        )

    def topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer a topic's configuration (351)."""
        name = text(request.ext, "topic")
        topic = self.context.state.topics.get(name)
        if topic is None and self.template is not None and name == DEFAULT_TOPIC:
            topic = self.template
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return RemotingCommand.response_to(request, body=orjson.dumps(topic.to_json()))

    def system_topics(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the names of the system topics (305)."""
        body = orjson.dumps({"topicList": self.catalog.system_topics()})
        return RemotingCommand.response_to(request, body=body)

    async def put_group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create or change a subscription group (200); answered once committed."""
        await self.catalog.change_group(_group(loads_request(request.body)))
        return RemotingCommand.response_to(request)

    async def put_groups(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Create or change several groups (225), all or none."""
        groups = [_group(bean) for bean in _beans(request, "groupConfigList")]
        await self.catalog.change_groups(groups)
        return RemotingCommand.response_to(request)

    async def delete_group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete a subscription group (207); `cleanOffset` also deletes its offsets."""
        name = text(request.ext, "groupName")
        offsets = boolean_or(request.ext, "removeOffset", False) or boolean_or(
            request.ext, "cleanOffset", False
        )
        await self.catalog.remove_group(name, offsets=offsets)
        return RemotingCommand.response_to(request)

    async def all_groups(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer all subscription groups (201)."""
        return await self._answer_table(request, self.context.state.groups)

    def group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer a subscription group (352)."""
        name = text(request.ext, "group")
        group = self.context.state.groups.get(name)
        if group is None:
            reason = f"No group in this broker. group: {name}"
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, reason)
        return RemotingCommand.response_to(request, body=orjson.dumps(group.to_json()))

    async def all_offsets(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer all groups' offsets (43). A classic broker adds its pops and queue ends."""
        state, store = self.context.state, self.context.store
        if not self.context.config.is_classic:
            return await self._answer_table(request, state.offsets)
        async with self.answering_table:
            copies = twin_of(state.offsets), twin_of(state.pops)  # a consistent copy
            segments = store.commitlog.segments()
            ends = queueends.encode(store.queues, segments[-1].start if segments else 0)
            body = await asyncio.to_thread(popcopy.encode, *copies, {queueends.KEY: ends})
        return RemotingCommand.response_to(request, body=body)

    def all_delay_offsets(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the delivery progress of each delay level (45)."""
        body = orjson.dumps(self.context.state.delays.to_json())
        return RemotingCommand.response_to(request, body=body)

    def broker_ha_status(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the progress of the log's copies (907); Raft's peers appear as HA connections."""
        context = self.context
        if context.config.is_classic:
            info = context.log.classic.ha_status()
        else:
            info = raft_ha_status(context)
        return RemotingCommand.response_to(request, body=dumps(info))

    async def _answer_table(
        self,
        request: RemotingCommand,
        table: Table,
        more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> RemotingCommand:
        """Answer a full table, with `more` entries under its keys. A thread makes the JSON, for a
        single request at a time, because millions of entries need seconds."""

        def made(twin: Table) -> bytes:
            value = twin.to_json()
            value.pop(CREATED_KEY, None)
            value.pop(DELETED_KEY, None)
            for key, entries in more.items():
                value[key].update(entries)
            return orjson.dumps(value)

        async with self.answering_table:
            body = await asyncio.to_thread(made, twin_of(table))
        return RemotingCommand.response_to(request, body=body)

    def consumer_connections(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the connected members of a consumer group (203)."""
        name = text(request.ext, "consumerGroup")
        group = self.clients.consumers.get(name)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        return RemotingCommand.response_to(request, body=dumps(group.connection_json()))

    def producer_connections(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the connected members of a producer group (204)."""
        name = text(request.ext, "producerGroup")
        members = self.clients.producers.get(name)
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        value: dict[str, Any] = {"connectionSet": [m.to_json() for m in members.values()]}
        return RemotingCommand.response_to(request, body=dumps(value))

    def all_producers(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the connected members of all producer groups (328)."""
        now_ms, clock_ms = self.context.wall_ms(), self.context.clock_ms()
        value = {
            name: [
                {
                    "clientId": member.client_id,
                    "remoteIP": member.connection.peer_address,
                    "language": LanguageCode(member.language).name,
                    "version": member.version,
                    "lastUpdateTimestamp": int(now_ms - (clock_ms - member.last_ms)),
                }
                for member in members.values()
            ]
            for name, members in self.clients.producers.items()
        }
        return RemotingCommand.response_to(request, body=dumps({"data": value}))

    def broker_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the configuration as properties, without secrets (26)."""
        version = orjson.dumps({"counter": 0, "stateVersion": 0, "timestamp": 0}).decode()
        text_of_all = self.context.config.properties_text() + self._settings_of_tools()
        ext, body = {"version": version}, text_of_all.encode()
        return RemotingCommand.response_to(request, ext=ext, body=body)

    def _settings_of_tools(self) -> str:
        """Return keys that are no settings here but required by Apache's exportConfigs."""
        settings = {
            "filterServerNums": "0",
            "msgTraceTopicName": TRACE_TOPIC,
            "useTLS": str(self.context.config.tls_enable).lower(),
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    async def transfer(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Start a transfer of leadership to the ext field `target` (a node id; by default the best
        follower). `force` permits a target that would return leadership because of its disk. The
        answer confirms the start; the roles (28) show the outcome."""
        ext = request.ext or {}
        force = ext.get("force") == "true"
        target = self.context.log.hand_over(ext.get("target", ""), force=force)
        return RemotingCommand.response_to(request, ext={"target": target})

    def runtime(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer the figures of broker.admin.runtime_info (28)."""
        return RemotingCommand.response_to(request, body=dumps({"table": self.runtime_info()}))


def _beans(request: RemotingCommand, key: str) -> list[dict[str, Any]]:
    """Return the objects in a list of the body. Raises Refused, BodyError."""
    beans = loads_request(request.body).get(key)
    if not isinstance(beans, list) or not all(isinstance(bean, dict) for bean in beans):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body has no list {key} of objects")
    check_count(len(beans), "topics" if key == "topicConfigList" else "groups")
    return beans


def _group(bean: dict[str, Any]) -> SubscriptionGroup:
    """Read Apache's bean. Raises Refused."""
    try:
        return group_from_json(bean)
    except StateError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def raft_ha_status(context: Context) -> dict[str, Any]:
    """Return GET_BROKER_HA_STATUS (907) of a Raft replica, in the shape of Apache's HARuntimeInfo.

    The leader answers as a master, and its peers are its HA connections. A follower answers with
    its own position in the log."""
    status, end = context.log.status(), context.store.commitlog.max_offset
    peers: Any = status.get("peers") or {}
    if not context.roles.leading:
        return {
            "master": False,
            "masterCommitLogMaxOffset": 0,  # unknown to a follower
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": context.roles.leader_address,
                "maxOffset": end,
                "masterFlushOffset": 0,
                "isActivated": status.get("leader") is not None,
            },
        }
    members: Any = status.get("members") or ()
    addresses = {str(member["node_id"]): str(member["address"]) for member in members}
    links = [_link(addresses.get(name, name), peer, end) for name, peer in sorted(peers.items())]
    return {
        "master": True,
        "masterCommitLogMaxOffset": end,
        "inSyncSlaveNums": sum(link["inSync"] for link in links),
        "haConnectionInfo": links,
    }


def _link(address: str, peer: dict[str, Any], end: int) -> dict[str, Any]:
    behind = peer.get("behind_bytes")
    known = isinstance(behind, int)
    has = end - behind if known and behind is not None else 0
    return {
        "addr": address,
        "slaveAckOffset": has,
        "diff": end - has,
        "inSync": bool(known and peer.get("connected") and end - has <= BEHIND_BYTES_MAX),
        "transferFromWhere": has,
    }
