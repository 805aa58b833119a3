"""An IndexFile, a hash table on disk from keys to CommitLog offsets.

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

Only the newest file is appended to. Entries are written at once, many per write. The slots are kept
in memory, and a flush writes them page by page. The header is written last, once the rest is
durable. After a crash the entries below the header's count are therefore valid, and the slots can
be rebuilt from them (`rebuild`). A full file never changes again and keeps no slots in memory.

Times in entries are whole seconds, rounded down. A match of `select` may be up to a second outside
the requested range, and its hash may be a different key's. The record decides.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..disk import Disk, File
from .index_limits import (
    ENTRIES_MAX,
    ENTRY_SIZE_BYTES,
    HEADER_SIZE_BYTES,
    SLOT_SIZE_BYTES,
    SLOTS_MAX,
    IndexLimits,
)
from .key_walker import Int32s, Int64s, Keys

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_SLOTS = np.dtype(">i4")
_ENTRIES = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
_PAGE_SHIFT = 10  # slots are written in pages of 1024, that is, 4096 bytes
_PAGE = 1 << _PAGE_SHIFT
_PAGES_AT_ONCE = 256  # 1 MiB read or written
_PAGES_AT_A_TIME = 16  # 64 KiB, loaded while requests wait: some 50 us
_ENTRIES_AT_ONCE = 16_384
_BLOCK_BYTES = 1 << 20
_SECONDS_MAX = 0x7FFFFFFF

assert HEADER_SIZE_BYTES == HEADER.size
assert ENTRY_SIZE_BYTES == ENTRY.size == _ENTRIES.itemsize


def limits_of(disk: Disk, path: str, configured: IndexLimits) -> IndexLimits:
    """Return the limits of an existing file; `configured` if it has that size, or if they cannot be
    determined. Blocking. Raises OSError. Slots and entries fill the file. Only zeros follow the
    last entry, whose number is in the header."""
    file = disk.open(path)
    try:
        size = file.size_bytes
        header = file.pread(0, HEADER_SIZE_BYTES)
        if len(header) < HEADER_SIZE_BYTES or size == configured.file_size_bytes:
            return configured
        count: int = HEADER.unpack(header)[5]
        entries = count + (size - _data_end(file)) // ENTRY_SIZE_BYTES
    finally:
        file.close()
    slots_size_bytes = size - HEADER_SIZE_BYTES - entries * ENTRY_SIZE_BYTES
    slots, rest = divmod(slots_size_bytes, SLOT_SIZE_BYTES)
    if count < 2 or rest or not (0 < slots <= SLOTS_MAX and entries <= ENTRIES_MAX):
        return configured
    index = IndexFile(disk, path, IndexLimits(slots, entries))
    try:
        first, last = index.entry(1), index.entry(count - 1)
    finally:
        index.close()
    fits = first[1] == index.start_offset <= last[1] <= index.end_offset and first[3] == 0
    return index.limits if index.plausible and fits else configured


def _data_end(file: File) -> int:
    for block in range((file.size_bytes - 1) // _BLOCK_BYTES, -1, -1):
        at = block * _BLOCK_BYTES
        if file.may_have_data(at):
            size = min(_BLOCK_BYTES, file.size_bytes - at)
            if data := file.pread(at, size).rstrip(b"\0"):
                return at + len(data)
    return 0


class IndexFile:
    """An index file. For a single caller, except `FileFlush.run`."""

    def __init__(self, disk: Disk, path: str, limits: IndexLimits) -> None:
        """Open the file, sparse if it is new. Raises OSError."""
        self.disk = disk
        self.path = path
        self.limits = limits
        self.file: File = disk.open(path)
        if self.file.size_bytes == 0:
            self.file.truncate(limits.file_size_bytes)
        self._entries_at = HEADER_SIZE_BYTES + limits.slots * SLOT_SIZE_BYTES
        header = self.file.pread(0, HEADER_SIZE_BYTES).ljust(HEADER_SIZE_BYTES, b"\0")
        fields: tuple[int, ...] = HEADER.unpack(header)
        self.start_ms, self.end_ms, self.start_offset, self.end_offset = fields[:4]
        self.used_slots = fields[4]
        self.count = max(1, fields[5])  # number of the next entry
        self.slots: Int32s | None = None  # in memory while the file is appended to
        self._loading: Int32s | None = None  # slots read by `load` until now
        self._loaded = 0  # their number
        self.dirty = bytearray()  # a flag for each page of slots
        self.changed = False  # since the last flush

    @property
    def full(self) -> bool:
        return self.count >= self.limits.entries

    @property
    def plausible(self) -> bool:
        """True if size and header are possible for an index file with these limits. Brokers of 3.x
        count a used slot for every entry."""
        return (
            self.file.size_bytes == self.limits.file_size_bytes
            and self.count <= self.limits.entries
            and 0 <= self.used_slots <= self.count
            and 0 <= self.start_offset <= self.end_offset
            and 0 <= self.start_ms <= self.end_ms
        )

    # -- writing ------------------------------------------------------------------------------

    def append(self, keys: Keys) -> int:
        """Append as many of `keys`, in log order, as fit, in a single write; return how many.
        Raises OSError; the file is unchanged then."""
        capacity = self.limits.entries - self.count
        hashes, offsets, store_ms = (
            keys.hashes[:capacity],
            keys.offsets[:capacity],
            keys.store_ms[:capacity],
        )
        if not len(hashes):
            return 0
        first = self.count
        start_ms = self.start_ms if first > 1 else int(store_ms[0])
        slots = self._loaded_slots()
        entries = np.empty(len(hashes), _ENTRIES)
        entries["hash"], entries["offset"] = hashes, offsets
        entries["seconds"] = _seconds(store_ms, start_ms)
        numbers = np.arange(first, first + len(hashes), dtype=np.int32)
        which = hashes % np.int32(self.limits.slots)
        before = slots[which]  # several keys of a slot get the same number
        entries["before"] = before
        if _set_last(slots, which, numbers):
            _chain(entries, which, numbers)
        self._changed(which)
        try:
            self.file.pwrite(self._entries_at + first * ENTRY_SIZE_BYTES, entries.tobytes())
        except OSError:
            slots[which] = before
            self._changed(which)
            raise
        if first == 1:
            self.start_ms, self.start_offset = start_ms, int(offsets[0])
        self.count = first + len(hashes)
        self.used_slots += int(np.count_nonzero(entries["before"] == 0))
        self.mark(int(offsets[-1]), int(store_ms[-1]))
        return len(hashes)

    def _changed(self, which: NDArray[np.integer]) -> None:
        """Mark these slots as changed. Call it after the change, or a flush might miss it."""
        np.frombuffer(self.dirty, np.uint8)[which >> _PAGE_SHIFT] = 1

    def mark(self, offset: int, store_ms: int) -> None:
        """Record that the log is indexed up to and including the message at `offset`."""
        if self.count == 1 and not self.end_offset:  # without entries, as Apache starts a next file
            self.start_offset, self.start_ms = offset, store_ms
        self.end_offset, self.end_ms = offset, max(store_ms, self.end_ms)
        self.changed = True

    def load(self) -> bool:
        """Read more slots if needed; return whether all are there. Raises OSError; repeat then."""
        if self.slots is not None:
            return True
        if self._loading is None:
            self._loading, self._loaded = np.zeros(self.limits.slots, np.int32), 0
        if self.count > 1 and self._loaded < self.limits.slots:
            stored = self._stored_slots(self._loaded, _PAGES_AT_A_TIME)
            self._loading[self._loaded : self._loaded + len(stored)] = stored
            self._loaded += len(stored)
            if self._loaded < self.limits.slots:
                return False
        self._hold(self._loading)  # only now, never a part of them
        return True

    def _loaded_slots(self) -> Int32s:
        while not self.load():
            pass
        assert self.slots is not None
        return self.slots

    def _hold(self, slots: Int32s) -> None:
        """Use these slots in memory, as they are on disk."""
        self.slots, self._loading = slots, None
        self.dirty = bytearray((self.limits.slots + _PAGE - 1) >> _PAGE_SHIFT)

    def _stored_slots(self, first: int, pages: int) -> Int32s:
        """Return `pages` pages of slots on disk from slot `first` on, or fewer at the end."""
        size = min(pages << _PAGE_SHIFT, self.limits.slots - first) * SLOT_SIZE_BYTES
        data = self.file.pread(HEADER_SIZE_BYTES + first * SLOT_SIZE_BYTES, size)
        return np.frombuffer(data, _SLOTS).astype(np.int32)

    def truncate(self, offset: int, end_ms: int | None = None) -> None:
        """Drop the entries of messages at or above `offset` and rebuild the slots. `end_ms` is the
        store time of the last remaining message, if known. Blocking; flush after it. Raises
        OSError."""
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
            self.end_ms = self.start_ms + seconds * 1000 if end_ms is None else end_ms
        self.rebuild()

    def drop_bad(self) -> bool:
        """Read every entry and truncate at the first invalid entry; return whether there was such
        an entry. Blocking. Raises OSError."""
        offset = self.start_offset
        for first, entries in self._chunks():
            offsets = entries["offset"].astype(np.int64)
            earlier = np.concatenate(([offset], offsets[:-1]))
            bad = (entries["hash"] < 0) | (entries["seconds"] < 0)
            bad |= (offsets < earlier) | (offsets > self.end_offset)
            bad |= entries["before"] < 0
            bad |= entries["before"] >= np.arange(first, first + len(entries))
            if bad.any():
                row = int(bad.argmax())
                self.count = first + row
                # with the previous message; its keys are indexed again
                self.truncate(int(earlier[row]))
                return True
            offset = int(offsets[-1])
        return False

    def rebuild(self) -> None:
        """Rebuild the slots from the entries, and zero everything behind the entries. Blocking."""
        end = self._entries_at + self.count * ENTRY_SIZE_BYTES
        self.file.truncate(end)
        self.file.truncate(self.limits.file_size_bytes)
        slots = np.zeros(self.limits.slots, np.int32)
        for first, entries in self._chunks():
            numbers = np.arange(first, first + len(entries), dtype=np.int32)
            _set_last(slots, entries["hash"] % np.int32(self.limits.slots), numbers)
        self._hold(slots)
        self.used_slots = int(np.count_nonzero(slots))
        for first in range(0, self.limits.slots, _PAGES_AT_ONCE << _PAGE_SHIFT):
            stored = self._stored_slots(first, _PAGES_AT_ONCE)
            self._changed(first + np.flatnonzero(stored != slots[first : first + len(stored)]))
        self.changed = True

    def _chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the entries on disk in chunks, each with the number of its first entry."""
        for first in range(1, self.count, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, self.count - first) * ENTRY_SIZE_BYTES
            data = self.file.pread(self._entries_at + first * ENTRY_SIZE_BYTES, size)
            yield first, np.frombuffer(data, _ENTRIES)

    # -- reading ------------------------------------------------------------------------------

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (hash, offset, seconds, entry before) of an entry."""
        at = self._entries_at + number * ENTRY_SIZE_BYTES
        return ENTRY.unpack(self.file.pread(at, ENTRY_SIZE_BYTES))

    def select(self, hashed: int, start_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield offsets of messages that may match, newest first, and None for each non-matching
        entry, so that the caller can bound the search. Raises OSError."""
        slot = hashed % self.limits.slots
        if self.slots is not None:
            number = int(self.slots[slot])
        else:
            at = HEADER_SIZE_BYTES + slot * SLOT_SIZE_BYTES
            number = _SLOT.unpack(self.file.pread(at, SLOT_SIZE_BYTES))[0]
        above = self.count
        while 0 < number < above:
            entry_hash, offset, seconds, before = self.entry(number)
            # The first entry of a file defines its start; Apache counts it from the previous file.
            time_ms = self.start_ms + (seconds * 1000 if number > 1 else 0)
            if time_ms + 999 < start_ms:
                return
            yield offset if entry_hash == hashed and time_ms <= end_ms else None
            # a chain only leads back, so damage cannot make it a circle
            above, number = number, before

    def trailing(self, offset: int) -> int:
        """Return how many of the last entries belong to the message at `offset`."""
        number = self.count - 1
        while number > 0 and self.entry(number)[1] == offset:
            number -= 1
        return self.count - 1 - number

    # -- flushing -----------------------------------------------------------------------------

    def start_flush(self) -> FileFlush:
        """Return a flush that makes the file's current state durable."""
        self.changed = False
        header = HEADER.pack(
            self.start_ms,
            self.end_ms,
            self.start_offset,
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
    """A flush of a file; `run` it in the pool, then `finish`."""

    _file: IndexFile
    _header: bytes
    full_until_ms: int | None  # store time of its last message, if the file is full
    _pages: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Write slots and header and sync them. Blocking. Slots may change during that time and be
        newer than the header. Only an unclean stop leaves such a file, and then the slots are
        rebuilt. Raises OSError."""
        index = self._file
        slots, dirty = index.slots, index.dirty
        # a separate descriptor, so that each has a single caller
        file = index.disk.open(index.path)
        try:
            if slots is not None:
                page = dirty.find(1)
                while page >= 0:
                    stop = dirty.find(0, page)
                    stop = min(stop if stop >= 0 else len(dirty), page + _PAGES_AT_ONCE)
                    dirty[page:stop] = bytes(stop - page)  # first, so that later changes count
                    self._pages += range(page, stop)
                    data = slots[page << _PAGE_SHIFT : stop << _PAGE_SHIFT].astype(_SLOTS)
                    at = HEADER_SIZE_BYTES + (page << _PAGE_SHIFT) * SLOT_SIZE_BYTES
                    file.pwrite(at, data.tobytes())
                    page = dirty.find(1, stop)
            file.sync()
            file.pwrite(0, self._header)
            file.sync()
        finally:
            file.close()

    def finish(self, *, synced: bool) -> None:
        """Finish after `run` returned (`synced`) or raised; then everything counts as unwritten."""
        index = self._file
        if not synced:
            index.changed = True
            for page in self._pages:
                index.dirty[page] = 1
        elif self.full_until_ms is not None and not index.changed:
            index.slots = None


def _seconds(store_ms: Int64s, start_ms: int) -> Int64s | int:
    """Return the seconds of store times since the file's first, rounded down."""
    first, last = int(store_ms.min()) - start_ms, int(store_ms.max()) - start_ms
    if first // 1000 == last // 1000:  # the usual case, which saves a division per time
        return min(max(0, first // 1000), _SECONDS_MAX)
    return np.clip((store_ms - start_ms) // 1000, 0, _SECONDS_MAX)


def _set_last(slots: Int32s, which: Int32s, numbers: Int32s) -> bool:
    """Set each slot to the highest of its entries. Return whether a slot has several."""
    slots[which] = numbers
    shared = bool((slots[which] != numbers).any())
    # With several entries per slot, the last written is undefined, so repeat for higher numbers.
    while shared and (late := slots[which] < numbers).any():
        which, numbers = which[late], numbers[late]
        slots[which] = numbers
    return shared


def _chain(entries: np.ndarray, which: Int32s, numbers: Int32s) -> None:
    """Point every entry at the previous entry of its slot, except the first."""
    order = np.argsort(which, kind="stable")
    same = which[order[1:]] == which[order[:-1]]
    entries["before"][order[1:][same]] = numbers[order[:-1][same]]
