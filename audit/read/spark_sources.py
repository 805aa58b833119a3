"""Spark data sources that read stores. Register them once per session: `register(spark)`.

    spark.read.format("rocketmq").option("topic", "Flights").load("n0/store")

rocketmq        the CommitLog's records; with `topic` that topic's visible ones alone
rocketmq_log    every item of the log: records, frame headers, blanks, holes, ends (for the audit)
rocketmq_queue  the ConsumeQueues' units

`path` is a store directory or its URI; `stores` is a JSON object of names and directories. The
column `store` has the name or the directory. `splitBytes` (rocketmq, rocketmq_log; default 32 MiB)
splits segments at any byte. `shared` (rocketmq_log, rocketmq_queue; default false) returns a single
row for equal items of several stores, with their names in lines. `body` (rocketmq; default true)
includes bodies, because a source cannot prune columns. `until` (rocketmq) is the log position at
which reading stops. `from` (all but rocketmq) is the log position of the first item, or the first
position that units point at.

`partitions` and `read` run in different processes, so readers hold plain data only.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..engine.spark_types import spark_schema
from .log_reader import (
    LOG_SCHEMA,
    RECORD_BODY_SCHEMA,
    RECORD_SCHEMA,
    Content,
    Copy,
    SharedItems,
    record_batches,
    shared_items,
)
from .store_files import STORES_SEPARATOR, QueueFile, Segment, Store, units

SPLIT_BYTES = 32 * 1024 * 1024
SPLIT_BYTES_MIN = 4096
UNIT_SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        ("tags_code", pa.int64()),
    ]
)


def register(spark: SparkSession) -> None:
    """Register the three formats with this session; may be repeated."""
    for source in (RecordSource, LogSource, QueueSource):
        spark.dataSource.register(source)


@dataclass
class SharedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Log positions [start, end) of the segments that one or several stores have at `base`."""

    base: int
    copies: list[tuple[str, Segment]]
    start: int
    end: int


@dataclass
class QueueFiles(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Some ConsumeQueue files, each with the stores that have it."""

    files: list[list[tuple[str, QueueFile]]]


class Stores:
    """The stores of a source, by default those in its options, and the size at which their segments
    are split."""

    def __init__(self, options: Mapping[str, str], stores: Iterable[Store] = ()) -> None:
        self.stores = [*stores] or _stores(options)
        self.split_bytes = int(options.get("splitBytes", SPLIT_BYTES))
        if self.split_bytes < SPLIT_BYTES_MIN:
            raise ValueError(f"splitBytes must be at least {SPLIT_BYTES_MIN}")
        self.start = int(options.get("from", 0))

    def partitions(self, *, shared: bool) -> list[SharedRange]:
        """Return each range, if `shared` with all stores that have a segment there, up to the last
        written byte. Segments with the same start may have different sizes."""
        copies: dict[tuple[int, str], list[tuple[str, Segment]]] = {}
        for store in self.stores:
            for segment in store.segments:
                key = segment.base, "" if shared else store.name
                copies.setdefault(key, []).append((store.name, segment))
        ranges: list[SharedRange] = []
        for (base, _), same in sorted(copies.items()):
            last = max(segment.end for _, segment in same)
            written = max(segment.file.written_bytes() for _, segment in same)
            first = max(base, self.start)
            for start in range(first, min(last, base + max(written, 1)), self.split_bytes):
                end = min(start + self.split_bytes, last)
                having = [copy for copy in same if copy[1].end > start]
                ranges.append(SharedRange(base, having, start, end))
        return ranges


class RecordReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """Reads records, optionally of a topic, with or without bodies."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.stores = Stores(options)
        self.topic = options.get("topic")
        self.body = _flag(options, "body", True)
        until = options.get("until")
        self.until = None if until is None else int(until)

    def partitions(self) -> Sequence[InputPartition]:
        return self.stores.partitions(shared=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SharedRange):
            return  # Spark's way to read a source without partitions
        selected = self.topic, self.body, self.until
        for copy in _copies(partition):
            yield from record_batches(copy, *_bounds(partition), *selected)


class LogReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    def __init__(self, options: Mapping[str, str], stores: Iterable[Store] = ()) -> None:
        self.stores = Stores(options, stores)
        self.shared = _flag(options, "shared", False)

    def partitions(self) -> list[SharedRange]:
        return self.stores.partitions(shared=self.shared)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SharedRange):  # as above
            for shared in self.parts(partition):
                yield from shared.batches

    def parts(self, partition: SharedRange) -> Iterator[SharedItems]:
        """Read the equal items of several stores."""
        count = len(self.stores.stores) if self.shared else 0
        yield from shared_items(_copies(partition), *_bounds(partition), stores=count)

    def contents(self, partition: SharedRange) -> list[Content]:
        """Read the bytes of each store, without those behind a blank record."""
        base, low, high = _bounds(partition)
        contents = []
        for copy in _copies(partition):
            copy.view.load(low, high)
            data = bytes(copy.view.data[low : copy.end(base, high)])
            contents.append(Content((copy.store,), partition.start, data))
        return contents


def _copies(partition: SharedRange) -> list[Copy]:
    return [Copy(store, segment.file.view()) for store, segment in partition.copies]


def _bounds(partition: SharedRange) -> tuple[int, int, int]:
    """Return the segment's start, and the range in it."""
    base = partition.base
    return base, partition.start - base, partition.end - base


class QueueReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """Reads ConsumeQueue units; a partition is about `splitBytes` of files."""

    def __init__(self, options: Mapping[str, str], stores: Iterable[Store] = ()) -> None:
        self.stores = Stores(options, stores)
        self.shared = _flag(options, "shared", False)

    def partitions(self) -> list[InputPartition]:
        copies: dict[tuple[str, str, int, int], list[tuple[str, QueueFile]]] = {}
        for store in self.stores.stores:
            for file in store.queue_files():
                own = "" if self.shared else store.name
                key = (own, file.topic, file.queue_id, file.first_offset)
                copies.setdefault(key, []).append((store.name, file))
        partitions: list[InputPartition] = []
        files: list[list[tuple[str, QueueFile]]] = []
        size_bytes = 0
        for same in copies.values():
            files.append(same)
            size_bytes += sum(file.file.size_bytes for _, file in same)
            if size_bytes >= self.stores.split_bytes:
                partitions.append(QueueFiles(files))
                files, size_bytes = [], 0
        return [*partitions, QueueFiles(files)] if files else partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueueFiles):
            return  # as above
        for copies in partition.files:
            read = [(store, *units(file, self.stores.start)) for store, file in copies]
            while read:
                _, offsets, content = read[0]
                same = [
                    store
                    for store, others, theirs in read
                    if np.array_equal(others, offsets) and np.array_equal(theirs, content)
                ]
                read = [copy for copy in read if copy[0] not in same]
                if len(offsets):
                    yield self._batch(same, copies[0][1], offsets, content)

    def _batch(
        self, stores: list[str], file: QueueFile, offsets: Any, content: Any
    ) -> pa.RecordBatch:
        count = len(offsets)
        columns = [
            pa.repeat(pa.scalar(STORES_SEPARATOR.join(stores)), count),
            pa.repeat(pa.scalar(file.topic), count),
            pa.repeat(pa.scalar(file.queue_id, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array(content["position"].astype("i8")),
            pa.array(content["size"].astype("i4")),
            pa.array(content["tags_code"].astype("i8")),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=UNIT_SCHEMA)


class LogSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Format `rocketmq_log`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_log"

    def schema(self) -> StructType:
        return spark_schema(LOG_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(_plain(self.options))


class QueueSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Format `rocketmq_queue`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_queue"

    def schema(self) -> StructType:
        return spark_schema(UNIT_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return QueueReader(_plain(self.options))


class RecordSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Format `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        body = _flag(self.options, "body", True)
        return spark_schema(RECORD_BODY_SCHEMA if body else RECORD_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RecordReader(_plain(self.options))


def _plain(options: MutableMapping[str, str]) -> dict[str, str]:
    """Return Spark's case-insensitive options under the names this module asks for."""
    names = (
        "path",
        "stores",
        "topic",
        "body",
        "until",
        "splitBytes",
        "shared",
        "from",
    )
    return {name: options[name] for name in names if name in options}


def _stores(options: Mapping[str, str]) -> list[Store]:
    if "stores" in options:
        return [Store(str(n), str(path)) for n, path in orjson.loads(options["stores"]).items()]
    if "path" in options:
        return [Store(options["path"], options["path"])]
    raise ValueError("give a store directory: load(path), or option stores")


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {text}")
    return text == "true"
