"""Checks of delayed and half messages in the brokers' internal topics, without a history.

A delayed message waits in SCHEDULE_TOPIC_XXXX until it is due, a half message in
RMQ_SYS_TRANS_HALF_TOPIC until it is decided. Then the broker stores it again under its id. The log
records how far each delay level has been delivered, so the expected messages are known. A log
without its start is not judged, because earlier messages may have been waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..engine import columns as F
from ..engine.frames import Frame
from ..read.system_topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from ..read.tables import Tables
from .checks import Check
from .ranges import CLOCKS_SET

TOLERANCE_MS = 10  # between two readings of a machine's clock
COMMITTED = 8  # transaction bits of a record's sysflag


def waiting_checks(
    tables: Tables, delivered: Mapping[int, int], clocks_steady: bool
) -> Iterator[Check]:
    """Yield the checks; none if the log does not start at 0. `delivered` has by delay level the
    offset before which all messages were delivered. Early messages are a fault if
    `clocks_steady`."""
    if tables.limits.start or tables.since is not None:
        return
    waited = tables.staged_log.facts.waits
    named = tables.log.where(F.col("id_text").isNotNull())
    visible = named.where("visible") if waited else None
    yield from _delayed_checks(tables, visible, delivered, clocks_steady)
    before = F.col("half_position") < F.col("position")
    yield Check(
        "committed_unprepared",
        "committed transactions without a half message before them, or more than there were",
        _decided(named) if waited else None,
        (F.col("committed") > 0)
        & (~F.coalesce(before, F.lit(False)) | (F.col("committed") > F.col("halves"))),
        ("id_text", "position", "committed", "halves"),
        order=("position",),
    )


def _decided(named: Frame) -> Frame:
    """Return the half and committed messages of each id, with the position of the first of each."""
    half = F.col("topic") == HALF_TOPIC
    committed = (F.col("sysflag") == COMMITTED) & ~half
    return (
        named.where(half | committed)
        .groupBy("id_text")
        .agg(
            F.count_if(committed).alias("committed"),
            F.count_if(half).alias("halves"),
            F.min(F.when(half, F.col("position"))).alias("half_position"),
            F.min(F.when(committed, F.col("position"))).alias("position"),
        )
    )


def _delayed_checks(
    tables: Tables, visible: Frame | None, delivered: Mapping[int, int], clocks_steady: bool
) -> Iterator[Check]:
    key = ("id_text", "reconsume_times")
    rows = None if visible is None else _came(tables, visible, delivered, key)
    yield Check(
        "due_missing",
        "delayed messages that are said to be delivered, and are not stored for consumers",
        rows,
        F.col("came") < F.col("due"),
        (*key, "position", "due", "came"),
        order=("position",),
    )
    yield Check(
        "due_twice",
        "delayed messages stored for consumers more often than they waited",
        rows,
        F.col("again") >= F.col("waits"),
        (*key, "position", "waits", "came"),
        fault=bool(delivered),  # Apache's brokers may deliver one again after a kill
        order=("position",),
    )
    yield Check(
        "due_early",
        "delayed messages stored for consumers before they were due"
        + ("" if clocks_steady else CLOCKS_SET),
        rows,
        F.col("came_ms") < F.col("due_ms") - TOLERANCE_MS,
        (*key, "position", "due_ms", "came_ms"),
        fault=clocks_steady,
        order=("position",),
    )


def _came(
    tables: Tables, visible: Frame, delivered: Mapping[int, int], key: Sequence[str]
) -> Frame:
    """Return for each delayed message how many copies waited (`waits`), were due, and were stored
    (`came`), and how many of these were stored after another in the same topic (`again`)."""
    due = (
        tables.units.where(F.col("topic") == SCHEDULE_TOPIC)
        .groupBy("position")
        .agg(F.max("tags_code").alias("due_ms"))
    )
    passed = F.lit(False)
    for level, offset in delivered.items():
        of_level = F.col("queue_id") == level - 1
        passed = passed | (of_level & (F.col("queue_offset") < offset))
    waited = (
        visible.where(F.col("topic") == SCHEDULE_TOPIC)
        .join(due, ["position"], "left")
        .groupBy(*key)
        .agg(
            F.count_if(passed).alias("due"),
            F.count("*").alias("waits"),
            F.min("position").alias("position"),
            F.min("due_ms").alias("due_ms"),
        )
    )
    for_consumers = F.col("topic") != TIMER_TOPIC  # a draining group makes them timer messages
    stored = visible.where(F.col("topic") != SCHEDULE_TOPIC).select(
        *key,
        F.when(for_consumers & (F.col("topic") != HALF_TOPIC), F.col("topic")).alias("topic"),
        F.col("position").alias("at"),
        F.when(for_consumers, F.col("store_timestamp")).alias("ms"),
    )
    later = F.col("at") > F.col("position")
    topics = F.collect_list(F.when(later, F.col("topic")))
    return (
        waited.join(stored, [*key], "left")
        .groupBy(*key, "due", "waits", "position", "due_ms")
        .agg(
            F.count_if(later).alias("came"),
            (F.size(topics) - F.size(F.array_distinct(topics))).alias("again"),
            F.min(F.when(later, F.col("ms"))).alias("came_ms"),
        )
    )
