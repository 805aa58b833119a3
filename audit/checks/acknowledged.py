"""Compares a group's log with a table of acknowledged messages.

An application that keeps such a table can audit a production cluster for losses. The table is
Parquet (a file or a directory), or JSON lines:

    msg_id        string  the message's id as the producer made it (UNIQ_KEY, SendResult.msg_id)
    topic         string
    broker        string  the broker group that acknowledged it; not needed if there is only one
    queue_id      int     where it was stored, both if known
    queue_offset  long
    body_crc      long    zlib.crc32(body), or its lower 31 bits, if known
    time_ms       long    when it was acknowledged, ms since 1970, if known

Messages that retention has removed are counted apart (audit.read.removed). Without a `queue_offset`
a missing message may have been removed, so it is only judged if a log still reaches back to offset
0. An incremental audit also counts messages of the earlier range as removed.

A delayed message is acknowledged at its offset in the topic where it waits, and a half message at
its offset in RMQ_SYS_TRANS_HALF_TOPIC, but under the queue that the producer chose. So their offset
alone is compared. A delayed message that still waits, and a half message that was not committed,
are counted apart.
"""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from ..engine import columns as F
from ..engine.frames import CORRUPT, Engine, EngineFailed, Frame
from ..read.cluster_info import RAFT
from ..read.history import CRC_BITS, HistoryUnfit, invalid_line
from ..read.removed import with_gone
from ..read.system_topics import HALF_TOPIC, TIMED_TOPICS
from ..read.tables import Tables, records
from .checks import Check

_TYPES = {
    "msg_id": "string",
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "long",
    "body_crc": "long",
    "time_ms": "long",
}
_ARROW_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
SCHEMA = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in _TYPES.items()])
NEEDED = ("msg_id", "topic")


def acknowledged_frame(engine: Engine, path: str) -> Frame:
    """Return such a table as SCHEMA, and CORRUPT for JSON lines. Raises EngineFailed."""
    if path.endswith((".json", ".jsonl")):
        return engine.lines(path, pa.schema([*SCHEMA, (CORRUPT, pa.string())]))
    stored = engine.parquet(path)
    given = {name: F.col(name) for name in stored.columns}
    return stored.select(
        *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _TYPES.items())
    )


def count_acknowledged(engine: Engine, path: str) -> dict[str | None, int]:
    """Return the number of rows by broker group, after a look at every row. Raises HistoryUnfit."""
    try:
        rows = acknowledged_frame(engine, path)
        crc = F.col("body_crc")
        invalid = F.col(CORRUPT) if CORRUPT in rows.columns else F.lit(None).cast("string")
        brokers = rows.groupBy("broker").agg(
            F.count("*").alias("count"),
            F.count_if(F.col("msg_id").isNull() | F.col("topic").isNull()).alias("incomplete"),
            F.count_if((crc < -(1 << 31)) | (crc >= 1 << 32)).alias("no_crc"),
            F.min(invalid).alias("invalid"),
        )
        counts = brokers.collect()
    except EngineFailed as error:
        raise HistoryUnfit(f"{path} cannot be read as acknowledged messages: {error}") from error
    for row in counts:
        if row["invalid"] is not None:
            what = invalid_line(path, row["invalid"])
            raise HistoryUnfit(f"{what} is no acknowledged message")
    if incomplete := sum(row["incomplete"] for row in counts):
        raise HistoryUnfit(f"{path} has {incomplete} rows without {' or '.join(NEEDED)}")
    if no_crc := sum(row["no_crc"] for row in counts):
        raise HistoryUnfit(f"{path} has {no_crc} rows whose body_crc has more than 32 bits")
    if not counts:
        raise HistoryUnfit(f"{path} has no rows: a list of nothing proves nothing")
    return {row["broker"]: row["count"] for row in counts}


def refuse_unjudged(
    counts: Mapping[str | None, int],
    path: str,
    audited: Collection[str],
    *,
    every: bool,
    what: str = "are not audited",
) -> None:
    """Refuse a table with rows that this audit would skip, by the `counts` of its rows."""
    rows = {name: count for name, count in counts.items() if name is not None}
    nameless = counts.get(None, 0)
    if nameless and len(audited) > 1:
        raise HistoryUnfit(
            f"{path} has {nameless} rows without broker, and there are several groups"
        )
    others = sorted(rows.keys() - set(audited))
    judged = nameless or len(others) < len(rows)
    if others and (every or not judged):
        count = sum(rows[name] for name in others)
        names = ", ".join(others)
        raise HistoryUnfit(f"{path} has {count} rows of broker groups that {what}: {names}")


def compared(tables: Tables, acknowledged: Frame) -> Frame:
    """Return a row per message that this group acknowledged, as SCHEMA with `id_text` for
    msg_id, and copies (null if none), positions, crcs, first_position, waited_at (queue offsets in
    the topics where it waited), waits (it is only there), gone (retention may have removed it)."""
    log = tables.log.where("visible")
    stored = log.groupBy("topic", "id_text").agg(
        F.count("*").alias("copies"),
        F.collect_set(F.struct("queue_id", "queue_offset")).alias("positions"),
        F.collect_set("content_crc").alias("crcs"),
        F.min("position").alias("first_position"),
    )
    # A retry, which also waits, has the id of its message.
    internal = F.col("topic").isin(HALF_TOPIC, *TIMED_TOPICS)
    waited = (
        log.where(internal & (F.col("reconsume_times") == 0))
        .groupBy("id_text")
        .agg(F.collect_set("queue_offset").alias("waited_at"))
    )
    # Messages behind the end of the audit before are in the range that this audit has read.
    first = 0 if tables.since is not None and tables.since.start == 0 else None
    ended = F.when(F.col("queue_id").isNotNull(), F.coalesce("ended", F.lit(first).cast("long")))
    before = F.coalesce(F.col("queue_offset") < ended, F.lit(True))
    ours = acknowledged.withColumnRenamed("msg_id", "id_text").withColumn(
        "body_crc", F.col("body_crc").bitwiseAND(CRC_BITS)
    )
    if tables.group is not None:
        ours = ours.where(F.coalesce("broker", F.lit(tables.group)) == tables.group)
    rows = with_gone(
        ours.join(stored, ["topic", "id_text"], "left").join(waited, ["id_text"], "left"),
        *(records(tables.shared_items), tables.limits, tables.retention),
        *("queue_id", "queue_offset", "time_ms"),
    )
    rows = rows.join(tables.queues_ended.broadcast(), ["topic", "queue_id"], "left")
    waits = F.col("copies").isNull() & F.col("waited_at").isNotNull()
    columns = {"waits": waits, "gone": F.col("gone") & before & ~waits}
    return tables.staged(rows.withColumns(columns), "acknowledged")


def acknowledged_checks(tables: Tables, rows: Frame) -> Iterator[Check]:
    """Yield the checks on the rows of `compared`."""
    enough = "a majority" if tables.limits.mode == RAFT else "any store"
    stored = F.col("copies").isNotNull()
    waited = F.coalesce(F.array_contains("waited_at", F.col("queue_offset")), F.lit(False))
    position = F.struct("queue_id", "queue_offset")
    known = F.col("queue_id").isNotNull() & F.col("queue_offset").isNotNull()
    shown = ("id_text", "topic", "queue_id", "queue_offset", "first_position")
    order = ("topic", "queue_id", "queue_offset", "id_text")
    for name, title, fault, wrong in (
        ("missing", f"acknowledged, but not stored by {enough}", True, _missing()),
        (
            "misplaced",
            "acknowledged at a queue offset where it does not stand",
            True,
            stored & known & ~waited & ~F.array_contains("positions", position),
        ),
        (
            "altered",
            "stored with another body than was acknowledged",
            True,
            stored & F.col("body_crc").isNotNull() & ~F.array_contains("crcs", F.col("body_crc")),
        ),
        (
            "twice",
            "stored more than once, by a retry or by the application",
            False,
            F.col("copies") > 1,
        ),
        (
            "waiting",
            "acknowledged messages that wait to be due, or whose transaction was not committed",
            False,
            F.col("waits"),
        ),
        (
            "removed",
            "acknowledged, and perhaps removed by retention since: not judged",
            False,
            F.col("gone"),
        ),
    ):
        yield Check(name, title, rows, wrong, shown, fault=fault, order=order)


def lost(rows: Frame) -> Frame:
    """Return topic, id_text and body_crc of missing or altered messages."""
    altered = F.col("body_crc").isNotNull() & ~F.array_contains("crcs", F.col("body_crc"))
    return rows.where(_missing() | F.coalesce(altered, F.lit(False))).select(
        "topic", "id_text", "body_crc"
    )


def _missing() -> F.Column:
    return F.col("copies").isNull() & ~F.col("waits") & ~F.col("gone")
