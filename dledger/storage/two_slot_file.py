"""A small record in two copies, which survives crashes during its rewrite, and rot.

    8 KiB file; slot 0 at byte 0, slot 1 at byte 4096, each of this shape (big-endian):

    off size field
    0   4    magic      0x52534C54 ("RSLT")
    4   2    version    1
    6   2    length     bytes of content, at most 1024
    8   8    sequence   rises by one with every save
    16  n    content
    16+n 4   crc        CRC-32C of bytes 0..16+n-1

`save` writes slot 0, fdatasync, slot 1, fdatasync, and returns. So at rest both are equal, and if a
slot is bad the other has the last saved content. A slot is bad because of rot, or because of a
crash before `save` returned, when nothing depended on the new content. For the same reason the
higher sequence counts of two intact slots that differ. `load` makes both equal again.

The file is created under another name and renamed when its first record is durable. So its own name
always has an intact slot, and two bad slots mean damage, never 'new'. Then the content is lost, and
the next `save` makes a new file.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from raftmq.store.disk import Disk, File

_HEAD = struct.Struct(">IHHQ")
_CRC = struct.Struct(">I")
_MAGIC = 0x52534C54
_VERSION = 1
SLOT_SIZE_BYTES = 4096  # a page, so that the slots never share a sector
CONTENT_SIZE_BYTES_MAX = 3072
# The names of such files in a member's directory.
FILES = ("boot", "configuration", "group", "hardstate", "installed", "notes", "trim")


class SlotsDamaged(Exception):
    """Neither slot of an existing file is intact; its content is lost."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class SlotFile:
    """The record in the file `path` of `disk`. `load` or the first `save` opens it."""

    def __init__(self, disk: Disk, path: str) -> None:
        assert path.rpartition("/")[2] in FILES, path
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._sequence = 0
        self._replaceable = False  # its content is lost, or its creation is incomplete

    def load(self) -> bytes | None:
        """Return the last saved content; None without a file. Raises SlotsDamaged, OSError."""
        if not self._disk.exists(self._path):
            return None
        if self._file is None:
            self._file = self._disk.open(self._path)
        file = self._file
        slots = [
            _parse_slot(file.pread(slot * SLOT_SIZE_BYTES, SLOT_SIZE_BYTES)) for slot in (0, 1)
        ]
        valid = [parsed for parsed in slots if not isinstance(parsed, str)]
        if not valid:
            self._replaceable = True
            self.close()
            reasons = [f"slot {slot} {parsed}" for slot, parsed in enumerate(slots)]
            raise SlotsDamaged(self._path, "; ".join(reasons))
        self._sequence, newest = max(valid)
        # If a save ended before its fdatasync, the content (and the name of a new file) may be in
        # the page cache only. Nothing may act on it, such as a repeated vote, while a power cut
        # could revert it. It is written again, because the kernel marks pages clean whose sync
        # failed.
        self._sync_name()
        for slot in (0, 1):
            self._write(slot, newest)
        return newest

    def save(self, content: bytes) -> None:
        """Save `content` durably. After an OSError nothing is promised; it may be repeated."""
        assert len(content) <= CONTENT_SIZE_BYTES_MAX, len(content)
        if self._file is None:
            assert self._replaceable or not self._disk.exists(self._path), (
                f"{self._path} must be loaded before a save"
            )
            self._create(content)
            return
        self._sequence += 1
        self._write(0, content)
        self._write(1, content)

    def _write(self, slot: int, content: bytes) -> None:
        assert self._file is not None
        self._file.pwrite(slot * SLOT_SIZE_BYTES, _slot_bytes(self._sequence, content))
        self._file.sync()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self, content: bytes) -> None:
        self._disk.makedirs(self._path.rpartition("/")[0])
        temporary = self._path + ".new"
        file = self._disk.open(temporary)
        try:
            file.truncate(0)  # bytes of an incomplete creation
            slot = _slot_bytes(1, content).ljust(SLOT_SIZE_BYTES, b"\0")
            file.pwrite(0, slot + slot)
            file.sync()
        finally:
            file.close()
        self._replaceable = True
        self._disk.rename(temporary, self._path)
        self._sync_name()
        self._file = self._disk.open(self._path)
        self._sequence, self._replaceable = 1, False

    def _sync_name(self) -> None:
        directory = self._path.rpartition("/")[0]
        self._disk.sync_directory(directory)
        self._disk.sync_directory(directory.rpartition("/")[0])


def _slot_bytes(sequence: int, content: bytes) -> bytes:
    body = _HEAD.pack(_MAGIC, _VERSION, len(content), sequence) + content
    return body + _CRC.pack(crc32c(body))


def _parse_slot(data: bytes) -> tuple[int, bytes] | str:
    """Return (sequence, content), or the reason why the slot is bad."""
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
