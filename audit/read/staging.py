"""Decodes stores into Parquet files for the engine of an audit.

The tasks write the files themselves, to a path or URI (raftmq.spark.filesystem) that the engine can
read. To pass rows from Python to Spark costs more than their decoding, so it is done only where
tasks share no directory. A repeated task replaces its file. Nothing is compressed: Snappy and
Zstandard are native code in Java, which cannot be loaded if /tmp executes nothing, and Spark has
once failed to read Arrow's LZ4.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.spark.filesystem import below, opened
from raftmq.spark.layout import ItemKind

from ..engine import columns as F
from ..engine.frames import Engine, Frame
from .index_keys import StagedRange
from .live_log import LiveLog
from .live_queues import ExpectedUnits
from .log_facts import LogFacts
from .log_reader import LOG_SCHEMA
from .range_sums import Ranges, StoreSums, added
from .spark_sources import UNIT_SCHEMA, LogReader, QueueFiles, QueueReader
from .summaries import RUN_SCHEMA, LogSummary, UnitSummary

# Columns with repeated values. By default Arrow would try a dictionary for all columns.
_REPEATED = ["store", "topic", "tags", "reason"]
# Rows of tasks that write no files: items and runs.
_RUN = len(ItemKind)
_STREAM_SCHEMA = pa.schema([*LOG_SCHEMA, ("last_offset", pa.int64()), ("end", pa.int64())])


@dataclass(frozen=True, slots=True)
class StagedLog:
    """The items of all stores (audit.read.log_reader.LOG_SCHEMA), the runs of their queue offsets
    (audit.read.summaries.RUN_SCHEMA), the facts, and the windows with their files of items, if
    there are files. Equal items of several stores are one row."""

    items: Frame
    runs: Frame
    facts: LogFacts
    windows: Sequence[StagedRange]
    ranges: Ranges


@contextmanager
def directory_for_tables(staging: str | None, scratch: Path | None) -> Iterator[str]:
    """Make an empty directory for an audit's tables below `staging`, a path or URI, or else below
    `scratch`, and remove it later. Raises OSError."""
    if staging is None:
        with tempfile.TemporaryDirectory(prefix="mqaudit-", dir=scratch) as directory:
            yield directory
        return
    table_path = below(staging, f"mqaudit-{uuid.uuid4().hex}")
    _make(table_path)
    try:
        yield table_path
    finally:
        system, path = opened(table_path)
        system.delete_dir(path)


def staged_log(
    engine: Engine,
    reader: LogReader | LiveLog,
    names: tuple[str, ...],
    directory: str,
    progress: Callable[[str], None] = lambda step: None,
) -> StagedLog:
    """Decode the logs of the stores of these names into files in the new `directory`, or into rows
    that the tasks keep. The reader must share."""
    parts: list[tuple[int, Any]] = list(enumerate(reader.partitions()))
    done = _Estimate(progress, len(parts))
    items, runs = below(directory, "items"), below(directory, "runs")
    windows = [StagedRange(part.start, part.end, _path(items, number)) for number, part in parts]
    start = min((window.start for window in windows), default=0)
    ranges = Ranges.of(start, max((window.end for window in windows), default=start + 1))
    decode = _Decode(reader, names, ranges)
    if not engine.has_files:
        rows, facts = engine.read(
            _StreamLog(decode), parts, _STREAM_SCHEMA, LogFacts.merge, LogFacts(), done
        )
        is_run = F.col("kind") == _RUN
        kept_runs = rows.where(is_run).withColumnRenamed("queue_offset", "first_offset")
        kept = rows.where(~is_run).select(*LOG_SCHEMA.names), kept_runs.select(*RUN_SCHEMA.names)
        return StagedLog(*kept, facts, windows, ranges)
    for each in (items, runs):
        _make(each)
    write = _WriteLog(decode, items, runs)
    facts = engine.map_reduce(write, parts, LogFacts.merge, LogFacts(), done)
    written = engine.parquet(items, LOG_SCHEMA), engine.parquet(runs, RUN_SCHEMA)
    return StagedLog(*written, facts, windows, ranges)


def staged_units(
    engine: Engine, reader: QueueReader, ranges: Ranges, directory: str
) -> tuple[Frame, StoreSums]:
    """Decode the ConsumeQueues (UNIT_SCHEMA) into files in the new `directory`. Also return the
    sums of their units by the ranges of the log that they point into."""
    _make(directory)
    parts = list(enumerate(reader.partitions()))
    none: StoreSums = {}
    sums = engine.map_reduce(_WriteUnits(reader, ranges, directory), parts, added, none)
    return engine.parquet(directory, UNIT_SCHEMA), sums


def _make(directory: str) -> None:
    system, path = opened(directory)
    system.create_dir(path, recursive=True)


class _Estimate:
    """Reports the share of parts of the logs that are read, and the time for the rest."""

    def __init__(self, progress: Callable[[str], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._start_s = time.monotonic()

    def __call__(self, count: int) -> None:
        if count:
            left_s = (time.monotonic() - self._start_s) * (self._total - count) / count
            left = f"{left_s / 60:.0f} min" if left_s > 90 else f"{left_s:.0f} s"
            share = f"{count / self._total:.0%}"
            self._progress(f"reading the logs: {share}, some {left} left")


@dataclass(frozen=True)
class _Decode:
    """Yields a window's items (LOG_SCHEMA) and runs (RUN_SCHEMA) in a task, and then its facts."""

    reader: LogReader | LiveLog
    names: tuple[str, ...]
    ranges: Ranges

    def __call__(self, numbered: tuple[int, Any]) -> Iterator[pa.RecordBatch | LogFacts]:
        _, window = numbered
        parts: dict[int, list[LogFacts]] = {}
        for shared in self.reader.parts(window):
            live = self.reader if isinstance(self.reader, LiveLog) else None
            expected = ExpectedUnits() if live else None
            summary = LogSummary(self.ranges, expected)
            for batch in shared.batches:
                yield batch
                runs = summary.add(batch)
                if runs is not None and len(runs):
                    yield runs
            wrong = live.wrong_units(shared.stores, expected) if live and expected else None
            stores = shared.stores, self.names
            bounds = shared.start, shared.end
            facts = summary.facts(bounds, *stores, alike=shared.alike, wrong_units=wrong)
            parts.setdefault(shared.start, []).append(facts)
        yield LogFacts.of_window(parts.values())


@dataclass(frozen=True)
class _WriteLog:
    """Writes a window's items and runs in a task."""

    decode: _Decode
    items: str
    runs: str

    def __call__(self, numbered: tuple[int, Any]) -> LogFacts:
        facts = LogFacts()
        number, _ = numbered
        with (
            _replacing(_path(self.items, number), LOG_SCHEMA) as items,
            _replacing(_path(self.runs, number), RUN_SCHEMA) as runs,
        ):
            for each in self.decode(numbered):
                if isinstance(each, LogFacts):
                    facts = each
                else:
                    (runs if each.schema == RUN_SCHEMA else items).write_batch(each)
        return facts


@dataclass(frozen=True)
class _StreamLog:
    """Yields a window's items and runs in a task, as rows of _STREAM_SCHEMA, and then its facts."""

    decode: _Decode

    def __call__(self, numbered: tuple[int, Any]) -> Iterator[pa.RecordBatch | LogFacts]:
        for each in self.decode(numbered):
            yield each if isinstance(each, LogFacts) else _streamed(each)


def _streamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return items or runs as rows of _STREAM_SCHEMA."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if batch.schema == RUN_SCHEMA:
        columns["queue_offset"] = columns.pop("first_offset")
        columns["kind"] = pa.repeat(pa.scalar(_RUN, pa.int32()), len(batch))
    return pa.RecordBatch.from_arrays(
        [columns.get(each.name, pa.nulls(len(batch), each.type)) for each in _STREAM_SCHEMA],
        schema=_STREAM_SCHEMA,
    )


@dataclass(frozen=True)
class _WriteUnits:
    """Writes the units of some files in a task."""

    reader: QueueReader
    ranges: Ranges
    directory: str

    def __call__(self, numbered: tuple[int, QueueFiles]) -> StoreSums:
        number, partition = numbered
        summary = UnitSummary(self.ranges)
        with _replacing(_path(self.directory, number), UNIT_SCHEMA) as rows:
            for batch in self.reader.read(partition):
                rows.write_batch(batch)
                summary.add(batch)
        return summary.sums()


def _path(directory: str, number: int) -> str:
    return below(directory, f"part-{number:06}.parquet")


@contextmanager
def _replacing(path: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Write a temporary file, and move it to `path` when it is complete."""
    system, target = opened(path)
    directory, _, name = target.rpartition("/")
    temporary = f"{directory}/.{name}-{uuid.uuid4().hex}"
    with (
        system.open_output_stream(temporary) as sink,
        pq.ParquetWriter(sink, schema, compression="none", use_dictionary=_REPEATED) as out,
    ):
        yield out
    system.move(temporary, target)
