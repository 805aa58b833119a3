"""Conversion between gRPC messages and stored messages.

A zlib body stays compressed (clients call it GZIP); the proxy inflates all further compressions.
The digest covers the body as sent. Values outside a gRPC field's range become the nearest valid
value, so a producer's wrong values do not block the remaining messages of an answer.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from raftmq.client.compression import COMPRESSION_MASK, CompressionType, decompress
from raftmq.client.errors import UnsupportedCompression
from raftmq.client.message import properties_text
from raftmq.client.producer.send_frame import TRANSACTION_PREPARED
from raftmq.remoting.topic_attributes import PRIORITY, SHARDING_KEY, TRAN_MSG, type_of
from raftmq.store.properties import ADDED_PROPERTIES, decode_properties
from raftmq.store.record import SYS_COMPRESSED, Host, MessageRecord, RecordError

from .config import ProxyConfig
from .endpoints import Receipt, ms_of, resource_of, topic_of
from .protocol.messaging_pb2 import (
    Code,
    DeadLetterQueue,
    Digest,
    DigestType,
    Encoding,
    Message,
    MessageType,
    SystemProperties,
)
from .status_codes import StatusError
from .validation import id_of

# The limits of Apache's proxy.
PROPERTIES_MAX = 128  # user properties per message
USER_BYTES_MAX = 16_384  # of user properties, tag and keys together
MESSAGE_GROUP_BYTES_MAX = 63
RECOVERY_S_MAX = 3_600
PROPERTIES_BYTES_MAX = 32_767  # of all properties, as in records
INT32_MAX = 0x7FFF_FFFF
# Of a Timestamp, years 1 to 9999
TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
BORN_HOST, BORN_TIME = "__BORNHOST", "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
DELIVER_TIME = "TIMER_DELIVER_MS"
DLQ_TOPIC, DLQ_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
# Properties of the protocol. `__SHARDINGKEY` and `__transactionId__` are user properties, as at
# Apache's proxy; consumers receive them and may forward them.
RESERVED = ADDED_PROPERTIES - {"__transactionId__"} | {
    *(BORN_HOST, BORN_TIME, TRACE_CONTEXT, IMMUNITY, DLQ_TOPIC, DLQ_MESSAGE_ID),
    *(PRIORITY, "KEYS", "TAGS", "ORIGIN_GROUP", "POP_CK", "POP_CK_OFFSET"),
    *("1ST_POP_TIME", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "INNER_NUM"),
    *("INNER_BASE", "DUP_INFO", "MSG_TYPE", "ARRIVE_TIME", "PUSH_REPLY_TIME", "IDEMPOTENT"),
    *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "REPLY_TO_CLIENT", "DLQ_ORIGIN_BROKER"),
    *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "__CRC32#"),
}
_TYPES = {
    "NORMAL": MessageType.NORMAL,
    "FIFO": MessageType.FIFO,
    "DELAY": MessageType.DELAY,
    "TRANSACTION": MessageType.TRANSACTION,
    "PRIORITY": MessageType.PRIORITY,
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # includes the separators of stored properties


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message to send. `message_group` is "" for any queue; `delayed` marks a delivery time;
    `message_type` is that of its properties (remoting.topic_attributes)."""

    topic: str
    body: bytes
    unique_key: str
    properties: str
    sys_flag: int
    born_ms: int
    message_group: str
    message_type: str
    delayed: bool

    @property
    def transactional(self) -> bool:
        return bool(self.sys_flag & TRANSACTION_PREPARED)


def outbound(message: Message, peer_host: str, config: ProxyConfig, now_ms: int) -> Outbound:
    """Convert a client's message. Raises StatusError."""
    system, size_max = message.system_properties, config.message_size_max
    topic = topic_of(message.topic)
    if not message.body:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(message.body) > size_max:
        reason = f"a body of {len(message.body)} bytes; the most are {size_max}"
        raise StatusError(Code.MESSAGE_BODY_TOO_LARGE, reason)
    if not system.message_id.strip():
        raise StatusError(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    id_of(system.message_id, "the message's id", Code.ILLEGAL_MESSAGE_ID)
    transactional = system.message_type == MessageType.TRANSACTION
    properties = _user_properties(message)
    properties |= _system_properties(system, peer_host)
    if system.HasField("delivery_timestamp"):
        deliver_ms = _deliver_ms(system)
        if deliver_ms - now_ms > config.delay_ms_max > 0:
            reason = f"a message is delivered at most {config.delay_ms_max} ms after it was sent"
            raise StatusError(Code.ILLEGAL_DELIVERY_TIME, f"{reason} (maxDelayTimeMills)")
        properties[DELIVER_TIME] = str(deliver_ms)
    if transactional:
        properties |= {TRAN_MSG: "true", "PGROUP": topic}
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = ms_of(system.orphaned_transaction_recovery_duration) // 1000
            if seconds > RECOVERY_S_MAX:
                reason = f"a transaction is asked about after at most {RECOVERY_S_MAX} s"
                raise StatusError(Code.BAD_REQUEST, f"{reason}, not {seconds}")
            properties[IMMUNITY] = str(max(1, seconds))
    sys_flag = SYS_COMPRESSED if system.body_encoding == Encoding.GZIP else 0
    if transactional:
        sys_flag |= TRANSACTION_PREPARED
    try:
        text = properties_text(properties)
    except ValueError as error:
        raise StatusError(Code.BAD_REQUEST, str(error)) from error
    if len(text.encode()) > PROPERTIES_BYTES_MAX:
        reason = f"the properties take more than {PROPERTIES_BYTES_MAX} bytes"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, reason)
    born_ms = ms_of(system.born_timestamp) if system.HasField("born_timestamp") else 0
    return Outbound(
        topic,
        message.body,
        system.message_id,
        text,
        sys_flag,
        born_ms if born_ms > 0 else now_ms,
        system.message_group or properties.get(SHARDING_KEY, ""),
        type_of(properties),
        DELIVER_TIME in properties,
    )


def _user_properties(message: Message) -> dict[str, str]:
    result = dict(message.user_properties)
    if len(result) > PROPERTIES_MAX:
        reason = f"{len(result)} properties; the most are {PROPERTIES_MAX}"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, reason)
    for name, value in result.items():
        if name in RESERVED or not name or not _is_plain(name):
            reason = f"{name[:100]!r} is no name of a property"
            raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
        if not value or not _is_plain(value):
            reason = f"the property {name[:100]!r} is empty, or has control characters"
            raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
    system = message.system_properties
    texts = (*result.keys(), *result.values(), system.tag, *system.keys)
    size = sum(len(text.encode()) for text in texts)
    if size > USER_BYTES_MAX:
        reason = f"properties, tag and keys have {size} bytes; the most are {USER_BYTES_MAX}"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, reason)
    return result


def _system_properties(system: SystemProperties, peer_host: str) -> dict[str, str]:
    properties = {"UNIQ_KEY": system.message_id}
    if system.tag:
        if system.tag.isspace() or "|" in system.tag or not _is_plain(system.tag):
            raise StatusError(Code.ILLEGAL_MESSAGE_TAG, f"{system.tag[:100]!r} is no tag")
        properties["TAGS"] = system.tag
    for key in system.keys:
        if not key or key.isspace() or not _is_plain(key):
            raise StatusError(Code.ILLEGAL_MESSAGE_KEY, f"{key[:100]!r} is no key")
    if system.keys:
        properties["KEYS"] = " ".join(system.keys)
    group = system.message_group
    if group:
        size = len(group.encode())
        if group.isspace() or size > MESSAGE_GROUP_BYTES_MAX or not _is_plain(group):
            text = f"{group[:100]!r} is no message group: blank, with control characters, or with"
            text += f" more than {MESSAGE_GROUP_BYTES_MAX} bytes"
            raise StatusError(Code.ILLEGAL_MESSAGE_GROUP, text)
        properties[SHARDING_KEY] = group
    elif system.message_type == MessageType.FIFO:
        raise StatusError(Code.ILLEGAL_MESSAGE_GROUP, "a FIFO message without a message group")
    if system.message_type == MessageType.DELAY and not system.HasField("delivery_timestamp"):
        raise StatusError(Code.ILLEGAL_DELIVERY_TIME, "a delayed message without a delivery time")
    if system.HasField("priority"):
        properties[PRIORITY] = str(system.priority)
    if system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    if host := system.born_host or peer_host:
        properties[BORN_HOST] = _CONTROL.sub("", host)
    if system.HasField("born_timestamp"):
        properties[BORN_TIME] = str(ms_of(system.born_timestamp))
    return properties


def _deliver_ms(system: SystemProperties) -> int:
    if system.message_group:
        text = "a message has a message group or a delivery time, not both"
        raise StatusError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    deliver_ms = ms_of(system.delivery_timestamp)
    if deliver_ms <= 0:
        raise StatusError(Code.ILLEGAL_DELIVERY_TIME, "the delivery time is none")
    return deliver_ms


def inbound(
    record: MessageRecord,
    topic: str,
    namespace: str,
    receipt: Receipt | None,
    *,
    times: int,
    invisible_ms: int = 0,
) -> Message:
    """Convert a stored message. `topic` is the client's; `times` counts deliveries."""
    properties = decode_properties(record.properties)
    body, encoding = _client_body(record)
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    message = Message(
        topic=resource_of(topic, namespace),
        body=body,
        user_properties={name: v for name, v in properties.items() if name not in RESERVED},
    )
    system = message.system_properties
    system.message_id = properties.get("UNIQ_KEY", "")
    system.body_digest.CopyFrom(Digest(type=DigestType.MD5, checksum=digest))
    system.body_encoding = encoding
    system.message_type = _TYPES[type_of(properties)]
    system.born_timestamp.FromMilliseconds(_time_ms(record.born_timestamp_ms))
    system.born_host = properties.get(BORN_HOST) or _text_of(record.born_host)
    system.store_timestamp.FromMilliseconds(_time_ms(record.store_timestamp_ms))
    system.store_host = _text_of(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = min(times + 1, INT32_MAX)
    if tag := properties.get("TAGS"):
        system.tag = tag
    system.keys.extend(properties.get("KEYS", "").split())
    if group := properties.get(SHARDING_KEY):
        system.message_group = group
    if (priority := properties.get(PRIORITY, "")).isdecimal():
        system.priority = min(int(priority), INT32_MAX) if len(priority) < 11 else INT32_MAX
    if trace := properties.get(TRACE_CONTEXT):
        system.trace_context = trace
    deliver = properties.get(DELIVER_TIME) or properties.get("TIMER_OUT_MS") or ""
    if deliver.isdecimal() and len(deliver) < 15:
        system.delivery_timestamp.FromMilliseconds(int(deliver))
    if origin := properties.get(DLQ_TOPIC):
        reported = DeadLetterQueue(topic=origin, message_id=properties.get(DLQ_MESSAGE_ID, ""))
        system.dead_letter_queue.CopyFrom(reported)
    if (seconds := properties.get(IMMUNITY, "")).isdecimal() and len(seconds) < 10:
        system.orphaned_transaction_recovery_duration.FromSeconds(int(seconds))
    if receipt is not None:
        system.receipt_handle = receipt.encode()
        system.invisible_duration.FromMilliseconds(invisible_ms)
    return message


def _time_ms(ms: int) -> int:
    return min(max(ms, TIME_MS_MIN), TIME_MS_MAX)


def _client_body(record: MessageRecord) -> tuple[bytes, Encoding]:
    """Return the body for a client and its encoding. A body that cannot be inflated is passed on
    unchanged, so it does not block the messages behind it."""
    body = bytes(record.body)
    if not record.sys_flag & SYS_COMPRESSED:
        return body, Encoding.IDENTITY
    if record.sys_flag & COMPRESSION_MASK in (0, CompressionType.ZLIB.value):
        return body, Encoding.GZIP
    try:
        return decompress(body, record.sys_flag), Encoding.IDENTITY
    except (RecordError, UnsupportedCompression):
        return body, Encoding.IDENTITY


def _text_of(host: Host) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _is_plain(text: str) -> bool:
    return _CONTROL.search(text) is None
