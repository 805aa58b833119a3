"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

A receive is a pop at a single broker group. With `auto_renew` the broker renews the invisibility
while the client's heartbeats arrive. Popped messages that cannot be delivered, because the client
left, stopped waiting or does not read, become visible at once. Messages above the byte limit stay
hidden for a short time, so that waiting receives do not pop them in vain until they are dead
letters. Brokers compare only hash codes of tags, so the proxy acknowledges messages with the wrong
tag.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import SendBackHeader
from raftmq.remoting.pop_headers import (
    ACKS_MAX,
    COUNT_MAX,
    INIT_MAX,
    AckHeader,
    ChangeHeader,
    ChangeResponseHeader,
    Handle,
    PopHeader,
    PopResponseHeader,
    by_queue,
    kind_of,
    popped_handle,
)
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, RecordError, decode_record

from .cache import Spawn
from .caller import Caller
from .clients import Clients
from .cluster import ANSWER_MS, MARGIN_S, Brokers
from .endpoints import Receipt, group_of, ms_of, topic_of
from .message_conversion import inbound
from .protocol.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    FilterExpression,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Message,
    ReceiveMessageRequest,
)
from .receive_stream import ByteLimit, ClientKey, ResponseWriter, Write
from .status_codes import StatusError, status_error_for, status_of
from .validation import expression_of, id_of

log = logging.getLogger("raftmq.proxy.receive_message")

INVISIBLE_MS_MAX = 43_200_000
RENEWED_MS = 60_000  # initial invisibility of renewed messages
UNNAMED_MS = 1500  # limit of a receive without a polling time, half a client's timeout
RETURNED_MS = 0  # invisibility of undelivered messages
CROWDED_MS = 10_000  # and of messages above the byte limit
RETURN_S = 5.0
READ_S_MIN = 5.0  # time to read an answer, whatever the call's deadline
ANSWER_BYTES_MAX = 256 << 20  # of messages on their way to clients; a client may use a quarter
EVERYTHING = "*"
CROWDED = "too many messages are on their way to clients"


class Waits(NamedTuple):
    """The times that a receive may request, as at Apache's; tests pass shorter ones."""

    poll_ms_min: int = 5_000
    poll_ms_max: int = 20_000
    invisible_ms_min: int = 10_000


WAITS = Waits()


class Popped(NamedTuple):
    """A popped message. `times` counts earlier deliveries."""

    record: MessageRecord
    receipt: Receipt
    times: int
    invisible_ms: int


class ReceiveHandlers:
    """The handlers of a proxy. `spawn(work, name)` starts tasks that outlive their call."""

    def __init__(
        self,
        waits: Waits,
        brokers: Brokers,
        clients: Clients,
        spawn: Spawn,
        stopping: asyncio.Event,
    ) -> None:
        self._waits = waits
        self._brokers = brokers
        self._clients = clients
        self._spawn = spawn
        self._stopping = stopping
        self._limit = ByteLimit(ANSWER_BYTES_MAX)
        self.returned_count = 0  # messages

    @property
    def held_bytes(self) -> int:
        """Return the bytes of messages on their way to clients."""
        return self._limit.held_bytes

    # ---- receives

    async def receive(self, caller: Caller, request: ReceiveMessageRequest, write: Write) -> int:
        """Pop and write messages; return their count. Raises StatusError if none; Unread."""
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        needs = {"topic": topic, "consumerGroup": group}
        self._brokers.permit(caller, RequestCode.POP_MESSAGE, needs)
        if not self._limit.has(_key_of(caller)):
            raise StatusError(Code.TOO_MANY_REQUESTS, CROWDED)
        self._clients.add_topic(caller.client_id, caller.owner, topic)
        named = request.message_queue.broker.name
        settings = await self._brokers.group_settings(caller, topic, group, named)
        header = self._header(caller, request, topic, group, orderly=settings.orderly)
        broker_name = await self._broker(caller, topic, named)
        result = await self._popped(caller, broker_name, header)
        deliverable, filtered = _by_tag(result, request.filter_expression)
        for item in filtered:
            self._spawn(self._drop(caller, topic, group, item), "silent ack")
        dead = [
            item
            for item in deliverable
            if settings.orderly and item.times > settings.retry_times_max
        ]
        for item in dead:
            self._spawn(self._bury(caller, topic, group, item), "dead letter")
            deliverable.remove(item)
        if not deliverable:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "no new message")
        return await self._write(caller, topic, group, deliverable, write)

    def _header(
        self,
        caller: Caller,
        request: ReceiveMessageRequest,
        topic: str,
        group: str,
        *,
        orderly: bool,
    ) -> PopHeader:
        if not 0 < request.batch_size:
            raise StatusError(Code.BAD_REQUEST, "batch_size is not positive")
        kind, expression = expression_of(request.filter_expression)
        invisible_ms = RENEWED_MS
        if not request.auto_renew:
            low = self._waits.invisible_ms_min
            invisible_ms = self._invisible_ms(request.invisible_duration, low)
        queue_id = request.message_queue.id
        return PopHeader(
            group,
            topic,
            queue_id if orderly and request.auto_renew and queue_id >= 0 else -1,
            min(request.batch_size, COUNT_MAX),
            invisible_ms,
            self._poll_ms(caller, request),
            init_mode=INIT_MAX,
            expression_type=kind,
            expression=expression,
            order=orderly,
            attempt_id=id_of(request.attempt_id, "attempt_id"),
            renewed_by=caller.client_id if request.auto_renew else "",
        )

    def _invisible_ms(self, duration: Duration, low: int = 0) -> int:
        """Return a duration in ms. Raises StatusError with the text that clients' tests expect."""
        invisible_ms, high = ms_of(duration), INVISIBLE_MS_MAX
        if invisible_ms < low:
            text = f"the invisibleTime is too small: {invisible_ms} ms, the least is {low} ms"
            raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, text)
        if invisible_ms > high:
            text = f"the invisibleTime is too large: {invisible_ms} ms, the most is {high} ms"
            raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, text)
        return invisible_ms

    def _poll_ms(self, caller: Caller, request: ReceiveMessageRequest) -> int:
        """Return the broker's polling time. Raises StatusError."""
        now_s = asyncio.get_running_loop().time()
        left_ms = round((caller.deadline_s - MARGIN_S - now_s) * 1000) - ANSWER_MS
        requested_ms = left_ms - UNNAMED_MS
        if request.HasField("long_polling_timeout"):
            requested_ms = ms_of(request.long_polling_timeout)
        low, high = self._waits.poll_ms_min, self._waits.poll_ms_max
        poll_ms = min(max(requested_ms, low), high)
        if poll_ms > left_ms:
            if left_ms < low:
                text = f"the call's deadline leaves {left_ms} ms; a receive takes {low}"
                raise StatusError(Code.ILLEGAL_POLLING_TIME, text)
            poll_ms = left_ms
        return poll_ms

    async def _broker(self, caller: Caller, topic: str, name: str) -> str:
        """Return the broker group that the client names. Raises StatusError."""
        if name:
            await self._brokers.check_broker(caller, topic, name)
            return name
        queues = (await self._brokers.route(caller, topic)).read_queues(topic)
        if not queues:
            raise StatusError(Code.FORBIDDEN, f"{topic} has no queue that may be read")
        return queues[0].broker_name

    async def _popped(self, caller: Caller, broker_name: str, header: PopHeader) -> list[Popped]:
        """Return popped messages; none if the proxy stops. Messages of a cancelled call become
        visible again. Raises StatusError."""
        pop = self._spawn(self._pop(caller, broker_name, header), "pop")
        stop = self._spawn(self._stopping.wait(), "stop of a receive")
        left_s = caller.deadline_s - MARGIN_S - asyncio.get_running_loop().time()
        first = asyncio.FIRST_COMPLETED
        returned = False
        try:
            await asyncio.wait((pop, stop), timeout=max(0.0, left_s), return_when=first)
            if pop.done():
                results: list[Popped] = pop.result()
                returned = True
                return results
        finally:
            stop.cancel()
            if not returned:  # the pop may complete in the turn of the cancellation
                pop.add_done_callback(
                    lambda done: self._cancelled(caller, header.consumer_group, header.topic, done)
                )
        if self._stopping.is_set():
            raise StatusError(Code.MESSAGE_NOT_FOUND, "the proxy stops")
        raise StatusError(Code.PROXY_TIMEOUT, f"{broker_name} did not answer in time")

    async def _pop(self, caller: Caller, broker_name: str, header: PopHeader) -> list[Popped]:
        response = await self._brokers.pop(caller, broker_name, header)
        if response.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            return []
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        try:
            return popped(response, broker_name)
        except (RemotingError, RecordError, LookupError) as error:
            log.error("pop_answer_broken broker=%s error=%r", broker_name, error)
            raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error

    async def _write(
        self, caller: Caller, topic: str, group: str, result: list[Popped], write: Write
    ) -> int:
        """Write the messages; return their count. Unwritten messages become visible again, except
        those that cannot be converted, which would be popped again at once. Raises Unread;
        StatusError if there is no capacity and nothing was written."""
        key, size = _key_of(caller), sum(len(item.record.body) for item in result)
        if not self._limit.take(key, size):
            self._make_visible(caller, topic, group, result, CROWDED_MS)
            raise StatusError(Code.TOO_MANY_REQUESTS, CROWDED)
        loop = asyncio.get_running_loop()
        writer = ResponseWriter(
            result, lambda item: _client_message_or_none(item, topic, caller.namespace), write
        )
        writing = loop.create_task(writer.run(), name="write")
        left: Sequence[Popped] = ()
        try:
            limit_s = max(caller.deadline_s - loop.time(), READ_S_MIN)
            await asyncio.wait((writing,), timeout=limit_s)
            if not writing.done():
                # gRPC cannot cancel a message that it accepted. The call ends only when that
                # message is read or its connection closes.
                writer.end()
                left = writer.left
                self._make_visible(caller, topic, group, left)
                held = sum(len(item.record.body) for item in left[:1])
                self._limit.release(key, size - held)
                size = held
            await writing
            return writer.written
        finally:
            writing.cancel()
            self._limit.release(key, size)
            if not left and writer.left:
                self._make_visible(caller, topic, group, writer.left)
            await asyncio.gather(writing, return_exceptions=True)

    # ---- undelivered messages

    def _cancelled(
        self, caller: Caller, group: str, topic: str, done: asyncio.Task[list[Popped]]
    ) -> None:
        if not done.cancelled() and done.exception() is None and done.result():
            self._make_visible(caller, topic, group, done.result())

    def _make_visible(
        self,
        caller: Caller,
        topic: str,
        group: str,
        result: Sequence[Popped],
        after_ms: int = RETURNED_MS,
    ) -> None:
        self.returned_count += len(result)
        log.info("given_back client=%s count=%d", caller.client_id, len(result))
        late = self._later(caller)
        for item in result:
            work = self._change(late, topic, group, item.receipt, after_ms)
            self._spawn(_quietly(work), "give back")

    async def _drop(self, caller: Caller, topic: str, group: str, item: Popped) -> None:
        await _quietly(self._ack(self._later(caller), topic, group, item.receipt))

    async def _bury(self, caller: Caller, topic: str, group: str, item: Popped) -> None:
        message_id = decode_properties(item.record.properties).get("UNIQ_KEY", "")
        work = self._to_dead_letters(self._later(caller), topic, group, item.receipt, message_id)
        await _quietly(work)

    def _later(self, caller: Caller) -> Caller:
        """Return the caller with a later deadline, for work in the background."""
        return replace(caller, deadline_s=asyncio.get_running_loop().time() + RETURN_S)

    # ---- operations on messages

    async def ack(self, caller: Caller, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages. Raises StatusError."""
        topic, group = topic_of(request.topic), group_of(request.group)
        if not 0 < len(request.entries) <= ACKS_MAX:
            raise StatusError(Code.BAD_REQUEST, f"a call acknowledges 1 to {ACKS_MAX} messages")

        async def one(entry: AckMessageEntry) -> AckMessageResultEntry:
            try:
                await self._ack(caller, topic, group, Receipt.decode(entry.receipt_handle))
                status = status_of(Code.OK)
            except StatusError as refusal:
                status = refusal.status
            return AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )

        entries = await asyncio.gather(*(one(entry) for entry in request.entries))
        codes = {entry.status.code for entry in entries}
        code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
        # Java's client throws the status's text, and users match it by the code's name.
        return AckMessageResponse(status=status_of(code), entries=entries)

    async def change(
        self, caller: Caller, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Change a message's invisibility; return its new handle. Raises StatusError."""
        topic, group = topic_of(request.topic), group_of(request.group)
        invisible_ms = self._invisible_ms(request.invisible_duration)
        receipt = Receipt.decode(request.receipt_handle)
        fresh = await self._change(caller, topic, group, receipt, invisible_ms)
        return ChangeInvisibleDurationResponse(
            status=status_of(Code.OK), receipt_handle=fresh.encode()
        )

    async def forward(
        self, caller: Caller, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Move a message to its group's dead letters. Raises StatusError."""
        topic, group = topic_of(request.topic), group_of(request.group)
        receipt = Receipt.decode(request.receipt_handle)
        message_id = id_of(request.message_id, "the message's id", Code.ILLEGAL_MESSAGE_ID)
        await self._to_dead_letters(caller, topic, group, receipt, message_id)
        return ForwardMessageToDeadLetterQueueResponse(status=status_of(Code.OK))

    async def _ack(self, caller: Caller, topic: str, group: str, receipt: Receipt) -> None:
        handle = receipt.handle
        await self._brokers.check_broker(caller, topic, handle.broker_name)
        stored_in = receipt.stored_in(topic, group)
        header = AckHeader(group, stored_in, handle.queue_id, handle.encode(), handle.offset)
        response = await self._brokers.ask(
            caller, handle.broker_name, RequestCode.ACK_MESSAGE, header.to_ext()
        )
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)

    async def _change(
        self, caller: Caller, topic: str, group: str, receipt: Receipt, invisible_ms: int
    ) -> Receipt:
        handle = receipt.handle
        await self._brokers.check_broker(caller, topic, handle.broker_name)
        header = ChangeHeader(
            group,
            receipt.stored_in(topic, group),
            handle.queue_id,
            handle.encode(),
            handle.offset,
            invisible_ms,
        )
        response = await self._brokers.ask(
            caller,
            handle.broker_name,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            header.to_ext(),
            unknown_again=False,
        )
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        try:
            changed = ChangeResponseHeader.parse(response.ext)
        except RemotingError as error:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        fresh = handle._replace(
            start=handle.start if handle.order else handle.offset,
            pop_ms=changed.pop_ms,
            invisible_ms=changed.invisible_ms,
        )
        return Receipt(fresh, receipt.position)

    async def _check_position(
        self, caller: Caller, topic: str, group: str, receipt: Receipt
    ) -> None:
        """Raise StatusError unless the handle's message is at its position. A forged position would
        otherwise expose foreign messages."""
        handle = receipt.handle
        record = await self._brokers.stored_at(caller, handle.broker_name, receipt.position)
        if record is not None:
            result = (record.topic, record.queue_id, record.queue_offset)
            if result == (receipt.stored_in(topic, group), handle.queue_id, handle.offset):
                return
        text = "the receipt handle does not say where the message is"
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, text)

    async def _to_dead_letters(
        self, caller: Caller, topic: str, group: str, receipt: Receipt, message_id: str
    ) -> None:
        """Store a dead letter at the broker, and acknowledge the message. The proxy reads the
        message with its own rights, so the caller's rights are checked first."""
        handle = receipt.handle
        named = {"topic": receipt.stored_in(topic, group), "consumerGroup": group}
        self._brokers.permit(caller, RequestCode.ACK_MESSAGE, named)
        await self._brokers.check_broker(caller, topic, handle.broker_name)
        await self._check_position(caller, topic, group, receipt)
        header = SendBackHeader(
            receipt.position, group, -1, message_id, topic, max_reconsume_times=0
        )
        response = await self._brokers.ask(
            caller, handle.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext()
        )
        if response.code != ResponseCode.SUCCESS:
            raise status_error_for(response)
        await self._ack(caller, topic, group, receipt)


def popped(response: RemotingCommand, broker_name: str) -> list[Popped]:
    """Decode a broker's answer to a pop. Raises HeaderError, RecordError, KeyError, IndexError."""
    head = PopResponseHeader.parse(response.ext)
    starts = by_queue(head.starts)
    times = _times(head.order_counts)
    result: list[Popped] = []
    body = response.body
    at = 0
    while at < len(body):
        record = decode_record(body, at)
        at += int.from_bytes(body[at : at + 4], "big")
        properties = decode_properties(record.properties)
        handle = popped_handle(properties, head, record.queue_id, record.queue_offset)
        if handle is None:
            kind = kind_of(record.topic)
            handle = Handle(
                starts[kind, record.queue_id][0],
                head.pop_ms,
                head.invisible_ms,
                head.revive_queue,
                kind == "1",
                broker_name,
                record.queue_id,
                record.queue_offset,
            )
        before = times.get(f"qo{record.queue_id}%{record.queue_offset}", record.reconsume_times)
        receipt = Receipt(handle, record.physical_offset)
        result.append(Popped(record, receipt, before, head.invisible_ms))
    return result


def client_message(item: Popped, topic: str, namespace: str) -> Message:
    return inbound(
        item.record,
        topic,
        namespace,
        item.receipt,
        times=item.times,
        invisible_ms=item.invisible_ms,
    )


def _key_of(caller: Caller) -> ClientKey:
    return caller.owner, caller.client_id


def _client_message_or_none(item: Popped, topic: str, namespace: str) -> Message | None:
    try:
        return client_message(item, topic, namespace)
    except Exception as error:  # a message that cannot be converted must not block the rest
        log.info("not_told topic=%s position=%d: %r", topic, item.receipt.position, error)
        return None


def _times(text: str) -> dict[str, int]:
    """Return how often each message of an ordered pop was popped before."""
    result: dict[str, int] = {}
    for part in text.split(";") if text else ():
        fields = part.split(" ")
        if len(fields) == 3 and fields[2].isdecimal():
            result[fields[1]] = int(fields[2])
    return result


def _by_tag(result: list[Popped], filter_: FilterExpression) -> tuple[list[Popped], list[Popped]]:
    """Split messages by whether their tag matches."""
    expression = filter_.expression or EVERYTHING
    if filter_.type == FilterType.SQL or expression == EVERYTHING:
        return list(result), []
    tags = {tag.strip() for tag in expression.split("||")}
    matching: list[Popped] = []
    rest: list[Popped] = []
    for item in result:
        tag = decode_properties(item.record.properties).get("TAGS")
        (matching if tag in tags else rest).append(item)
    return matching, rest


async def _quietly(work: Awaitable[Any]) -> None:
    """Await background work; after a failure the message is redelivered after its invisibility."""
    try:
        await work
    except StatusError as refusal:
        log.info("not_done: %s", refusal)
