"""Decodes a pull's body into messages: the consumer's hot loop.

The body is a sequence of store records (layout: store.record). The usual record (V1 magic, IPv4
hosts, complete) is read here with two struct calls; anything else goes to store.record, which knows
every form and reports what is wrong. Properties stay bytes until they are asked for.
"""

from __future__ import annotations

import logging
import struct
from zlib import crc32

from raftmq.client.compression import decompress
from raftmq.client.errors import UnsupportedCompression
from raftmq.client.message import MessageExt
from raftmq.client.subscription import tag_of
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

logger = logging.getLogger(__name__)

# TOTALSIZE .. BODYLEN of a record with IPv4 hosts, 88 bytes
_HEAD = struct.Struct(">iiIiiqqiq8sq8siqi")
_HEAD_SIZE_BYTES = _HEAD.size
_SHORT = struct.Struct(">h")
_UNUSUAL = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

assert _HEAD_SIZE_BYTES == 88


def decode_messages(
    body: bytes, broker_name: str, wanted_tags: frozenset[bytes] | None = None
) -> list[MessageExt]:
    """Return every message of a pull body whose tag is wanted (None: all), bodies decompressed.

    Raises RecordError for bytes that are not complete records.
    """
    messages: list[MessageExt] = []
    offset = 0
    end = len(body)
    unpack = _HEAD.unpack_from
    while offset < end:
        if end - offset < _HEAD_SIZE_BYTES + 3:
            raise RecordError(StopReason.CUT_SHORT, f"{end - offset} bytes left")
        (
            size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms,
            born_host, store_ms, store_host, reconsumed, prepared, body_size,
        ) = unpack(body, offset)  # fmt: skip
        if magic != MAGIC_V1 or sys_flag & _UNUSUAL:
            size = _decode_unusual(messages, body, offset, broker_name, wanted_tags)
            offset += size
            continue
        body_start = offset + _HEAD_SIZE_BYTES
        topic_start = body_start + body_size + 1
        stop = offset + size
        if not (0 <= body_size and topic_start + 2 <= stop <= end):
            check_record(body, offset)  # raises, with the reason
            raise RecordError(StopReason.BAD_SIZE, str(size))
        properties_start = topic_start + body[topic_start - 1] + 2
        content = body[body_start : topic_start - 1]
        if properties_start > stop or (crc and crc32(content) & 0x7FFFFFFF != crc):
            check_record(body, offset)
            raise RecordError(StopReason.BAD_SIZE, f"topic at {topic_start}")
        properties = body[properties_start:stop]
        if _SHORT.unpack_from(body, properties_start - 2)[0] != len(properties):
            raise RecordError(StopReason.BAD_SIZE, "properties")
        offset = stop
        if wanted_tags is not None and tag_of(properties) not in wanted_tags:
            continue
        if sys_flag & SYS_COMPRESSED:
            content, sys_flag = _plain(content, sys_flag)
        topic = body[topic_start : properties_start - 2].decode()
        messages.append(
            MessageExt(
                topic,
                content,
                properties,
                broker_name,
                queue_id,
                queue_offset,
                position,
                sys_flag,
                flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsumed,
                prepared,
                size,
            )
        )
    return messages


def _plain(body: bytes, sys_flag: int) -> tuple[bytes, int]:
    """Return the body decompressed, and the sysFlag without the compression bit. A body that cannot
    be decompressed stays as it is, with the bit: that is its producer's mistake, and must not hold
    up the messages behind it."""
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
    wanted_tags: frozenset[bytes] | None,
) -> int:
    """Decode a record with an IPv6 host or a long topic; return its size."""
    size = check_record(body, offset)
    record = decode_record(body, offset)
    if wanted_tags is not None and tag_of(record.properties) not in wanted_tags:
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
