"""Summaries of decoded windows, by which equal copies need no second comparison.

A task decodes a window of the log, or some ConsumeQueue files, once for all stores with equal
bytes. Beside the rows it makes facts (audit.read.log_facts) and sums (audit.read.range_sums), which
are merged. A *run* is a sequence of records whose queue offsets rise by 1 along the log. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftmq.spark.layout import SYSFLAG_TRANSACTION, UNIT, ItemKind
from raftmq.store.frame import FrameKind

from .index_keys import ROLLED_BACK
from .live_queues import ExpectedUnits, WrongUnits
from .log_facts import Fall, FrameRun, Holdings, Interval, LogFacts, Prefix, Times
from .range_sums import Ranges, StoreSums, Sums, sums, text_hash, total, unit_hashes
from .store_files import STORES_SEPARATOR
from .system_topics import HALF_TOPIC, MULTI_QUEUE_PREFIX, SCHEDULE_TOPIC, TIMED_TOPICS

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
Array = npt.NDArray[Any]


class LogSummary:
    """Adds up the batches (audit.read.log_reader.LOG_SCHEMA) of a window by ranges, and `expects`
    their units if given."""

    def __init__(self, ranges: Ranges, expects: ExpectedUnits | None = None) -> None:
        self.expects = expects
        self._ranges = ranges
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
        if self.expects is not None:  # these are compared instead of sums
            units = np.empty(len(batch), UNIT)
            units["position"], units["size"], units["tags_code"] = position, size, tags
            known = visible & intact & (queue[0] >= 0) & (queue[1] >= 0)
            self.expects.add(topics.filter(pa.array(known)), *(e[known] for e in (*queue, units)))
        else:
            parts = self._ranges.of_positions(position)
            hashes = unit_hashes(_topic_hashes(topics), *queue, position, size, tags)
            self._units.append(sums(parts[visible], hashes[visible]))
            indexed = batch["uniq_key"].is_valid().to_numpy(False) & (bits != ROLLED_BACK)
            self._ids.append(sums(parts[indexed], position[indexed]))
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

    def facts(
        self,
        positions: Interval,
        stores: tuple[str, ...],
        names: tuple[str, ...],
        *,
        alike: bool,
        wrong_units: WrongUnits | None = None,
    ) -> LogFacts:
        """Return the facts about these log positions of `stores`, out of all `names`. `alike`: all
        bytes are equal in all of them."""
        run, (start, end) = self._frame_run(), positions
        sound = run is not None or not self._frames
        has_items = self._data_end > 0
        times: dict[str, Times] = {}
        if self._times:
            bounds = min(self._times), max(self._times)
            times = dict.fromkeys(stores, Times.of(start, *bounds, Fall(start, *self._fall)))
        return LogFacts(
            Prefix(run, end) if sound and {*stores} == {*names} else Prefix(complete=False),
            Holdings((((stores, run),) if has_items else ()) if sound else None),
            dict.fromkeys(stores, (self._data_end, self._records, self._frames)),
            times,
            {((stores,), alike): (positions,)},
            {} if has_items else dict.fromkeys(stores, start),
            self._waits,
            self._unpackable,
            dict.fromkeys(stores, min(self._damaged)) if self._damaged else {},
            wrong_units or WrongUnits(),
            {stores: total(self._units)},
            {stores: total(self._ids)},
        )


class UnitSummary:
    """Adds up batches of units (audit.read.spark_sources.UNIT_SCHEMA), each of a single queue, by
    the stores that have them. Queues of MULTI_QUEUE_PREFIX are left out."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._units: dict[str, list[Sums]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        topic = batch["topic"][0].as_py()
        if topic.startswith(MULTI_QUEUE_PREFIX):
            return
        tags = _numbers(batch, "tags_code")
        hashes = unit_hashes(
            np.full(len(batch), text_hash(topic), np.uint64),
            _numbers(batch, "queue_id"),
            _numbers(batch, "queue_offset"),
            _numbers(batch, "position"),
            _numbers(batch, "size"),
            np.zeros_like(tags) if topic in TIMED_TOPICS else tags,
        )
        of_stores = self._units.setdefault(batch["store"][0].as_py(), [])
        of_stores.append(sums(self._ranges.of_positions(_numbers(batch, "position")), hashes))

    def sums(self) -> StoreSums:
        return {
            tuple(stores.split(STORES_SEPARATOR)): total(parts)
            for stores, parts in self._units.items()
        }


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


def _topic_hashes(topics: pa.DictionaryArray) -> Array:
    of_each = np.array([text_hash(topic) for topic in topics.dictionary.to_pylist()], np.uint64)
    result: Array = of_each[topics.indices.to_numpy()]
    return result


def _among(topics: pa.DictionaryArray, names: tuple[str, ...]) -> Array:
    of_each = np.array([topic in names for topic in topics.dictionary.to_pylist()], bool)
    result: Array = of_each[topics.indices.to_numpy()]
    return result
