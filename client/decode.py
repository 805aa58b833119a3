"""A pull's body → messages: the consumer's hot loop. Pure.

The body is store records, one behind the other (layout: store.record). The usual record (V1 magic,
IPv4 hosts, whole) is read here with two struct calls; anything else goes to store.record, which
knows every form and says what is wrong. Properties stay bytes until somebody asks for them.
"""

from __future__ import annotations

import struct
import zlib
from zlib import crc32

from client.errors import UnsupportedCompression
from client.message import MessageExt
from client.subscription import tag_of
from store.record import (
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

# TOTALSIZE .. BODYLEN of a record with IPv4 hosts, 88 bytes
_HEAD = struct.Struct(">iiIiiqqiq8sq8siqi")
_HEAD_SIZE_BYTES = _HEAD.size
_SHORT = struct.Struct(">h")
_UNUSUAL = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_COMPRESSION_MASK = 0x700
_ZLIB = (0, 0x300)
_NAMES = {0x100: "LZ4", 0x200: "ZSTD"}
BODY_SIZE_BYTES_MAX = 64 * 1024 * 1024  # after decompression; guards against a zip bomb

assert _HEAD_SIZE_BYTES == 88


def decode_messages(
    body: bytes, broker_name: str, wanted_tags: frozenset[bytes] | None = None
) -> list[MessageExt]:
    """Every message of a pull body whose tag is wanted (None: all), bodies decompressed.

    Raises RecordError for bytes that are not whole records, UnsupportedCompression.
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
            content = decompress(content, sys_flag)
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
                sys_flag & ~SYS_COMPRESSED,
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


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was before the producer compressed it. Raises UnsupportedCompression for an
    algorithm we have no library for, RecordError for damage."""
    kind = sys_flag & _COMPRESSION_MASK
    if kind not in _ZLIB:
        raise UnsupportedCompression(_NAMES.get(kind, f"algorithm {kind >> 8}"))
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(body, BODY_SIZE_BYTES_MAX)
    except zlib.error as error:
        raise RecordError(StopReason.BAD_CRC, f"compressed body: {error}") from error
    if not stream.eof:
        raise RecordError(StopReason.BAD_SIZE, "compressed body is cut short or far too large")
    return content


def _decode_unusual(
    messages: list[MessageExt],
    body: bytes,
    offset: int,
    broker_name: str,
    wanted_tags: frozenset[bytes] | None,
) -> int:
    """A record with an IPv6 host or a long topic; returns its size."""
    size = check_record(body, offset)
    record = decode_record(body, offset)
    if wanted_tags is not None and tag_of(record.properties) not in wanted_tags:
        return size
    content = record.body
    if record.sys_flag & SYS_COMPRESSED:
        content = decompress(content, record.sys_flag)
    messages.append(
        MessageExt(
            record.topic,
            content,
            record.properties,
            broker_name,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag & ~SYS_COMPRESSED,
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
