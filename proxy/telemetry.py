"""Telemetry, Heartbeat and NotifyClientTermination, with registration at brokers.

A client is registered under its own id at every replica of its topics' broker groups, so that any
new leader has it. A broker renews a push consumer's messages while heartbeats arrive. gRPC has no
producer groups, so a producer is registered with its topics' names as groups, as at Apache's
proxies.

Clients wait 3 s for an answer, and replicas may hang. So an answer waits REPLICAS_S for the
replicas; later answers complete in the background, at most LATE_MAX at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import orjson

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

from .access import Access
from .cache import Spawn
from .caller import Caller
from .clients import Client, Clients
from .cluster import Brokers, GroupSettings
from .config import ProxyConfig
from .endpoints import group_of, topic_of
from .protocol.messaging_pb2 import (
    ClientType,
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    Settings,
    TelemetryCommand,
)
from .receive_message import WAITS
from .status_codes import StatusError, status_of
from .validation import check_settings, expression_of

log = logging.getLogger("raftmq.proxy.telemetry")

SEND_ATTEMPTS = 3
SEND_BACKOFF_MS = (10, 1_000, 2.0)  # first, longest, growth
REPLICAS_S = 0.3
LATE_MAX = 1_000
BATCH_MAX = 32  # messages per receive
# The redelivery delays of failed messages, which are the delay levels.
RETRY_WAITS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600,
                 7_200)  # fmt: skip
CONSUMERS = (
    ClientType.PUSH_CONSUMER,
    ClientType.SIMPLE_CONSUMER,
    ClientType.PULL_CONSUMER,
    ClientType.LITE_PUSH_CONSUMER,
    ClientType.LITE_SIMPLE_CONSUMER,
)


class TelemetryHandlers:
    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        clients: Clients,
        access: Access,
        spawn: Spawn,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._clients = clients
        self._access = access
        self._spawn = spawn
        self._late: set[asyncio.Task[bool]] = set()

    async def settings(self, caller: Caller, requested: Settings) -> TelemetryCommand:
        """Store a client's settings; return the effective settings. Raises StatusError."""
        check_settings(requested)
        topics = [topic_of(topic) for topic in requested.publishing.topics]
        subscriptions = {
            topic_of(entry.topic): expression_of(entry.expression)
            for entry in requested.subscription.subscriptions
        }
        is_producer = requested.HasField("publishing")
        group = "" if is_producer else group_of(requested.subscription.group)
        client = self._clients.touch(caller.client_id, caller.owner)
        client.namespace = caller.namespace
        client.access_key, client.host = caller.access_key, caller.host
        for topic in topics or subscriptions:
            client.add_topic(topic)
        answer = Settings()
        answer.CopyFrom(requested)
        answer.metric.on = False
        if is_producer:
            client.kind = ClientType.PRODUCER
            self._tell_producer(answer)
        else:
            client.kind = (
                requested.client_type if requested.client_type in CONSUMERS else CONSUMERS[0]
            )
            client.group = group
            client.subscribe(subscriptions, int(time.time() * 1000))
            self._tell_consumer(answer, await self._group_settings(caller, client))
        await self._greet(caller, client)
        return TelemetryCommand(status=status_of(Code.OK), settings=answer)

    def _tell_producer(self, answer: Settings) -> None:
        answer.publishing.max_body_size = self._config.message_size_max
        answer.publishing.validate_message_type = self._config.topic_message_type_check
        first_ms, longest_ms, growth = SEND_BACKOFF_MS
        backoff = answer.backoff_policy
        backoff.max_attempts = SEND_ATTEMPTS
        backoff.exponential_backoff.initial.FromMilliseconds(first_ms)
        backoff.exponential_backoff.max.FromMilliseconds(longest_ms)
        backoff.exponential_backoff.multiplier = growth

    def _tell_consumer(self, answer: Settings, group: GroupSettings) -> None:
        subscription = answer.subscription
        subscription.fifo = group.orderly
        subscription.receive_batch_size = BATCH_MAX
        subscription.long_polling_timeout.FromMilliseconds(WAITS.poll_ms_max)
        backoff = answer.backoff_policy
        backoff.max_attempts = group.retry_times_max + 1
        waits = backoff.customized_backoff
        del waits.next[:]
        for seconds in RETRY_WAITS_S:
            waits.next.add().FromSeconds(seconds)

    async def _group_settings(self, caller: Caller, client: Client) -> GroupSettings:
        for topic in client.subscriptions:
            try:
                return await self._brokers.group_settings(caller, topic, client.group)
            except StatusError as refusal:
                if refusal.code != Code.TOPIC_NOT_FOUND:
                    raise
        return GroupSettings()  # without subscriptions

    async def heartbeat(self, caller: Caller, request: HeartbeatRequest) -> HeartbeatResponse:
        """Register a client at the brokers. Raises StatusError."""
        client = self._clients.touch(caller.client_id, caller.owner)
        client.namespace = caller.namespace
        if client.kind == ClientType.CLIENT_TYPE_UNSPECIFIED:
            # The client was connected to a different proxy, and sends its settings on request.
            if request.client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
                text = "neither this heartbeat nor settings say what the client is"
                raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, text)
            client.kind = request.client_type
        if request.HasField("group") and not client.is_producer:
            client.group = group_of(request.group)
        await self._greet(caller, client)
        return HeartbeatResponse(status=status_of(Code.OK))

    async def terminated(
        self, caller: Caller, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Unregister a client at the brokers. Raises StatusError."""
        client = self._clients.find(caller.client_id)
        if client is not None:
            self._clients.touch(caller.client_id, caller.owner)
            if request.HasField("group") and not client.is_producer:
                client.group = group_of(request.group)
            self._clients.forget(client.client_id)
            addresses = self._brokers.addresses(set(client.topics))
            farewells = [
                RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, ext)
                for ext in _farewells(client)
            ]
            for farewell in farewells:
                self._access.permit(caller.account, farewell)
            await self._send(caller, addresses, farewells)
        return NotifyClientTerminationResponse(status=status_of(Code.OK))

    async def _greet(self, caller: Caller, client: Client) -> None:
        """Send a heartbeat to every replica of the client's topics. Raises StatusError."""
        for topic in list(client.topics):
            try:
                await self._brokers.route(caller, topic)
            except StatusError as refusal:
                log.debug("no_route topic=%s: %s", topic, refusal)
        addresses = self._brokers.addresses(set(client.topics))
        body = orjson.dumps(_heartbeat(client))
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
        self._access.permit(caller.account, command)
        if addresses and not await self._send(caller, addresses, [command]):
            log.info("no_broker_notified client=%s", client.client_id)

    async def _send(
        self, caller: Caller, addresses: Sequence[str], commands: Sequence[RemotingCommand]
    ) -> bool:
        """Send commands to replicas; return whether a replica accepted in time."""
        sends: list[asyncio.Task[bool]] = [
            self._spawn(self._brokers.send_once(caller, address, _copy(command)), "send")
            for address in addresses
            for command in commands
        ]
        if not sends:
            return False
        try:
            done, _ = await asyncio.wait(sends, timeout=REPLICAS_S)
        finally:
            for task in sends:
                if task.done():
                    continue
                if len(self._late) >= LATE_MAX:
                    task.cancel()
                else:
                    self._late.add(task)
                    task.add_done_callback(self._late.discard)
        return any(not task.cancelled() and task.result() for task in done)


def _heartbeat(client: Client) -> dict[str, Any]:
    producers: list[dict[str, Any]] = []
    consumers: list[dict[str, Any]] = []
    if client.is_producer:
        producers = [{"groupName": topic} for topic in client.topics]
    elif client.group:
        push = client.kind == ClientType.PUSH_CONSUMER
        consumers = [
            {
                "groupName": client.group,
                "consumeType": "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": topic,
                        "subString": expression,
                        "expressionType": kind,
                        "tagsSet": [],
                        "codeSet": [],
                        "subVersion": client.version,
                        "classFilterMode": False,
                    }
                    for topic, (kind, expression) in client.subscriptions.items()
                ],
            }
        ]
    return {
        "clientID": client.client_id,
        "producerDataSet": producers,
        "consumerDataSet": consumers,
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }


def _farewells(client: Client) -> list[dict[str, str]]:
    own = {"clientID": client.client_id}
    if client.is_producer:
        return [own | {"producerGroup": topic} for topic in client.topics]
    return [own | {"consumerGroup": client.group}] if client.group else []


def _copy(command: RemotingCommand) -> RemotingCommand:
    """Return a copy, because each connection numbers and signs its own command."""
    ext = None if command.ext is None else dict(command.ext)
    return RemotingCommand.request(command.code, ext, command.body)
