"""Queue assignments (400), and pull or pop modes of groups (401, 402).

Clients of 5.x without `clientRebalance` request their queues here. For a pulling group, the
client's strategy is applied. For a popping group, the result is every broker group with queue id -1
(any queue). With `popShareQueueNum`, it is the client's queues and those of that many neighbours.
The mode of a (topic, group) is replicated; the default is PULL.

Any replica answers 400 without a barrier, so a deposed leader may return an outdated assignment for
a second. An error would be worse, because Java's client then assigns the topic's queues itself and
pulls where its group pops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from raftmq.remoting.allocation import (
    AllocateByConsistentHash,
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fast_json import MessageQueue, loads_request
from raftmq.remoting.registration import decode_queue_datas

from ..clients import ClientTable
from ..component import Service
from ..consume.offset_commits import offsets_full
from ..context import Context
from ..errors import forbidden, invalid
from ..send.callbacks import Completion
from ..tables.offsets import HasRoom
from ..tables.topics import PERM_READ, RETRY_PREFIX
from .command_batch import StepLog

log = logging.getLogger("raftmq.broker.assignment")

PULL, POP = MODES = ("PULL", "POP")
SHARE_MAX = 65_536
ROUTE_MS = 10_000  # how long routes of other broker groups are cached
ROUTES_MAX = 10_000  # topics
ASK_TIMEOUT_MS = 3_000
STRATEGIES: Mapping[str, AllocationStrategy] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
    "CONSISTENT_HASH": AllocateByConsistentHash(),
}


class TopicQueues:
    def __init__(self, context: Context, client: RemotingClient) -> None:
        self._context = context
        self._client = client
        self._known: dict[str, tuple[int, list[MessageQueue]]] = {}  # topic → time, queues

    async def of(self, topic: str) -> list[MessageQueue]:
        """Return the topic's queues, from this broker's table and from the name servers."""
        own_name = self._context.config.broker_name
        config = self._context.state.topics.get(topic)
        queues = [queue for queue in await self._registered(topic) if queue.broker_name != own_name]
        if config is not None and config.readable:
            queues += [MessageQueue(topic, own_name, n) for n in range(config.read_queue_count)]
        return queues

    async def _registered(self, topic: str) -> list[MessageQueue]:
        now_ms = self._context.clock_ms()
        known = self._known.get(topic)
        if known is not None and now_ms - known[0] < ROUTE_MS:
            return known[1]
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        for address in self._context.config.name_servers:
            try:
                answer = await self._client.invoke(address, request, ASK_TIMEOUT_MS)
                queues = _queues(topic, answer)
            except RemotingError as error:
                log.info("route_not_sent topic=%s by=%s: %s", topic, address, error)
                continue
            if len(self._known) >= ROUTES_MAX:
                self._known.clear()
            self._known[topic] = now_ms, queues
            return queues
        return [] if known is None else known[1]

    async def close(self) -> None:
        await self._client.close()


def _queues(topic: str, answer: RemotingCommand) -> list[MessageQueue]:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingError(answer.remark or f"code {answer.code}")
    return [
        MessageQueue(topic, name, queue_id)
        for name, (read_count, _, perm, _) in decode_queue_datas(answer.body).items()
        if perm & PERM_READ
        for queue_id in range(read_count)
    ]


@dataclass
class Assignments:
    """Handlers of assignments and modes."""

    context: Context
    has_room: HasRoom
    steps: StepLog
    clients: ClientTable
    queues: TopicQueues

    def service(self) -> Service:
        code = RequestCode
        return Service(
            handlers={
                int(code.QUERY_ASSIGNMENT): self.query,
                int(code.SET_MESSAGE_REQUEST_MODE): self.set_mode,
                int(code.GET_ALL_MESSAGE_REQUEST_MODE): self.modes,
            },
            stop=self.queues.close,
        )

    async def query(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """400. Body {"topic","consumerGroup","clientId","strategyName","messageModel"}. Raises
        BodyError, Refused."""
        body = loads_request(request.body)
        topic, group, client = (_text(body, k) for k in ("topic", "consumerGroup", "clientId"))
        mode, share = self.mode_of(topic, group)
        queues = await self.queues.of(topic)
        if body.get("messageModel") == "CLUSTERING":
            strategy = STRATEGIES.get(str(body.get("strategyName")))
            if strategy is None:
                reason = (
                    f"strategy {body.get('strategyName')!r} is not one of {', '.join(STRATEGIES)}"
                )
                raise invalid(reason)
            clients = self.clients.client_ids(group)
            if mode == POP:
                assigned = shared_out(queues, clients, client, share, strategy)
            else:
                assigned = list(strategy(queues, clients, client))
        else:
            assigned = queues
        assignments = [{"messageQueue": queue.as_fields(), "mode": mode} for queue in assigned]
        answer = orjson.dumps({"messageQueueAssignments": assignments})
        return RemotingCommand.response_to(request, body=answer)

    def mode_of(self, topic: str, group: str) -> tuple[str, int]:
        if topic.startswith(RETRY_PREFIX):
            return PULL, 0
        return self.context.state.pops.modes.get((topic, group), (PULL, 0))

    async def set_mode(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """401. Body {"topic","consumerGroup","mode","popShareQueueNum"}. Raises BodyError,
        Refused, RaftError."""
        body = loads_request(request.body)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        share = body.get("popShareQueueNum", 0)
        if type(share) is not int or abs(share) > SHARE_MAX:
            raise BodyError(f"popShareQueueNum is no number up to {SHARE_MAX}")
        await self.change_mode(topic, group, str(body.get("mode")), share)
        return RemotingCommand.response_to(request)

    async def change_mode(self, topic: str, group: str, mode: str, share: int = 0) -> None:
        """Set the mode of a group for a topic. Raises Refused, RaftError."""
        if topic.startswith(RETRY_PREFIX):
            reason = "retry topic is not allowed to set mode"
            raise forbidden(reason)
        if mode not in MODES:
            raise invalid(f"mode {mode!r} is not PULL or POP")
        self.context.roles.require_leading()
        modes = self.context.state.pops.modes
        if (topic, group) not in modes and not self.has_room(topic, group, (0,)):
            raise offsets_full()
        ended = Completion()
        self.steps.add([("mode", topic, group, mode, share)], ended)
        await ended.stored()

    def modes(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """402: return all configured modes by topic and group."""
        table: dict[str, dict[str, Any]] = {}
        for (topic, group), (mode, share) in sorted(self.context.state.pops.modes.items()):
            table.setdefault(topic, {})[group] = {
                "topic": topic,
                "consumerGroup": group,
                "mode": mode,
                "popShareQueueNum": share,
            }
        body = orjson.dumps({"messageRequestModeMap": table})
        return RemotingCommand.response_to(request, body=body)


def shared_out(
    queues: list[MessageQueue],
    clients: list[str],
    client: str,
    share: int,
    strategy: AllocationStrategy,
) -> list[MessageQueue]:
    """Return a client's queues in a popping group, like Apache's allocate4Pop."""
    if share <= 0 or share >= len(clients) - 1:
        names = sorted({(queue.topic, queue.broker_name) for queue in queues})
        return [MessageQueue(topic, name, -1) for topic, name in names]
    ordered = sorted(clients)
    if client not in ordered:
        return []
    at = ordered.index(client)
    if len(ordered) > len(queues):  # a queue per client
        return [sorted(queues)[at % len(queues)]] if queues else []
    shared: dict[MessageQueue, None] = {}
    for n in range(share + 1):
        neighbour = ordered[(at + n) % len(ordered)]
        shared |= dict.fromkeys(strategy(queues, ordered, neighbour))
    return list(shared)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or len(value) > 1_000 or not value.isprintable():
        raise BodyError(f"{name} is missing, or no name")
    return value
