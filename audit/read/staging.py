"""Decodes stores into Parquet files for the engine of an audit.

The tasks write the files themselves, to a path or URI (raftmq.spark.filesystem) that the engine can
read. To pass rows from Python to Spark costs more than their decoding, so it is done only where
tasks share no directory. A repeated task replaces its file. Nothing is compressed: Snappy and
Zstandard are native code in Java, which cannot be loaded if /tmp executes nothing, and Spark has
once failed to read Arrow's LZ4.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.spark.filesystem import below, opened
from raftmq.spark.layout import ItemKind

from ..engine import columns as F
from ..engine.frames import Engine, Frame
from .live_log import LiveLog
from .live_queues import ExpectedUnits
from .log_reader import LOG_SCHEMA, SharedItems
from .range_digests import RUN_SCHEMA, LogDigest, LogSummary, UnitDigest, UnitSummary
from .spark_sources import UNIT_SCHEMA, LogReader, QueueFiles, QueueReader

# Columns with repeated values. By default Arrow would try a dictionary for all columns.
_REPEATED = ["store", "topic", "tags", "reason"]
# Rows of tasks that write no files: items, and besides runs and digests.
_RUN, _DIGEST = len(ItemKind), len(ItemKind) + 1
_RUN_NAMES = {"first_offset": "queue_offset"}
_STREAM_SCHEMA = pa.schema(
    [*LOG_SCHEMA, ("last_offset", pa.int64()), ("end", pa.int64()), ("digest", pa.binary())]
)


@dataclass(frozen=True, slots=True)
class StagedLog:
    """The items of all stores (audit.read.log_reader.LOG_SCHEMA), the runs of their queue offsets
    (audit.read.range_digests.RUN_SCHEMA), and the digests. Equal items of several stores are one
    row."""

    items: Frame
    runs: Frame
    digests: list[LogDigest]


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
    directory: str,
    progress: Callable[[str], None] = lambda step: None,
) -> StagedLog:
    """Decode the logs into files in the new `directory`, or into rows that the tasks keep. The
    reader must share."""
    parts = list(enumerate(reader.partitions()))
    done = _Estimate(progress, len(parts))
    if not engine.has_files:
        return _kept_log(engine.read(_StreamLog(reader), parts, _STREAM_SCHEMA, done))
    items, runs = below(directory, "items"), below(directory, "runs")
    for each in (items, runs):
        _make(each)
    digests = engine.map(_WriteLog(reader, items, runs), parts, done)
    return StagedLog(
        engine.parquet(items, LOG_SCHEMA),
        engine.parquet(runs, RUN_SCHEMA),
        [*itertools.chain.from_iterable(digests)],
    )


def _kept_log(rows: Frame) -> StagedLog:
    """Separate the items, runs and digests of _STREAM_SCHEMA."""
    kind = F.col("kind")
    runs = rows.where(kind == _RUN).withColumnRenamed("queue_offset", "first_offset")
    packed = rows.where(kind == _DIGEST).select("digest").collect()
    digests = [msgspec.msgpack.decode(bytes(row["digest"]), type=LogDigest) for row in packed]
    return StagedLog(
        rows.where(kind < _RUN).select(*LOG_SCHEMA.names),
        runs.select(*RUN_SCHEMA.names),
        digests,
    )


def staged_units(
    engine: Engine, reader: QueueReader, directory: str
) -> tuple[Frame, list[UnitDigest]]:
    """Decode the ConsumeQueues (UNIT_SCHEMA) into files in the new `directory`."""
    _make(directory)
    parts = list(enumerate(reader.partitions()))
    digests = engine.map(_WriteUnits(reader, directory), parts)
    return engine.parquet(directory, UNIT_SCHEMA), [*itertools.chain.from_iterable(digests)]


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
class _WriteLog:
    """Writes a range's rows and runs in a task."""

    reader: LogReader | LiveLog
    items: str
    runs: str

    def __call__(self, numbered: tuple[int, Any]) -> list[LogDigest]:
        number, partition = numbered
        digests = []
        path = _path(self.items, number)
        with (
            _replacing(path, LOG_SCHEMA) as rows,
            _replacing(_path(self.runs, number), RUN_SCHEMA) as runs,
        ):
            for shared in self.reader.parts(partition):
                summary = _summary(self.reader)
                for batch in shared.batches:
                    rows.write_batch(batch)
                    run = summary.add(batch)
                    if run is not None:
                        runs.write_batch(run)
                digests.append(_digest(self.reader, partition, shared, summary, path))
        return digests


@dataclass(frozen=True)
class _StreamLog:
    """Yields a range's rows, runs and digests in a task, as rows of _STREAM_SCHEMA."""

    reader: LogReader | LiveLog

    def __call__(self, numbered: tuple[int, Any]) -> Iterator[pa.RecordBatch]:
        _, partition = numbered
        for shared in self.reader.parts(partition):
            summary = _summary(self.reader)
            for batch in shared.batches:
                yield _streamed(batch)
                run = summary.add(batch)
                if run is not None and len(run):
                    names = [_RUN_NAMES.get(name, name) for name in run.schema.names]
                    yield _streamed(run.rename_columns(names), _RUN)
            digest = _digest(self.reader, partition, shared, summary, "")
            packed = pa.array([msgspec.msgpack.encode(digest)], pa.binary())
            yield _streamed(pa.RecordBatch.from_arrays([packed], names=["digest"]), _DIGEST)


def _summary(reader: LogReader | LiveLog) -> LogSummary:
    return LogSummary(ExpectedUnits() if isinstance(reader, LiveLog) else None)


def _digest(
    reader: LogReader | LiveLog, partition: Any, shared: SharedItems, summary: LogSummary, path: str
) -> LogDigest:
    """Return the digest of items, with the wrong units of running replicas."""
    wrong = None
    if isinstance(reader, LiveLog) and summary.expects is not None:
        wrong = reader.wrong_units(shared.stores, summary.expects)
    bounds = partition.start, partition.end
    return summary.digest(shared.stores, *bounds, shared.alike, path, wrong)


def _streamed(batch: pa.RecordBatch, kind: int | None = None) -> pa.RecordBatch:
    """Return rows of _STREAM_SCHEMA with the batch's columns, and its own kind unless given."""
    columns = []
    for field in _STREAM_SCHEMA:
        if field.name == "kind" and kind is not None:
            columns.append(pa.repeat(pa.scalar(kind, field.type), len(batch)))
        elif field.name in batch.schema.names:
            columns.append(batch[field.name])
        else:
            columns.append(pa.nulls(len(batch), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=_STREAM_SCHEMA)


@dataclass(frozen=True)
class _WriteUnits:
    """Writes the units of some files in a task."""

    reader: QueueReader
    directory: str

    def __call__(self, numbered: tuple[int, QueueFiles]) -> list[UnitDigest]:
        number, partition = numbered
        summary = UnitSummary()
        with _replacing(_path(self.directory, number), UNIT_SCHEMA) as rows:
            for batch in self.reader.read(partition):
                rows.write_batch(batch)
                summary.add(batch)
        return summary.digests()


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
