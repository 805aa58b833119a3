"""One IndexFile: a hash table on disk from keys to CommitLog offsets.

    index/yyyyMMddHHmmssSSS    40 + slots * 4 + entries * 20 bytes, sparse
    0   beginTimestamp  int64  store time in ms of the first entry's message
    8   endTimestamp    int64  of the last one's
    16  beginPhyOffset  int64  CommitLog offset of the first entry's message
    24  endPhyOffset    int64  of the last one's (here possibly of a later message without keys)
    32  hashSlotCount   int32  slots in use
    36  indexCount      int32  number of the next entry; begins at 1, entry 0 stays unused
    40                         per slot an int32: number of its newest entry, 0 for none
        entry: int32 key hash, int64 offset, int32 seconds since beginTimestamp, int32 the entry
        before it in the same slot, 0 for none

The newest file is appended to: entries are written at once, one write for many; the slots are kept
in memory and written by a flush, page by page; the header comes last, once the rest is durable. So
after a crash the entries below the header's count are good, and the slots can be made from them
(`rebuild`). A full file never changes again and keeps no slots in memory.

Times in entries are whole seconds, rounded down: a match of `select` may lie up to a second outside
the range asked for, and its hash may be another key's. The record decides.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raftmq.store.disk import Disk, File
from raftmq.store.indexkeys import IndexKey

HASH_SLOTS = 5_000_000  # maxHashSlotNum
INDEX_ENTRIES = 20_000_000  # maxIndexNum
HEADER = struct.Struct(">qqqqii")
HEADER_SIZE_BYTES = HEADER.size
ENTRY = struct.Struct(">iqii")
ENTRY_SIZE_BYTES = ENTRY.size
SLOT_SIZE_BYTES = 4
_SLOT = struct.Struct(">i")
_PAGE_SHIFT = 10  # slots are written in pages of 1024, which are 4096 bytes
_PAGE = 1 << _PAGE_SHIFT
_PAGES_AT_ONCE = 256  # 1 MiB a write
_ENTRIES_AT_ONCE = 16_384
_SECONDS_MAX = 0x7FFFFFFF

assert HEADER_SIZE_BYTES == 40
assert ENTRY_SIZE_BYTES == 20


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The size of a file. `entries` counts the unused entry 0."""

    slots: int = HASH_SLOTS
    entries: int = INDEX_ENTRIES

    @property
    def file_size_bytes(self) -> int:
        return HEADER_SIZE_BYTES + self.slots * SLOT_SIZE_BYTES + self.entries * ENTRY_SIZE_BYTES


class IndexFile:
    """One index file. For one caller (the loop), except `FileFlush.run`."""

    def __init__(self, disk: Disk, path: str, limits: IndexLimits) -> None:
        """Open it, sparse if it is new. Raises OSError."""
        self.disk = disk
        self.path = path
        self.limits = limits
        self.file: File = disk.open(path)
        if self.file.size_bytes == 0:
            self.file.truncate(limits.file_size_bytes)
        self._entries_at = HEADER_SIZE_BYTES + limits.slots * SLOT_SIZE_BYTES
        header = self.file.pread(0, HEADER_SIZE_BYTES).ljust(HEADER_SIZE_BYTES, b"\0")
        fields: tuple[int, ...] = HEADER.unpack(header)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = fields[:4]
        self.used_slots = fields[4]
        self.count = max(1, fields[5])  # number of the next entry
        self.slots: array[int] | None = None  # in memory while the file is appended to
        self.dirty = bytearray()  # a flag for each page of slots
        self.changed = False  # since the last flush

    @property
    def full(self) -> bool:
        return self.count >= self.limits.entries

    @property
    def plausible(self) -> bool:
        """True if size and header can be those of an index file with these limits."""
        return (
            self.file.size_bytes == self.limits.file_size_bytes
            and self.count <= self.limits.entries
            and 0 <= self.used_slots <= self.limits.slots
            and 0 <= self.begin_offset <= self.end_offset
            and 0 <= self.begin_ms <= self.end_ms
        )

    # -- writing ------------------------------------------------------------------------------

    def append(self, keys: Sequence[IndexKey]) -> int:
        """Add as many of `keys`, in log order, as there is room for; return how many. One write.

        Raises OSError, the file then being as before."""
        keys = keys[: self.limits.entries - self.count]
        if not keys:
            return 0
        slots = self._loaded_slots()
        first = number = self.count
        begin_ms = self.begin_ms if first > 1 else keys[0][2]
        slot_count, dirty, pack = self.limits.slots, self.dirty, ENTRY.pack
        used, last_ms, seconds = 0, -1, 0
        parts: list[bytes] = []
        add = parts.append
        for hashed, offset, store_ms in keys:
            if store_ms != last_ms:
                last_ms = store_ms
                seconds = min(max(0, store_ms - begin_ms) // 1000, _SECONDS_MAX)
            slot = hashed % slot_count
            before = slots[slot]
            if not before:
                used += 1
            add(pack(hashed, offset, seconds, before))
            slots[slot] = number
            dirty[slot >> _PAGE_SHIFT] = 1
            number += 1
        try:
            self.file.pwrite(self._entries_at + first * ENTRY_SIZE_BYTES, b"".join(parts))
        except OSError:
            for part in reversed(parts):
                hashed, _, _, before = ENTRY.unpack(part)
                slots[hashed % slot_count] = before
            raise
        if first == 1:
            self.begin_ms, self.begin_offset = begin_ms, keys[0][1]
        self.count = number
        self.used_slots += used
        self.mark(keys[-1][1], last_ms)
        return len(keys)

    def mark(self, offset: int, store_ms: int) -> None:
        """Note that the log is indexed up to and including the message at `offset`."""
        if self.count == 1 and not self.end_offset:  # no entry yet: as Apache begins a next file
            self.begin_offset, self.begin_ms = offset, store_ms
        self.end_offset, self.end_ms = offset, max(store_ms, self.end_ms)
        self.changed = True

    def _loaded_slots(self) -> array[int]:
        if self.slots is None:
            data = self.file.pread(HEADER_SIZE_BYTES, self.limits.slots * SLOT_SIZE_BYTES)
            self.slots = _native(data)
            self.dirty = bytearray((self.limits.slots + _PAGE - 1) >> _PAGE_SHIFT)
        return self.slots

    def cut(self, offset: int, end_ms: int | None = None) -> None:
        """Drop the entries of messages at or above `offset` and rebuild the slots from the rest.
        `end_ms`: store time of the last message kept, if known. Blocking; flush after it.

        Raises OSError."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] >= offset:
                high = middle
            else:
                low = middle + 1
        self.count = low
        if low > 1:
            _, last, seconds, _ = self.entry(low - 1)
            self.end_offset = last
            self.end_ms = self.begin_ms + seconds * 1000 if end_ms is None else end_ms
        self.rebuild()

    def drop_bad(self) -> bool:
        """Read every entry and truncate at the first invalid one; return whether there was one.
        Blocking. Raises OSError."""
        number, offset, bad = 1, self.begin_offset, False
        for chunk in self._chunks():
            for hashed, at, seconds, before in ENTRY.iter_unpack(chunk):
                bad = hashed < 0 or seconds < 0 or not offset <= at <= self.end_offset
                if bad or not 0 <= before < number:
                    self.count = number
                    self.cut(offset)  # with the message before: all its keys come again
                    return True
                offset = at
                number += 1
        return False

    def rebuild(self) -> None:
        """Rebuild the slots from the entries, and zero all behind the entries. Blocking."""
        end = self._entries_at + self.count * ENTRY_SIZE_BYTES
        self.file.truncate(end)
        self.file.truncate(self.limits.file_size_bytes)
        was = _native(self.file.pread(HEADER_SIZE_BYTES, self.limits.slots * SLOT_SIZE_BYTES))
        slots = array("i", bytes(self.limits.slots * SLOT_SIZE_BYTES))
        number, slot_count = 1, self.limits.slots
        for chunk in self._chunks():
            for hashed, _, _, _ in ENTRY.iter_unpack(chunk):
                slots[hashed % slot_count] = number
                number += 1
        self.slots = slots
        self.used_slots = slot_count - slots.count(0)
        self.dirty = bytearray(
            slots[first : first + _PAGE] != was[first : first + _PAGE]
            for first in range(0, slot_count, _PAGE)
        )
        self.changed = True

    def _chunks(self) -> Iterator[bytes]:
        for first in range(1, self.count, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, self.count - first) * ENTRY_SIZE_BYTES
            yield self.file.pread(self._entries_at + first * ENTRY_SIZE_BYTES, size)

    # -- reading ------------------------------------------------------------------------------

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (hash, offset, seconds, entry before) of one entry."""
        at = self._entries_at + number * ENTRY_SIZE_BYTES
        return ENTRY.unpack(self.file.pread(at, ENTRY_SIZE_BYTES))

    def select(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield offsets of messages that may match, newest first, and None for each other entry
        read, so that the caller can bound the search. Raises OSError."""
        slot = hashed % self.limits.slots
        if self.slots is not None:
            number = self.slots[slot]
        else:
            at = HEADER_SIZE_BYTES + slot * SLOT_SIZE_BYTES
            number = _SLOT.unpack(self.file.pread(at, SLOT_SIZE_BYTES))[0]
        above = self.count
        while 0 < number < above:
            found, offset, seconds, before = self.entry(number)
            # The first entry of a file is its beginning; Apache counts it from the file before.
            time_ms = self.begin_ms + (seconds * 1000 if number > 1 else 0)
            if time_ms + 999 < begin_ms:
                return
            yield offset if found == hashed and time_ms <= end_ms else None
            above, number = number, before  # a chain only leads back: no damage makes it a circle

    def trailing(self, offset: int) -> int:
        """Return how many of the last entries are of the message at `offset`."""
        number = self.count - 1
        while number > 0 and self.entry(number)[1] == offset:
            number -= 1
        return self.count - 1 - number

    # -- flushing -----------------------------------------------------------------------------

    def begin_flush(self) -> FileFlush:
        """Return a flush that makes the file durable as it is now."""
        self.changed = False
        header = HEADER.pack(
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )
        return FileFlush(self, header, self.end_ms if self.full else None)

    def close(self) -> None:
        self.file.close()
        self.slots = None


@dataclass(eq=False, slots=True)
class FileFlush:
    """A flush of one file: `run` it in the pool, then `finish`."""

    _file: IndexFile
    _header: bytes
    full_until_ms: int | None  # its last message's store time, if the file is full
    _pages: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Write slots and header and sync them. Blocking. Slots may change meanwhile, and those
        written may be newer than the header; only an unclean stop leaves that behind, and after it
        the slots are rebuilt.

        Raises OSError."""
        index = self._file
        slots, dirty = index.slots, index.dirty
        file = index.disk.open(index.path)  # a descriptor of its own, so each has one caller
        try:
            if slots is not None:
                page = dirty.find(1)
                while page >= 0:
                    stop = dirty.find(0, page)
                    stop = min(stop if stop >= 0 else len(dirty), page + _PAGES_AT_ONCE)
                    dirty[page:stop] = bytes(stop - page)  # first: a change from now on counts
                    self._pages += range(page, stop)
                    data = _stored(slots[page << _PAGE_SHIFT : stop << _PAGE_SHIFT])
                    file.pwrite(HEADER_SIZE_BYTES + (page << _PAGE_SHIFT) * SLOT_SIZE_BYTES, data)
                    page = dirty.find(1, stop)
            file.sync()
            file.pwrite(0, self._header)
            file.sync()
        finally:
            file.close()

    def finish(self, *, synced: bool) -> None:
        """Finish after `run` returned (`synced`) or raised: then all counts as unwritten again."""
        index = self._file
        if not synced:
            index.changed = True
            for page in self._pages:
                index.dirty[page] = 1
        elif index.full and not index.changed:
            index.slots = None


def _native(data: bytes) -> array[int]:
    slots = array("i", data)
    assert slots.itemsize == SLOT_SIZE_BYTES
    if sys.byteorder == "little":
        slots.byteswap()
    return slots


def _stored(slots: array[int]) -> bytes:
    if sys.byteorder == "little":
        slots.byteswap()  # of a slice, which is a copy
    return slots.tobytes()
