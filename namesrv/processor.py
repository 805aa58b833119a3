"""Request handlers of the name server.

A handler is a function `(connection, request) -> response`. Changes of the key-value configuration
are answered after they are on disk. Work of a size that the sender or the table determines is a
generator of steps. A few steps run at once and further steps in turns (remoting.fair_scheduling),
so that routes are answered in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import orjson

from raftmq.ops.options import ConfigError
from raftmq.remoting.blocking_request import WARNINGS
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Answer, Connection, Handler
from raftmq.remoting.errors import BodyError, HeaderError
from raftmq.remoting.fair_scheduling import Steps, StepTurns
from raftmq.remoting.fields import boolean_or, from_boolean, text, text_or
from raftmq.remoting.names import name_problem
from raftmq.remoting.registration import (
    BodyLimits,
    BrokerHeader,
    DataVersion,
    TopicConfig,
    decode_queue_datas,
    topic_problem,
)
from raftmq.remoting.registration_proof import NONCE

from . import views
from .kv import ORDER_TOPIC_CONFIG, VALUE_BYTES_MAX, KvConfig
from .registration_auth import Proofs
from .registrations import STEPS_AT_ONCE, Registrations, timeout_ms_of, when_made
from .routes import (
    LiveBroker,
    RouteTable,
)
from .settings import Settings
from .watchers import Changes, RouteWatchers

LOG = logging.getLogger("raftmq.namesrv")

UNIT, UNIT_SUB = 1, 2  # topicSysFlag
CONFIG_BYTES_MAX = 2 * 1024  # each line with an unknown key costs a search for similar keys
ITEMS_PER_STEP = 64
FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_answer = RemotingCommand.response_to


class NameServerProcessor:
    """Answers requests from a RouteTable and a KvConfig. `now_ms()` is a monotonic clock;
    `save_kv(bytes)` returns when the bytes are durable."""

    def __init__(
        self,
        table: RouteTable,
        kv: KvConfig,
        now_ms: Callable[[], int],
        save_kv: Callable[[bytes], Awaitable[None]],
        settings: Settings,
        proofs: Proofs,
        watchers: RouteWatchers[Connection],
        turns: StepTurns,
        *,
        admins_only: bool,
        body_limits: BodyLimits,
        warnings: Callable[[], list[str]],
    ) -> None:
        """`admins_only` means that requests for changes have a checked admin's signature.
        `warnings()` returns problems of a name server that still serves."""
        self.table = table
        self.kv = kv
        self._now_ms = now_ms
        self._save_kv = save_kv
        self._kv_changes = asyncio.Lock()
        self._settings = settings
        self.proofs = proofs
        self.registrations = Registrations(
            table, now_ms, proofs, turns, self._order_body, body_limits=body_limits
        )
        self._turns = turns
        self._admins_only = admins_only
        self._warnings = warnings
        self._watchers = watchers
        self._topic_list = b""  # encoded, of version
        self._topic_list_version = -1
        self._cluster = b""  # encoded, of version
        self._cluster_version = -1
        self._order = b""  # encoded, of configuration
        self._order_of: KvConfig | None = None

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTRATION_NONCE: self.registration_nonce,
            RequestCode.REGISTER_BROKER: self.registrations.register,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topic_list,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_sub_only_topics,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_list,
            RequestCode.GET_NAMESRV_CONFIG: self.show_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
        }

    # --- brokers

    def registration_nonce(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """30005: return the nonce for this connection's signatures, or "" without a key."""
        nonce = self.proofs.nonce(connection)
        return _answer(request, ext={NONCE: nonce} if nonce else {})

    def _order_body(self) -> bytes:
        """Return the configuration of ordered topics, encoded once per change."""
        if self._order_of is not self.kv:
            order = self.kv.namespace(ORDER_TOPIC_CONFIG)
            self._order = orjson.dumps({"table": order}) if order else b""
            self._order_of = self.kv
        return self._order

    def unregister_broker(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """104: unregister a broker that stops."""
        header = BrokerHeader.parse(request.ext)
        signed = self.proofs.is_proven(connection, request)
        if self.table.unregister(header.broker_address, header.broker_name, self._now_ms(), signed):
            LOG.info(
                "broker_gone address=%s broker=%s reason=unregistered",
                header.broker_address, header.broker_name,
            )  # fmt: skip
        return _answer(request)

    def query_data_version(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """322: return whether the broker's topics differ, and refresh its liveness."""
        header = BrokerHeader.parse(request.ext)
        requested = DataVersion.decode(request.body)
        known = self.table.version_known(
            header.broker_address, header.broker_name, header.broker_id
        )
        self.table.refresh(
            header.broker_address,
            header.broker_name,
            connection,
            self._now_ms(),
            signed=self.proofs.is_proven(connection, request),
        )
        ext = {"changed": from_boolean(known != requested)}
        return _answer(request, ext=ext, body=known.encode() if known is not None else b"")

    def broker_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """904: refresh a broker's liveness; `needFull` requests a registration with all topics."""
        header = BrokerHeader.parse(request.ext)
        known = self.table.refresh(
            header.broker_address,
            header.broker_name,
            connection,
            self._now_ms(),
            timeout_ms_of(header.heartbeat_timeout_ms),
            self.proofs.is_proven(connection, request),
        )
        return _answer(request, ext={} if known else {"needFull": "true"})

    def channel_closed(self, connection: Connection, reason: str) -> None:
        """Drop the brokers that registered over this connection."""
        self._watchers.closed(connection)
        self.proofs.closed(connection)
        log_gone(self.table.channel_closed(connection, self._now_ms()), f"channel {reason}")

    # --- routes

    def route(self, connection: Connection, request: RemotingCommand) -> Answer:
        """105: return a topic's route; `watchRoutes` subscribes to its changes."""
        topic = _name(request, "topic")
        if boolean_or(request.ext, "watchRoutes", False):
            self._watchers.requested(
                connection, topic, (g.name for g, _ in self.table.topic_entries(topic))
            )
        return self._in_turns(self._routing(topic, request))

    def _routing(self, topic: str, request: RemotingCommand) -> Steps[RemotingCommand]:
        order = self.kv.get(ORDER_TOPIC_CONFIG, topic)
        body = yield from views.route_body(self.table, topic, order)
        if body is None:
            remark = f"No topic route info in name server for the topic: {topic}\n{FAQ}"
            return _answer(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        return _answer(request, body=body)

    def cluster_info(self, _: Connection, request: RemotingCommand) -> Answer:
        """106: return all brokers by cluster and name, encoded once per version of the groups,
        with warnings for health checks."""
        warnings = self._warnings()
        ext = {WARNINGS: "\n".join(warnings)} if warnings else {}
        return self._listing(request, self._all_groups(), ext)

    def _all_groups(self) -> Steps[bytes]:
        version = self.table.groups_version
        if self._cluster_version != version:
            self._cluster = yield from views.cluster_body(self.table)
            self._cluster_version = version
        return self._cluster

    def member_group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """901: return the members of a broker group."""
        cluster, name = _name(request, "clusterName"), _name(request, "brokerName")
        return _answer(request, body=views.member_body(self.table, cluster, name))

    def topic_list(self, _: Connection, request: RemotingCommand) -> Answer:
        """206: return all topics, encoded once per version of the table."""
        return self._listing(request, self._all_topics())

    def _all_topics(self) -> Steps[bytes]:
        version = self.table.topics_version
        if self._topic_list_version != version:
            self._topic_list = yield from views.all_topics_body(self.table)
            self._topic_list_version = version
        return self._topic_list

    def topics_by_cluster(self, _: Connection, request: RemotingCommand) -> Answer:
        """224: return the topics of a cluster."""
        cluster = _name(request, "cluster")
        return self._listing(request, views.cluster_topics_body(self.table, cluster))

    def system_topics(self, _: Connection, request: RemotingCommand) -> Answer:
        """304: return the names of clusters and brokers, which Apache's tools count as topics."""
        return self._listing(request, views.system_topics_body(self.table))

    def unit_topics(self, _: Connection, request: RemotingCommand) -> Answer:
        """311: return the topics of a unit."""
        return self._listing(request, views.unit_topics_body(self.table, UNIT))

    def unit_sub_topics(self, _: Connection, request: RemotingCommand) -> Answer:
        """312: return the topics with unit subscriptions."""
        return self._listing(request, views.unit_topics_body(self.table, UNIT_SUB))

    def unit_sub_only_topics(self, _: Connection, request: RemotingCommand) -> Answer:
        """313: return the topics with unit subscriptions that are not of a unit."""
        return self._listing(request, views.unit_topics_body(self.table, UNIT_SUB, UNIT))

    def _listing(
        self, request: RemotingCommand, body: Steps[bytes], ext: dict[str, str] | None = None
    ) -> Answer:
        def steps() -> Steps[RemotingCommand]:
            return _answer(request, ext=ext or {}, body=(yield from body))

        return self._in_turns(steps())

    def _in_turns(self, steps: Steps[RemotingCommand]) -> Answer:
        """Answer at once if a few steps suffice, otherwise after steps in turns."""
        for _ in range(STEPS_AT_ONCE):
            try:
                next(steps)
            except StopIteration as end:
                answer: RemotingCommand = end.value
                return answer
        return self._turns.run(steps)

    def register_topic(self, connection: Connection, request: RemotingCommand) -> Answer:
        """217: set a topic's queues on registered groups, until their next registration."""
        topic = _name(request, "topic")
        signed = self._may_change(connection, request)
        return self._in_turns(self._registering_topic(topic, request, signed))

    def _registering_topic(
        self, topic: str, request: RemotingCommand, signed: bool
    ) -> Steps[RemotingCommand]:
        requested = [
            (broker_name, TopicConfig(topic, *queues))
            for broker_name, queues in decode_queue_datas(request.body).items()
        ]
        for number, (broker_name, config) in enumerate(requested):
            if problem := name_problem("brokerName", broker_name) or topic_problem(config):
                return _answer(request, ResponseCode.INVALID_PARAMETER, problem)
            if number % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
                yield
        for number, (broker_name, config) in enumerate(requested):
            self.table.put_queues(broker_name, config, signed)
            if number % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
                yield
        LOG.info("topic_registered topic=%s", topic)
        return _answer(request)

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """216: delete a topic. Signed groups register their topics themselves, so a tool needs no
        key after it has deleted the topic at the brokers."""
        topic = _name(request, "topic")
        cluster = _name(request, "clusterName") if text_or(request.ext, "clusterName") else ""
        signed = self._may_change(connection, request)
        count = self.table.delete_topic(topic, cluster, signed)
        LOG.info("topic_deleted topic=%s groups=%d", topic, count)
        return _answer(request)

    def wipe_write_perm(self, connection: Connection, request: RemotingCommand) -> Answer:
        """205: make all topics of a broker read-only for clients."""
        return self._set_writable(connection, request, False, "wipeTopicCount")

    def add_write_perm(self, connection: Connection, request: RemotingCommand) -> Answer:
        """327: make a broker's topics writable again."""
        return self._set_writable(connection, request, True, "addTopicCount")

    def _may_change(self, connection: Connection, request: RemotingCommand) -> bool:
        """Return whether the sender may change signed routes, with the key or as an admin."""
        return self.proofs.is_proven(connection, request) or self._admins_only

    def _set_writable(
        self, connection: Connection, request: RemotingCommand, writable: bool, count_name: str
    ) -> Answer:
        """Set the write permission of a broker's topics; return their number."""
        name = _name(request, "brokerName")
        count = self.table.set_writable(name, writable, self._may_change(connection, request))
        LOG.info("write_perm_set broker=%s writable=%s topics=%d", name, writable, count)
        answer = _answer(request, ext={count_name: str(count)})
        return when_made(answer, self.table.under_way(name))

    # --- key-value configuration

    async def put_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """100: set a key; answered when the file is written."""
        value = text(request.ext, "value")
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise HeaderError(f"the value has more than {VALUE_BYTES_MAX} bytes")
        return await self._change_kv(request, lambda kv, *where: kv.put(*where, value))

    async def delete_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """102: delete a key; answered when the file is written."""
        return await self._change_kv(request, KvConfig.delete)

    async def _change_kv(
        self, request: RemotingCommand, change: Callable[[KvConfig, str, str], None]
    ) -> RemotingCommand:
        """Change a copy, write it, then activate it. A failed write is not visible."""
        namespace, key = _name(request, "namespace"), _name(request, "key")
        async with self._kv_changes:
            changed = self.kv.copy()
            change(changed, namespace, key)
            await asyncio.sleep(0)  # copying and encoding 100,000 values are separate turns
            await self._save_kv(changed.encode())
            self.kv = changed
        if namespace == ORDER_TOPIC_CONFIG:  # routes contain it
            self.table.topic_changed(key)
        return _answer(request)

    def get_kv(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """101: return a key's value, or QUERY_NOT_FOUND."""
        namespace, key = _name(request, "namespace"), _name(request, "key")
        value = self.kv.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return _answer(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return _answer(request, ext={"value": value})

    def kv_list(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """219: return all keys of a namespace."""
        namespace = _name(request, "namespace")
        keys = self.kv.namespace(namespace)
        if keys is None:
            remark = f"No config item, Namespace: {namespace}"
            return _answer(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return _answer(request, body=orjson.dumps({"table": keys}))

    def show_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """319: return the configuration as properties, without secrets."""
        return _answer(request, body=self._settings.text().encode())

    def update_config(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """318: change live keys."""
        _check_length(request, CONFIG_BYTES_MAX)
        try:
            self._settings.change(request.body.decode())
        except (ConfigError, UnicodeDecodeError) as error:
            return _answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        LOG.info("config_changed %s", request.body.decode().strip())
        return _answer(request)


def _check_length(request: RemotingCommand, bytes_max: int) -> None:
    if len(request.body) > bytes_max:
        raise BodyError(f"a body of {len(request.body)} bytes; at most {bytes_max}")


def route_changed(table: RouteTable, changes: Changes) -> RemotingCommand:
    """Build ROUTE_CHANGED (30004, one-way), with the changed groups and topics."""
    ext = {"everything": from_boolean(changes.everything)}
    body = views.changes_body(table, changes)
    return RemotingCommand.request(RequestCode.ROUTE_CHANGED, ext, body)


def log_gone(brokers: list[LiveBroker], reason: str) -> None:
    for broker in brokers:
        LOG.warning(
            "broker_gone address=%s broker=%s id=%d reason=%s",
            broker.address, broker.broker_name, broker.broker_id, reason,
        )  # fmt: skip


def _name(request: RemotingCommand, field: str) -> str:
    """Return a field that is a valid name. Raises HeaderError."""
    name = text(request.ext, field)
    if problem := name_problem(field, name):
        raise HeaderError(problem)
    return name
