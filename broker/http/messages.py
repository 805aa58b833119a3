"""Messages: found by id, key, time and queue offset; sent; dead letters sent again.

Answers are bounded: MESSAGES_MAX messages and LIST_BODY_BYTES_MAX of bodies; a body that does not
fit is left out. Text is the UTF-8 body, decompressed if its producer compressed it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from raftmq.broker.context import Context
from raftmq.broker.http.tables import topic_named
from raftmq.broker.http.views import (
    MessagePage,
    MessagePath,
    MessagesQuery,
    MessageView,
    QueueMessagePage,
    QueueMessagesQuery,
    QueuePath,
    Sendable,
    SendBody,
    SentView,
)
from raftmq.broker.operating.keyquery import KeyQueries, KeyWanted
from raftmq.broker.sending.inside import send
from raftmq.broker.sending.send import SendPath
from raftmq.broker.tables.topics import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from raftmq.remoting.address import format_address
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.headers import SendHeader
from raftmq.store.properties import KEYS, TAGS, UNIQ_KEY, decode_properties, encode_properties
from raftmq.store.record import (
    SYS_COMPRESSED,
    MessageRecord,
    RecordError,
    decode_offset_message_id,
    decode_record,
    offset_message_id,
    pack_host,
    walk_records,
)
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import conflict, invalid, not_found

LIST_BODY_BYTES_MAX = 1024 * 1024
INFLATED_BYTES_MAX = 1024 * 1024  # of text shown
READ_BYTES_MAX = 1024 * 1024  # of one read
QUEUES_BY_TIME_MAX = 1_024  # the most queues of a topic that are searched by time
BORN_HOST = pack_host(("127.0.0.1", 0))
PRODUCER_GROUP = "HTTP_API_PRODUCER"
# Properties that the broker adds itself, or that would change the meaning of a message sent again.
OWN_PROPERTIES = frozenset(
    {
        "MSG_REGION",
        "TRACE_ON",
        "CLUSTER",
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "WAIT",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "IDEMPOTENT",
    }
)
_COMPRESSION_SHIFT, _COMPRESSION_MASK = 8, 7  # in sys_flag; 0 and 3: zlib


class MessageOperations:
    """The operations on messages."""

    def __init__(self, context: Context, sends: SendPath, keys: KeyQueries) -> None:
        self._context = context
        self._sends = sends
        self._keys = keys

    def operations(self) -> list[Operation]:
        base = "/api/v1/messages"
        return [
            Operation("GET", base, "findMessages", "Messages by key or by time, oldest first.",
                      self.find, query=MessagesQuery, answer=MessagePage, problems=(404,)),
            Operation("GET", f"{base}/{{messageId}}", "getMessage", "A message by offsetMsgId.",
                      self.get, parameters=MessagePath, answer=MessageView, problems=(404,)),
            Operation("GET", "/api/v1/topics/{topic}/queues/{queueId}/messages",
                      "listQueueMessages", "A queue's messages from an offset or a time on.",
                      self.of_queue, parameters=QueuePath, query=QueueMessagesQuery,
                      answer=QueueMessagePage, problems=(404,)),
            Operation("POST", base, "sendMessage", "Send a message.", self.send,
                      role=Role.OPERATOR, body=Sendable, answer=SentView, status=201,
                      problems=(404, 409, 503, 504)),
            Operation("POST", f"{base}/{{messageId}}/resend", "resendMessage",
                      "Send a dead letter to its group's retry topic.", self.resend,
                      role=Role.OPERATOR, parameters=MessagePath, answer=SentView, status=201,
                      problems=(404, 409, 503, 504)),
        ]  # fmt: skip

    # ---- looking up -----------------------------------------------------------------------

    async def get(self, call: Call) -> MessageView:
        return view_of(self._found(call.parameters.message_id), _Budget(None))

    def _found(self, message_id: str) -> Found:
        """Return the message with this id. Raises ApiProblem if there is no such message."""
        try:
            _, offset = decode_offset_message_id(message_id)
            data = self._context.store.reads.message_at(offset) if offset >= 0 else None
            found = None if data is None else Found(decode_record(data), len(data))
        except (ValueError, RecordError):
            found = None
        if found is None or record_id(found.record) != message_id.upper():
            raise not_found(f"no message here has the id {message_id}")
        return found

    async def find(self, call: Call) -> MessagePage:
        query: MessagesQuery = call.query
        topic_named(self._context, query.topic)
        if query.key or query.unique_key:
            records = await self._by_key(query)
        else:
            records = await self._by_time(query)
        return MessagePage(items=_views(records[: query.limit]), next=None)

    async def _by_key(self, query: MessagesQuery) -> list[Found]:
        """Find by key as QUERY_MESSAGE (12): the newest that fit, in the order of the log."""
        found = await self._keys.find(
            KeyWanted(
                query.topic,
                query.unique_key or query.key,
                bool(query.unique_key),
                query.limit,
                query.begin_ms,
                query.end_ms,
            )
        )
        records = _records(found.records)
        if query.unique_key and query.key:
            records = [one for one in records if query.key in _keys(one)]
        return records

    async def _by_time(self, query: MessagesQuery) -> list[Found]:
        """Find the oldest messages of all queues that were stored in this time."""
        topic = self._context.state.topics.get(query.topic)
        count = 0 if topic is None else topic.queue_count
        if count > QUEUES_BY_TIME_MAX:
            raise invalid([("topic", f"has more than {QUEUES_BY_TIME_MAX} queues: look in one")])
        store = self._context.store
        found: list[Found] = []
        for queue_id in range(count):
            offset = store.reads.offset_by_time(query.topic, queue_id, query.begin_ms)
            records, _ = self._read(query.topic, queue_id, offset, query.limit)
            found += [one for one in records if query.begin_ms <= _time(one) <= query.end_ms]
            found.sort(key=lambda one: (_time(one), one.record.physical_offset))
            del found[query.limit :]
            await asyncio.sleep(0)
        return found

    async def of_queue(self, call: Call) -> QueueMessagePage:
        topic, queue_id = call.parameters.topic, call.parameters.queue_id
        query: QueueMessagesQuery = call.query
        config = self._context.state.topics.get(topic)
        if config is None or queue_id >= config.queue_count:
            raise not_found(f"there is no queue {queue_id} of a topic {topic}")
        store = self._context.store
        queue = store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        offset = low
        if isinstance(query.offset, int):
            offset = max(offset, query.offset)
        if isinstance(query.time_ms, int):
            offset = max(offset, store.reads.offset_by_time(topic, queue_id, query.time_ms))
        records, following = self._read(topic, queue_id, offset, query.limit)
        return QueueMessagePage(
            items=_views(records),
            next=str(following) if following < high else None,
            min_offset=low,
            max_offset=high,
        )

    def _read(self, topic: str, queue_id: int, offset: int, limit: int) -> tuple[list[Found], int]:
        """Return up to `limit` messages from `offset` on, and the offset behind them. Cold data
        come in small pieces, so this asks again, within READ_BYTES_MAX."""
        store = self._context.store
        records: list[Found] = []
        size = 0
        while len(records) < limit and size < READ_BYTES_MAX:
            left = limit - len(records)
            found = store.reads.get_messages(topic, queue_id, offset, left, READ_BYTES_MAX - size)
            if not found.message_count:
                return records, max(offset, found.next_offset) if records else found.next_offset
            records += _records(found.buffers)
            size += found.size_bytes
            offset = found.next_offset
        return records, offset

    # ---- sending --------------------------------------------------------------------------

    async def send(self, call: Call) -> Reply:
        wanted: SendBody = call.body
        body = _body_of(wanted)
        properties = {**wanted.properties}
        for name, value in ((TAGS, wanted.tags), (KEYS, wanted.keys)):
            if value is not None:
                properties[name] = value
        properties.setdefault(UNIQ_KEY, uuid.uuid4().hex.upper())
        queue_id = -1 if wanted.queue_id is None else wanted.queue_id
        topic = topic_named(self._context, wanted.topic)
        if queue_id >= topic.write_queue_count:
            words = f"{wanted.topic} has {topic.write_queue_count} queues to write to"
            raise invalid([("queueId", words)])
        return await self._sent(wanted.topic, queue_id, properties, body)

    async def resend(self, call: Call) -> Reply:
        record = self._found(call.parameters.message_id).record
        if not record.topic.startswith(DLQ_PREFIX):
            raise conflict(f"{record.topic} is no dead-letter topic", "NO_DEAD_LETTER")
        target = RETRY_PREFIX + record.topic.removeprefix(DLQ_PREFIX)
        if self._context.state.topics.get(target) is None:
            raise not_found(f"there is no topic {target}: the group consumes nothing any more")
        properties = {
            name: value
            for name, value in decode_properties(record.properties).items()
            if name not in OWN_PROPERTIES
        }
        return await self._sent(
            target, -1, properties, record.body, flag=record.flag, sys_flag=record.sys_flag & 0x703
        )

    async def _sent(
        self,
        topic: str,
        queue_id: int,
        properties: dict[str, str],
        body: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> Reply:
        try:
            text = encode_properties(properties).decode()
        except ValueError as error:
            raise invalid([("properties", str(error))]) from error
        now_ms = self._context.wall_ms()
        header = SendHeader(
            PRODUCER_GROUP, topic, DEFAULT_TOPIC, 4, queue_id, sys_flag, now_ms, flag, text
        )
        code, stored = await send(self._sends, header, body, BORN_HOST)
        if code != ResponseCode.SUCCESS:
            raise conflict(f"stored, but with code {code}", "REFUSED")
        view = SentView(
            topic=topic,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            msg_id=properties.get(UNIQ_KEY, ""),
            offset_msg_id=stored.message_id,
        )
        return Reply(view, status=201)


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and its size in the log."""

    record: MessageRecord
    size_bytes: int


class _Budget:
    """The bytes of bodies that an answer still has room for; None: no limit."""

    def __init__(self, size_bytes: int | None) -> None:
        self._left = size_bytes

    def take(self, size_bytes: int) -> bool:
        if self._left is None:
            return True
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True


def _views(records: Iterable[Found]) -> list[MessageView]:
    budget = _Budget(LIST_BODY_BYTES_MAX)
    return [view_of(found, budget) for found in records]


def view_of(found: Found, budget: _Budget) -> MessageView:
    record = found.record
    properties = decode_properties(record.properties)
    shown = budget.take(len(record.body))
    return MessageView(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        store_size=found.size_bytes,
        offset_msg_id=record_id(record),
        msg_id=properties.get(UNIQ_KEY),
        tags=properties.get(TAGS),
        keys=properties.get(KEYS),
        born_timestamp=record.born_timestamp_ms,
        born_host=format_address(*record.born_host),
        store_timestamp=record.store_timestamp_ms,
        store_host=format_address(*record.store_host),
        reconsume_times=record.reconsume_times,
        flag=record.flag,
        sys_flag=record.sys_flag,
        properties=properties,
        body_size=len(record.body),
        body=base64.b64encode(record.body).decode() if shown else None,
        text=_text(record) if shown else None,
    )


def record_id(record: MessageRecord) -> str:
    return offset_message_id(record.store_host, record.physical_offset)


def _records(buffers: Iterable[bytes]) -> list[Found]:
    return [
        Found(decode_record(buffer, at), size)
        for buffer in buffers
        for at, size in walk_records(buffer)
    ]


def _keys(found: Found) -> list[str]:
    return decode_properties(found.record.properties).get(KEYS, "").split()


def _time(found: Found) -> int:
    return found.record.store_timestamp_ms


def _text(record: MessageRecord) -> str | None:
    """Return the body as text; None if it is none."""
    body = record.body
    if record.sys_flag & SYS_COMPRESSED:
        kind = record.sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, INFLATED_BYTES_MAX) if kind in (0, 3) else b""
        except zlib.error:
            return None
        if kind not in (0, 3) or inflate.unconsumed_tail:
            return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _body_of(wanted: SendBody) -> bytes:
    """Return the body of a send. Raises ApiProblem."""
    if (wanted.body is UNSET) == (wanted.body_base64 is UNSET):
        raise invalid([("body", "say one of body and bodyBase64")])
    if isinstance(wanted.body, str):
        return wanted.body.encode()
    assert isinstance(wanted.body_base64, str)
    try:
        return base64.b64decode(wanted.body_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid([("bodyBase64", str(error))]) from error
