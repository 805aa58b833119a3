"""The frame header, the only record kind that Raft mode adds to the CommitLog.

Each Raft entry is a frame and a group commit. A frame is a 60-byte header and its payload:

    off size field
    0   4    size            a walker's step: 60 + command length for a message frame, 60 + payload
                             length otherwise
    4   4    magic           0xDAA320F0
    8   8    index           Raft index, 1-based
    16  8    term            Raft term
    24  8    position        absolute CommitLog offset of byte 0 of this header
    32  8    timestamp_ms    the leader's clock when it sealed the frame
    40  4    payload_length  bytes
    44  4    record_count    message records in the payload (0 unless kind is MESSAGES)
    48  4    kind            1 messages, 2 command, 3 no-op, 4 configuration
    52  4    payload_crc     CRC-32C of the payload
    56  4    header_crc      CRC-32C of bytes 0..55

All integers are big-endian and signed, except the two checksums. A walker that knows only records
skips `size` bytes. It finds the plain RocketMQ records of a message frame, and skips the remaining
frames entirely. A frame never spans segments.

The payload of a message frame may start with a command, the change to the replicated tables that
goes with these records, for example that a delayed message was delivered. Both are committed
atomically. Pure, from bytes to bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from google_crc32c import value as crc32c

FRAME_MAGIC = 0xDAA320F0 - (1 << 32)  # signed, as every magic is read
HEADER = struct.Struct(">iiqqqqiiiII")
HEADER_SIZE_BYTES = HEADER.size  # 60
_HEADER_HEAD = struct.Struct(">iiqqqqiiiI")  # the part that header_crc covers
_CRC = struct.Struct(">I")
PAYLOAD_SIZE_BYTES_MAX = 32 * 1024 * 1024  # twice the largest remoting frame

# Consecutive ConsumeQueue entries: topic, queue id, first queue offset, packed entries.
EntryBatch = tuple[str, int, int, bytes]

assert HEADER_SIZE_BYTES == 60
assert _HEADER_HEAD.size == 56


class FrameKind(IntEnum):
    MESSAGES = 1
    COMMAND = 2
    NOOP = 3
    CONFIGURATION = 4


class FrameError(Exception):
    """Bytes that are not a complete, undamaged frame, for `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(eq=False, repr=False, slots=True)
class Frame:
    """A sealed frame, immutable by convention. `data` is header and payload, the bytes on disk.
    Invariants: len(data) == HEADER_SIZE_BYTES + payload length; the header in `data` matches the
    attributes. `entries` are the ConsumeQueue entries of a message frame, by queue, if known."""

    index: int
    term: int
    position: int
    timestamp_ms: int
    kind: int
    record_count: int
    data: bytes
    entries: Sequence[EntryBatch] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk and on the wire, header included."""
        return len(self.data)

    @property
    def end(self) -> int:
        """CommitLog offset behind this frame."""
        return self.position + len(self.data)

    @property
    def header_crc(self) -> int:
        """The header's checksum. It covers payload checksum, position and time, so it distinguishes
        frames of equal index and term."""
        crc: int = _CRC.unpack_from(self.data, _HEADER_HEAD.size)[0]
        return crc

    @property
    def payload_position(self) -> int:
        """CommitLog offset of the payload's first byte."""
        return self.position + HEADER_SIZE_BYTES

    @property
    def payload(self) -> memoryview:
        """The payload, not copied."""
        return memoryview(self.data)[HEADER_SIZE_BYTES:]

    @property
    def records_at(self) -> int:
        """The offset in `data` of a message frame's records."""
        return _hop(self.data)

    @property
    def command(self) -> memoryview:
        """The frame's command to the replicated tables; empty if it has none."""
        if self.kind == FrameKind.COMMAND:
            return self.payload
        end = _hop(self.data) if self.kind == FrameKind.MESSAGES else HEADER_SIZE_BYTES
        return memoryview(self.data)[HEADER_SIZE_BYTES:end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.index, self.term, self.position))

    def __repr__(self) -> str:
        kind = FrameKind(self.kind).name.lower()
        return f"<Frame {self.index}@{self.term} {kind} at {self.position} +{len(self.data)}>"


def seal_frame(
    index: int,
    term: int,
    position: int,
    timestamp_ms: int,
    kind: int,
    record_count: int,
    payload: bytes,
    command_length: int = 0,
) -> Frame:
    """Build the header of `payload` and return the frame. The first `command_length` bytes of a
    message frame's payload are its command."""
    length = len(payload)
    assert length <= PAYLOAD_SIZE_BYTES_MAX, length
    hop = HEADER_SIZE_BYTES + (command_length if kind == FrameKind.MESSAGES else length)
    assert HEADER_SIZE_BYTES <= hop <= HEADER_SIZE_BYTES + length, command_length
    head = _HEADER_HEAD.pack(
        hop,
        FRAME_MAGIC,
        index,
        term,
        position,
        timestamp_ms,
        length,
        record_count,
        kind,
        crc32c(payload),
    )
    data = b"".join((head, _CRC.pack(crc32c(head)), payload))
    return Frame(index, term, position, timestamp_ms, kind, record_count, data)


def _hop(data: bytes) -> int:
    return int.from_bytes(data[:4], "big")


def parse_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, ...]:
    """Check a frame header's magic, CRC and shape; return its eleven fields in table order. Raises
    FrameError. The payload is not checked."""
    head = bytes(buffer[offset : offset + HEADER_SIZE_BYTES])
    if len(head) < HEADER_SIZE_BYTES:
        raise FrameError("frame header cut short")
    fields = HEADER.unpack(head)
    hop, magic, _, _, _, _, length, record_count, kind, _, header_crc = fields
    if magic != FRAME_MAGIC:
        raise FrameError(f"not a frame magic: {magic & 0xFFFFFFFF:#010x}")
    if header_crc != crc32c(head[:56]):
        raise FrameError("frame header CRC does not match")
    if not 0 <= length <= PAYLOAD_SIZE_BYTES_MAX or record_count < 0:
        raise FrameError("frame lengths out of range")
    if kind not in (1, 2, 3, 4):
        raise FrameError(f"unknown frame kind {kind}")
    size_bytes = HEADER_SIZE_BYTES + length
    if hop != size_bytes and not (
        kind == FrameKind.MESSAGES and HEADER_SIZE_BYTES <= hop < size_bytes
    ):
        raise FrameError("frame size does not agree with its payload length")
    return fields


def is_valid_frame(data: bytes, at: int, size: int, expected: tuple[int, int, int]) -> bool:
    """Return whether data[at:] has the frame of that index, term and position, by checksums."""
    if len(data) < at + size:
        return False
    checksum = payload_checksum(data[at : at + HEADER_SIZE_BYTES], size, expected)
    return bool(checksum == crc32c(data[at + HEADER_SIZE_BYTES : at + size]))


def payload_checksum(head: bytes, size: int, expected: tuple[int, int, int]) -> int:
    """Return the payload checksum in a frame's header; -1 unless the header is valid for a frame of
    `size` bytes and this index, term and position."""
    if len(head) < HEADER_SIZE_BYTES:
        return -1
    _, magic, index, term, position, _, length, _, _, payload_crc, header_crc = HEADER.unpack(head)
    is_it = (
        magic == FRAME_MAGIC
        and (index, term, position) == expected
        and HEADER_SIZE_BYTES + length == size
        and header_crc == crc32c(head[: _HEADER_HEAD.size])
    )
    return int(payload_crc) if is_it else -1


def parse_frame(buffer: bytes | memoryview, offset: int = 0) -> Frame:
    """Parse and verify a frame at `offset` (both CRCs). Raises FrameError."""
    fields = parse_header(buffer, offset)
    _, _, index, term, position, timestamp_ms, length, record_count, kind, payload_crc, _ = fields
    end = offset + HEADER_SIZE_BYTES + length
    if len(buffer) < end:
        raise FrameError("frame payload cut short")
    data = bytes(buffer[offset:end])
    if crc32c(data[HEADER_SIZE_BYTES:]) != payload_crc:
        raise FrameError("frame payload CRC does not match")
    return Frame(index, term, position, timestamp_ms, kind, record_count, data)
