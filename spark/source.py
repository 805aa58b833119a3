"""Format `raftmq`, topics of running brokers as batch and streaming DataFrames.

    spark.read.format("raftmq").option("namesrv", "127.0.0.1:9876").option("topic", "Orders").load()
    spark.readStream.format("raftmq")...

A partition has ranges of queues. Its offsets determine its rows, so a repeated task reads the same
rows. A stream's offsets are only in its checkpoint; nothing is committed at the brokers.
`partitions` and `read` run in different processes, so readers hold plain data only, and a stream's
reader connects on demand.

The options are in docs/spark.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftmq.client.errors import ClientError, NoRoute
from raftmq.remoting.errors import RemotingError

from . import offset_ranges as positions
from .cluster import Cluster
from .errors import DataLost, plain_errors
from .offset_ranges import EARLIEST, LATEST, Queue, QueueRange
from .options import (
    OptionError,
    ReadOptions,
    StartOffset,
    WriteOptions,
    columns_of,
    read_options,
    write_options,
)
from .pushdown import Narrowing
from .rows import MESSAGE_FIELDS, PROPERTIES, TIME, rows
from .sink import BatchWriter, StreamWriter
from .sink_rows import check_columns

log = logging.getLogger("raftmq.spark")

TOPIC_WAIT_S = 5.0  # for name servers that have no route yet
TOPIC_PAUSE_S = 0.5
BATCH_ROWS = 1_000
_SPARK_TYPES: dict[Any, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    TIME: TimestampType(),
}
_FIELDS = {name: _SPARK_TYPES[kind] for name, kind in MESSAGE_FIELDS} | {
    PROPERTIES: MapType(StringType(), StringType())
}


@dataclass
class Partition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Ranges of queues, read by a task one after another."""

    ranges: tuple[QueueRange, ...]


class RaftMqSource(DataSource):  # type: ignore[misc]  # as above
    """Format `raftmq`."""

    @classmethod
    def name(cls) -> str:
        return "raftmq"

    @plain_errors()
    def schema(self) -> StructType:
        names = columns_of(dict(self.options))
        return StructType([StructField(name, _FIELDS[name], True) for name in names])

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(dict(self.options), streaming=False)
        return PushingReader(options) if options.pushdown else BatchReader(options)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(dict(self.options), streaming=True))

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_write(schema, overwrite)
        return BatchWriter(_checked(write_options(dict(self.options), streaming=False)))

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        _check_write(schema, overwrite)
        return StreamWriter(_checked(write_options(dict(self.options), streaming=True)))


def _check_write(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise OptionError("a topic is only appended to: write with mode append")
    check_columns(schema.fieldNames())


def _checked(options: WriteOptions) -> WriteOptions:
    """Return the options if their topic exists, or if no broker can be asked now. Raises
    OptionError for a misspelt topic before the tasks do their work."""
    deadline = time.monotonic() + min(options.connection.timeout_ms / 1000, TOPIC_WAIT_S)
    while True:
        try:
            with Cluster(options.connection) as cluster:
                cluster.queues((options.topic,))
            return options
        except NoRoute as error:  # a name server that has just started has no route yet
            if time.monotonic() > deadline:
                raise OptionError(f"{error}: create the topic first") from error
            time.sleep(TOPIC_PAUSE_S)
        except (ClientError, RemotingError) as error:
            log.info("topic_not_checked topic=%s: %s", options.topic, error)
            return options


class BatchReader(DataSourceReader):  # type: ignore[misc]  # as above
    """Reads the messages that exist at planning time."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.narrowing = Narrowing()

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        options, narrowing = self.options, self.narrowing
        with Cluster(options.connection) as cluster:
            queues = [queue for queue in _queues(cluster, options) if narrowing.takes(queue)]
            low, high = cluster.earliest(queues), cluster.latest(queues)
            start = _offsets(cluster, options.start, queues, low, high)
            end = _offsets(cluster, options.end, queues, low, high)
            if narrowing.from_ms is not None:
                later = cluster.at_time(queues, narrowing.from_ms)
                start = {queue: max(offset, later[queue]) for queue, offset in start.items()}
        ranges = [
            QueueRange(queue, *narrowing.offsets(start[queue], to))
            for queue, to in sorted(end.items())
        ]
        ranges = [each for each in ranges if each.size > 0]
        return _partitions(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


class PushingReader(DataSourceReader):  # type: ignore[misc]  # as above
    """A BatchReader with predicates. Spark refuses such a reader unless
    spark.sql.python.filterPushdown.enabled is true."""

    def __init__(self, options: ReadOptions) -> None:
        self._inner = BatchReader(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read range. Spark evaluates every predicate again."""
        self._inner.narrowing = Narrowing.of(filters)
        return filters

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return self._inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._inner.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # as above
    """Reads from the checkpoint's end, and new queues and topics from their first offset."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._target: dict[Queue, int] | None = None  # for Trigger.AvailableNow

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        with Cluster(self.options.connection) as cluster:
            queues = _queues(cluster, self.options)
            low, high = cluster.earliest(queues), cluster.latest(queues)
            start = _offsets(cluster, self.options.start, queues, low, high)
        return positions.to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows_max)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        read = positions.of_json(start)
        latest = dict(self._latest() if self._target is None else self._target)
        for queue in list(positions.behind(latest, read)):
            if self.options.fail_on_data_loss:
                raise DataLost(
                    f"{queue} ends at {latest[queue]}, and {read[queue]} was read before: its "
                    "broker lost messages; failOnDataLoss=false goes on from there"
                )
            latest[queue] = read[queue]
        end = read | latest  # a removed queue keeps its offset
        if isinstance(limit, ReadMaxRows):
            come = [queue for queue in latest if queue not in read]
            end = positions.at_most(read | self._earliest(come), end, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise TypeError(f"format raftmq cannot limit a batch by {type(limit).__name__}")
        return positions.to_json(end)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return positions.to_json(self._latest())

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = positions.ranges_between(positions.of_json(start), positions.of_json(end))
        return _partitions(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the checkpoint has the offsets."""

    def stop(self) -> None:
        """Do nothing, because nothing stays open."""

    def _earliest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        if not queues:
            return {}
        with Cluster(self.options.connection) as cluster:
            cluster.queues({queue.topic for queue in queues})  # finds its brokers
            return cluster.earliest(queues)

    def _latest(self) -> dict[Queue, int]:
        with Cluster(self.options.connection) as cluster:
            return cluster.latest(_queues(cluster, self.options))


def _partitions(ranges: Sequence[QueueRange], options: ReadOptions) -> list[Partition]:
    parts = positions.split(ranges, options.partitions_min, options.partition_rows_max)
    return [Partition(part) for part in parts]


def _queues(cluster: Cluster, options: ReadOptions) -> list[Queue]:
    topics = cluster.topics(options.pattern) if options.pattern else options.topics
    return cluster.queues(topics)


def _offsets(
    cluster: Cluster,
    start: StartOffset,
    queues: Sequence[Queue],
    low: Mapping[Queue, int],
    high: Mapping[Queue, int],
) -> dict[Queue, int]:
    if start.timestamp_ms is not None:
        return cluster.at_time(queues, start.timestamp_ms)
    for queue, offset in start.named.items():
        if queue not in high:
            raise OptionError(f"offsets name {queue}, which the topics do not have")
        if offset > high[queue]:
            raise OptionError(f"{queue} ends at {high[queue]}, before {offset}")
    limits = {EARLIEST: low, LATEST: high}
    offsets = {queue: start.named.get(queue, start.default) for queue in queues}
    return {q: limits[offset][q] if offset in limits else offset for q, offset in offsets.items()}


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows. Small blocks are joined, because each batch costs Spark time."""
    if not isinstance(partition, Partition):
        return  # Spark's way to read a source without partitions
    joined, count = list[pa.RecordBatch](), 0
    with plain_errors():
        for batch in _batches(options, partition.ranges):
            joined.append(batch)
            count += len(batch)
            if count >= BATCH_ROWS:
                yield from _one(joined)
                joined, count = [], 0
        yield from _one(joined)


def _one(batches: Sequence[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return (
        batches
        if len(batches) < 2
        else pa.Table.from_batches(batches).combine_chunks().to_batches()
    )


def _batches(options: ReadOptions, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    with Cluster(options.connection) as cluster:
        for block in cluster.blocks(ranges, options.fail_on_data_loss):
            data, broker = memoryview(block.records), block.queue.broker
            batch = rows(data, broker, block.start, block.end, options.columns)
            block.check(len(batch))
            yield batch
