"""Records of a store's raft/ directory, each with two copies in one file.

    8 KiB; at byte 0 and at byte 4096 the same record, big-endian:
    0   magic "RSLT" · 4 version 1 (2) · 6 length of the content (2) · 8 sequence (8) · 16 content
    then the CRC-32C of the preceding bytes (4)

A record is rewritten slot by slot, each made durable before the next. So a bad slot after a power
cut was torn, and the good slot counts; after an orderly stop a bad slot is damage. Pure.
"""

import struct
from dataclasses import dataclass

from google_crc32c import value as crc32c

SLOT_SIZE_BYTES = 4096
_HEAD = struct.Struct(">IHHQ")
_MAGIC = 0x52534C54
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Slots:
    """A file's newest intact content, or None, and its bad slots as (number, problem)."""

    content: bytes | None
    bad: tuple[tuple[int, str], ...]


def parse_slots(data: bytes) -> Slots:
    newest: tuple[int, bytes] | None = None
    bad = []
    for number in (0, 1):
        slot = data[number * SLOT_SIZE_BYTES : (number + 1) * SLOT_SIZE_BYTES]
        problem = _problem(slot)
        if problem:
            bad.append((number, problem))
            continue
        _, _, length, sequence = _HEAD.unpack_from(slot)
        if newest is None or sequence > newest[0]:
            newest = sequence, slot[_HEAD.size : _HEAD.size + length]
    return Slots(None if newest is None else newest[1], tuple(bad))


def _problem(slot: bytes) -> str:
    """Return the problem with a slot; "" if it is intact."""
    if len(slot) < _HEAD.size + 4:
        return "cut short"
    magic, version, length, _ = _HEAD.unpack_from(slot)
    end = _HEAD.size + length
    if magic != _MAGIC or version != _VERSION or end + 4 > len(slot):
        return "no record"
    stored = int.from_bytes(slot[end : end + 4], "big")
    return "" if stored == crc32c(slot[:end]) else "the checksum is wrong"
