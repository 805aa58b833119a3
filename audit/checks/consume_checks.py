"""Checks of consumed messages and committed offsets against the stored messages."""

from collections.abc import Iterator

from ..engine import columns as F
from ..engine.frames import Frame
from ..read.cluster_info import RAFT
from ..read.committed_range import Limits
from ..read.history import binary_id, of_group
from ..read.tables import Tables
from .checks import Check


def consumption_checks(
    tables: Tables, kinds: frozenset[str], orderly_work: bool
) -> Iterator[Check]:
    """Yield the checks of the topics that were consumed.

    A stored message that was not consumed is a fault only after a complete `drain` of its topic.
    Positions that retention may have removed are not judged. A classic master delivers messages
    before they are flushed and acknowledged, so consumed messages may vanish in a power cut.
    """
    events = tables.events.where(
        (F.col("type") == "ok") & F.col("topic").isin(*tables.topics) & of_group(tables.group)
    )
    stored = tables.log.where(F.col("topic").isin(*tables.topics) & F.col("visible")).select(
        "topic",
        F.col("queue_id").alias("queue"),
        F.col("queue_offset").alias("offset"),
        "id",
        "position",
    )
    if "consume" in kinds:
        yield from _consumed(events, stored, tables.limits)
    if "commit" in kinds:
        yield _committed(events, stored, tables.limits.start > 0)
    if orderly_work:
        yield _worked(tables)


def event_kinds(tables: Tables) -> frozenset[str]:
    """Return the kinds (`f`) of answered events of the audited topics, or of no topic."""
    elsewhere = F.col("topic").isNotNull() & ~F.col("topic").isin(*tables.topics)
    kinds = tables.events.where((F.col("type") == "ok") & ~elsewhere)
    return frozenset(row["f"] for row in kinds.select("f").distinct().collect())


def _consumed_offsets(events: Frame) -> Frame:
    """Return a row per (topic, queue, offset) consumed, with its count and its recorded ids."""
    consumed = events.where(F.col("f") == "consume").select("topic", "queue", "ids", "offsets")
    each = consumed.numbered("offsets", "at", "offset")
    seen = each.withColumn("seen_id", F.get("ids", "at")).withColumn("seen", binary_id("seen_id"))
    return seen.groupBy("topic", "queue", "offset").agg(
        F.count("*").alias("times"),
        F.min("seen").alias("seen_min"),
        F.max("seen").alias("seen_max"),
    )


def _consumed(events: Frame, stored: Frame, limits: Limits) -> Iterator[Check]:
    topics = (
        events.where(F.col("f").isin("consume", "drain"))
        .groupBy("topic")
        .agg(
            F.max(F.col("f") == "consume").alias("consumed"),
            F.coalesce(F.max("complete"), F.lit(False)).alias("drained"),
        )
    )
    both = (
        _consumed_offsets(events)
        .join(stored, ["topic", "queue", "offset"], "full_outer")
        .join(topics.where("consumed").broadcast(), ["topic"])
    )
    first = F.lit(0)  # offsets from here on were never stored if they are missing
    if limits.start > 0:
        firsts = stored.groupBy("topic", "queue").agg(F.min("offset").alias("first"))
        both = both.join(firsts.broadcast(), ["topic", "queue"], "left")
        first = F.col("first")
    times, position = F.col("times"), F.col("position")
    key = ("topic", "queue", "offset")
    unlike = position.isNotNull() & (
        (F.col("seen_min") != F.col("id")) | (F.col("seen_max") != F.col("id"))
    )
    yield Check(
        "consumed_not_stored",
        "consumed, but nothing or another message is stored at the offset",
        both,
        times.isNotNull() & ((position.isNull() & (F.col("offset") >= first)) | unlike),
        (*key, "times", "position"),
        fault=limits.mode == RAFT,
        order=key,
    )
    yield Check(
        "not_consumed",
        "stored, but not consumed when its consumers had come to the end",
        both,
        times.isNull() & F.col("drained"),
        (*key, "position"),
        order=key,
    )
    yield Check(
        "not_consumed_yet",
        "stored, but not consumed until the history ends",
        both,
        times.isNull() & ~F.col("drained"),
        (*key, "position"),
        fault=False,
        order=key,
    )
    yield Check(
        "redelivered",
        "consumed more than once",
        both,
        times > 1,
        (*key, "times"),
        fault=False,
        order=key,
    )


def _committed(events: Frame, stored: Frame, removed: bool) -> Check:
    ends = stored.groupBy("topic", "queue").agg((F.max("offset") + 1).alias("end"))
    highest = (
        events.where(F.col("f") == "commit")
        .groupBy("group", "topic", "queue")
        .agg(F.max("offset").alias("committed"))
    )
    return Check(
        "committed_beyond",
        "consumer offsets committed beyond what is stored",
        highest.join(ends, ["topic", "queue"], "left"),
        F.col("committed") > F.coalesce("end", F.lit(None if removed else 0)),
        ("group", "topic", "queue", "committed", "end"),
        order=("group", "topic", "queue"),
    )


def _worked(tables: Tables) -> Check:
    """Check that orderly consumers worked on messages that are stored."""
    queue = ("group", "broker", "topic", "queue")
    ends = (
        tables.log.where("visible")
        .groupBy("topic", F.col("queue_id").alias("queue"))
        .agg((F.max("queue_offset") + 1).alias("end"))
    )
    work = tables.events.where((F.col("f") == "work") & of_group(tables.group))
    # A queue without records may have been longer, if retention removed the log's start.
    end = F.coalesce("end", F.lit(0 if tables.limits.start == 0 else None))
    return Check(
        "work_not_stored",
        "worked on, but nothing is stored there",
        work.join(ends.broadcast(), ["topic", "queue"], "left"),
        F.col("last") >= end,
        (*queue, "p", "first", "last", "end"),
        order=(*queue, "first"),
    )
