"""The checks that compare what consumers saw with what is stored. Builds queries only."""

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from raftmq.audit.checks import Check
from raftmq.audit.history import binary_id, of_group
from raftmq.audit.tables import Tables


def consumption_checks(tables: Tables, kinds: Mapping[str, Row]) -> Iterator[Check]:
    """Yield the checks of consumed against stored; none for a topic that nobody consumed.

    A message stored and never consumed is a fault only if the history says that the consumers were
    done (`drain`, complete).
    """
    events = of_topic(tables)
    stored = tables.log.where((F.col("topic") == tables.topic) & F.col("visible")).select(
        F.col("queue_id").alias("queue"), F.col("queue_offset").alias("offset"), "id", "position"
    )
    if "consume" in kinds:
        drained = "drain" in kinds and bool(kinds["drain"]["complete"])
        yield from _consumed(_consumed_offsets(events), stored, drained)
    if "commit" in kinds:
        yield _committed(events, stored)


def of_topic(tables: Tables) -> DataFrame:
    """Return the answered events about the audited topic and the audited broker group."""
    answered = F.col("type") == "ok"
    ours = (F.col("topic") == tables.topic) & of_group(tables.group)
    return tables.events.where(answered & ours)


def event_kinds(tables: Tables) -> Mapping[str, Row]:
    """Return the kinds of answered events (of the topic if they name one): f → row."""
    elsewhere = F.col("topic").isNotNull() & (F.col("topic") != tables.topic)
    found = tables.events.where((F.col("type") == "ok") & ~elsewhere)
    rows = found.groupBy("f").agg(F.max("complete").alias("complete")).collect()
    return {row["f"]: row for row in rows}


def _consumed_offsets(events: DataFrame) -> DataFrame:
    """Return one row per (queue, offset) consumed: times, and the id seen if recorded."""
    each = events.where(F.col("f") == "consume").select(
        "queue", "ids", F.posexplode("offsets").alias("place", "offset")
    )
    seen = each.withColumn("seen_id", F.get("ids", "place")).withColumn(
        "seen", binary_id("seen_id")
    )
    return seen.groupBy("queue", "offset").agg(
        F.count("*").alias("times"),
        F.min("seen").alias("seen_min"),
        F.max("seen").alias("seen_max"),
    )


def _consumed(consumed: DataFrame, stored: DataFrame, drained: bool) -> Iterator[Check]:
    both = consumed.join(stored, ["queue", "offset"], "full_outer")
    times, position = F.col("times"), F.col("position")
    unlike = position.isNotNull() & (
        (F.col("seen_min") != F.col("id")) | (F.col("seen_max") != F.col("id"))
    )
    yield Check(
        "consumed_not_stored",
        "consumed, but nothing or another message is stored at the offset",
        True,
        both,
        times.isNotNull() & (position.isNull() | unlike),
        ("queue", "offset", "times", "position"),
        ("queue", "offset"),
    )
    yield Check(
        "not_consumed",
        "stored, but never consumed",
        drained,
        both,
        times.isNull(),
        ("queue", "offset", "position"),
        ("queue", "offset"),
    )
    yield Check(
        "redelivered",
        "consumed more than once",
        False,
        both,
        times > 1,
        ("queue", "offset", "times"),
        ("queue", "offset"),
    )


def _committed(events: DataFrame, stored: DataFrame) -> Check:
    ends = stored.groupBy("queue").agg((F.max("offset") + 1).alias("end"))
    highest = (
        events.where(F.col("f") == "commit")
        .groupBy("group", "queue")
        .agg(F.max("offset").alias("committed"))
    )
    return Check(
        "committed_beyond",
        "consumer offsets committed beyond what is stored",
        True,
        highest.join(ends, "queue", "left"),
        F.col("committed") > F.coalesce("end", F.lit(0)),
        ("group", "queue", "committed", "end"),
        ("group", "queue"),
    )
