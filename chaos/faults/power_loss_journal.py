"""The journal of changes that a power cut undoes, with pending changes and survivors.

The fault layer (chaos.faults.fault_disk) writes a record *before* each change to a file or a name;
the record holds the content that the change destroys. A sync only marks changes as durable. A power
cut undoes some of the pending changes:

    pages      each 4 KiB page keeps the first few of its changes since the last sync (all, none,
               or some); it may be torn at a 512-byte sector, so that its two sides keep different
               numbers of changes. Each page is drawn by itself: disks write in any order
    size       of a file's changes of size (truncate, allocate, writing past the end) the first few
               survive; no page behind a lost change keeps later content
    names      of creations, removals and renames the first few survive, because file systems
               journal them in order; directories themselves survive

A failed sync makes nothing durable, and later syncs do not repair it. As in the kernel, they cover
only pages that were written again ("fsyncgate").

    record     off size field             undo.log: records one behind the other; a last one that is
               0   4    length of tail    cut short belongs to a change that was never made
               4   1    kind
               5   8    number            rises; a truncation and the bytes it drops share theirs
               13  8    inode
               21  8    a                 BYTES offset; SIZE old; SYNCED, FAILED, NAMED the number
                                          up to which it counts, HEALED too; RENAME the target's
                                          old inode or 0
               29  8    b                 BYTES length; SIZE new; HEALED the page
               37  n    tail              BYTES what stood there, nothing for zeros; NAMED the
                                          directory; CREATE, REMOVE path; RENAME source NUL target

All integers are big-endian. Pure.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

PAGE_BYTES = 4096
SECTOR_BYTES = 512
HEAD = struct.Struct(">IBQQqq")
HEAD_BYTES = HEAD.size


class Random(Protocol):
    """The part of random.Random that is used here."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int, /) -> int: ...


class RecordKind(IntEnum):
    """The kinds of journal record; the module's table explains their fields."""

    BYTES = 1
    SIZE = 2
    SYNCED = 3
    FAILED = 4
    FORGET = 5  # the inode is gone for good
    CREATE = 6
    REMOVE = 7
    RENAME = 8
    NAMED = 9  # a directory was synced
    HEALED = 10  # a page was synced that a sync had failed for


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the journal."""

    kind: RecordKind
    number: int
    inode: int = 0
    a: int = 0
    b: int = 0
    tail: bytes = b""

    def encode(self) -> bytes:
        head = HEAD.pack(len(self.tail), self.kind, self.number, self.inode, self.a, self.b)
        return head + self.tail

    @property
    def size_bytes(self) -> int:
        return HEAD_BYTES + len(self.tail)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of a record about names: the path, or source and target."""
        return tuple(self.tail.decode().split("\0"))

    @property
    def directory(self) -> str:
        """The directory whose sync makes this change of names durable."""
        return self.paths[-1].rpartition("/")[0]

    @property
    def buried(self) -> int:
        """The inode that loses its name by this change, so that its contents must be kept."""
        if self.kind is RecordKind.REMOVE:
            return self.inode
        return self.a if self.kind is RecordKind.RENAME else 0


def decode(data: bytes) -> Iterator[Record]:
    """Yield the records of a journal up to a truncated record."""
    at = 0
    while at + HEAD_BYTES <= len(data):
        length, kind, number, inode, a, b = HEAD.unpack_from(data, at)
        end = at + HEAD_BYTES + length
        if end > len(data):
            return
        yield Record(RecordKind(kind), number, inode, a, b, data[at + HEAD_BYTES : end])
        at = end


@dataclass(slots=True)
class FileChanges:
    """The pending changes of an inode. A sync has failed for all changes up to the number
    `failed_until`; pages in `healed` are durable up to the number given there."""

    changes: list[Record] = field(default_factory=list)
    failed_until: int = 0
    healed: dict[int, int] = field(default_factory=dict)


class Pending:
    """The changes that a power cut now could undo. Built from the journal, record by record."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.files: dict[int, FileChanges] = {}
        self.names: list[Record] = []
        self.number = 0  # the highest seen
        self.size_bytes = 0  # of the records that are still needed
        for record in records:
            self.add(record)

    def add(self, record: Record) -> list[Record]:
        """Add the next record; return the changes of names that it makes durable."""
        kind = record.kind
        self.number = max(self.number, record.number)
        if kind is RecordKind.BYTES or kind is RecordKind.SIZE:
            file = self.files.get(record.inode)
            if file is None:
                file = self.files[record.inode] = FileChanges()
            file.changes.append(record)
            self.size_bytes += record.size_bytes
        elif kind is RecordKind.SYNCED:
            self._synced(record.inode, record.a)
        elif kind is RecordKind.FAILED:
            if record.inode in self.files:
                self.files[record.inode].failed_until = record.a
        elif kind is RecordKind.HEALED:
            if record.inode in self.files:
                self.files[record.inode].healed[record.b] = record.a
        elif kind is RecordKind.FORGET:
            gone = self.files.pop(record.inode, None)
            if gone is not None:
                self.size_bytes -= sum(change.size_bytes for change in gone.changes)
        elif kind is RecordKind.NAMED:
            return self._named(record.tail.decode(), record.a)
        else:
            self.names.append(record)
            self.size_bytes += record.size_bytes
        return []

    def records(self) -> Iterator[Record]:
        """Yield a shorter journal that means the same."""
        for inode, file in self.files.items():
            failed = [c for c in file.changes if c.number <= file.failed_until]
            yield from failed
            if file.failed_until:
                yield Record(RecordKind.FAILED, self.number, inode, file.failed_until)
            for page, until in file.healed.items():
                yield Record(RecordKind.HEALED, self.number, inode, until, page)
            yield from file.changes[len(failed) :]
        yield from self.names

    def _synced(self, inode: int, until: int) -> None:
        file = self.files.get(inode)
        if file is None:
            return
        kept = []
        for change in file.changes:
            if change.number > until:
                kept.append(change)
            elif change.number <= file.failed_until and change.kind is RecordKind.BYTES:
                kept.append(change)
            else:
                self.size_bytes -= change.size_bytes
                if file.failed_until and change.kind is RecordKind.BYTES:
                    for page in _pages(change):
                        file.healed[page] = until
        file.changes = kept
        if not kept:
            del self.files[inode]

    def _named(self, directory: str, until: int) -> list[Record]:
        done = [n for n in self.names if n.number <= until and n.directory == directory]
        if done:
            self.names = [n for n in self.names if n.number > until or n.directory != directory]
            self.size_bytes -= sum(change.size_bytes for change in done)
        return done


@dataclass(frozen=True, slots=True)
class PageFate:
    """How many changes of a page survive: `below` the byte `split`, `above` from there."""

    page: int
    split: int
    below: int
    above: int
    count: int  # of its changes


@dataclass(frozen=True, slots=True)
class FileFate:
    """The outcome of a power cut for a file; `size` is its size afterwards."""

    size: int
    pages: tuple[PageFate, ...]

    @property
    def hurt(self) -> int:
        """Number of pages that lose something."""
        return sum(1 for page in self.pages if min(page.below, page.above) < page.count)


@dataclass(frozen=True, slots=True)
class Temper:
    """The way in which a power cut treats pending changes. `lost` and `kept` are shares of pages;
    the rest is torn. `order`: the part of a file's size changes and of the names that survives: 0
    none, 1 all, None drawn."""

    lost: float
    kept: float
    order: float | None = None


LOSE_ALL = Temper(1.0, 0.0, 0.0)
TEMPERS = (LOSE_ALL, Temper(0.8, 0.1), Temper(0.4, 0.4), Temper(0.1, 0.8), Temper(0.1, 0.2))


def draw_temper(rng: Random) -> Temper:
    """Draw a temper of a real disk."""
    return TEMPERS[rng.randrange(0, len(TEMPERS))]


def surviving(count: int, temper: Temper, rng: Random) -> int:
    """Return how many of `count` ordered changes survive."""
    return rng.randrange(0, count + 1) if temper.order is None else round(count * temper.order)


def file_fate(file: FileChanges, size: int, temper: Temper, rng: Random) -> FileFate:
    """Decide the outcome of a power cut for a file that has `size` bytes now."""
    sizes = [change for change in file.changes if change.kind is RecordKind.SIZE]
    survive = surviving(len(sizes), temper, rng)
    final = size if survive == len(sizes) else sizes[survive].a
    fates = []
    for page, changes in sorted(by_page(file).items()):
        numbers = [change.number for change in changes]
        low, high = _bounds(page, numbers, sizes, survive)
        fates.append(_page_fate(page, low, high, len(changes), temper, rng))
    return FileFate(final, tuple(fates))


def by_page(file: FileChanges) -> dict[int, list[Record]]:
    result: dict[int, list[Record]] = {}
    for change in file.changes:
        if change.kind is RecordKind.BYTES:
            for page in _pages(change):
                if change.number > file.healed.get(page, 0):
                    result.setdefault(page, []).append(change)
    return result


def rebuild(content: bytes, changes: Sequence[Record], fate: PageFate) -> bytes:
    """Return the page as the cut leaves it. `content`: its present bytes, PAGE_BYTES long;
    `changes`: its own changes, in order."""
    assert len(content) == PAGE_BYTES
    assert len(changes) == fate.count
    page = bytearray(content)
    base = fate.page * PAGE_BYTES
    for start, end, survive in (
        (0, fate.split, fate.below),
        (fate.split, PAGE_BYTES, fate.above),
    ):
        for change in reversed(changes[survive:]):
            first = max(start, change.a - base)
            last = min(end, change.a + change.b - base)
            if first < last:
                at = base + first - change.a
                before = change.tail[at : at + last - first]
                page[first:last] = before or bytes(last - first)
    return bytes(page)


def _pages(change: Record) -> range:
    return range(change.a // PAGE_BYTES, (change.a + change.b - 1) // PAGE_BYTES + 1)


def _bounds(
    page: int, numbers: Sequence[int], sizes: Sequence[Record], survive: int
) -> tuple[int, int]:
    """Return how few and how many of a page's changes may survive, given those of size."""
    low, high = 0, len(numbers)
    for number, change in enumerate(sizes):
        if min(change.a, change.b) > page * PAGE_BYTES:
            continue  # it moved the end before this page's start
        if number < survive:
            low = max(low, bisect.bisect_right(numbers, change.number))
        else:
            high = min(high, bisect.bisect_left(numbers, change.number))
    return min(low, high), high


def _page_fate(page: int, low: int, high: int, count: int, temper: Temper, rng: Random) -> PageFate:
    drawn = rng.random()
    if drawn < temper.lost:
        return PageFate(page, 0, low, low, count)
    if drawn < temper.lost + temper.kept:
        return PageFate(page, 0, high, high, count)
    split = SECTOR_BYTES * rng.randrange(1, PAGE_BYTES // SECTOR_BYTES)
    below, above = rng.randrange(low, high + 1), rng.randrange(low, high + 1)
    return PageFate(page, split, below, above, count)
