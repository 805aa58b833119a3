"""Finds the bytes of a node's files that are worth damaging. Pure.

The functions parse the layouts of the CommitLog (frames, records, blanks), of ConsumeQueue entries,
IndexFiles, the two-slot files of term and vote, and the checkpoint. They map bytes to byte offsets.
They verify nothing, and find an item by the size of the item before it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from raftmq.store.frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, parse_header
from raftmq.store.record import BLANK, BLANK_SIZE_BYTES, FIXED_SIZE_BYTES, MAGIC_V1, MAGIC_V2

UNIT_BYTES = 20
SLOT_BYTES = 4096
CHECKPOINT_BYTES = 40
DURABLE_AT = 24  # in the checkpoint: durable end of the CommitLog
INDEX_HEAD_BYTES = 40
_SLOT_HEAD = struct.Struct(">IHHQ")  # magic, version, length, sequence
_SLOT_MAGIC = 0x52534C54
_CRC_BYTES = 4
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Item:
    """A frame of the log, or in classic mode a record. `at` is relative to its segment."""

    at: int
    header_bytes: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.at + self.size_bytes


def log_items(data: bytes | memoryview) -> list[Item]:
    """Return the frames and records at the start of a segment, up to the first foreign data."""
    items = []
    at = 0
    while at + BLANK_SIZE_BYTES <= len(data):
        size, magic = BLANK.unpack_from(data, at)
        header = FIXED_SIZE_BYTES
        if magic == FRAME_MAGIC:
            try:
                fields = parse_header(data, at)
            except FrameError:
                break
            header, size = HEADER_SIZE_BYTES, HEADER_SIZE_BYTES + fields[6]
        elif magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE_BYTES:
            break
        if at + size > len(data):
            break
        items.append(Item(at, header, size))
        at += size
    return items


def used_units(data: bytes | memoryview) -> int:
    """Return the number of used entries in a ConsumeQueue file, before the first empty entry."""
    low, high = 0, len(data) // UNIT_BYTES
    while low < high:  # no empty entry precedes a used entry
        middle = (low + high) // 2
        unit = data[middle * UNIT_BYTES : (middle + 1) * UNIT_BYTES]
        if any(unit):
            low = middle + 1
        else:
            high = middle
    return low


def slots(data: bytes) -> list[range]:
    """Return the byte ranges of the records in a two-slot file."""
    result = []
    for at in range(0, len(data) - _SLOT_HEAD.size + 1, SLOT_BYTES):
        magic, _, length, _ = _SLOT_HEAD.unpack_from(data, at)
        if magic == _SLOT_MAGIC:
            result.append(range(at, at + _SLOT_HEAD.size + length + _CRC_BYTES))
    return result


def durable_offset(checkpoint: bytes) -> int:
    """Return the CommitLog's durable mark; 0 if there is none."""
    if len(checkpoint) < DURABLE_AT + _LONG.size:
        return 0
    return int(_LONG.unpack_from(checkpoint, DURABLE_AT)[0])
