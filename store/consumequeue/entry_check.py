"""Checks whether a ConsumeQueue unit points at the record that it should. Pure.

A unit is checked against the record's size and magic, its own position, queue and queue offset, and
its topic. The body's checksum is checked for cold data, where the read costs more than the sum.
"""

from __future__ import annotations

import struct

from ..record import (
    HEAD_SIZE_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    RecordError,
    check_record,
    decode_record,
)

HEAD = struct.Struct(">ii4xi4xqq")  # TOTALSIZE, MAGIC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET
# and SYSFLAG, BODYLEN (IPv4 hosts)
_HEAD = struct.Struct(">ii4xi4xqqi44xi")
_UNUSUAL = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

assert _HEAD.size == HEAD_SIZE_BYTES


def queue_offset_at(
    data: bytes, at: int, position: int, size: int, topic: bytes, queue_id: int
) -> int:
    """Return QUEUEOFFSET of the record at data[at:], to which a unit (position, size) of that queue
    points; -1 if there is no record of that queue and that position."""
    if at + max(size, HEAD_SIZE_BYTES) > len(data):
        return -1
    told, magic, queue, queue_offset, physical, sys_flag, body_length = _HEAD.unpack_from(data, at)
    if told != size or physical != position or queue != queue_id:
        return -1
    if magic == MAGIC_V1 and not sys_flag & _UNUSUAL:
        start = at + 89 + body_length
        length = len(topic)
        if not at + 89 <= start <= at + size - length - 2 or data[start - 1] != length:
            return -1
        if data[start : start + length] != topic:
            return -1
    elif magic not in (MAGIC_V1, MAGIC_V2) or _topic(data, at, size) != topic:
        return -1
    return int(queue_offset)


def body_is_whole(data: bytes, at: int, position: int) -> bool:
    """Return whether the record at data[at:] agrees with its lengths and its body's checksum."""
    try:
        check_record(data, at, position)
    except RecordError:
        return False
    return True


def _topic(data: bytes, at: int, size: int) -> bytes | None:
    try:
        return decode_record(data[at : at + size], check_body=False).topic.encode()
    except RecordError:
        return None
