"""SendMessage and RecallMessage.

A message goes to the queue of its message group, or to the next queue in rotation. The producer's
engine repeats a failed attempt with the same UNIQ_KEY at the current leader until the caller's
deadline. A message that may be stored without an acknowledgement is answered
MASTER_PERSISTENCE_TIMEOUT; the client decides about a retry.

A message group's queue is Guava's `Hashing.consistentHash` over Java's `String.hashCode`, as at
Apache's proxies, a jump consistent hash with the random numbers of a linear congruential generator.
Few groups move when a topic gets more queues.
"""

from __future__ import annotations

import asyncio
import time

import orjson

from raftmq.client.errors import ClientError
from raftmq.client.instance import ClientInstance
from raftmq.client.message import MessageQueue, SendResult
from raftmq.client.producer.pending_send import Pending, settling
from raftmq.client.producer.producer import IDEMPOTENT_SUFFIX, Publication, remember
from raftmq.client.producer.send_frame import SEND_MESSAGE_V2, OutgoingSend
from raftmq.client.producer.sender import SendConfig, SendEngine
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.remoting.topic_attributes import type_problem
from raftmq.store.properties import java_string_hash

from .access import Access
from .caller import Caller
from .clients import Clients
from .cluster import MARGIN_S, Brokers
from .config import ProxyConfig
from .endpoints import topic_of
from .message_conversion import Outbound, outbound
from .protocol.messaging_pb2 import (
    Code,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from .status_codes import (
    BY_SEND_STATUS,
    StatusError,
    status_error_for,
    status_error_of,
    status_of,
)
from .transactions import HalfPosition, HalfPositions

PRODUCER_GROUP = "mqproxy"  # in the headers of sends; a transaction's group is its topic
MESSAGES_MAX = 1_024  # per call
SENDS_MAX, SEND_BYTES_MAX = 65_536, 256 << 20  # in progress to brokers


class SendHandlers:
    def __init__(
        self,
        config: ProxyConfig,
        instance: ClientInstance,
        brokers: Brokers,
        clients: Clients,
        access: Access,
        halves: HalfPositions,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._clients = clients
        self._access = access
        self._halves = halves
        self._publications: dict[str, Publication] = {}
        limits = SendConfig(
            in_flight_max=SENDS_MAX,
            in_flight_bytes_max=SEND_BYTES_MAX,
            idempotent=config.idempotent_sends,
        )
        self._suffix = IDEMPOTENT_SUFFIX if config.idempotent_sends else ""
        self.engine = SendEngine(instance, PRODUCER_GROUP, limits, self._alternative)

    async def send(self, caller: Caller, request: SendMessageRequest) -> SendMessageResponse:
        """Send messages of a topic. Raises StatusError if nothing is sent."""
        now_ms = int(time.time() * 1000)
        if not 0 < len(request.messages) <= MESSAGES_MAX:
            code = Code.BAD_REQUEST if request.messages else Code.MESSAGE_CORRUPTED
            raise StatusError(code, f"a call has 1 to {MESSAGES_MAX} messages")
        config = self._config
        items = [outbound(message, caller.host, config, now_ms) for message in request.messages]
        topic = items[0].topic
        if any(item.topic != topic for item in items):
            raise StatusError(Code.MESSAGE_CORRUPTED, "the messages of one call have one topic")
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"b": topic})
        self._access.permit(caller.account, command)
        publication = await self._publication(caller, topic)
        if config.topic_message_type_check:
            await self._check_types(caller, topic, items)
        self._clients.add_topic(caller.client_id, caller.owner, topic)
        sends = [self._start(caller, publication, item) for item in items]
        entries = [await self._entry(item, sent) for item, sent in zip(items, sends, strict=True)]
        return SendMessageResponse(status=_together(entries), entries=entries)

    async def recall(self, caller: Caller, request: RecallMessageRequest) -> RecallMessageResponse:
        """Cancel the delivery of a delayed message. Raises StatusError."""
        topic = topic_of(request.topic)
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except ValueError as error:
            raise StatusError(Code.BAD_REQUEST, f"no recall handle: {error}") from error
        await self._brokers.check_broker(caller, topic, handle.broker_name)
        ext = {"producerGroup": topic, "topic": topic, "recallHandle": request.recall_handle}
        code = RequestCode.RECALL_MESSAGE
        response = await self._brokers.ask(caller, handle.broker_name, code, ext)
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        message_id = (response.ext or {}).get("msgId", "")
        return RecallMessageResponse(status=status_of(Code.OK), message_id=message_id)

    async def _check_types(self, caller: Caller, topic: str, items: list[Outbound]) -> None:
        """Raise StatusError if a message differs from the topic's `message.type`. Topics of retries
        and of dead letters accept all messages."""
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        problem = ""
        for again in (False, True):  # the topic may have changed
            expected = await self._brokers.message_type(caller, topic, again=again)
            problems = (type_problem(expected, item.message_type) for item in items)
            problem = next(filter(None, problems), "")
            if not problem:
                return
        raise StatusError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, problem)

    async def _publication(self, caller: Caller, topic: str) -> Publication:
        """Return the topic's writable queues. Raises StatusError."""
        try:
            route = await self._brokers.route(caller, topic)
        except StatusError:
            self._publications.pop(topic, None)  # the topic was deleted
            raise
        known = self._publications.get(topic)
        if known is None or known.route is not route:
            queues = route.write_queues(topic)
            if not queues:
                raise StatusError(Code.FORBIDDEN, f"{topic} has no queue that may be written")
            known = remember(self._publications, topic, Publication(queues, route))
        return known

    def _start(
        self, caller: Caller, publication: Publication, item: Outbound
    ) -> asyncio.Future[SendResult]:
        """Start sending a message; return the future of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendResult] = loop.create_future()
        future.add_done_callback(_retrieved)
        queue, fixed = self._queue(publication, item)
        send = OutgoingSend(
            SEND_MESSAGE_V2,
            item.body,
            item.unique_key,
            orjson.dumps(item.properties + self._suffix),
            item.sys_flag,
            0,
            item.born_ms,
        )
        pending = Pending(send, queue, fixed, caller.deadline_s - MARGIN_S, settling(future))
        try:
            self.engine.admit(pending)
        except ClientError as error:
            future.set_exception(error)
        else:
            self.engine.submit(pending)
        return future

    async def _entry(self, item: Outbound, sent: asyncio.Future[SendResult]) -> SendResultEntry:
        try:
            result = await sent
        except ClientError as error:
            refusal = status_error_of(error)
            if item.delayed and refusal.code == Code.BAD_REQUEST:  # no further cause is left
                refusal = StatusError(Code.ILLEGAL_DELIVERY_TIME, refusal.message)
            return SendResultEntry(status=refusal.status, message_id=item.unique_key)
        if item.transactional:
            position = int(result.offset_msg_id[-16:], 16)
            half = HalfPosition(result.queue.broker_name, result.queue_offset, position)
            self._halves.remember(item.topic, item.unique_key, half)
        return SendResultEntry(
            status=status_of(BY_SEND_STATUS[result.status]),
            message_id=item.unique_key,
            transaction_id=item.unique_key,
            offset=result.queue_offset,
            recall_handle=result.recall_handle,
        )

    def _queue(self, publication: Publication, item: Outbound) -> tuple[MessageQueue, bool]:
        """Return the message's queue, and whether it is bound to the broker group."""
        queues = publication.queues
        if item.message_group:
            return queues[group_index(item.message_group, len(queues))], True
        # A repeated send uses the same queue, because only its broker group has the message's id
        if self._suffix:
            return queues[group_index(item.unique_key, len(queues))], False
        fault = self.engine.fault
        if publication.single_group or fault.quiet:
            return publication.next(), False
        now_ms = self.engine.now() * 1000
        fit = publication.next_fit(lambda name: fault.available(name, now_ms))
        return fit or publication.next(), False

    def _alternative(self, pending: Pending) -> MessageQueue | None:
        """Return a queue of a different, healthy broker group. None if there is none, and for an
        idempotent message that its own group may have stored."""
        if self._suffix and pending.unknown:
            return None
        publication = self._publications.get(pending.queue.topic)
        if publication is None or publication.single_group:
            return None
        failed, engine = pending.queue.broker_name, self.engine
        now_ms = engine.now() * 1000
        return publication.next_fit(
            lambda name: (
                name != failed and engine.is_open(name) and engine.fault.available(name, now_ms)
            )
        )


def _retrieved(done: asyncio.Future[SendResult]) -> None:
    """Retrieve the error, in case the caller has disconnected."""
    if not done.cancelled():
        done.exception()


def _together(entries: list[SendResultEntry]) -> Status:
    if len({entry.status.code for entry in entries}) == 1:
        return entries[0].status
    return status_of(Code.MULTIPLE_RESULTS)


_MULTIPLIER = 2_862_933_555_777_941_757
_BITS_64 = (1 << 64) - 1
_SCALE = float(1 << 31)


def group_index(message_group: str, count: int) -> int:
    """Return the queue index of a message group among `count` queues."""
    return consistent_hash(java_string_hash(message_group), count)


def consistent_hash(value: int, count: int) -> int:
    """Return the bucket of a signed number among `count` buckets."""
    assert count > 0, count
    state = value & _BITS_64  # Java sign-extends an int to a long
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _BITS_64
        following = int((candidate + 1) / (((state >> 33) + 1) / _SCALE))
        if following >= count:
            return candidate
        candidate = following
