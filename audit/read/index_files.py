"""IndexFiles, opened for a check.

    index/yyyyMMddHHmmssSSS   a header of 40 bytes, slots of 4, entries of 20; big-endian
    header   store time of the first and of the last entry's message (8 bytes each), their log
             positions (8 each), slots in use (4), number of the next entry (4), from 1
    slot     the number of its newest entry, 0: none
    entry    hash of `topic#key` (4), log position (8), seconds since the first store time (4),
             number of the entry before it in its slot (4)

The place of the first entry, which the header describes, determines the numbers of slots and
entries (maxHashSlotNum, maxIndexNum); there are four entries per slot by default.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .files import File

HEADER = struct.Struct(">qqqqii")
SLOT = np.dtype(">i4")
FIRST = struct.Struct(">qii")  # position, seconds and predecessor of the first entry
ENTRY = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
ENTRIES_TO_A_SLOT = 4  # by default
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """An IndexFile with entries [1, count). `low` is the first entry that is judged."""

    store: str
    file: File
    start_ms: int
    start: int  # log positions of the first and the last entry's message
    end: int
    slots: int
    count: int
    full: bool
    low: int = 1

    def entries(self, first: int = 0, last: int | None = None) -> Array:
        """Return all entries, of which only [first, last) need to be loaded. Raises OSError."""
        last = self.count if last is None else min(last, self.count)
        at, view = HEADER.size + self.slots * SLOT.itemsize, self.file.view()
        view.load(at + max(first, 0) * ENTRY.itemsize, at + last * ENTRY.itemsize)
        return np.frombuffer(view.data, ENTRY, self.count, at)

    def newest(self) -> Array:
        """Return the number of the newest entry of each slot. Raises OSError."""
        view = self.file.view()
        view.load(HEADER.size, HEADER.size + self.slots * SLOT.itemsize)
        return np.frombuffer(view.data, SLOT, self.slots, HEADER.size)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A file that cannot be judged, which is a `fault` of it or not."""

    store: str
    name: str
    what: str
    fault: bool = False


@dataclass(frozen=True)
class Open:
    """Reads the header of an IndexFile in a task. Entries of messages before log position `start`
    are not judged."""

    start: int

    def __call__(self, named: tuple[str, File]) -> IndexFile | Unfit:
        store, file = named
        if file.size_bytes <= HEADER.size:
            return Unfit(store, file.name, "is shorter than a header")
        start_ms, end_ms, start, end, _, count = HEADER.unpack(file.read(0, HEADER.size))
        slots = _slots(file, start)
        if not slots:
            return Unfit(store, file.name, "has an unknown number of slots")
        capacity = (file.size_bytes - HEADER.size - slots * SLOT.itemsize) // ENTRY.itemsize
        full, low = count >= capacity, 1
        sound = 0 <= count <= capacity and start <= end and start_ms <= end_ms
        opened = IndexFile(store, file, start_ms, start, end, slots, count, full)
        if sound and count > 1:
            first, last = (opened.entries(at, at + 1)["position"][at] for at in (1, count - 1))
            sound = first == start and last <= end
        if not sound:
            return Unfit(store, file.name, "the header is damaged", fault=True)
        if end < self.start:
            low = count
        elif start < self.start:
            low += int(np.searchsorted(opened.entries()["position"][1:], self.start))
        return replace(opened, low=low)


def _slots(file: File, start: int) -> int:
    """Return the number of slots of a file whose first entry's message is at `start`; 0 if
    unknown."""
    first, size = FIRST.pack(start, 0, 0), file.size_bytes - HEADER.size
    slots, rest = divmod(size, SLOT.itemsize + ENTRIES_TO_A_SLOT * ENTRY.itemsize)
    before = HEADER.size + ENTRY.itemsize + ENTRY["hash"].itemsize
    at = before + slots * SLOT.itemsize
    if rest or file.read(at, at + FIRST.size) != first:
        view = file.view()
        view.load(HEADER.size, file.size_bytes)
        match = re.compile(re.escape(first)).search(view.data, HEADER.size)
        others, odd = divmod((match.start() if match else 0) - before, SLOT.itemsize)
        if others > 0 and not odd and not (size - others * SLOT.itemsize) % ENTRY.itemsize:
            return others
    return 0 if rest else slots
