"""The bytes of the HA stream (port 10912), and their split into complete records.

    slave → master   int64 offset                                 "I have everything below"
    master → slave   int64 offset | int32 size | size bytes       the log from that offset on;
                                                                  size 0: a heartbeat

The slave's first report is the offset to continue at; 0 leaves that to the master. The bytes are
the master's CommitLog files, split anywhere, with blank records and the bytes behind them.
`RecordRuns` holds a record back until it is complete and valid, so a slave's log always ends with a
complete record. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from raftmq.store.record import (
    BLANK,
    FIXED_SIZE_BYTES,
    HEAD_SIZE_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    RecordError,
    check_record,
    store_timestamp_at,
)

REPORT = struct.Struct(">q")
TRANSFER_HEADER = struct.Struct(">qi")
TRANSFER_SIZE_MAX = 4 << 20  # longer than Apache's slave could accept
HELD_BACK_MAX = RECORD_SIZE_BYTES_MAX + TRANSFER_SIZE_MAX

# TOTALSIZE, MAGIC, BODYCRC, PHYSICALOFFSET, SYSFLAG, BODYLEN of a record with IPv4 hosts
_HEAD = struct.Struct(">iiI16xqi44xi")
_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

assert _HEAD.size == HEAD_SIZE_BYTES


class HaProtocolError(Exception):
    """A protocol violation, or a log that does not continue ours; the connection ends."""


class Transfer(NamedTuple):
    """A frame from the master; `body` is empty in a heartbeat."""

    offset: int
    body: bytes


class ReportReader:
    """Parses a slave's reports, of which the last counts."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the complete reports, oldest first. Raises HaProtocolError."""
        data = self._rest + data
        complete = len(data) - len(data) % REPORT.size
        self._rest = data[complete:]
        offsets = [offset for (offset,) in REPORT.iter_unpack(data[:complete])]
        if any(offset < 0 for offset in offsets):
            raise HaProtocolError(f"a slave reports offset {min(offsets)}")
        return offsets


class TransferReader:
    """Parses the master's frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Transfer]:
        """Return the complete frames. Raises HaProtocolError."""
        buffer = self._buffer
        buffer += data
        transfers: list[Transfer] = []
        at = 0
        while len(buffer) - at >= TRANSFER_HEADER.size:
            offset, size = TRANSFER_HEADER.unpack_from(buffer, at)
            if offset < 0 or not 0 <= size <= TRANSFER_SIZE_MAX:
                raise HaProtocolError(f"a master sends {size} bytes for offset {offset}")
            end = at + TRANSFER_HEADER.size + size
            if end > len(buffer):
                break
            transfers.append(Transfer(offset, bytes(buffer[at + TRANSFER_HEADER.size : end])))
            at = end
        del buffer[:at]
        return transfers


def transfer(offset: int, body: bytes | memoryview) -> list[bytes | memoryview]:
    """Return a frame, as the buffers to write."""
    return [TRANSFER_HEADER.pack(offset, len(body)), body]


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes to append at `position`: complete records, the last at `last_record`; or the end of a
    segment from its blank record on (`last_record` -1)."""

    position: int
    data: bytes
    last_record: int

    @property
    def newest_ms(self) -> int:
        return store_timestamp_at(self.data, self.last_record - self.position)


class RecordRuns:
    """Splits a stream of log bytes that starts at `position` into runs to append.

    At most HELD_BACK_MAX bytes are held back."""

    def __init__(self, position: int, segment_size_bytes: int) -> None:
        self.position = position  # of the first byte held back
        self._segment_size_bytes = segment_size_bytes
        self._held = b""

    @property
    def received(self) -> int:
        """The offset of the stream's next byte."""
        return self.position + len(self._held)

    def feed(self, data: bytes) -> list[Run]:
        """Return the complete runs. Raises HaProtocolError."""
        data = self._held + data if self._held else data
        runs: list[Run] = []
        at = 0
        while True:
            position = self.position + at
            room = self._segment_size_bytes - position % self._segment_size_bytes
            end, last = _records_end(data, at, position, room)
            if end > at:
                runs.append(Run(position, data[at:end], last))
            room -= end - at
            at = end
            if len(data) - at < BLANK.size or BLANK.unpack_from(data, at)[1] != MAGIC_BLANK:
                break
            size = BLANK.unpack_from(data, at)[0]
            if size != room:
                raise HaProtocolError(
                    f"a blank record of {size} bytes at {self.position + at}, where {room} are "
                    "left of the segment: the master's mappedFileSizeCommitLog is another one"
                )
            if len(data) - at < size:
                break
            runs.append(Run(self.position + at, data[at : at + size], -1))
            at += size
        self.position += at
        self._held = data[at:]
        if len(self._held) > HELD_BACK_MAX:
            raise HaProtocolError(f"no record ends within {len(self._held)} bytes")
        return runs


def _records_end(data: bytes, start: int, position: int, room: int) -> tuple[int, int]:
    """Return the end in `data` and the position in the log of the last complete record from `start`
    on. `start` is `position` of the log, with `room` bytes left in its segment. Raises
    HaProtocolError."""
    view = memoryview(data)
    head = _HEAD.unpack_from
    shift = position - start
    at, last, limit = start, start, len(data)
    while limit - at >= HEAD_SIZE_BYTES:
        size, magic, crc, stored_position, sys_flag, body_size = head(data, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            if magic == MAGIC_BLANK:
                break
            raise HaProtocolError(f"no record at {at + shift}: {magic & 0xFFFFFFFF:#010x}")
        end = at + size
        if stored_position != at + shift or not FIXED_SIZE_BYTES <= size <= RECORD_SIZE_BYTES_MAX:
            raise HaProtocolError(
                f"a record at {at + shift} says {stored_position}, and {size} bytes"
            )
        if end + BLANK.size - start > room:
            raise HaProtocolError(
                f"a record at {at + shift} does not fit its segment: the master's "
                "mappedFileSizeCommitLog is another one"
            )
        if end > limit:
            break
        if sys_flag & _V6:
            try:
                check_record(data, at, at + shift)
            except RecordError as error:
                raise HaProtocolError(f"at {at + shift}: {error}") from error
        elif (
            not 0 <= body_size <= size - FIXED_SIZE_BYTES
            or crc32(view[at + 88 : at + 88 + body_size]) & 0x7FFFFFFF != crc
        ):
            raise HaProtocolError(f"a record at {at + shift} is damaged")
        last, at = at, end
    return at, last + shift
