"""The files of a store directory, at a path or URI: listed, read, hashed and compared.

A store has commitlog/, consumequeue/ and checkpoint. Files are only read (audit.read.files).
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from raftmq.spark.layout import (
    CHECKPOINT_CONFIRM_AT,
    CHECKPOINT_SIZE_BYTES_MIN,
    CHECKPOINT_TIMES_AT,
    UNIT,
    UNIT_FILLER_SIZE,
)
from raftmq.store.store_lock import owner_of

from .files import File, Listing, is_uri, listed
from .slots import parse_slots

if TYPE_CHECKING:
    from .replica import Replica

Bytes = npt.NDArray[np.uint8]
NAME_DIGITS = 20  # in the name of a segment or ConsumeQueue file, its start offset
TIMES, TIMES_MARK = struct.Struct(">qq4sI"), b"RMQT"  # in a checkpoint (store.checkpoint)
COMPARED_BYTES = 1 << 20  # at once
INDEX_SIZE_BYTES = 8  # before the payload in raft/configuration
STORES_SEPARATOR = "\n"  # between the names of stores with equal rows
_LOG = re.compile(r"commitlog|dledger-[^/]*/data")
_SEGMENT = re.compile(rf"({_LOG.pattern})/([0-9]{{{NAME_DIGITS}}})")
_QUEUE_FILE = re.compile(rf"consumequeue/([^/]+)/([0-9]+)/([0-9]{{{NAME_DIGITS}}})")
_INDEX_FILE = re.compile(r"index/[0-9]{17}")
_DLEDGER_CHECKPOINT = re.compile(r"dledger-[^/]*/checkpoint")


class StoreError(Exception):
    """A directory is not a store, or its files contradict their names."""


def refuse_running(stores: Mapping[str, str]) -> None:
    """Raise StoreError if a store's broker runs here: its files have no consistent state."""
    for name, directory in stores.items():
        try:
            owner = None if is_uri(directory) else owner_of(directory)
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from error
        if owner is not None:
            raise StoreError(
                f"the store {name} ({directory}) is in use by {owner}. Audit running brokers by"
                " their name server (--namesrv), or stop them first"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """A CommitLog file with log positions [base, end)."""

    file: File
    base: int

    @property
    def end(self) -> int:
        return self.base + self.file.size_bytes


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A ConsumeQueue file; its first unit has queue offset `first_offset`."""

    file: File
    topic: str
    queue_id: int
    first_offset: int


@dataclass(frozen=True)
class Store:
    """A replica's store at `path`, a directory or URI. Its files are listed once. If the broker
    runs, its log is at the `replica`, and `path` has only copies of its tables."""

    name: str
    path: str
    replica: Replica | None = None

    def __reduce__(self) -> tuple[type[Store], tuple[str, str, Replica | None]]:
        return Store, (self.name, self.path, self.replica)  # a task needs no list of all files

    @cached_property
    def listing(self) -> Listing:
        """Raises OSError."""
        return listed(self.path)

    def content(self, name: str) -> bytes | None:
        """Return a small file's content; None if there is none. Raises OSError."""
        file = self.listing.files.get(name)
        return None if file is None else file.read()

    @cached_property
    def segments(self) -> list[Segment]:
        """The CommitLog segments by position, without empty files.

        Raises StoreError if there is no commitlog directory or a segment starts inside the previous
        segment.
        """
        if self.replica is not None:
            return self._segments_of(self.replica)
        if not any(map(_LOG.fullmatch, self.listing.directories)):
            raise StoreError(f"{self.path} is no store: it has no commitlog directory")
        segments: dict[str, list[Segment]] = {}
        for name, file in self.listing.files.items():
            match = _SEGMENT.fullmatch(name)  # the store itself would not open any other file
            if match and file.size_bytes:
                segments.setdefault(match[1], []).append(Segment(file, int(match[2])))
        # A DLedger broker also makes an empty commitlog.
        of_log = next(iter(segments.values()), [])
        for before, after in itertools.pairwise(of_log):
            if before.end > after.base:
                raise StoreError(f"{after.file.path} begins inside {before.file.path}")
        return of_log

    def _segments_of(self, replica: Replica) -> list[Segment]:
        """Return the segments of a running replica up to its end, with the names there."""
        size, segments = replica.segment_size_bytes, []
        for base in range(replica.start, replica.end, size):
            name = f"commitlog/{base:0{NAME_DIGITS}d}"
            segments.append(Segment(File(self.path, name, min(size, replica.end - base)), base))
        return segments

    @property
    def closed(self) -> bool:
        """True if the store was closed in order; an open store has a file `abort`."""
        return "abort" not in self.listing.files

    def file_at(self, position: int) -> str:
        """Return file and offset of a log position; "" if no segment holds it."""
        for segment in self.segments:
            if segment.base <= position < segment.end:
                return f"{segment.file.name}:{position - segment.base}"
        return ""

    def read(self, start: int, end: int) -> bytes:
        """Return log positions [start, end); fewer if the log ends earlier or has a gap."""
        if self.replica is not None:
            return self.replica.read(start, end)
        content = b""
        for segment in self.segments:
            at = start + len(content)
            if segment.base <= at < min(end, segment.end):
                content += segment.file.read(
                    at - segment.base, min(end, segment.end) - segment.base
                )
        return content

    def queue_files(self) -> list[QueueFile]:
        """Return every ConsumeQueue file, by topic, queue and offset."""
        matches = ((_QUEUE_FILE.fullmatch(name), file) for name, file in self.listing.files.items())
        return [
            QueueFile(file, match[1], int(match[2]), int(match[3]) // UNIT.itemsize)
            for match, file in matches
            if match
        ]

    def index_files(self) -> list[File]:
        """Return every IndexFile, by its name, a time."""
        return [file for name, file in self.listing.files.items() if _INDEX_FILE.fullmatch(name)]

    def confirmed_position(self) -> int:
        """Return confirmPhyOffset of the checkpoint, the commit position as this replica knows
        it; 0 without a checkpoint, as after an early kill. Raises StoreError if the file is too
        short."""
        if self.replica is not None:
            return self.replica.end
        content = self.content("checkpoint")
        if content is None:
            return 0
        head = content[:CHECKPOINT_SIZE_BYTES_MIN]
        if len(head) < CHECKPOINT_SIZE_BYTES_MIN:
            raise StoreError(f"{self.path}/checkpoint is cut short: {len(head)} bytes")
        return int.from_bytes(head[CHECKPOINT_CONFIRM_AT:], "big", signed=True)

    def last_open_ms(self) -> int:
        """Return the log's own time when the store was last open; 0 if it is not in the
        checkpoint."""
        times = (self.content("checkpoint") or b"")[
            CHECKPOINT_TIMES_AT : CHECKPOINT_TIMES_AT + TIMES.size
        ]
        if len(times) < TIMES.size:
            return 0
        own_ms, _, mark, checksum = TIMES.unpack(times)
        is_valid = mark == TIMES_MARK and checksum == crc32c(times[: TIMES.size - 8])
        return int(own_ms) if is_valid else 0

    def committed_index(self) -> int | None:
        """Return the committedIndex of a replica of Apache's DLedger; None if there is none."""
        for name in filter(_DLEDGER_CHECKPOINT.fullmatch, self.listing.files):
            for line in (self.content(name) or b"").decode(errors="replace").splitlines():
                key, _, value = line.partition("=")
                if key == "committedIndex" and value.isdigit():
                    return int(value)
        return None

    def saved_configuration(self) -> tuple[int, bytes] | None:
        """Return (index of its frame, payload) in raft/configuration; None if it is not intact."""
        content = parse_slots(self.content("raft/configuration") or b"").content
        if content is None or len(content) <= INDEX_SIZE_BYTES:
            return None
        return int.from_bytes(content[:INDEX_SIZE_BYTES], "big"), content[INDEX_SIZE_BYTES:]


def replicas_of(stores: Mapping[str, Store]) -> list[Replica]:
    """Return the running replicas of these stores; empty for stopped stores."""
    return [store.replica for store in stores.values() if store.replica is not None]


def units(file: QueueFile, start: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Return queue offsets and units (UNIT) of a ConsumeQueue file that point at log position
    `start` or behind it.

    Units that were never written (all zero), and fillers before a queue's first message, are left
    out.
    """
    count = file.file.size_bytes // UNIT.itemsize
    if not count:
        return np.empty(0, np.int64), np.empty(0, UNIT)
    view = file.file.view()
    view.load(0, len(view.data))
    mapped = np.frombuffer(view.data, UNIT, count)
    first = _first_unit(mapped, start) if start else 0
    content = np.array(mapped[first:])
    size = content["size"]
    written = np.flatnonzero(
        ((size != 0) | (content["position"] != 0))
        & (size != UNIT_FILLER_SIZE)
        & (content["position"] >= start)
    )
    return written + first + file.first_offset, content[written]


def _first_unit(content: npt.NDArray[np.void], start: int) -> int:
    """Return the index of the first unit that points at `start` or behind it, or was never written,
    since positions rise along a queue."""
    low, high = 0, len(content)
    while low < high:
        middle = (low + high) // 2
        unit = content[middle]
        if unit["position"] >= start or unit["size"] == 0:
            high = middle
        else:
            low = middle + 1
    return low


def same_bytes(left: Bytes, right: Bytes, start: int, end: int) -> bool:
    """Return whether bytes [start, end) of two mapped files are equal."""
    first, last = -(-start // 8), end // 8
    if first >= last:
        return np.array_equal(left[start:end], right[start:end])
    low, high = first * 8, last * 8
    longs, others = left[low:high].view(np.uint64), right[low:high].view(np.uint64)
    if (longs != others).any():
        return False
    return all(np.array_equal(left[a:b], right[a:b]) for a, b in ((start, low), (high, end)))


def first_unlike(left: Bytes, right: Bytes, start: int, end: int) -> int:
    """Return the first position in [start, end) at which the bytes differ, or `end`."""
    for low in range(start, end, COMPARED_BYTES):
        high = min(low + COMPARED_BYTES, end)
        unequal = left[low:high] != right[low:high]
        if unequal.any():
            return low + int(unequal.argmax())
    return end


def first_difference(left: Store, right: Store, start: int, end: int) -> int | None:
    """Return the first log position in [start, end) at which two stores' bytes differ, or None.

    A position that only one store has counts as different. Meant for blocks.
    """
    a, b = (np.frombuffer(store.read(start, end), np.uint8) for store in (left, right))
    at = first_unlike(a, b, 0, min(len(a), len(b)))
    return None if at == len(a) == len(b) else start + at
