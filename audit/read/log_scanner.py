"""Finds the items of a CommitLog range: records, frame headers, blanks and holes.

A range of a segment *owns* every item with its first byte in the range. A range inside the segment
searches for its first item itself, so a segment may be split at arbitrary bytes and every item is
found exactly once. A record nested in a message body is not taken for an item, because its physical
offset would have to equal its own position. Frame headers also carry a CRC.

The walk skips damage to the next position with an item; the bytes between are a hole, reported by
the range that owns the item before it. A body that contains a valid record for its own future
position can mislead only a range that starts inside that body. Pure.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from raftmq.spark.columns import gathered
from raftmq.spark.layout import (
    BLANK_MAGIC,
    BLANK_SIZE_BYTES,
    BODY_AT,
    DLEDGER_BLANK,
    DLEDGER_ENTRY,
    DLEDGER_NOOP,
    DLEDGER_RECORD,
    HOST_IPV6_SIZE_BYTES,
    HOST_SIZE_BYTES,
    ITEM_SIZE_BYTES_MAX,
    RECORD_HEAD,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    RECORD_SIZE_BYTES_MIN,
    SYSFLAG_BORN_IPV6,
    SYSFLAG_STORE_IPV6,
    ItemKind,
)
from raftmq.store.frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, FrameKind, parse_header

Array = npt.NDArray[Any]
_SIZE_MAGIC = struct.Struct(">ii")
_RECORD_START = struct.Struct(">ii20xqi")  # size, magic, physical offset, sysflag
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_ANY_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab\xf0]|\xcb\xd4\x31\x94")
_BLANK_MAGIC_BYTES = _INT.pack(BLANK_MAGIC)
_SEARCH_BYTES = 1 << 20  # per search step, also to skip zeros
_ZEROS = bytes(_SEARCH_BYTES + 7)
_LEADING_ZEROS_MAX = 7  # no item starts with more


@dataclass(frozen=True, slots=True)
class FrameItem:
    """A frame header with a right CRC, or the header of an entry of Apache's DLedger, with CRCs
    computed here so that replicas can be compared.

    `at` is relative to the segment. `size` is the number of bytes that a walk skips, in a message
    frame those before its records.
    """

    at: int
    size: int
    index: int
    term: int
    timestamp_ms: int
    kind: int
    record_count: int
    payload_length: int
    payload_crc: int
    header_crc: int
    header_size: int = HEADER_SIZE_BYTES

    @property
    def payload_end(self) -> int:
        return self.at + self.header_size + self.payload_length


@dataclass(frozen=True, slots=True)
class Gap:
    """A blank record, a hole or the end of the data; `at` is relative to the segment."""

    kind: ItemKind
    at: int
    size_bytes: int
    reason: str


@dataclass(slots=True)
class Walk:
    """The items that a range owns, each list in order of position."""

    records: list[int] = field(default_factory=list)
    frames: list[FrameItem] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def split(self, at: int) -> tuple[Walk, Walk]:
        """Return the items before `at`, and the items from there on."""
        record = bisect_left(self.records, at)
        frame = bisect_left(self.frames, at, key=lambda frame: frame.at)
        gap = bisect_left(self.gaps, at, key=lambda gap: gap.at)
        return (
            Walk(self.records[:record], self.frames[:frame], self.gaps[:gap]),
            Walk(self.records[record:], self.frames[frame:], self.gaps[gap:]),
        )

    def end(self, data: memoryview) -> int:
        """Return the end of the last record or frame; 0 if there is none."""
        ends = [at + _INT.unpack_from(data, at)[0] for at in self.records[-1:]]
        return max([*ends, *(frame.payload_end for frame in self.frames[-1:])], default=0)

    def first_behind(self, data: memoryview, limit: int) -> int | None:
        """Return the start of the first item that ends behind `limit`, or None."""
        near = self.records[max(0, bisect_left(self.records, limit) - 1) :][:2]
        firsts = [at for at in near if at + _INT.unpack_from(data, at)[0] > limit][:1]
        firsts += [each.at for each in self.frames if each.payload_end > limit][:1]
        firsts += [each.at for each in self.gaps if each.at + each.size_bytes > limit][:1]
        return min(firsts, default=None)


def walk_range(
    data: memoryview, base: int, start: int, end: int, written: int | None = None
) -> Walk:
    """Walk the items of bytes [start, end) of a segment.

    `data` is the entire segment, `base` the log position of its first byte; `start` and `end` are
    relative to it. From `written` on, all bytes are known to be zero
    (audit.read.files).
    """
    assert 0 <= start <= end <= len(data)
    walk = Walk()
    at: int | None = start
    if start > 0:
        if _behind_blank(data, start):
            return walk
        at = find_item(data, base, start, end)
    while at is not None and at < end:
        at = _hop(data, base, at, end, walk)
        if at is None or _is_item(data, base, at):
            continue  # the blank record, or the next range's first item
        zeros_end = _zeros_end(data, at, len(data) if written is None else written)
        item_at = find_item(data, base, max(at + 1, zeros_end - _LEADING_ZEROS_MAX), len(data))
        zero = zeros_end >= (len(data) if item_at is None else item_at)
        reason = "zeros" if zero else _complaint(data, base, at)
        if item_at is None:
            if at < len(data):
                walk.gaps.append(Gap(ItemKind.END, at, len(data) - at, reason))
        else:
            walk.gaps.append(Gap(ItemKind.HOLE, at, item_at - at, reason))
        at = item_at
    return walk


def find_item(data: memoryview, base: int, start: int, end: int) -> int | None:
    """Return the first position in [start, end) where an item starts, or None."""
    at = start
    while at < end:
        stop = min(at + _SEARCH_BYTES, end)
        # An item's magic is 4 to 7 bytes after its first byte.
        window = bytes(data[at : min(stop + 7, len(data))])
        if window != _ZEROS[: len(window)]:
            for match in _ANY_MAGIC.finditer(window):
                position = at + match.start() - 4
                if start <= position < end and _is_item(data, base, position):
                    # A DLedger entry has no magic, but its record has.
                    entry = position - DLEDGER_ENTRY.size
                    return entry if entry >= start and _is_item(data, base, entry) else position
        at = stop
    return None


def _hop(data: memoryview, base: int, at: int, end: int, walk: Walk) -> int | None:
    """Add the items from `at` on. Return the end of the last; None after the blank record."""
    first = len(walk.records)
    ended = _hop_by_sizes(data, base, at, end, walk)
    positions = np.asarray(walk.records[first:], np.int64)
    wrong = np.flatnonzero(~shapes_hold(data, positions))
    if not len(wrong):
        return ended
    stop = int(positions[wrong[0]])
    del walk.records[first + int(wrong[0]) :]
    walk.frames = [frame for frame in walk.frames if frame.at < stop]
    walk.gaps = [gap for gap in walk.gaps if gap.at < stop]
    return stop


def shapes_hold(data: memoryview, at: Array) -> Array:
    """Return for each position whether the record's inner lengths fit its size and the segment; a
    vectorised `shape_holds`."""
    raw = np.frombuffer(data, np.uint8)
    last = len(raw) - RECORD_SIZE_BYTES_MIN
    held = at <= last
    head = gathered(raw, np.minimum(at, max(last, 0)), RECORD_HEAD) if last >= 0 else None
    if head is None:
        return held
    limit = at + head["size"]
    longer = HOST_IPV6_SIZE_BYTES - HOST_SIZE_BYTES
    hosts = (head["sysflag"] & SYSFLAG_BORN_IPV6 != 0).astype(np.int64)
    hosts += head["sysflag"] & SYSFLAG_STORE_IPV6 != 0
    body_at = at + BODY_AT + hosts * longer

    def number(clipped: Array, kind: str) -> Array:
        """Read numbers; wrong records are read at a valid position."""
        dtype = np.dtype(kind)
        clipped = np.clip(clipped, 0, len(raw) - dtype.itemsize)
        return gathered(raw, clipped, dtype).astype(np.int64)

    held &= limit <= len(raw)
    body_length = number(body_at - 4, ">i4")
    topic_at = body_at + body_length
    held &= (body_length >= 0) & (topic_at + 3 <= limit)
    short = head["magic"] == RECORD_MAGIC_V1
    length = number(topic_at, ">i2")
    properties_at = topic_at + np.where(short, 1 + (length >> 8 & 0xFF), 2 + length)
    held &= (topic_at < properties_at) & (properties_at <= limit - 2)
    length = number(properties_at, ">i2")
    held &= (length >= 0) & (properties_at + 2 + length == limit)
    return held


def _hop_by_sizes(data: memoryview, base: int, at: int, end: int, walk: Walk) -> int | None:
    """Do as `_hop`, but check only magic, size and position of records."""
    total = len(data)
    unpack = _RECORD_START.unpack_from
    take = walk.records.append
    last = total - RECORD_SIZE_BYTES_MIN
    while at < end:
        if at <= last:
            size, magic, physical, _ = unpack(data, at)
            if magic in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
                if physical != base + at or size < RECORD_SIZE_BYTES_MIN:
                    return at
                take(at)
                at += size
                continue
        elif at + BLANK_SIZE_BYTES > total:
            return at
        else:
            size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic == FRAME_MAGIC:
            frame = _frame_at(data, base, at)
            if frame is None:
                return at
            walk.frames.append(frame)
            at += size
        elif size in (DLEDGER_RECORD, DLEDGER_NOOP):
            entry = _entry_at(data, base, at)
            if entry is None:
                return at
            walk.frames.append(entry)
            at += entry.size
        elif size == DLEDGER_BLANK and magic == total - at:
            walk.gaps.append(Gap(ItemKind.BLANK, at, magic, ""))
            return None
        elif magic == BLANK_MAGIC and size == total - at:
            walk.gaps.append(Gap(ItemKind.BLANK, at, size, ""))
            return None
        else:
            return at
    return at


def _is_item(data: memoryview, base: int, at: int) -> bool:
    """Return whether a record, frame header or blank record starts at `at`."""
    total = len(data)
    if at + BLANK_SIZE_BYTES > total:
        return False
    size, magic = _SIZE_MAGIC.unpack_from(data, at)
    if magic in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
        if at + RECORD_SIZE_BYTES_MIN > total:
            return False
        physical = _RECORD_START.unpack_from(data, at)[2]
        return bool(physical == base + at) and shape_holds(data, at, size, magic)
    if magic == FRAME_MAGIC:
        return _frame_at(data, base, at) is not None
    if size in (DLEDGER_RECORD, DLEDGER_NOOP):
        return _entry_at(data, base, at) is not None
    if size == DLEDGER_BLANK:
        return bool(magic == total - at)
    return bool(magic == BLANK_MAGIC and size == total - at)


def shape_holds(data: memoryview, at: int, size: int, magic: int) -> bool:
    """Return whether the record's inner lengths fit its size and the segment."""
    limit = at + size
    if size < RECORD_SIZE_BYTES_MIN or limit > len(data):
        return False
    sysflag = _INT.unpack_from(data, at + 36)[0]
    body_at = at + BODY_AT
    if sysflag & (SYSFLAG_BORN_IPV6 | SYSFLAG_STORE_IPV6):
        longer = HOST_IPV6_SIZE_BYTES - HOST_SIZE_BYTES
        body_at += longer * (bool(sysflag & SYSFLAG_BORN_IPV6) + bool(sysflag & SYSFLAG_STORE_IPV6))
    body_length = _INT.unpack_from(data, body_at - 4)[0]
    topic_at = body_at + body_length
    if body_length < 0 or topic_at + 3 > limit:
        return False
    if magic == RECORD_MAGIC_V1:
        properties_at = topic_at + 1 + data[topic_at]
    else:
        properties_at = topic_at + 2 + _SHORT.unpack_from(data, topic_at)[0]
    if not topic_at < properties_at <= limit - 2:
        return False
    length = _SHORT.unpack_from(data, properties_at)[0]
    return bool(length >= 0 and properties_at + 2 + length == limit)


def _frame_at(data: memoryview, base: int, at: int) -> FrameItem | None:
    """Return the frame at `at`; None unless header, CRC and position are right."""
    try:
        fields = parse_header(data, at)
    except FrameError:
        return None
    size, _, index, term, position, timestamp_ms, length, record_count, kind, crc, head_crc = fields
    if position != base + at or at + HEADER_SIZE_BYTES + length > len(data):
        return None
    return FrameItem(at, size, index, term, timestamp_ms, kind, record_count, length, crc, head_crc)


def _entry_at(data: memoryview, base: int, at: int) -> FrameItem | None:
    """Return the header of the DLedger entry at `at`; None unless sizes and position fit."""
    if at + DLEDGER_ENTRY.size > len(data):
        return None
    magic, size, index, term, position, _, _, _, length = DLEDGER_ENTRY.unpack_from(data, at)
    body_at, end = at + DLEDGER_ENTRY.size, at + size
    if position != base + at or size != DLEDGER_ENTRY.size + length or end > len(data):
        return None
    has_record = magic == DLEDGER_RECORD
    return FrameItem(
        at,
        DLEDGER_ENTRY.size if has_record else size,
        index,
        term,
        0,
        int(FrameKind.MESSAGES if has_record else FrameKind.NOOP),
        int(has_record),
        length,
        crc32c(bytes(data[body_at:end])),
        crc32c(bytes(data[at:body_at])),
        DLEDGER_ENTRY.size,
    )


def _behind_blank(data: memoryview, start: int) -> bool:
    """Return whether `start` is in the garbage behind the segment's blank record.

    Old records may be there at their own positions. The garbage is shorter than the item that did
    not fit, so only ranges near the segment's end have to check.
    """
    total = len(data)
    lowest = max(0, total - ITEM_SIZE_BYTES_MAX - BLANK_SIZE_BYTES)
    if start <= lowest:
        return False
    before = bytes(data[lowest : start + BLANK_SIZE_BYTES])
    blank_at = before.find(_BLANK_MAGIC_BYTES)
    while blank_at >= 0:
        at = lowest + blank_at - 4
        if 0 <= at < start and _INT.unpack_from(data, at)[0] == total - at:
            return True
        blank_at = before.find(_BLANK_MAGIC_BYTES, blank_at + 1)
    return False


def _zeros_end(data: memoryview, start: int, written: int) -> int:
    """Return the position of the first non-zero byte from `start` on, or the end."""
    raw = np.frombuffer(data, np.uint8)
    for at in range(start, written, _SEARCH_BYTES):
        others = np.flatnonzero(raw[at : at + _SEARCH_BYTES])
        if len(others):
            return at + int(others[0])
    return len(raw)


def _complaint(data: memoryview, base: int, at: int) -> str:
    """Return the problem with the bytes at `at`, where no item starts."""
    if at + BLANK_SIZE_BYTES > len(data):
        return "no room for an item"
    size, magic = _SIZE_MAGIC.unpack_from(data, at)
    if magic == FRAME_MAGIC:
        try:
            fields = parse_header(data, at)
        except FrameError as error:
            return error.reason
        if fields[4] != base + at:
            return f"frame header for position {fields[4]}"
        return "frame payload cut short"
    if magic in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
        if at + RECORD_SIZE_BYTES_MIN <= len(data):
            physical = _RECORD_START.unpack_from(data, at)[2]
            if physical != base + at:
                return f"record for position {physical}"
        return f"record lengths do not add up to its size {size}"
    if magic == BLANK_MAGIC:
        return f"blank record of {size} bytes with {len(data) - at} left"
    return f"no item: magic {magic & 0xFFFFFFFF:#010x}"
