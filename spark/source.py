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
from .cluster import Cluster, named
from .damage import Repair
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
from .rows import DAMAGE, MESSAGE_FIELDS, PROPERTIES, TIME, DamagedMessages, rows
from .sink import BatchWriter, StreamWriter
from .sink_rows import check_columns

log = logging.getLogger("raftmq.spark")

TOPIC_WAIT_S = 5.0  # for name servers that have no route yet
TOPIC_PAUSE_S = 0.5
BATCH_ROWS = 1_000
CLOCK_MS = 30_000  # clocks that differ, and a route that is registered late
_SPARK_TYPES: dict[Any, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    TIME: TimestampType(),
}
_FIELDS = {name: _SPARK_TYPES[kind] for name, kind in MESSAGE_FIELDS} | {
    PROPERTIES: MapType(StringType(), StringType()),
    DAMAGE: StringType(),
}


@dataclass
class Partition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Ranges of queues, read by a task one after another."""

    ranges: tuple[QueueRange, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of queues at a time."""

    offsets: dict[Queue, int]
    checked_ms: int


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
        self._target: Ends | None = None  # for Trigger.AvailableNow
        self._batch_s: float | None = None  # when a micro-batch was last begun
        self._committed: dict[Queue, int] = {}

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        checked_ms = _now_ms()
        with Cluster(self.options.connection) as cluster:
            queues = _queues(cluster, self.options)
            low, high = cluster.earliest(queues), cluster.latest(queues)
            start = _offsets(cluster, self.options.start, queues, low, high)
        return positions.to_json(start, checked_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows_max)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        read = positions.of_json(start)
        ends = self._existing(read)
        if back := list(positions.behind(ends.offsets, read)):
            return self._set_back(start, ends, back)
        end = read | ends.offsets  # a removed queue keeps its offset
        if self._waits(read, end):
            return start
        if isinstance(limit, ReadMaxRows):
            come = [queue for queue in ends.offsets if queue not in read]
            end = positions.at_most(read | self._earliest(come), end, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise TypeError(f"format raftmq cannot limit a batch by {type(limit).__name__}")
        return start if end == read else positions.to_json(end, ends.checked_ms)

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return positions.to_json(self._latest().offsets)

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = positions.ranges_between(positions.of_json(start), positions.of_json(end))
        return _partitions(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of a finished micro-batch to the consumer group, if that is wanted.
        The checkpoint has them, so a failure only makes the group's lag look larger."""
        if not self.options.commits:
            return
        offsets = positions.of_json(end)
        changed = {q: offset for q, offset in offsets.items() if self._committed.get(q) != offset}
        if not changed:
            return
        try:
            with Cluster(self.options.connection) as cluster:
                cluster.commit(changed)
            self._committed = offsets
        except (ClientError, RemotingError) as error:
            log.warning("offsets_not_committed group=%s: %s", self.options.connection.group, error)

    def stop(self) -> None:
        """Do nothing, because nothing stays open."""

    def _waits(self, read: Mapping[Queue, int], end: Mapping[Queue, int]) -> bool:
        """Return whether minOffsetsPerTrigger delays the next micro-batch."""
        waiting = sum(each.size for each in positions.ranges_between(read, end))
        if not waiting or self._target is not None:
            return False
        now_s, last_s = time.monotonic(), self._batch_s
        if waiting < self.options.rows_min and last_s is not None:
            if (now_s - last_s) * 1000 < self.options.delay_ms_max:
                return True
        self._batch_s = now_s
        return False

    def _existing(self, read: Mapping[Queue, int]) -> Ends:
        """Return the queues' ends. Raises DataLost if a queue that was read is gone; name servers
        that have just started may not know it yet."""
        deadline_s = time.monotonic() + self.options.connection.timeout_ms / 1000
        while True:
            ends = self._target or self._latest()
            topics = {queue.topic for queue in [*read, *ends.offsets]}
            for topic in self.options.topics:
                if topic not in topics:
                    raise NoRoute(topic, "no name server knows it")
            gone = positions.gone(read, ends.offsets)
            if not gone or not self.options.fail_on_data_loss:
                return ends
            if time.monotonic() > deadline_s:
                raise DataLost(
                    f"{named(gone[0])} is gone, because its topic was deleted or has fewer queues; "
                    "failOnDataLoss=false goes on with the others"
                )
            time.sleep(TOPIC_PAUSE_S)
            if self._target is not None:
                self._target = self._latest()

    def _set_back(self, start: dict[str, Any], ends: Ends, back: list[Queue]) -> dict[str, Any]:
        """Return an end that sets queues back to their first messages since `start`, because their
        topic was made again or their broker lost messages. Raises DataLost."""
        read, queue = positions.of_json(start), back[0]
        if self.options.fail_on_data_loss:
            raise DataLost(
                f"{named(queue)} ends at {ends.offsets[queue]}, and {read[queue]} was read before: "
                "its topic was made again, or its broker lost messages; failOnDataLoss=false goes "
                "on from there"
            )
        since_ms = positions.checked_ms_of(start)
        with Cluster(self.options.connection) as cluster:
            cluster.queues({each.topic for each in back})  # finds their brokers
            if since_ms is None:  # a checkpoint of an earlier version
                first = cluster.earliest(back)
            else:
                first = cluster.at_time(back, max(0, since_ms - CLOCK_MS))
        low = {each: min(first[each], ends.offsets[each]) for each in back}
        return positions.to_json(read | low, ends.checked_ms)

    def _earliest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        if not queues:
            return {}
        with Cluster(self.options.connection) as cluster:
            cluster.queues({queue.topic for queue in queues})  # finds its brokers
            return cluster.earliest(queues)

    def _latest(self) -> Ends:
        checked_ms = _now_ms()
        with Cluster(self.options.connection) as cluster:
            queues = _queues(cluster, self.options, all_exist=False)
            return Ends(cluster.latest(queues), checked_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _partitions(ranges: Sequence[QueueRange], options: ReadOptions) -> list[Partition]:
    parts = positions.split(ranges, options.partitions_min, options.partition_rows_max)
    return [Partition(part) for part in parts]


def _queues(cluster: Cluster, options: ReadOptions, *, all_exist: bool = True) -> list[Queue]:
    topics = cluster.topics(options.pattern) if options.pattern else options.topics
    queues = cluster.queues(topics, all_exist=all_exist)
    if not options.assigned:
        return queues
    missing = set(options.assigned).difference(queues)
    if missing and all_exist:
        raise OptionError(f"assign has {named(min(missing))}, which the topic does not have")
    return [queue for queue in queues if queue in options.assigned]


def _offsets(
    cluster: Cluster,
    start: StartOffset,
    queues: Sequence[Queue],
    low: Mapping[Queue, int],
    high: Mapping[Queue, int],
) -> dict[Queue, int]:
    for queue in [*start.named, *start.times_ms]:
        if queue not in high:
            raise OptionError(f"an option has {named(queue)}, which is not among those to read")
    for queue, offset in start.named.items():
        if offset > high[queue]:
            raise OptionError(f"{named(queue)} ends at {high[queue]}, before {offset}")
    times_ms = dict(start.times_ms)
    if start.timestamp_ms is not None:
        times_ms = dict.fromkeys(queues, start.timestamp_ms)
    limits = {EARLIEST: low, LATEST: high}
    offsets = {queue: start.named.get(queue, start.default) for queue in queues}
    offsets = {
        q: limits[offset][q] if offset in limits else offset for q, offset in offsets.items()
    }
    for time_ms in set(times_ms.values()):
        moved = cluster.at_time([q for q, at_ms in times_ms.items() if at_ms == time_ms], time_ms)
        late = [queue for queue, offset in moved.items() if offset >= high[queue]]
        if late and start.must_exist:
            raise OptionError(
                f"{named(late[0])} has no message stored at or after {time_ms}: "
                "startingOffsetsByTimestampStrategy=latest starts at its end"
            )
        offsets |= moved
    return offsets


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
        repair = Repair(cluster, options)
        for block in cluster.blocks(ranges, options.fail_on_data_loss):
            data, broker = memoryview(block.records), block.queue.broker
            try:
                batch = rows(data, broker, block.start, block.end, options.columns)
            except DamagedMessages:
                yield from repair.batches(block)
            else:
                block.check(len(batch))
                yield batch
