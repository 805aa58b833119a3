"""A small record that survives a crash in the middle of its own rewrite: two slots, used in turn.

    8 KiB file; slot 0 at byte 0, slot 1 at byte 4096, each of this shape (big-endian):

    off size field
    0   4    magic      0x52534C54 ("RSLT")
    4   2    version    1
    6   2    length     bytes of content, at most 1024
    8   8    sequence   rises by one with every save; the higher one of two whole slots counts
    16  n    content
    16+n 4   crc        CRC-32C of bytes 0..16+n-1

`save` writes the slot that does not hold the newest record and returns after fdatasync. A crash in
the middle tears at most that slot, and the other one still says what was durable before.

The file comes into being under another name and is renamed when its first record is durable. So
under its own name there is always a whole slot, and two bad ones mean damage, never 'new'. What
this cannot see: rot of the newest slot alone looks like a torn write, and the older record is used.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from store.disk import Disk, File

_HEAD = struct.Struct(">IHHQ")
_CRC = struct.Struct(">I")
_MAGIC = 0x52534C54
_VERSION = 1
SLOT_SIZE_BYTES = 4096  # one page: the two slots never share a sector
FILE_SIZE_BYTES = 2 * SLOT_SIZE_BYTES
CONTENT_SIZE_BYTES_MAX = 1024


class SlotsDamaged(Exception):
    """Neither slot of an existing file is whole; what it held is lost."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class SlotFile:
    """The record in the file `path` of `disk`. Opened by `load` or by the first `save`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._sequence = 0
        self._slot = 0  # which slot holds the newest record

    def load(self) -> bytes | None:
        """The newest whole record; None if there is no file yet. Raises SlotsDamaged, OSError."""
        if not self._disk.exists(self._path):
            return None
        if self._file is None:
            self._file = self._disk.open(self._path)
        newest: bytes | None = None
        reasons = []
        for slot in (0, 1):
            data = self._file.pread(slot * SLOT_SIZE_BYTES, SLOT_SIZE_BYTES)
            parsed = _parse_slot(data)
            if isinstance(parsed, str):
                reasons.append(f"slot {slot} {parsed}")
                continue
            sequence, content = parsed
            if newest is None or sequence > self._sequence:
                newest, self._sequence, self._slot = content, sequence, slot
        if newest is None:
            raise SlotsDamaged(self._path, "; ".join(reasons))
        # A save killed before its fdatasync may live in the page cache only, and so may the
        # name of a file killed while it was made. Nobody may act on it (grant that vote again,
        # say) before a power cut cannot take it back any more.
        self._file.sync()
        self._sync_name()
        return newest

    def save(self, content: bytes) -> None:
        """Make `content` durable; returns only then. Raises OSError: then nothing is promised."""
        assert len(content) <= CONTENT_SIZE_BYTES_MAX, len(content)
        if self._file is None:
            assert not self._disk.exists(self._path), f"{self._path} must be loaded before a save"
            self._create(content)
            return
        slot = 1 - self._slot
        sequence = self._sequence + 1
        self._file.pwrite(slot * SLOT_SIZE_BYTES, _slot_bytes(sequence, content))
        self._file.sync()
        self._slot, self._sequence = slot, sequence

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self, content: bytes) -> None:
        self._disk.makedirs(self._path.rpartition("/")[0])
        temporary = self._path + ".new"
        file = self._disk.open(temporary)
        try:
            file.truncate(0)  # a crashed creation may have left bytes
            file.pwrite(0, _slot_bytes(1, content).ljust(FILE_SIZE_BYTES, b"\0"))
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
        self._sync_name()
        self._file = self._disk.open(self._path)
        self._slot, self._sequence = 0, 1

    def _sync_name(self) -> None:
        directory = self._path.rpartition("/")[0]
        self._disk.sync_directory(directory)
        self._disk.sync_directory(directory.rpartition("/")[0])


def _slot_bytes(sequence: int, content: bytes) -> bytes:
    body = _HEAD.pack(_MAGIC, _VERSION, len(content), sequence) + content
    return body + _CRC.pack(crc32c(body))


def _parse_slot(data: bytes) -> tuple[int, bytes] | str:
    """(sequence, content), or what is wrong with the slot."""
    if len(data) < _HEAD.size + _CRC.size:
        return "is cut short"
    magic, version, length, sequence = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return "has no record"
    end = _HEAD.size + length
    if length > CONTENT_SIZE_BYTES_MAX or len(data) < end + _CRC.size:
        return "has a length out of range"
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return "has a checksum that does not match"
    if version != _VERSION:
        return f"has version {version}, this program knows {_VERSION}"
    return sequence, data[_HEAD.size : end]
