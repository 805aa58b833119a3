"""Decoding of a pull's body into messages, the consumer's hot loop.

The body is a sequence of store records (layout: store.record). The usual record (V1 magic, IPv4
hosts, complete) is read with two struct calls; store.record handles everything else and reports
errors. Properties stay bytes until they are used.
"""

from __future__ import annotations

import logging
import struct
from zlib import crc32

from raftmq.store.record import (
    MAGIC_V1,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    RecordError,
    StopReason,
    check_record,
    decode_record,
    pack_host,
)

from .compression import decompress
from .errors import UnsupportedCompression
from .message import MessageExt
from .subscription import tag_of

logger = logging.getLogger(__name__)

# TOTALSIZE .. BODYLEN of a record with IPv4 hosts, 88 bytes
_HEAD = struct.Struct(">iiIiiqqiq8sq8siqi")
_HEAD_SIZE_BYTES = _HEAD.size
# TOPICLEN, TOPIC and PROPERTIESLEN by TOPICLEN, as (size, struct of topic field and length)
_TAILS = [
    (tail.size, tail.unpack_from) for tail in (struct.Struct(f">{1 + n}sh") for n in range(256))
]
_UNUSUAL = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

assert _HEAD_SIZE_BYTES == 88


def decode_messages(
    body: bytes, broker_name: str, subscribed_tags: frozenset[bytes] | None = None
) -> list[MessageExt]:
    """Return every message of a pull body with a subscribed tag (None for all), bodies
    decompressed. Raises RecordError for incomplete records."""
    messages: list[MessageExt] = []
    topic, topic_field = "", b"\0"  # TOPIC, and TOPICLEN with it, of the previous record
    offset = 0
    end = len(body)
    unpack, tails, new = _HEAD.unpack_from, _TAILS, MessageExt.__new__
    while offset < end:
        if end - offset < _HEAD_SIZE_BYTES + 3:
            raise RecordError(StopReason.TRUNCATED, f"{end - offset} bytes left")
        (
            size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms,
            born_host, store_ms, store_host, reconsumed, prepared, body_size,
        ) = unpack(body, offset)  # fmt: skip
        if magic != MAGIC_V1 or sys_flag & _UNUSUAL:
            offset += _decode_unusual(messages, body, offset, broker_name, subscribed_tags)
            continue
        body_start = offset + _HEAD_SIZE_BYTES
        body_stop = body_start + body_size
        stop = offset + size
        if not (0 <= body_size and body_stop + 3 <= stop <= end):
            raise _damage(body, offset, str(size))
        tail_size, unpack_tail = tails[body[body_stop]]
        properties_start = body_stop + tail_size
        content = body[body_start:body_stop]
        if properties_start > stop or (crc and crc32(content) & 0x7FFFFFFF != crc):
            raise _damage(body, offset, f"topic at {body_stop + 1}")
        field, properties_size = unpack_tail(body, body_stop)
        if field != topic_field:
            topic_field = field
            topic = field[1:].decode("utf-8", "replace")
        properties = body[properties_start:stop]
        if properties_size != len(properties):
            raise RecordError(StopReason.BAD_SIZE, "properties")
        offset = stop
        if subscribed_tags is not None and tag_of(properties) not in subscribed_tags:
            continue
        if sys_flag & SYS_COMPRESSED:
            content, sys_flag = _plain(content, sys_flag)
        message = new(MessageExt)  # a call of __init__ takes three times as long as these lines
        message.topic = topic
        message.body = content
        message.properties_raw = properties
        message.broker_name = broker_name
        message.queue_id = queue_id
        message.queue_offset = queue_offset
        message.commit_log_offset = position
        message.sys_flag = sys_flag
        message.flag = flag
        message.born_timestamp_ms = born_ms
        message.born_host_raw = born_host
        message.store_timestamp_ms = store_ms
        message.store_host_raw = store_host
        message.reconsume_times = reconsumed
        message.prepared_transaction_offset = prepared
        message.store_size_bytes = size
        message._properties = None
        messages.append(message)
    return messages


def _damage(body: bytes, offset: int, detail: str) -> RecordError:
    """Return the error for wrong sizes or CRC, or raise `check_record`'s exacter error."""
    check_record(body, offset)
    return RecordError(StopReason.BAD_SIZE, detail)


def _plain(body: bytes, sys_flag: int) -> tuple[bytes, int]:
    """Return the body decompressed, and the sysFlag without the compression bit. An invalid body
    stays as it is, with the bit, because its producer's error must not hold up later messages."""
    try:
        return decompress(body, sys_flag), sys_flag & ~SYS_COMPRESSED
    except (RecordError, UnsupportedCompression) as error:
        logger.error("body_not_decompressed size_bytes=%d error=%s", len(body), error)
        return body, sys_flag


def _decode_unusual(
    messages: list[MessageExt],
    body: bytes,
    offset: int,
    broker_name: str,
    subscribed_tags: frozenset[bytes] | None,
) -> int:
    """Decode a record with an IPv6 host or a long topic; return its size."""
    size = check_record(body, offset)
    record = decode_record(body, offset)
    if subscribed_tags is not None and tag_of(record.properties) not in subscribed_tags:
        return size
    content, sys_flag = record.body, record.sys_flag
    if sys_flag & SYS_COMPRESSED:
        content, sys_flag = _plain(content, sys_flag)
    messages.append(
        MessageExt(
            record.topic,
            content,
            record.properties,
            broker_name,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            sys_flag,
            record.flag,
            record.born_timestamp_ms,
            pack_host(record.born_host),
            record.store_timestamp_ms,
            pack_host(record.store_host),
            record.reconsume_times,
            record.prepared_transaction_offset,
            size,
        )
    )
    return size
