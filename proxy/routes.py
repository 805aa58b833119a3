"""QueryRoute and QueryAssignment.

Every queue has the endpoints by which the client reached a proxy, so its calls return to proxies. A
push consumer's assignment is queue -1 of every broker group, for all its queues; consumers share
the queues by popping. In an ordered group each queue is assigned to every consumer; a queue belongs
to the consumer of its unacknowledged messages.
"""

from __future__ import annotations

import orjson

from raftmq.client.route import LEADER_ID, PERM_READ, PERM_WRITE, QueueData
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.topic_attributes import MIXED

from .caller import Caller
from .clients import Clients
from .cluster import Brokers
from .endpoints import group_of, resource_of, topic_of
from .protocol.messaging_pb2 import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from .status_codes import StatusError, status_of
from .validation import check_endpoints

ALL_QUEUES = -1
_KINDS = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    MIXED: (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}


class RouteHandlers:
    def __init__(self, brokers: Brokers, clients: Clients) -> None:
        self._brokers = brokers
        self._clients = clients

    async def route(self, caller: Caller, request: QueryRouteRequest) -> QueryRouteResponse:
        """Return a topic's queues. Raises StatusError."""
        topic = topic_of(request.topic)
        check_endpoints(request.endpoints)
        route = await self._brokers.route(caller, topic)
        kinds = _KINDS.get(await self._brokers.message_type(caller, topic), ())
        self._clients.add_topic(caller.client_id, caller.owner, topic)
        shown = resource_of(topic, caller.namespace)
        known = {broker.broker_name for broker in route.brokers}
        queues: list[MessageQueue] = []
        for data in sorted(route.queues, key=lambda data: data.broker_name):
            if data.broker_name in known:
                queues += _queues(data, shown, request.endpoints, kinds)
        return QueryRouteResponse(status=status_of(Code.OK), message_queues=queues)

    async def assignment(
        self, caller: Caller, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Return a push consumer's assignments. Raises StatusError."""
        topic, group = topic_of(request.topic), group_of(request.group)
        check_endpoints(request.endpoints)
        fields = {"topic": topic, "consumerGroup": group}
        self._brokers.permit(caller, RequestCode.QUERY_ASSIGNMENT, {}, orjson.dumps(fields))
        route = await self._brokers.route(caller, topic)
        settings = await self._brokers.group_settings(caller, topic, group)
        self._clients.add_topic(caller.client_id, caller.owner, topic)
        shown = resource_of(topic, caller.namespace)
        result: list[Assignment] = []
        for data in sorted(route.queues, key=lambda data: data.broker_name):
            if not data.perm & PERM_READ or not data.read_count:
                continue
            numbers = range(data.read_count) if settings.orderly else (ALL_QUEUES,)
            for number in numbers:
                queue = _queue(data, number, _permission(data.perm), shown, request.endpoints)
                result.append(Assignment(message_queue=queue))
        if not result:
            raise StatusError(Code.FORBIDDEN, f"{topic} has no queue that may be read")
        return QueryAssignmentResponse(status=status_of(Code.OK), assignments=result)


def _queues(
    data: QueueData, topic: Resource, endpoints: Endpoints, kinds: tuple[MessageType, ...]
) -> list[MessageQueue]:
    """Return a broker group's read-only, write-only and read-write queues."""
    reads = data.read_count if data.perm & PERM_READ else 0
    writes = data.write_count if data.perm & PERM_WRITE else 0
    both = min(reads, writes)
    permissions = (
        [Permission.READ] * (reads - both)
        + [Permission.WRITE] * (writes - both)
        + [Permission.READ_WRITE] * both
    )
    queues = []
    for number, permission in enumerate(permissions):
        queue = _queue(data, number, permission, topic, endpoints)
        queue.accept_message_types.extend(kinds)
        queues.append(queue)
    return queues


def _queue(
    data: QueueData, number: int, permission: Permission, topic: Resource, endpoints: Endpoints
) -> MessageQueue:
    broker = Broker(name=data.broker_name, id=LEADER_ID, endpoints=endpoints)
    return MessageQueue(topic=topic, id=number, permission=permission, broker=broker)


def _permission(perm: int) -> Permission:
    if perm & PERM_READ and perm & PERM_WRITE:
        return Permission.READ_WRITE
    return Permission.READ if perm & PERM_READ else Permission.WRITE
