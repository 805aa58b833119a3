"""Index keys, the keys by which a message can be found, and their hashes.

A message is indexed under `topic#key` for its UNIQ_KEY and for each blank-separated token of its
KEYS, in that order. Records of rolled-back transactions are not indexed; prepared records are. The
hash is the absolute value of Java's String.hashCode of `topic#key`, and 0 where Java's abs stays
negative. Pure, without I/O.
"""

from __future__ import annotations

from ..frame import FRAME_MAGIC
from ..properties import KEYS, UNIQ_KEY, decode_properties, java_string_hash
from ..record import MAGIC_V1, MAGIC_V2, MessageRecord

KEY_SEPARATOR = " "  # between the tokens of KEYS
# Position of the CommitLog offset in a record and in a frame.
_POSITION_AT = tuple(
    ((magic & 0xFFFFFFFF).to_bytes(4, "big"), at)
    for magic, at in ((MAGIC_V1, 28), (MAGIC_V2, 28), (FRAME_MAGIC, 24))
)


def key_hash(topic: str, key: str) -> int:
    value = abs(java_string_hash(f"{topic}#{key}"))
    return value if value <= 0x7FFFFFFF else 0  # Java's abs of the smallest int is negative


def keys_of(properties: dict[str, str]) -> list[str]:
    keys = [properties[UNIQ_KEY]] if UNIQ_KEY in properties else []
    keys += [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]
    return keys


def has_key(record: MessageRecord, topic: str, key: str) -> bool:
    """Return whether the message has this topic and key; a hash only suggests it."""
    return record.topic == topic and key in keys_of(decode_properties(record.properties))


def find_sound(data: bytes, base: int) -> int:
    """Return the offset of the first record or frame in `data` with a right stored CommitLog
    offset; -1 if none. `data` starts at CommitLog offset `base`, within anything."""
    lowest = -1
    for magic, position_at in _POSITION_AT:
        mark = data.find(magic, 4)
        while mark >= 4 and (lowest < 0 or mark - 4 < lowest):
            start = mark - 4
            stored = data[start + position_at : start + position_at + 8]
            if stored == (base + start).to_bytes(8, "big"):
                lowest = start
            mark = data.find(magic, mark + 1)
    return lowest
