"""Digests of decoded ranges, by which equal copies need no second comparison.

A task decodes a range of the log, or some ConsumeQueue files, once for all stores with equal bytes.
Beside the rows it returns a digest with these facts, whether the bytes are equal in all stores, the
end of the data, and sums of hashes for each RANGE_BYTES of the log. Units and records with equal
sums need no individual comparison. A *run* is a sequence of records whose queue offsets rise by 1
along the log. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftmq.spark.layout import SYSFLAG_TRANSACTION, UNIT, ItemKind
from raftmq.store.frame import FrameKind

from .index_keys import ROLLED_BACK
from .live_queues import ExpectedUnits, WrongUnits
from .store_files import STORES_SEPARATOR
from .system_topics import HALF_TOPIC, MULTI_QUEUE_PREFIX, SCHEDULE_TOPIC, TIMED_TOPICS

RANGE_BYTES = 16 << 20
RUN_SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("position", pa.int64()),  # of the first record
        ("end", pa.int64()),  # behind the last record
    ]
)
# Odd 64-bit multipliers for the fields of a hash.
_FACTORS = np.random.Generator(np.random.PCG64(2)).integers(0, 1 << 63, 8, np.uint64) * np.uint64(
    2
) + np.uint64(1)
Array = npt.NDArray[Any]
Sums = Mapping[int, tuple[int, int]]  # by range of the log, a count and a sum of hashes


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Frames [first, last] with consecutive indexes and rising terms, all intact and with complete
    records. `end` is the end of the last payload. `configurations` has index, start and end of each
    payload."""

    first: int
    last: int
    first_term: int
    last_term: int
    end: int
    configurations: tuple[tuple[int, int, int], ...]

    def with_next(self, run: FrameRun) -> FrameRun | None:
        """Return both as one run; None if the second does not follow."""
        if run.first != self.last + 1 or run.first_term < self.last_term:
            return None
        configurations = self.configurations + run.configurations
        terms = self.first_term, run.last_term
        return FrameRun(self.first, run.last, *terms, run.end, configurations)


@dataclass(frozen=True, slots=True)
class LogDigest:
    """Counts and sums over log positions [start, end) of `stores`, which have the same items there.

    `alike`: all bytes are equal in all stores with a segment there. `data_end`: end of the last
    item (0 if none). `records` counts intact records. `waits`: there are delayed messages or half
    messages. `units` has sums of the units that visible records must have, `ids` sums of the
    positions of records that are indexed by their own id. `frame_run`: the frames, if they are a
    run. `damage_at`: the first damaged position. `times`: lowest and highest store time of intact
    records (ms). `fall`: the record whose store time is furthest below an earlier one of the range,
    as position and ms. `unpackable`: a body cannot be unpacked. `path`: the file with the rows.
    `wrong_units`: units of running replicas that are not those of the records.
    """

    stores: tuple[str, ...]
    start: int
    end: int
    alike: bool
    data_end: int
    records: int
    frames: int
    waits: bool
    units: Sums
    ids: Sums
    frame_run: FrameRun | None = None
    damage_at: int | None = None
    times: tuple[int, int] | None = None
    fall: tuple[int, int] = (0, 0)
    unpackable: bool = False
    path: str = ""
    wrong_units: WrongUnits | None = None


@dataclass(frozen=True, slots=True)
class Alike:
    """The log up to position `end`, which all stores have alike, with consecutive `frames` (None
    for none). It is `complete` if no store has more. `ended` is index and term of the last frame
    before `end`, if known."""

    frames: FrameRun | None
    end: int
    complete: bool
    ended: tuple[int, int] | None = None


def all_alike(
    digests: Iterable[LogDigest], stores: tuple[str, ...], ended: tuple[int, int] | None
) -> Alike:
    """Return the start of the log in which all `stores` have equal items and consecutive frames.
    `ended` is index and term of the frame before them. The last of several ranges is left to the
    rest of an incomplete log, because a frame is judged by its neighbours."""
    frames: FrameRun | None = None
    ends = [(0, frames)]
    for digest in sorted(digests, key=lambda digest: digest.start):
        run = digest.frame_run
        if digest.stores != stores or (digest.frames and run is None):
            break
        if run is not None:
            follows = ended is None or (run.first == ended[0] + 1 and run.first_term >= ended[1])
            frames = frames.with_next(run) if frames else run if follows else None
            if frames is None:
                break
        ends.append((digest.end, frames))
    else:
        return Alike(frames, ends[-1][0], True)
    end, frames = ends[-2] if len(ends) > 1 else ends[0]
    return Alike(frames, end, False, (frames.last, frames.last_term) if frames else ended)


@dataclass(frozen=True, slots=True)
class UnitDigest:
    """Sums of equal ConsumeQueue units of `stores`, by the range of the log they point into.
    `multi`: there are units of queues of MULTI_QUEUE_PREFIX, which are not counted."""

    stores: tuple[str, ...]
    units: Sums
    multi: bool = False


class LogSummary:
    """Adds up the batches (audit.read.log_reader.LOG_SCHEMA) of a range, and `expects` their units
    if given."""

    def __init__(self, expects: ExpectedUnits | None = None) -> None:
        self.expects = expects
        self._data_end = self._records = self._frames = 0
        self._frame_runs: list[FrameRun | None] = []
        self._damaged: list[int] = []
        self._times: list[int] = []
        self._fall = (0, 0)
        self._waits = self._unpackable = False
        self._units: list[Sums] = []
        self._ids: list[Sums] = []

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Add a batch of items of one kind, or of gaps; return its runs (RUN_SCHEMA)."""
        kind = batch["kind"][0].as_py()
        position, size = _numbers(batch, "position"), _numbers(batch, "size")
        if kind == ItemKind.FRAME:
            self._add_frames(batch, position, size)
        if kind not in (ItemKind.FRAME, ItemKind.RECORD):
            self._damaged += position[_numbers(batch, "kind") != ItemKind.BLANK].tolist()
        if kind != ItemKind.RECORD:
            return None
        self._data_end = max(self._data_end, int((position + size).max()))
        intact = batch["intact"].to_numpy(False).astype(bool)
        self._records += int(intact.sum())
        self._damaged += position[~intact][:1].tolist()
        self._add_times(_numbers(batch, "store_timestamp")[intact], position[intact])
        self._unpackable |= bool(batch["content_crc"].null_count)
        topics = batch["topic"].dictionary_encode()
        bits = _numbers(batch, "sysflag") & SYSFLAG_TRANSACTION
        known = topics.dictionary.to_pylist()
        self._waits |= bool(bits.any()) or SCHEDULE_TOPIC in known or HALF_TOPIC in known
        visible = (bits == 0) | (bits == 8)
        queue = _numbers(batch, "queue_id"), _numbers(batch, "queue_offset")
        tags = np.where(_among(topics, TIMED_TOPICS), 0, _numbers(batch, "tags_code"))
        hashes = unit_hashes(_topic_hashes(topics), *queue, position, size, tags)
        if self.expects is not None:
            units = np.empty(len(batch), UNIT)
            units["position"], units["size"], units["tags_code"] = position, size, tags
            known = visible & intact & (queue[0] >= 0) & (queue[1] >= 0)
            self.expects.add(topics.filter(pa.array(known)), *(e[known] for e in (*queue, units)))
        self._units.append(sums(position[visible], hashes[visible]))
        indexed = batch["uniq_key"].is_valid().to_numpy(False) & (bits != ROLLED_BACK)
        self._ids.append(sums(position[indexed], position[indexed]))
        return _runs(batch, topics, visible & intact)

    def _add_times(self, times: Array, position: Array) -> None:
        if not len(times):
            return
        before = max(self._times, default=int(times[0]))
        falls = np.maximum(np.maximum.accumulate(times), before) - times
        deepest = int(falls.argmax())
        if falls[deepest] > self._fall[1]:
            self._fall = int(position[deepest]), int(falls[deepest])
        self._times += int(times.min()), int(times.max())

    def _add_frames(self, batch: pa.RecordBatch, position: Array, size: Array) -> None:
        self._frames += len(batch)
        ends = position + size + _numbers(batch, "payload_length")
        self._data_end = max(self._data_end, int(ends.max()))
        intact = batch["intact"].to_numpy(False).astype(bool)
        self._damaged += position[~intact][:1].tolist()
        index, term = _numbers(batch, "frame_index"), _numbers(batch, "frame_term")
        goes_on = (index[1:] == index[:-1] + 1) & (term[1:] >= term[:-1])
        complete = batch["record_count"].equals(batch["records_found"])
        if not (intact.all() and goes_on.all() and complete):
            self._frame_runs.append(None)
            return
        configures = np.flatnonzero(_numbers(batch, "frame_kind") == FrameKind.CONFIGURATION)
        columns = index[configures], (position + size)[configures], ends[configures]
        configurations = tuple(zip(*(each.tolist() for each in columns), strict=True))
        indexes, terms = ((int(each[0]), int(each[-1])) for each in (index, term))
        self._frame_runs.append(FrameRun(*indexes, *terms, int(ends[-1]), configurations))

    def _frame_run(self) -> FrameRun | None:
        first_run = self._frame_runs[0] if self._frame_runs else None
        for run in self._frame_runs[1:]:
            first_run = first_run.with_next(run) if first_run and run else None
        return first_run

    def digest(
        self,
        stores: tuple[str, ...],
        start: int,
        end: int,
        alike: bool,
        path: str,
        wrong_units: WrongUnits | None = None,
    ) -> LogDigest:
        return LogDigest(
            *(stores, start, end, alike, self._data_end, self._records, self._frames, self._waits),
            total(self._units),
            total(self._ids),
            self._frame_run(),
            min(self._damaged, default=None),
            (min(self._times), max(self._times)) if self._times else None,
            self._fall,
            self._unpackable,
            path,
            wrong_units,
        )


class UnitSummary:
    """Adds up batches of units (audit.read.spark_sources.UNIT_SCHEMA), each of a single queue."""

    def __init__(self) -> None:
        self._units: dict[str, list[Sums]] = {}
        self._multi: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        topic = batch["topic"][0].as_py()
        if topic.startswith(MULTI_QUEUE_PREFIX):
            stores = batch["store"][0].as_py()
            self._multi.add(stores)
            self._units.setdefault(stores, [])
            return
        tags = _numbers(batch, "tags_code")
        hashes = unit_hashes(
            np.full(len(batch), _text_hash(topic), np.uint64),
            _numbers(batch, "queue_id"),
            _numbers(batch, "queue_offset"),
            _numbers(batch, "position"),
            _numbers(batch, "size"),
            np.zeros_like(tags) if topic in TIMED_TOPICS else tags,
        )
        of_stores = self._units.setdefault(batch["store"][0].as_py(), [])
        of_stores.append(sums(_numbers(batch, "position"), hashes))

    def digests(self) -> list[UnitDigest]:
        return [
            UnitDigest(tuple(stores.split(STORES_SEPARATOR)), total(parts), stores in self._multi)
            for stores, parts in self._units.items()
        ]


def unit_hashes(topics: Array, *fields: Array) -> Array:
    """Return a hash of each unit from its topic's hash and its integer `fields`."""
    mixed = topics.astype(np.uint64)
    for field, factor in zip(fields, _FACTORS, strict=False):
        mixed += field.astype(np.int64).view(np.uint64) * factor
    mixed ^= mixed >> np.uint64(32)
    mixed *= _FACTORS[-1]
    mixed ^= mixed >> np.uint64(29)
    return mixed


def sums(positions: Array, hashes: Array) -> dict[int, tuple[int, int]]:
    """Return by range of the log the number of positions and the sum of their hashes."""
    if not len(positions):
        return {}
    parts = positions // RANGE_BYTES
    if (parts[1:] < parts[:-1]).any():  # only after damage
        order = np.argsort(parts, kind="stable")
        parts, hashes = parts[order], hashes[order]
    firsts = np.flatnonzero(np.append(True, parts[1:] != parts[:-1]))
    counts = np.diff(np.append(firsts, len(parts)))
    totals = np.add.reduceat(hashes.astype(np.int64, copy=False).view(np.uint64), firsts)
    rows = zip(parts[firsts].tolist(), counts.tolist(), totals.tolist(), strict=True)
    return {number: (count, added) for number, count, added in rows}


def total(parts: Iterable[Sums]) -> dict[int, tuple[int, int]]:
    sums_: dict[int, tuple[int, int]] = {}
    for addend in parts:
        for number, (count, added) in addend.items():
            before = sums_.get(number, (0, 0))
            sums_[number] = before[0] + count, (before[1] + added) % (1 << 64)
    return sums_


def by_store(
    parts: Iterable[tuple[tuple[str, ...], Sums]],
) -> dict[str, dict[int, tuple[int, int]]]:
    sums_of_store: dict[str, list[Sums]] = {}
    for stores, sums_ in parts:
        for store in stores:
            sums_of_store.setdefault(store, []).append(sums_)
    return {store: total(of_store) for store, of_store in sums_of_store.items()}


def unlike(left: Sums, right: Sums) -> Iterator[int]:
    for number in sorted({*left, *right}):
        if left.get(number) != right.get(number):
            yield number


def data_ends(digests: Iterable[LogDigest]) -> dict[str, tuple[int, int, int]]:
    """Return by store the end of its last item, and its numbers of intact records and frames."""
    ends: dict[str, tuple[int, int, int]] = {}
    for digest in digests:
        for store in digest.stores:
            end, records, frames = ends.get(store, (0, 0, 0))
            ends[store] = (
                max(end, digest.data_end),
                records + digest.records,
                frames + digest.frames,
            )
    return ends


def _runs(batch: pa.RecordBatch, topics: pa.DictionaryArray, counted: Array) -> pa.RecordBatch:
    rows = np.flatnonzero(counted)
    codes = topics.indices.to_numpy()[rows].astype(np.int64)
    queues = codes << 32 | _numbers(batch, "queue_id")[rows]
    order = np.argsort(queues, kind="stable")
    rows, queues = rows[order], queues[order]
    offsets = _numbers(batch, "queue_offset")[rows]
    breaks = np.ones(len(rows), bool)
    breaks[1:] = (queues[1:] != queues[:-1]) | (offsets[1:] != offsets[:-1] + 1)
    firsts = np.flatnonzero(breaks)
    lasts = np.append(firsts, len(rows))[1:] - 1
    position, size = _numbers(batch, "position"), _numbers(batch, "size")
    columns = [
        batch["store"].take(pa.array(rows[firsts])),
        topics.dictionary.take(pa.array(queues[firsts] >> 32)),
        pa.array((queues[firsts] & 0xFFFFFFFF).astype(np.uint32).view(np.int32)),
        pa.array(offsets[firsts]),
        pa.array(offsets[lasts]),
        pa.array(position[rows[firsts]]),
        pa.array((position + size)[rows[lasts]]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RUN_SCHEMA)


def _numbers(batch: pa.RecordBatch, name: str) -> Array:
    result: Array = batch[name].to_numpy(False).astype(np.int64, copy=False)
    return result


def _text_hash(text: str) -> int:
    data = text.encode()
    return crc32(data) << 32 | crc32(data[::-1])


def _topic_hashes(topics: pa.DictionaryArray) -> Array:
    of_each = np.array([_text_hash(topic) for topic in topics.dictionary.to_pylist()], np.uint64)
    result: Array = of_each[topics.indices.to_numpy()]
    return result


def _among(topics: pa.DictionaryArray, names: tuple[str, ...]) -> Array:
    of_each = np.array([topic in names for topic in topics.dictionary.to_pylist()], bool)
    result: Array = of_each[topics.indices.to_numpy()]
    return result
