"""Compares a table that a stream writes with the topics that it reads.

The table has the columns topic, broker, queue_id and queue_offset of format `raftmq`, and perhaps
body. Both sides are joined by place, in Spark's tasks, so the table's format and size do not
matter. The topics are read from the table's first row of each queue, or from their own beginning,
up to the offsets of the stream's checkpoint, or up to the table's last row of each queue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from pyarrow import fs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from raftmq.spark.cluster import Cluster
from raftmq.spark.filesystem import opened
from raftmq.spark.offset_ranges import Queue, of_json, to_json
from raftmq.spark.options import Connection, options_of

from .report.report import OFFENDERS_MAX, AuditReport, CheckResult

POSITION = ("topic", "broker", "queue_id", "queue_offset")
_POSITION_TYPES = "topic string, broker string, queue_id int, queue_offset long"
CHECKS = {
    "not_landed": "messages of the topic that the table does not have",
    "landed_twice": "places that the table has more than once",
    "landed_altered": "messages whose body differs in the table",
    "not_stored": "rows of the table that the topic does not have",
}


class TableUnfit(Exception):
    """The table or the checkpoint is not what a stream over topics writes."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """`location` is a path. For the format `table` it is the name of a table in Spark's catalog,
    and for `iceberg` a catalog of PyIceberg and a table in it, `lake.mq.orders`."""

    location: str
    format: str = "parquet"
    checkpoint: str = ""
    from_start: bool = False


def audit_table(spark: SparkSession, connection: Connection, options: TableOptions) -> AuditReport:
    """Raises TableUnfit, ClientError, OSError, and Spark's errors."""
    start_s = time.monotonic()
    frame = _opened(spark, options)
    has_bodies = "body" in frame.columns
    crc = F.crc32("body") if has_bodies else F.lit(None).cast("long")
    landed = frame.select(*POSITION, crc.alias("landed_crc"))
    landed = landed.groupBy(*POSITION).agg(
        F.count("*").alias("copies"),
        F.min("landed_crc").alias("landed_crc"),
        F.max("landed_crc").alias("landed_crc_max"),
    )
    first, end = _bounds(landed)
    not_judged = [] if has_bodies else ["bodies: the table has no column body"]
    if options.checkpoint:
        end = {**end, **checkpoint_offsets(options.checkpoint)}
    else:
        not_judged.append("messages behind the last row of each queue: there is no --checkpoint")
    with Cluster(connection) as cluster:
        queues = cluster.queues({queue.topic for queue in end}, all_exist=False)
        there = sorted(set(queues) & end.keys())
        low, high = cluster.earliest(there), cluster.latest(there)
    if gone := sorted(set(end) - set(there)):
        names = ", ".join(f"{q.topic} {q.broker} {q.queue_id}" for q in gone[:OFFENDERS_MAX])
        not_judged.append(f"{len(gone)} queues that no name server knows: {names}")
    start = {q: low[q] if options.from_start else max(low[q], first.get(q, end[q])) for q in there}
    if not options.from_start:
        not_judged.append("messages before the first row of each queue: without --from-start")
    stored = _stored(spark, connection, start, {q: min(end[q], high[q]) for q in there})
    if not there:
        raise TableUnfit("no name server knows a queue of the table")
    queue_types = _POSITION_TYPES.rpartition(",")[0]
    lows = [(*queue, low[queue]) for queue in there]
    known = spark.createDataFrame(lows, f"{queue_types}, low long")
    rows = landed.join(stored, [*POSITION], "full").join(F.broadcast(known), [*POSITION[:3]])
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        figures, checks = _checked(rows)
    finally:
        rows.unpersist()
    seconds = time.monotonic() - start_s
    report = AuditReport("", (), figures, checks, seconds, engine="spark")
    return replace(report, not_judged=tuple(not_judged))


def checkpoint_offsets(location: str) -> dict[Queue, int]:
    """Return the end of the last committed micro-batch of a checkpoint. Raises TableUnfit."""
    system, root = opened(location) if "://" in location else (fs.LocalFileSystem(), location)
    selector = fs.FileSelector(f"{root}/commits", allow_not_found=True)
    names = (info.base_name for info in system.get_file_info(selector))
    batches = [int(name) for name in names if name.isdigit()]
    if not batches:
        raise TableUnfit(f"{location} has no committed micro-batch")
    with system.open_input_stream(f"{root}/offsets/{max(batches)}") as file:
        _, _, *sources = file.read().decode().splitlines()
    try:
        (offsets,) = sources
        return of_json(orjson.loads(offsets))
    except (ValueError, AttributeError, TypeError):
        raise TableUnfit(f"{location} is no checkpoint of one source of format raftmq") from None


def _opened(spark: SparkSession, options: TableOptions) -> DataFrame:
    if options.format == "table":
        frame = spark.table(options.location)
    elif options.format == "iceberg":
        frame = spark.read.parquet(*iceberg_files(options.location))
    else:
        frame = spark.read.format(options.format).load(options.location)
    if missing := sorted(set(POSITION) - set(frame.columns)):
        raise TableUnfit(f"{options.location} has no column {missing[0]}")
    return frame


def iceberg_files(location: str) -> list[str]:
    """Return the data files of a table's current snapshot. PyIceberg finds them, since Iceberg has
    no package for Spark 4.2. Raises TableUnfit."""
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
    except ImportError:
        raise TableUnfit("PyIceberg is not installed: pip install pyiceberg") from None
    catalog, _, name = location.partition(".")
    try:
        files = list(load_catalog(catalog).load_table(name).scan().plan_files())
    except NoSuchTableError as error:
        raise TableUnfit(f"{location}: {error}") from None
    if any(each.delete_files for each in files):
        raise TableUnfit(f"{location} has files of deleted rows: compact it first")
    return [each.file.file_path for each in files]


def _bounds(landed: DataFrame) -> tuple[dict[Queue, int], dict[Queue, int]]:
    """Return the first offset of each queue in the table, and the offset behind its last."""
    by_queue = landed.groupBy(*POSITION[:3])
    rows = by_queue.agg(F.min("queue_offset"), F.max("queue_offset") + 1).collect()
    if any(None in row for row in rows):
        raise TableUnfit("the table has rows without topic, broker, queue_id or queue_offset")
    return (
        {Queue(*row[:3]): row[3] for row in rows},
        {Queue(*row[:3]): row[4] for row in rows},
    )


def _stored(
    spark: SparkSession,
    connection: Connection,
    start: Mapping[Queue, int],
    end: Mapping[Queue, int],
) -> DataFrame:
    """Return place and CRC of the topics' messages from `start` up to `end`."""
    ranges = {queue: (start[queue], to) for queue, to in end.items() if to > start[queue]}
    if not ranges:
        return spark.createDataFrame([], f"{_POSITION_TYPES}, stored_crc long, stored boolean")
    assigned: dict[str, dict[str, list[int]]] = {}
    for queue in ranges:
        assigned.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.queue_id)
    given: dict[str, object] = {"assign": assigned}
    for name, at in (("startingOffsets", 0), ("endingOffsets", 1)):
        given[name] = to_json({queue: bounds[at] for queue, bounds in ranges.items()})
    read = spark.read.format("raftmq").options(**options_of(connection))
    read = read.options(**{name: orjson.dumps(value).decode() for name, value in given.items()})
    stored = read.option("columns", ",".join([*POSITION, "body"])).option("onDamage", "null").load()
    return stored.select(
        *POSITION, F.crc32("body").alias("stored_crc"), F.lit(True).alias("stored")
    )


def _checked(rows: DataFrame) -> tuple[dict[str, int], tuple[CheckResult, ...]]:
    """Return figures and checks of the joined rows."""
    is_landed, is_stored = F.col("copies").isNotNull(), F.col("stored").isNotNull()
    is_kept = F.col("queue_offset") >= F.col("low")
    crcs = [
        F.col("landed_crc") != F.col("stored_crc"),
        F.col("landed_crc_max") != F.col("stored_crc"),
    ]
    wrong = {
        "not_landed": is_stored & ~is_landed,
        "landed_twice": F.col("copies") > 1,
        "landed_altered": F.coalesce(crcs[0] | crcs[1], F.lit(False)),
        "not_stored": is_landed & ~is_stored & is_kept,
    }
    counts = rows.agg(
        F.coalesce(F.sum("copies"), F.lit(0)).alias("landed"),
        F.count_if(is_landed & is_stored).alias("landed_and_stored"),
        F.count_if(is_landed & ~is_kept).alias("removed_from_topic"),
        *(F.count_if(each).alias(name) for name, each in wrong.items()),
    ).first()
    assert counts is not None
    checks = []
    for name, title in CHECKS.items():
        offenders: tuple[dict[str, Any], ...] = ()
        if counts[name]:
            first = (
                rows.where(wrong[name]).select(*POSITION).orderBy(*POSITION).limit(OFFENDERS_MAX)
            )
            offenders = tuple(row.asDict() for row in first.collect())
        checks.append(CheckResult(name, title, True, counts[name], offenders))
    figures = ("landed", "landed_and_stored", "removed_from_topic")
    return {name: counts[name] for name in figures}, tuple(checks)
