"""The CommitLog record, a stored message in RocketMQ's format.

    off size  field                        off   size  field
    0   4     TOTALSIZE, whole record      56    8     STORETIMESTAMP ms
    4   4     MAGIC, see below             64    8/20  STOREHOST, 20 if sysFlag 0x20
    8   4     BODYCRC, top bit cleared     72    4     RECONSUMETIMES
    12  4     QUEUEID                      76    8     PREPAREDTRANSACTIONOFFSET
    16  4     FLAG, the user's own         84    4     BODYLEN
    20  8     QUEUEOFFSET                  88    B     BODY
    28  8     PHYSICALOFFSET               88+B  1/2   TOPICLEN, 2 if magic is V2
    36  4     SYSFLAG                            T     TOPIC
    40  8     BORNTIMESTAMP ms                   2     PROPERTIESLEN
    48  8/20  BORNHOST, 20 if sysFlag 0x10       P     PROPERTIES

Offsets are for IPv4 hosts; an IPv6 host moves the following fields by 12. Integers are big-endian
and signed, except the CRC. MAGIC is 0xDAA320A7 (V1, topic of at most 127 bytes) or 0xDAA320AB (V2).
A blank record (remaining bytes of the segment, 0xCBD43194) sends the reader to the next segment;
magic 0 is the end of the log. A Raft frame header (store.frame) is skipped by its size field.

`encode_record`/`decode_record` translate, `check_record` verifies without building anything,
`walk_records` iterates over records and reports why it stopped. Pure, without I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from zlib import crc32

from .frame import FRAME_MAGIC, FrameError, parse_header

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
BLANK = struct.Struct(">ii")
BLANK_SIZE_BYTES = BLANK.size  # 8: a segment always has this much left for it
HEAD_SIZE_BYTES = 88  # up to BODYLEN, IPv4 hosts
HEAD_WITH_HOSTS_BYTES = HEAD_SIZE_BYTES + 24  # where both hosts may be IPv6
FIXED_SIZE_BYTES = 91  # V1, IPv4 hosts, empty body, topic and properties
RECORD_SIZE_BYTES_MAX = 32 * 1024 * 1024
TOPIC_SIZE_BYTES_MAX_V1 = 127  # TOPICLEN is a signed byte

SYS_COMPRESSED = 0x1
SYS_TRANSACTION_MASK = 0xC
SYS_TRANSACTION_COMMIT = 0x8
SYS_TRANSACTION_ROLLBACK = 0xC
SYS_BORN_HOST_V6 = 0x10
SYS_STORE_HOST_V6 = 0x20

Host = tuple[str, int]  # (address, port)
Buffer = bytes | bytearray | memoryview

_START = struct.Struct(">iiIiiqqiq")  # TOTALSIZE .. BORNTIMESTAMP, 48 bytes
_AFTER_HOSTS = struct.Struct(">iqi")  # RECONSUMETIMES .. BODYLEN
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_PORT = struct.Struct(">i")


class StopReason(Enum):
    """The reason why bytes are not a record, or why a walk ended."""

    END_OF_BUFFER = "end of the buffer"
    BLANK = "blank record: the rest is in the next segment"
    ZEROS = "zeros: never written"
    TRUNCATED = "record goes beyond the buffer"
    BAD_MAGIC = "not a record's magic"
    BAD_SIZE = "total size does not agree with the fields"
    BAD_POSITION = "physical offset is not where it stands"
    BAD_CRC = "body CRC does not match"
    BAD_FRAME = "frame header is damaged"


class RecordError(Exception):
    """Bytes that are not a complete, undamaged record."""

    def __init__(self, reason: StopReason, detail: str = "") -> None:
        super().__init__(f"{reason.value}{': ' if detail else ''}{detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A stored message. `properties` is the stored string (store.properties reads it)."""

    topic: str
    body: bytes
    properties: bytes
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int


@lru_cache(maxsize=4096)
def pack_host(host: Host) -> bytes:
    """Return a host as stored: 4 or 16 address bytes and an int32 port. Raises ValueError."""
    return ip_address(host[0]).packed + _PORT.pack(host[1])


def unpack_host(data: bytes) -> Host:
    """Return the host in 8 or 20 stored bytes, the inverse of `pack_host`."""
    address = data[:-4]
    kind = IPv4Address if len(address) == 4 else IPv6Address
    return str(kind(address)), int(_PORT.unpack(data[-4:])[0])


def offset_message_id(store_host: Host, physical_offset: int) -> str:
    """Return the offsetMsgId: store host and CommitLog offset in upper-case hex digits."""
    return (pack_host(store_host) + _LONG.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Return (store host, physical offset) of an offsetMsgId. Raises ValueError."""
    data = bytes.fromhex(message_id)
    if len(data) not in (16, 28) or len(message_id) != 2 * len(data):
        raise ValueError(f"not an offset message id: {message_id!r}")
    return unpack_host(data[:-8]), int(_LONG.unpack(data[-8:])[0])


def body_crc(body: Buffer) -> int:
    """Return the CRC-32 of the body as stored, top bit cleared."""
    return crc32(body) & 0x7FFFFFFF


def encode_record(record: MessageRecord) -> bytes:
    """Return the stored bytes. The IPv6 bits of `sys_flag` must agree with the hosts. Raises
    ValueError when a field does not fit the format."""
    topic = record.topic.encode()
    long_topic = len(topic) > TOPIC_SIZE_BYTES_MAX_V1
    if len(topic) > 32_767 or len(record.properties) > 32_767:
        raise ValueError("topic or properties longer than 32767 bytes")
    born, stored = pack_host(record.born_host), pack_host(record.store_host)
    for host, bit in ((born, SYS_BORN_HOST_V6), (stored, SYS_STORE_HOST_V6)):
        if (len(host) == 20) != bool(record.sys_flag & bit):
            raise ValueError("sysFlag disagrees with a host's address family")
    tail = (_SHORT.pack(len(topic)) if long_topic else bytes((len(topic),))) + topic
    tail += _SHORT.pack(len(record.properties)) + record.properties
    size = 72 + len(born) + len(stored) + len(record.body) + len(tail)
    start = _START.pack(
        size,
        MAGIC_V2 if long_topic else MAGIC_V1,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp_ms,
    )
    after = _AFTER_HOSTS.pack(
        record.reconsume_times, record.prepared_transaction_offset, len(record.body)
    )
    stamp = _LONG.pack(record.store_timestamp_ms)
    return b"".join((start, born, stamp, stored, after, record.body, tail))


def hosts_extra(sys_flag: int) -> int:
    """Return the number of bytes that IPv6 hosts add to the fixed head."""
    return (12 if sys_flag & SYS_BORN_HOST_V6 else 0) + (12 if sys_flag & SYS_STORE_HOST_V6 else 0)


def born_timestamp_at(buffer: Buffer, offset: int) -> int:
    """Return BORNTIMESTAMP of the record at `offset`, which has at least 48 bytes."""
    return int(_LONG.unpack_from(buffer, offset + 40)[0])


def born_host_at(buffer: Buffer, offset: int) -> bytes:
    """Return BORNHOST, address and port, of the record at `offset`, which has at least 68 bytes."""
    sys_flag = _INT.unpack_from(buffer, offset + 36)[0]
    size = 20 if sys_flag & SYS_BORN_HOST_V6 else 8
    return bytes(memoryview(buffer)[offset + 48 : offset + 48 + size])


def store_timestamp_at(buffer: Buffer, offset: int) -> int:
    """Return STORETIMESTAMP of the record at `offset`, which has at least 76 bytes."""
    sys_flag = _INT.unpack_from(buffer, offset + 36)[0]
    return int(_LONG.unpack_from(buffer, offset + (68 if sys_flag & SYS_BORN_HOST_V6 else 56))[0])


def _tail(buffer: Buffer, offset: int) -> tuple[int, int, int, int, int]:
    """Return (size, body start, length, topic start, length), checked. Raises RecordError."""
    available = len(buffer) - offset
    if available < BLANK_SIZE_BYTES:
        raise RecordError(StopReason.TRUNCATED, f"{available} bytes left")
    size, magic = BLANK.unpack_from(buffer, offset)
    if magic == MAGIC_BLANK:
        raise RecordError(StopReason.BLANK)
    if magic == 0:
        raise RecordError(StopReason.ZEROS)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(StopReason.BAD_MAGIC, f"{magic & 0xFFFFFFFF:#010x}")
    if not FIXED_SIZE_BYTES <= size <= RECORD_SIZE_BYTES_MAX:
        raise RecordError(StopReason.BAD_SIZE, str(size))
    if size > available:
        raise RecordError(StopReason.TRUNCATED, f"{size} bytes wanted, {available} left")
    end = offset + size
    sys_flag = _INT.unpack_from(buffer, offset + 36)[0]
    body_start = offset + HEAD_SIZE_BYTES + hosts_extra(sys_flag)
    wide = magic == MAGIC_V2
    if body_start + (4 if wide else 3) > end:
        raise RecordError(StopReason.BAD_SIZE, "hosts")
    body_length = _INT.unpack_from(buffer, body_start - 4)[0]
    topic_start = body_start + body_length + (2 if wide else 1)
    if body_length < 0 or topic_start + 2 > end:
        raise RecordError(StopReason.BAD_SIZE, f"body of {body_length}")
    if wide:
        topic_length = _SHORT.unpack_from(buffer, topic_start - 2)[0]
    else:
        topic_length = buffer[topic_start - 1]
        topic_length -= 256 if topic_length > 127 else 0
    if topic_length < 0 or topic_start + topic_length + 2 > end:
        raise RecordError(StopReason.BAD_SIZE, f"topic of {topic_length}")
    properties_length = _SHORT.unpack_from(buffer, topic_start + topic_length)[0]
    if properties_length < 0 or topic_start + topic_length + 2 + properties_length != end:
        raise RecordError(StopReason.BAD_SIZE, f"properties of {properties_length}")
    return size, body_start, body_length, topic_start, topic_length


def check_record(
    buffer: Buffer, offset: int = 0, position: int | None = None, *, check_body: bool = True
) -> int:
    """Verify lengths, body CRC, PHYSICALOFFSET if given; return the size. Raises RecordError."""
    size, body_start, body_length, _, _ = _tail(buffer, offset)
    if position is not None:
        stored_position = _LONG.unpack_from(buffer, offset + 28)[0]
        if stored_position != position:
            raise RecordError(
                StopReason.BAD_POSITION, f"says {stored_position}, stands at {position}"
            )
    if check_body:
        stored_position = struct.unpack_from(">I", buffer, offset + 8)[0]
        body = memoryview(buffer)[body_start : body_start + body_length]
        if stored_position != body_crc(body):
            raise RecordError(StopReason.BAD_CRC)
    return size


def decode_record(buffer: Buffer, offset: int = 0, *, check_body: bool = True) -> MessageRecord:
    """Return the record at `offset`, verified. Raises RecordError."""
    check_record(buffer, offset, check_body=check_body)
    size, body_start, body_length, topic_start, topic_length = _tail(buffer, offset)
    fields = _START.unpack_from(buffer, offset)
    _, _, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = fields
    view = memoryview(buffer)
    at = offset + 48
    born_size = 20 if sys_flag & SYS_BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & SYS_STORE_HOST_V6 else 8
    born_host = bytes(view[at : at + born_size])
    store_timestamp = _LONG.unpack_from(buffer, at + born_size)[0]
    at += born_size + 8
    store_host = bytes(view[at : at + store_size])
    reconsume_times, prepared_offset, _ = _AFTER_HOSTS.unpack_from(buffer, at + store_size)
    return MessageRecord(
        topic=str(view[topic_start : topic_start + topic_length], "utf-8", "replace"),
        body=bytes(view[body_start : body_start + body_length]),
        properties=bytes(view[topic_start + topic_length + 2 : offset + size]),
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp,
        born_host=unpack_host(born_host),
        store_timestamp_ms=store_timestamp,
        store_host=unpack_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
    )


@dataclass(eq=False, slots=True)
class RecordWalk:
    """Iterates once over records as (offset in the buffer, size). After the iteration `end` is the
    buffer offset behind the last good record, `stop` the reason of the end, and `detail` its text.
    Frame headers are skipped and not reported."""

    _buffer: Buffer
    _base: int | None
    _check_body: bool
    end: int = 0
    stop: StopReason = StopReason.END_OF_BUFFER
    detail: str = ""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        buffer, base = self._buffer, self._base
        while self.end < len(buffer):
            offset = self.end
            try:
                if len(buffer) - offset >= 8 and _INT.unpack_from(buffer, offset + 4)[0] == (
                    FRAME_MAGIC
                ):
                    self.end += parse_header(buffer, offset)[0]
                    continue
                position = None if base is None else base + offset
                size = check_record(buffer, offset, position, check_body=self._check_body)
            except RecordError as error:
                self.stop, self.detail = error.reason, str(error)
                return
            except FrameError as error:
                self.stop, self.detail = StopReason.BAD_FRAME, error.reason
                return
            self.end += size
            yield offset, size
        if self.end > len(buffer):  # a truncated frame that is no message frame
            self.stop = StopReason.TRUNCATED


def walk_records(buffer: Buffer, base: int | None = None, *, check_body: bool = True) -> RecordWalk:
    """Walk records from byte 0 of `buffer`, which is at CommitLog offset `base`. With base None,
    PHYSICALOFFSET is not compared (a pull body)."""
    return RecordWalk(buffer, base, check_body)
