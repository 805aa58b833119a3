"""Evaluates the queries of an audit on Spark, in a session that somebody else holds."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

from raftmq.spark.filesystem import for_spark

from ..session import SPARK_ERRORS, cause, is_local
from .columns import METHOD, Column, WindowSpec
from .frames import CORRUPT, Done, EngineFailed, Frame, Made, Part, Row, ignore
from .spark_types import spark_schema

NAME = "spark"
POLL_S = 1.0
SHUFFLED_BYTES = 512 << 20  # bytes of logs per shuffle partition
RESULTS_MAX = 64  # of a map_reduce at the driver
_MADE = [("part", pa.int64()), ("made", pa.binary())]


@dataclass(frozen=True, slots=True)
class SparkFrame:
    """A frame of Spark (audit.engine.frames.Frame)."""

    frame: DataFrame

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.frame.columns)

    def where(self, condition: Column | str) -> SparkFrame:
        return SparkFrame(self.frame.where(_made(condition)))

    def select(self, *columns: Column | str) -> SparkFrame:
        return SparkFrame(self.frame.select(*map(_made, columns)))

    def withColumn(self, name: str, value: Column) -> SparkFrame:
        return SparkFrame(self.frame.withColumn(name, _made(value)))

    def withColumns(self, values: Mapping[str, Column]) -> SparkFrame:
        made = {name: _made(value) for name, value in values.items()}
        return SparkFrame(self.frame.withColumns(made))

    def withColumnRenamed(self, name: str, new: str) -> SparkFrame:
        return SparkFrame(self.frame.withColumnRenamed(name, new))

    def drop(self, *names: str) -> SparkFrame:
        return SparkFrame(self.frame.drop(*names))

    def distinct(self) -> SparkFrame:
        return SparkFrame(self.frame.distinct())

    def exploded(self, name: str, values: Column) -> SparkFrame:
        return SparkFrame(self.frame.withColumn(name, F.explode(_made(values))))

    def numbered(self, name: str, at: str, value: str) -> SparkFrame:
        others = [other for other in self.frame.columns if other != name]
        return SparkFrame(self.frame.select(*others, F.posexplode(name).alias(at, value)))

    def join(self, other: Frame, on: Sequence[str], how: str = "inner") -> SparkFrame:
        return SparkFrame(self.frame.join(_spark(other), list(on), how))

    def broadcast(self) -> SparkFrame:
        return SparkFrame(F.broadcast(self.frame))

    def groupBy(self, *columns: Column | str) -> SparkGroups:
        return SparkGroups(self.frame.groupBy(*map(_made, columns)))

    def agg(self, *columns: Column) -> SparkFrame:
        return SparkFrame(self.frame.agg(*map(_made, columns)))

    def unionByName(self, other: Frame) -> SparkFrame:
        return SparkFrame(self.frame.unionByName(_spark(other)))

    def orderBy(self, *names: str) -> SparkFrame:
        return SparkFrame(self.frame.orderBy(*names))

    def limit(self, count: int) -> SparkFrame:
        return SparkFrame(self.frame.limit(count))

    def count(self) -> int:
        with _causes():
            return int(self.frame.count())

    def collect(self) -> list[Row]:
        with _causes():
            return [row.asDict(recursive=True) for row in self.frame.collect()]

    def rows(self) -> Iterator[Row]:
        with _causes():
            for row in self.frame.toLocalIterator(prefetchPartitions=True):
                yield row.asDict(recursive=True)


@dataclass(frozen=True, slots=True)
class SparkGroups:
    groups: GroupedData

    def agg(self, *columns: Column) -> SparkFrame:
        return SparkFrame(self.groups.agg(*map(_made, columns)))


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """An engine (audit.engine.frames.Engine) on a running session. `kept` has the rows that
    executors keep until the end of the audit."""

    session: SparkSession
    has_files: bool = True
    kept: list[DataFrame] = field(default_factory=list)

    @property
    def name(self) -> str:
        return NAME

    def table(self, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> SparkFrame:
        return SparkFrame(self.session.createDataFrame(list(rows), spark_schema(schema)))

    def parquet(self, path: str, schema: pa.Schema | None = None) -> SparkFrame:
        reader = self.session.read
        if schema is not None:
            reader = reader.schema(spark_schema(schema))
        with _causes():
            return SparkFrame(reader.parquet(for_spark(path)))

    def lines(self, path: str, schema: pa.Schema) -> SparkFrame:
        reader = self.session.read.schema(spark_schema(schema))
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT).option("mode", "PERMISSIVE")
        with _causes():
            return SparkFrame(reader.json(path))

    def staged(self, frame: Frame, directory: str) -> SparkFrame:
        rows, path = _spark(frame), for_spark(directory)
        if not self.has_files:
            return self._keep(rows)
        with _causes():
            rows.write.parquet(path)
            return SparkFrame(self.session.read.schema(rows.schema).parquet(path))

    def map_reduce(
        self,
        function: Callable[[Part], Made],
        parts: Sequence[Part],
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> Made:
        if not parts:
            return empty
        with _causes(), self._counted(len(parts), done):
            tasks = self.session.sparkContext.parallelize([*enumerate(parts)], len(parts))
            return _merged(tasks.mapValues(function), len(parts), merge)

    def without_files(self) -> SparkEngine:
        master = self.session.sparkContext.master
        return self if is_local(master) else replace(self, has_files=False)

    def read(
        self,
        function: Callable[[Part], Iterator[Any]],
        parts: Sequence[Part],
        schema: pa.Schema,
        merge: Callable[[Made, Made], Made],
        empty: Made,
        done: Done = ignore,
    ) -> tuple[SparkFrame, Made]:
        with_made = pa.schema([*schema, *_MADE])

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch["id"].to_pylist():
                    for each in function(parts[number]):
                        yield _with_made(each, number, with_made)

        if not parts:
            return self.table([], schema), empty
        with _causes(), self._counted(len(parts), done):
            numbers = self.session.range(0, len(parts), 1, len(parts))
            kept = self._keep(numbers.mapInArrow(read, spark_schema(with_made))).frame
            made = kept.where("made is not null").select("part", "made").rdd
            decode = partial(msgspec.msgpack.decode, type=type(empty))
            unpacked = made.map(lambda row: (row["part"], decode(row["made"])))
            merged = _merged(unpacked, len(parts), merge)
            return SparkFrame(kept.where("made is null").select(*schema.names)), merged

    def _keep(self, rows: DataFrame) -> SparkFrame:
        """Keep rows on the executors' disks. A lost executor's rows are made again."""
        with _causes():
            self.kept.append(rows.persist(StorageLevel.DISK_ONLY))
        return SparkFrame(self.kept[-1])

    @contextmanager
    def _counted(self, total: int, done: Done) -> Iterator[None]:
        """Call `done` with the number of finished tasks of a stage with `total` tasks."""
        tracker, ended = self.session.sparkContext.statusTracker(), threading.Event()

        def poll() -> None:
            while not ended.wait(POLL_S):
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                for stage in stages:
                    if stage is not None and stage.numTasks == total:
                        done(stage.numCompletedTasks)

        poller = threading.Thread(target=poll, daemon=True)
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join()

    @contextmanager
    def sized_for(self, size_bytes: int) -> Iterator[None]:
        """Give shuffles enough partitions that each fits into a task's memory."""
        name = "spark.sql.shuffle.partitions"
        before = int(self.session.conf.get(name) or 0)
        self.session.conf.set(name, max(before, -(-size_bytes // SHUFFLED_BYTES)))
        try:
            yield
        finally:
            self.session.conf.set(name, before)
            while self.kept:
                self.kept.pop().unpersist()


def _with_made(made: Any, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, or a result of part `number`, as rows with the columns _MADE."""
    if not isinstance(made, pa.RecordBatch):
        row = {"part": number, "made": msgspec.msgpack.encode(made)}
        return pa.RecordBatch.from_pylist([row], schema)
    nulls = [pa.nulls(len(made), kind) for _, kind in _MADE]
    return pa.RecordBatch.from_arrays([*made.columns, *nulls], schema=schema)


def _merged(
    numbered: RDD[tuple[int, Made]], count: int, merge: Callable[[Made, Made], Made]
) -> Made:
    """Merge the results of `count` parts in the order of their numbers, in tasks if there are
    many."""
    if count > RESULTS_MAX:
        grouped = numbered.partitionBy(RESULTS_MAX, lambda number: number * RESULTS_MAX // count)
        numbered = grouped.mapPartitions(partial(_in_order, merge))
    collected: list[tuple[int, Made]] = numbered.collect()
    return next(_in_order(merge, collected))[1]


def _in_order(
    merge: Callable[[Made, Made], Made], numbered: Iterable[tuple[int, Made]]
) -> Iterator[tuple[int, Made]]:
    (first, merged), *others = sorted(numbered, key=operator.itemgetter(0))
    for _, made in others:
        merged = merge(merged, made)
    yield first, merged


@contextmanager
def _causes() -> Iterator[None]:
    try:
        yield
    except SPARK_ERRORS as error:
        raise EngineFailed(cause(error)) from error


def _spark(frame: Frame) -> DataFrame:
    assert isinstance(frame, SparkFrame), frame
    return frame.frame


def _made(value: Any) -> Any:
    """Return an expression as PySpark's."""
    if isinstance(value, WindowSpec):
        made = SparkWindow.partitionBy(*value.partition).orderBy(*value.order)
        return made.rowsBetween(SparkWindow.unboundedPreceding, -1) if value.before else made
    if not isinstance(value, Column):
        return value
    args = [_made(arg) for arg in value.args]
    if value.name.startswith(METHOD):
        return getattr(args[0], value.name.removeprefix(METHOD))(*args[1:])
    if value.name == "count" and value.args[0].args == ("*",):
        return F.count("*")
    return getattr(F, value.name)(*args)
