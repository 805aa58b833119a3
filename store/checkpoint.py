"""The checkpoint and abort files.

    checkpoint, 4096 bytes: five int64, and a checksum of ours
    0   physicMsgTimestamp   store time up to which the CommitLog was durable
    8   logicsMsgTimestamp   store time up to which the ConsumeQueues were durable
    16  indexMsgTimestamp    store time up to which full index files were durable
    24  masterFlushedOffset  here: the CommitLog was once durable up to this offset
    32  confirmPhyOffset     here: every ConsumeQueue is durable and complete up to this offset;
                             in Raft mode the end of a committed frame
    40  "RMQC"               here: a checksum follows (zeros: written by an Apache broker)
    44  CRC-32C of bytes 0..39
    64  int64, the log's own time when the store was last open, in ms (store.retention)
    72  int64, its `since_ms`
    80  "RMQT", CRC-32C of bytes 64..79; zeros: no such time is known

The abort file is empty and exists while the store is open. If it exists at boot, the last stop was
unclean. Apache's brokers read and write the same files.

`masterFlushedOffset` is the CommitLog's durable mark. It is written after each fdatasync but not
synced itself. A kill keeps it exact; a power cut may set it back, so that more damage counts as a
torn tail. Lowering it is synced. The 48 bytes share a sector and never tear.

If the checksum does not match (`damaged`), no field is trusted. Times and `confirmPhyOffset` count
as zero, which costs work. The durable mark counts as lost, and nothing is treated as a torn tail
until the mark is lowered to the recovered end. The next `write` or `raise_durable` writes a
complete record. An Apache broker leaves our checksum unchanged, so classic mode, which cannot fetch
frames again, ignores the checksum. A file of zeros also counts as a lost mark.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from .disk import Disk, File

CHECKPOINT_SIZE_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
_SEAL = struct.Struct(">4sI")
_SEAL_MAGIC = b"RMQC"
_RECORD_SIZE_BYTES = _FIELDS.size + _SEAL.size
_TIMES_AT = 64
_TIMES = struct.Struct(">qq")
_TIMES_MAGIC = b"RMQT"


class CheckpointFields(NamedTuple):
    """The file's five numbers; times in ms, offsets absolute."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    durable_offset: int = 0
    confirm_offset: int = 0


class LogTimes(NamedTuple):
    """The log's own time when its store was last open, and the time since which the wall clock is
    doubted (store.retention). 0 means unknown, or not doubted."""

    own_ms: int = 0
    since_ms: int = 0


class Checkpoint:
    """The open checkpoint file, with the CommitLog's durable mark."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._file: File | None = None
        self.fields = CheckpointFields()
        self.times = LogTimes()
        self.damaged = False  # set by `open`
        self.lost = False  # the durable mark is unknown

    def open(self, *, verify: bool = False) -> None:
        """Read the file, or create it with zeros and make its name durable. The checksum is checked
        only with `verify`; classic mode reads the numbers in any case."""
        existed = self._disk.exists(self.path)
        self._file = self._disk.open(self.path, allocate_bytes=CHECKPOINT_SIZE_BYTES)
        self.fields = CheckpointFields()
        if not existed:
            self._file.sync()
            self._disk.sync_directory(self.path.rpartition("/")[0])
        data = self._file.pread(0, _RECORD_SIZE_BYTES)
        self.damaged = self.lost = verify and not _is_valid(data)
        if not self.damaged:
            self.fields = CheckpointFields(*_FIELDS.unpack_from(data))
        self.times = _read_times(self._file.pread(_TIMES_AT, _TIMES.size + _SEAL.size))

    @property
    def durable_offset(self) -> int:
        return self.fields.durable_offset

    @property
    def committed_offset(self) -> int:
        return self.fields.confirm_offset

    def raise_durable(self, offset: int) -> None:
        """Record that the CommitLog is durable up to `offset`; the record itself is not synced."""
        assert self._file is not None
        self.fields = self.fields._replace(durable_offset=offset)
        self.lost = False  # the caller knows an offset, so it has read the log
        self._file.pwrite(0, self._record())

    def lower_durable(self, offset: int) -> None:
        """Lower the durable mark, before the log is truncated at `offset`. Durable on return."""
        self.raise_durable(offset)
        assert self._file is not None
        self._file.sync()

    def write(self, fields: CheckpointFields) -> None:
        """Write how far the last flush made files durable; `sync` makes the record itself durable.
        The durable mark is unchanged."""
        assert self._file is not None
        self.fields = fields._replace(durable_offset=self.fields.durable_offset)
        if not self.lost:  # the unknown durable mark must not look valid
            self._file.pwrite(0, self._record())

    def write_times(self, times: LogTimes) -> None:
        """Write the log's own time without a sync. Raises OSError."""
        assert self._file is not None
        self.times = times
        numbers = _TIMES.pack(*times)
        self._file.pwrite(_TIMES_AT, numbers + _SEAL.pack(_TIMES_MAGIC, crc32c(numbers)))

    def _record(self) -> bytes:
        numbers = _FIELDS.pack(*self.fields)
        return numbers + _SEAL.pack(_SEAL_MAGIC, crc32c(numbers))

    def sync(self) -> None:
        """Make the file durable. Blocking; may run in the pool."""
        assert self._file is not None
        self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _read_times(data: bytes) -> LogTimes:
    numbers, seal = data[: _TIMES.size], data[_TIMES.size :]
    if len(seal) < _SEAL.size or _SEAL.unpack(seal) != (_TIMES_MAGIC, crc32c(numbers)):
        return LogTimes()
    return LogTimes(*_TIMES.unpack(numbers))


def _is_valid(data: bytes) -> bool:
    """Return whether the checksum matches, or an Apache broker wrote numbers without a checksum."""
    magic, checksum = _SEAL.unpack_from(data, _FIELDS.size)
    numbers = data[: _FIELDS.size]
    if magic == _SEAL_MAGIC:
        return bool(checksum == crc32c(numbers))
    return not any(data[_FIELDS.size :]) and any(numbers) and min(_FIELDS.unpack(numbers)) >= 0


class AbortFile:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def exists(self) -> bool:
        """Return whether the file exists, that is, the last stop was unclean."""
        return self._disk.exists(self.path)

    def create(self) -> None:
        """Create the file; durable on return."""
        self._disk.open(self.path).close()
        self._disk.sync_directory(self.path.rpartition("/")[0])

    def remove(self) -> None:
        """Remove the file; durable on return."""
        self._disk.remove(self.path)
        self._disk.sync_directory(self.path.rpartition("/")[0])
