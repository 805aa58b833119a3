"""The CommitLog, ConsumeQueue and checkpoint layouts as numpy dtypes.

An audit with the store's own decoder would share its errors. So this module defines the layouts a
second time, for whole arrays of records; tests/spark/test_layout.py compares them with the store's
own codecs. Pure.

A record is big-endian. The two hosts have 8 bytes, or 20 for IPv6 by sysflag.

    0  size · 4 magic · 8 body CRC · 12 queue id · 16 flag · 20 queue offset · 28 physical offset
    36 sysflag · 40 born timestamp · 48 born host · 56 store timestamp · 64 store host
    72 reconsume times · 76 prepared transaction offset · 84 body length · 88 body
    then topic length (1 byte, 2 in version 2), topic, properties length (2), properties

Apache's DLedger stores each record as the body of an entry with this header:

    0  magic (1; 2: without a record) · 4 size of all · 8 index · 16 term · 24 position
    32 channel · 36 chain CRC · 40 body CRC (0: not used) · 44 body length · 48 body
"""

import struct
from enum import IntEnum

import numpy as np

from raftmq.store.frame import HEADER_SIZE_BYTES, PAYLOAD_SIZE_BYTES_MAX

RECORD_MAGIC_V1 = 0xDAA320A7 - (1 << 32)
RECORD_MAGIC_V2 = 0xDAA320AB - (1 << 32)
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
BLANK_SIZE_BYTES = 8  # int32 bytes remaining in the segment, int32 magic; the rest is garbage

SYSFLAG_COMPRESSED = 0x1
SYSFLAG_TRANSACTION = 0xC  # mask: 0 none, 4 prepared, 8 commit, 12 rollback
SYSFLAG_BORN_IPV6 = 0x10
SYSFLAG_STORE_IPV6 = 0x20
SYSFLAG_COMPRESSION = 0x700  # mask: 0 and 0x300 zlib, 0x100 LZ4 frame, 0x200 Zstandard
HOST_SIZE_BYTES = 8
HOST_IPV6_SIZE_BYTES = 20

RECORD_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sysflag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
# The fields after the store host.
RECORD_TAIL = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_length", ">i4")]
)
RECORD_SIZE_BYTES_MIN = 91  # IPv4, version 1, with empty body, topic and properties
BODY_AT = RECORD_HEAD.itemsize + HOST_SIZE_BYTES + 8 + HOST_SIZE_BYTES + RECORD_TAIL.itemsize

UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
UNIT_FILLER_SIZE = 0x7FFFFFFF  # size of a unit before a queue's first message
TAGS_CODE_EXTENDED_MAX = -2147483649  # an address in a ConsumeQueueExt if at or below, not a hash

CHECKPOINT_CONFIRM_AT = 32  # int64 confirmPhyOffset; four int64 before it
CHECKPOINT_SIZE_BYTES_MIN = 40
CHECKPOINT_TIMES_AT = 64  # int64 the log's own time (ms), int64, then a mark and their CRC-32C

DLEDGER_ENTRY = struct.Struct(">iiqqqiiii")
DLEDGER_RECORD, DLEDGER_NOOP, DLEDGER_BLANK = 1, 2, -1  # magic

# The largest item, since a blank record is shorter than the item that did not fit.
ITEM_SIZE_BYTES_MAX = HEADER_SIZE_BYTES + PAYLOAD_SIZE_BYTES_MAX

assert RECORD_HEAD.itemsize == 48
assert BODY_AT == 88
assert UNIT.itemsize == 20


class ItemKind(IntEnum):
    RECORD = 0
    FRAME = 1
    BLANK = 2
    HOLE = 3  # bytes that are no item, before further items
    END = 4  # no item up to the end of the segment, and no blank record


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, over UTF-16 code units, wrapped to a signed 32-bit integer."""
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2")
    value = 0
    for unit in units.tolist():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
