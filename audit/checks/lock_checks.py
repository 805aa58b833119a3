"""The checks of orderly consumption under queue locks. Builds queries only.

As in chaos/checks/locks.py, every piece of work is an interval on the harness's one clock, written
when it ends. In addition, the messages worked on must be stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Window
from pyspark.sql import functions as F

from ..read.history import of_group
from ..read.tables import Tables
from .checks import Check

QUEUE = ("group", "broker", "topic", "queue")


def orderly_checks(tables: Tables) -> Iterator[Check]:
    """Yield the checks of work on locked queues; call this where the history has such work."""
    in_queue = Window.partitionBy(*QUEUE).orderBy("t_ns", "op")
    before = in_queue.rowsBetween(Window.unboundedPreceding, -1)
    ends = (
        tables.log.where("visible")
        .groupBy("topic", F.col("queue_id").alias("queue"))
        .agg((F.max("queue_offset") + 1).alias("end"))
    )
    # A queue of which nothing is left may have been longer, if retention removed the beginning.
    end = F.coalesce("end", F.lit(0 if tables.limits.begin == 0 else None))
    done = F.when(F.col("done"), F.col("last") + 1)
    work = (
        tables.events.where(F.col("f") == "work")
        .withColumn("broker", F.coalesce("broker", F.lit("")))
        .select(*QUEUE, "p", "op", "t_ns", "began_ns", "first", "last", "done")
        .withColumn("busy_until_ns", F.max("t_ns").over(before))
        # A topic may have been worked on before the history: the first piece defines the start.
        .withColumn("next", F.greatest(F.first("first").over(in_queue), F.max(done).over(before)))
        .join(F.broadcast(ends), ["topic", "queue"], "left")
    )
    shown = (*QUEUE, "p", "first", "last")
    yield Check(
        "work_overlaps",
        "work on a queue that began before other work on it had ended",
        True,
        work,
        F.col("began_ns") < F.col("busy_until_ns"),
        (*shown, "began_ns", "busy_until_ns"),
        (*QUEUE, "began_ns"),
    )
    yield Check(
        "work_skipped",
        "work on a queue that began behind messages nobody has come to an end with",
        True,
        work,
        F.col("first") > F.col("next"),
        (*shown, "next"),
        (*QUEUE, "first"),
    )
    yield Check(
        "work_not_stored",
        "worked on, but nothing is stored there",
        True,
        work,
        of_group(tables.group) & (F.col("last") >= end),
        (*shown, "end"),
        (*QUEUE, "first"),
    )
