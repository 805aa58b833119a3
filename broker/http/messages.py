"""HTTP operations that search messages by id, key, time or offset, send them, and resend dead
letters.

Answers are limited to MESSAGES_MAX messages, and their bodies by broker.http.messageviews.
"""

from __future__ import annotations

import base64
import binascii
import uuid

from msgspec import UNSET

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.headers import SendHeader
from raftmq.store.properties import (
    DELAY,
    KEYS,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    joined,
)
from raftmq.store.record import (
    RecordError,
    decode_offset_message_id,
    decode_record,
    pack_host,
)
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import ApiProblem, conflict, invalid, not_found
from raftmq.web.resources.messages import (
    MessagePath,
    MessagesQuery,
    MessageView,
    QueueMessagePage,
    QueueMessagesQuery,
    ResendBody,
    ResentView,
    Sendable,
    SendBody,
    SentView,
    TopicMessagePage,
    TopicMessagesQuery,
)
from raftmq.web.resources.topics import QueuePath, TopicPath
from raftmq.web.schema import Listing, Page

from ..admin.message_query import (
    KeyFilter,
    KeyQueries,
    MessageFilter,
    NewestMessages,
    OldestMessages,
)
from ..context import Context
from ..errors import OutcomeUnknown, Refused
from ..messages.timer_message import TIMER_DELIVER_MS
from ..send.internal_producer import send
from ..send.service import SendPath
from ..tables.topics import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX, TopicConfig
from .messageviews import (
    Budget,
    StoredMessage,
    keys_of,
    record_id,
    records_of,
    view_of,
    views_of,
)
from .tables import topic_named

READ_BYTES_MAX = 1024 * 1024  # per read
QUEUES_BY_TIME_MAX = 1_024  # queues of a topic in a search by time
BORN_HOST = pack_host(("127.0.0.1", 0))
PRODUCER_GROUP = "HTTP_API_PRODUCER"
# Properties that the broker adds itself, or that would change the meaning of a resent message.
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
        "TRAN_MSG",
    }
)


class MessageOperations:
    def __init__(self, context: Context, sends: SendPath, keys: KeyQueries) -> None:
        self._context = context
        self._sends = sends
        self._keys = keys
        self._newest = NewestMessages(context.store)
        self._oldest = OldestMessages(context.store)

    def operations(self) -> list[Operation]:
        base = "/api/v1/messages"
        return [
            Operation("GET", base, "findMessages", "Messages by key or by time, oldest first.",
                      self.find, query=MessagesQuery, answer=Page[MessageView], problems=(404,)),
            Operation("GET", f"{base}/{{messageId}}", "getMessage", "A message by offsetMsgId.",
                      self.get, parameters=MessagePath, answer=MessageView, problems=(404,)),
            Operation("GET", "/api/v1/topics/{topic}/queues/{queueId}/messages",
                      "listQueueMessages", "A queue's messages from an offset or a time on.",
                      self.of_queue, parameters=QueuePath, query=QueueMessagesQuery,
                      answer=QueueMessagePage, problems=(404,)),
            Operation("GET", "/api/v1/topics/{topic}/messages", "listTopicMessages",
                      "The newest messages of a topic over all its queues, perhaps filtered.",
                      self.newest, parameters=TopicPath, query=TopicMessagesQuery,
                      answer=TopicMessagePage, problems=(404,)),
            Operation("POST", base, "sendMessage", "Send a message.", self.send,
                      role=Role.OPERATOR, body=Sendable, answer=SentView, status=201,
                      problems=(404, 409, 503, 504)),
            Operation("POST", f"{base}/{{messageId}}/resend", "resendMessage",
                      "Send a dead letter to its group's retry topic.", self.resend,
                      role=Role.OPERATOR, parameters=MessagePath, answer=SentView, status=201,
                      problems=(404, 409, 503, 504)),
            Operation("POST", f"{base}/resend", "resendMessages",
                      "Send several dead letters to their groups' retry topics.",
                      self.resend_many, role=Role.OPERATOR, body=ResendBody,
                      answer=Listing[ResentView], problems=(503,)),
        ]  # fmt: skip

    async def get(self, call: Call) -> MessageView:
        return view_of(self._stored(call.parameters.message_id), Budget(None))

    def _stored(self, message_id: str) -> StoredMessage:
        """Return the message with this id. Raises ApiProblem if it does not exist."""
        try:
            _, offset = decode_offset_message_id(message_id)
            data = self._context.store.reads.message_at(offset) if offset >= 0 else None
            stored = None if data is None else StoredMessage(decode_record(data), len(data))
        except (ValueError, RecordError):
            stored = None
        if stored is None or record_id(stored.record) != message_id.upper():
            raise not_found(f"no message here has the id {message_id}")
        return stored

    async def find(self, call: Call) -> Page[MessageView]:
        query: MessagesQuery = call.query
        topic = topic_named(self._context, query.topic)
        if not query.key and not query.unique_key:
            return await self._by_time(topic, query)
        records = await self._by_key(query)
        return Page(items=views_of(records[: query.limit]), next=None)

    async def _by_key(self, query: MessagesQuery) -> list[StoredMessage]:
        """Find the newest messages by key, as QUERY_MESSAGE (12) does, in the order of the log."""
        result = await self._keys.find(
            KeyFilter(
                query.topic,
                query.unique_key or query.key,
                bool(query.unique_key),
                query.limit,
                query.start_ms,
                query.end_ms,
            )
        )
        records = records_of(result.records)
        if query.unique_key and query.key:
            records = [one for one in records if query.key in keys_of(one)]
        return records

    async def _by_time(self, topic: TopicConfig, query: MessagesQuery) -> Page[MessageView]:
        if topic.queue_count > QUEUES_BY_TIME_MAX:
            raise invalid([("topic", f"has more than {QUEUES_BY_TIME_MAX} queues: look in one")])
        result = await self._oldest.find(
            topic.name,
            topic.queue_count,
            query.start_ms,
            query.end_ms,
            limit=query.limit,
            start=query.cursor,
        )
        return Page(
            items=views_of(StoredMessage(record, size) for record, size in result.records),
            next=None if result.following is None else str(result.following),
        )

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
            items=views_of(records),
            next=str(following) if following < high else None,
            min_offset=low,
            max_offset=high,
        )

    async def newest(self, call: Call) -> TopicMessagePage:
        query: TopicMessagesQuery = call.query
        topic = topic_named(self._context, call.parameters.topic)
        result = await self._newest.find(
            topic.name,
            topic.queue_count,
            MessageFilter(query.tag, query.key, query.property, query.text),
            limit=query.limit,
            before=query.before if isinstance(query.before, int) else None,
            since_ms=query.since_ms,
        )
        return TopicMessagePage(
            items=views_of(StoredMessage(record, size) for record, size in result.records),
            next=None if result.following is None else str(result.following),
            scanned=result.scanned,
        )

    def _read(
        self, topic: str, queue_id: int, offset: int, limit: int
    ) -> tuple[list[StoredMessage], int]:
        """Return up to `limit` messages from `offset` on, and the next offset. Cold data is
        returned in small pieces, so this repeats the read, within READ_BYTES_MAX."""
        store = self._context.store
        records: list[StoredMessage] = []
        size = 0
        while len(records) < limit and size < READ_BYTES_MAX:
            left = limit - len(records)
            result = store.reads.get_messages(topic, queue_id, offset, left, READ_BYTES_MAX - size)
            if not result.message_count:
                return records, max(offset, result.next_offset) if records else result.next_offset
            records += records_of(result.buffers)
            size += result.size_bytes
            offset = result.next_offset
        return records, offset

    async def send(self, call: Call) -> Reply:
        requested: SendBody = call.body
        body = _body_of(requested)
        properties = {**requested.properties}
        for name, value in ((TAGS, requested.tags), (KEYS, requested.keys)):
            if value is not None:
                properties[name] = value
        if requested.delay_level:
            properties[DELAY] = str(requested.delay_level)
        if requested.deliver_at_ms:
            properties[TIMER_DELIVER_MS] = str(requested.deliver_at_ms)
        properties.setdefault(UNIQ_KEY, uuid.uuid4().hex.upper())
        queue_id = -1 if requested.queue_id is None else requested.queue_id
        topic = topic_named(self._context, requested.topic)
        if queue_id >= topic.write_queue_count:
            reason = f"{requested.topic} has {topic.write_queue_count} queues to write to"
            raise invalid([("queueId", reason)])
        try:
            encode_properties(properties)
        except ValueError as error:
            raise invalid([("properties", str(error))]) from error
        return Reply(await self._sent(requested.topic, queue_id, properties, body), status=201)

    async def resend(self, call: Call) -> Reply:
        return Reply(await self._resent(call.parameters.message_id), status=201)

    async def resend_many(self, call: Call) -> Listing[ResentView]:
        """Resend them one after another, in order."""
        items = []
        for message_id in dict.fromkeys(call.body.message_ids):
            try:
                sent = await self._resent(message_id)
                items.append(
                    ResentView(
                        message_id=message_id, outcome="ok", offset_msg_id=sent.offset_msg_id
                    )
                )
            except OutcomeUnknown as error:
                items.append(ResentView(message_id=message_id, outcome="unknown", error=str(error)))
            except (ApiProblem, Refused) as error:
                if isinstance(error, Refused) and error.tag == "NOT_LEADER" and not items:
                    raise
                reason = error.detail if isinstance(error, ApiProblem) else error.remark
                items.append(ResentView(message_id=message_id, outcome="failed", error=reason))
        return Listing(items=items)

    async def _resent(self, message_id: str) -> SentView:
        """Send a dead letter to its retry topic. Raises ApiProblem, Refused, OutcomeUnknown."""
        record = self._stored(message_id).record
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
    ) -> SentView:
        text = joined(properties).decode()
        now_ms = self._context.wall_ms()
        header = SendHeader(
            PRODUCER_GROUP, topic, DEFAULT_TOPIC, 4, queue_id, sys_flag, now_ms, flag, text
        )
        code, stored = await send(self._sends, header, body, BORN_HOST)
        if code != ResponseCode.SUCCESS:
            raise conflict(f"stored, but with code {code}", "REFUSED")
        return SentView(
            topic=topic,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            msg_id=properties.get(UNIQ_KEY, ""),
            offset_msg_id=stored.message_id,
        )


def _body_of(requested: SendBody) -> bytes:
    """Return the body of a send. Raises ApiProblem."""
    if (requested.body is UNSET) == (requested.body_base64 is UNSET):
        raise invalid([("body", "say one of body and bodyBase64")])
    if isinstance(requested.body, str):
        return requested.body.encode()
    assert isinstance(requested.body_base64, str)
    try:
        return base64.b64decode(requested.body_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid([("bodyBase64", str(error))]) from error
