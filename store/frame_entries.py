"""Codec of a frame's ConsumeQueue entries, which travel with the frame between replicas.

A leader makes the entries of its frames while it builds them. A follower uses them instead of
parsing the records (store.dispatch), which took a third of its time. They are not stored. A frame
that was read from a log has none, and its records are parsed.

    0   4  size of the rest; 0 if the entries are not known
    4   4  CRC-32C of the following bytes
    8   n  for each queue: topic length (2), queue id (4), first queue offset (8), size of the
           entries (4), topic (UTF-8), entries

A frame has its records by queue, so the entries have to cover the records one after another. They
are trusted like the records, whose checksums do not prove sensible queue offsets either. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from google_crc32c import value as crc32c

from .dispatch import QUEUE_ENTRY_BYTES
from .frame import EntryBatch, Frame, FrameError, FrameKind

_SIZE = struct.Struct(">I")
_HEAD = struct.Struct(">II")
_QUEUE = struct.Struct(">HiqI")
_POSITION_AND_SIZE = struct.Struct(">qi")  # CommitLog offset and size of a record, in its entry
_UNKNOWN = _SIZE.pack(0)


def encode_entries(entries: Sequence[EntryBatch] | None) -> bytes:
    """Return the bytes of a frame's entries; None means unknown."""
    if entries is None:
        return _UNKNOWN
    parts: list[bytes] = []
    for topic, queue_id, first, packed in entries:
        name = topic.encode()
        parts += (_QUEUE.pack(len(name), queue_id, first, len(packed)), name, packed)
    data = b"".join(parts)
    return _HEAD.pack(_SIZE.size + len(data), crc32c(data)) + data


def decode_entries(data: bytes, at: int, frame: Frame) -> tuple[list[EntryBatch] | None, int]:
    """Return the entries of `frame` at data[at:], and the offset behind them. Raises FrameError."""
    try:
        size = _SIZE.unpack_from(data, at)[0]
        if not size:
            return None, at + _SIZE.size
        end = at + _SIZE.size + size
        if end > len(data) or _HEAD.unpack_from(data, at)[1] != crc32c(data[at + _HEAD.size : end]):
            raise FrameError("entries cut short, or their checksum does not match")
        return _decode_queues(data, at + _HEAD.size, end, frame), end
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"malformed entries: {error}") from error


def _decode_queues(data: bytes, at: int, end: int, frame: Frame) -> list[EntryBatch]:
    entries: list[EntryBatch] = []
    position, count = frame.position + frame.records_at, 0
    while at < end:
        name_size, queue_id, first, size = _QUEUE.unpack_from(data, at)
        start = at + _QUEUE.size + name_size
        at = start + size
        if not size or size % QUEUE_ENTRY_BYTES or at > end:
            raise FrameError(f"{size} bytes of entries of a queue")
        if _POSITION_AND_SIZE.unpack_from(data, start)[0] != position:
            raise FrameError("entries that do not follow each other")
        last_position, last_size = _POSITION_AND_SIZE.unpack_from(data, at - QUEUE_ENTRY_BYTES)
        position, count = last_position + last_size, count + size // QUEUE_ENTRY_BYTES
        topic = str(data[start - name_size : start], "utf-8")
        entries.append((topic, queue_id, first, data[start:at]))
    if (position, count, frame.kind) != (frame.end, frame.record_count, FrameKind.MESSAGES):
        raise FrameError("entries that do not cover the records")
    return entries
