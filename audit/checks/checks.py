"""Checks of sends and stores, as queries for their offenders.

`sent_checks` and `stored_checks` list them; `audit/run.py` runs them. Offenders are sorted by
position. A check counts a fault, unless at-least-once delivery allows it.
audit.read.committed_range defines up to which positions records count.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from raftmq.spark.layout import TAGS_CODE_EXTENDED_MAX, ItemKind

from ..engine import columns as F
from ..engine.columns import Column, Window, WindowSpec
from ..engine.frames import Frame
from ..read.cluster_info import RAFT
from ..read.committed_range import frame_end
from ..read.history import WEAK
from ..read.live_queues import ABSENT
from ..read.range_sums import by_store, unlike
from ..read.system_topics import MULTI_QUEUE_PREFIX, TIMED_TOPICS
from ..read.tables import Tables, each, records

UNIT_CHECKS = {
    "queue_index": "ConsumeQueue units that point wrong",
    "not_indexed": "committed records without a ConsumeQueue unit",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A check; the rows of `table` that meet `wrong` are its offenders. `table` is None if no row
    can exist, and then no query is needed.

    Checks that share a `table` object are counted in the same query. Offenders are shown with
    `columns`, sorted by `order`, by default the first of them.
    """

    name: str
    title: str
    table: Frame | None
    wrong: Column
    columns: tuple[str, ...]
    fault: bool = True
    order: tuple[str, ...] = ()

    @property
    def sorted_by(self) -> tuple[str, ...]:
        return self.order or self.columns[:1]

    @property
    def offenders(self) -> Frame:
        assert self.table is not None
        return self.table.where(self.wrong).select(*self.columns)


def sent_checks(tables: Tables) -> Iterator[Check]:
    yield from history_checks(tables)
    yield from ledger_checks(tables)
    yield failed_but_stored(tables)
    yield from order_checks(tables)


def stored_checks(tables: Tables) -> Iterator[Check]:
    """Yield the checks that need no history. audit.checks.replicas compares the replicas."""
    yield from offset_checks(tables)
    yield damage(tables)
    yield from frame_checks(tables)
    yield unpackable(tables)
    if tables.subject.queues:
        yield from queue_index_checks(tables)
        yield multi_queue_check(tables)


def history_checks(tables: Tables) -> Iterator[Check]:
    """Yield the checks for inconsistent sends, which make the history itself untrustworthy."""
    sends = tables.sends
    uses = sends.groupBy("id").agg(F.max("id_text").alias("id_text"), F.count("*").alias("uses"))
    strange = (F.col("invokes") != 1) | (F.col("outcomes") > 1) | F.col("id").isNull()
    no_position = (F.col("outcome") == "ok") & (
        F.col("ack_queue").isNull() | F.col("ack_offset").isNull()
    )
    yield Check(
        "history_operations",
        "sends in the history without invoke, id or place, or with two outcomes",
        sends,
        strange | no_position,
        ("op", "id_text", "outcome", "invokes", "outcomes"),
    )
    yield Check(
        "history_ids",
        "ids the history uses for more than one send",
        uses,
        F.col("id").isNotNull() & (F.col("uses") > 1),
        ("id_text", "uses"),
    )


def ledger_checks(tables: Tables) -> Iterator[Check]:
    """Yield the checks per message id: missing, misplaced, altered, duplicates by cause, …"""
    copies, attempts, sent = F.col("copies"), F.col("attempts"), F.col("sent")
    outcome, gone = F.col("outcome"), F.col("gone")
    acknowledged, stored = outcome == "ok", copies > 0
    # Any number of copies is allowed if the number of attempts is unknown, because the history
    # ended before the send.
    excused = sent & (attempts.isNull() | (copies <= attempts))
    enough = "a majority" if tables.limits.mode == RAFT else "any store"
    at_ack = "ack_offset ack_queue op"
    for name, fault, wrong, columns, title in (
        ("missing", True, acknowledged & ~stored & ~gone, at_ack,
         f"acknowledged, but not stored by {enough}"),
        ("removed", False, acknowledged & gone, at_ack,
         "acknowledged, and perhaps removed by retention since: not judged"),
        ("misplaced", True, acknowledged & stored & ~F.col("at_ack"),
         "first_position ack_queue ack_offset first_queue first_offset",
         "acknowledged at a queue offset or message id where it does not stand"),
        ("phantom", True, ~sent & stored, "first_position copies", "stored, but never sent"),
        ("altered", True, sent & (F.col("altered") > 0), "first_position copies altered",
         "stored with another body, key, tag, flag, property or born time than was sent"),
        ("weak_missing", False, (outcome == WEAK) & ~stored, at_ack,
         "not stored, but not promised either: acknowledged with less than SEND_OK"),
        ("duplicate_broker", True, sent & (copies > 1) & ~excused,
         "first_position copies attempts outcome",
         "stored more often than the client tried: made by the broker"),
        ("duplicate_retry", False, (copies > 1) & excused, "first_position copies attempts outcome",
         "stored more than once by the client's own retries"),
        ("unknown_stored", False, sent & (outcome == "unknown") & stored,
         "first_position copies attempts",
         "stored, though its sender could not know: no duplicate"),
    ):  # fmt: skip
        shown = ("id_text", "topic", *columns.split())
        order = (shown[2], "topic", "id_text")
        yield Check(name, title, tables.ledger, wrong, shown, fault, order)


def failed_but_stored(tables: Tables) -> Check:
    """Check that no store holds a send that failed, which promises "certainly not stored"."""
    ours = F.col("topic").isin(*tables.topics)
    failed = tables.sends.where((F.col("outcome") == "fail") & ours)
    stored = (
        records(tables.items)
        .where(ours)
        .select("topic", F.col("uniq_key").alias("id_text"), "store", "position")
        .join(failed.select("topic", "id_text", "op").broadcast(), ["topic", "id_text"])
        .groupBy("topic", "id_text", "op")
        .agg(F.min("position").alias("position"), F.sort_array(F.collect_set("store")).alias("in"))
    )
    title = "failed for certain, but stored nevertheless"
    columns = ("id_text", "topic", "op", "position", "in")
    return Check("failed_stored", title, stored, F.lit(True), columns, order=("position",))


def offset_checks(tables: Tables) -> Iterator[Check]:
    """Check that queue offsets rise by 1 along the log, from 0 if the log is complete."""
    suspects = _suspect_queues(tables)
    rows = None
    if suspects is not None:
        log = tables.log.where("visible").join(suspects, ["topic", "queue_id"], "left_semi")
        rows = _expected(tables, log, "queue_offset", "queue_offset")
    columns = ("position", "topic", "queue_id", "expected", "queue_offset", "id_text")
    yield Check(
        "offset_holes",
        "places where a queue's offsets leave some out",
        rows,
        F.col("queue_offset") > F.col("expected"),
        columns,
    )
    yield Check(
        "offset_repeats",
        "places where a queue's offsets repeat or fall",
        rows,
        F.col("queue_offset") < F.col("expected"),
        columns,
    )


def _expected(tables: Tables, rows: Frame, first: str, last: str) -> Frame:
    """Add `expected`, the queue offset after the `last` of the queue's previous row. A queue's
    first row may have any offset if the log's start was removed."""
    in_queue = Window.partitionBy("topic", "queue_id").orderBy("position")
    start = F.lit(0).cast("long") if tables.limits.start == 0 else F.col(first)
    if tables.since is not None:
        rows = rows.join(tables.queues_ended.broadcast(), ["topic", "queue_id"], "left")
        start = F.coalesce("ended", F.col(first) if tables.since.start else F.lit(0))
    return rows.withColumn("expected", F.coalesce(F.lag(last).over(in_queue) + 1, start))


def _suspect_queues(tables: Tables) -> Frame | None:
    """Return the queues (topic, queue_id) with gaps between runs, or with runs that may not be the
    group's; None if there are none. Only their records are checked individually."""
    parts = tables.parts
    runs = tables.staged_log.runs.where(parts.are_held | parts.are_open)
    rows = _expected(tables, runs, "first_offset", "last_offset")
    goes_on = F.col("first_offset") == F.col("expected")
    sound = goes_on & ~parts.are_open & (F.col("end") <= tables.limits.agreed_end)
    count = rows.agg(F.count_if(~sound).alias("count")).collect()[0]["count"]
    return rows.where(~sound).select("topic", "queue_id").distinct() if count else None


def order_checks(tables: Tables) -> Iterator[Check]:
    """Check that the first copies of each order key's messages are in the order of sending.

    A message is late if a message with a higher `seq` of its key precedes it. An acknowledged
    message may not be late. A message of unknown outcome may, since its sender continued without an
    answer.
    """
    acknowledged = F.col("outcome") == "ok"
    ordered = tables.ledger.where(
        F.col("sent")
        & (F.col("copies") > 0)
        & (F.col("order") != "")
        & F.col("outcome").isin("ok", "unknown")
        & F.col("seq").isNotNull()
    )
    before = Window.partitionBy("topic", "order").orderBy("first_position").all_before()
    ranked = ordered.withColumn("after_seq", F.max(F.when(acknowledged, F.col("seq"))).over(before))
    late = F.col("after_seq") >= F.col("seq")
    columns = ("first_position", "topic", "order", "seq", "after_seq", "outcome", "id_text")
    yield Check(
        "order",
        "acknowledged messages behind a later one of their order key",
        ranked,
        late & acknowledged,
        columns,
    )
    yield Check(
        "order_unknown",
        "messages of unknown outcome behind a later one of their order key",
        ranked,
        late & ~acknowledged,
        columns,
        fault=False,
    )
    yield Check(
        "order_queues",
        "order keys whose messages stand in more than one queue",
        ordered.where(acknowledged)
        .groupBy("topic", "order")
        .agg(F.min("first_queue").alias("queue_min"), F.max("first_queue").alias("queue_max")),
        F.col("queue_min") != F.col("queue_max"),
        ("topic", "order", "queue_min", "queue_max"),
        order=("topic", "order"),
    )


def damage(tables: Tables) -> Check:
    """Check for bytes below a store's limit that are no item, or have a wrong checksum."""
    kind = F.col("kind")
    intact = F.coalesce(F.col("intact"), F.lit(True))
    unreadable = kind.isin(int(ItemKind.HOLE), int(ItemKind.END))
    what = (
        F.when(kind == int(ItemKind.RECORD), "record: body CRC is wrong")
        .when(kind == int(ItemKind.FRAME), "frame: payload CRC is wrong")
        .when(kind == int(ItemKind.END), F.concat(F.lit("log stops: "), F.col("reason")))
        .otherwise(F.concat(F.lit("hole: "), F.col("reason")))
    )
    first, table = tables.staged_log.facts.damage_at, None
    if any(first.get(store.store, store.limit) < store.limit for store in tables.limits.stores):
        table = each(tables.shared_items.where(unreadable | ~intact)).withColumn("what", what)
    return Check(
        "damage",
        "damaged places below a store's limit",
        table,
        F.col("position") < tables.limits.of("limit"),
        ("store", "position", "size", "what"),
        order=("store", "position"),
    )


def unpackable(tables: Tables) -> Check:
    """Check for compressed bodies that no consumer can unpack."""
    has_some = tables.staged_log.facts.unpackable
    return Check(
        "unpackable",
        "messages whose compressed body no consumer can unpack",
        tables.log.where("visible") if has_some else None,
        F.col("content_crc").isNull(),
        ("position", "topic", "queue_id", "queue_offset", "id_text"),
    )


def frame_checks(tables: Tables) -> Iterator[Check]:
    """Check Raft's invariants in the frames of each store and between stores."""
    index = F.col("frame_index")
    frames = None if tables.alike.complete else _frames(tables)
    columns = ("store", "position", "index_before", "frame_index", "term_before", "frame_term")
    wrong = (index != F.col("index_before") + 1) | F.col("term_is_wrong")
    yield Check(
        "frame_sequence",
        "frames whose index does not follow, or whose term falls or is too high",
        frames,
        wrong,
        columns,
        order=("store", "position"),
    )
    same = ("frame_term", "position", "payload_length", "payload_crc", "header_crc")
    spread = None
    if frames is not None:
        spread = frames.groupBy("frame_index").agg(
            *[F.min(name).alias(f"{name}_min") for name in same],
            *[F.max(name).alias(f"{name}_max") for name in same],
        )
    differs = F.lit(False)
    for name in same:
        differs = differs | (F.col(f"{name}_min") != F.col(f"{name}_max"))
    yield Check(
        "frame_agreement",
        "indexes at which two stores hold different frames",
        spread,
        differs,
        ("frame_index", "frame_term_min", "frame_term_max", "position_min", "position_max"),
    )
    complete = frame_end() <= tables.limits.of("limit")  # beyond the limit a frame may be torn
    yield Check(
        "frame_records",
        "frames that hold more or fewer records than they say",
        frames,
        complete & (F.col("records_found") != F.col("record_count")),
        ("store", "position", "frame_index", "record_count", "records_found"),
        order=("store", "position"),
    )


def _frames(tables: Tables) -> Frame:
    """Return the frames below the stores' limits behind the part without differences, each with
    index and term of its predecessor."""
    in_store = Window.partitionBy("store").orderBy("position")
    term = F.col("frame_term")
    shared = tables.shared_items.where(F.col("kind") == int(ItemKind.FRAME))
    rest = shared.where(F.col("position") >= tables.alike.end)
    frames = each(rest).where(F.col("position") < tables.limits.of("limit"))
    for name, ended in zip(("index", "term"), tables.alike.ended or (None, None), strict=True):
        before = F.coalesce(F.lag(f"frame_{name}").over(in_store), F.lit(ended).cast("long"))
        frames = frames.withColumn(f"{name}_before", before)
    return frames.withColumn("term_is_wrong", _has_wrong_term(in_store, term, F.col("term_before")))


def _has_wrong_term(in_store: WindowSpec, term: Column, before: Column) -> Column:
    """Return whether a frame is the wrong frame of a pair in which the later has the lower term:
    the later frame, unless terms would rise without the earlier frame only."""
    two_before = F.lag(before).over(in_store)
    behind, two_behind = (F.lead(term, count).over(in_store) for count in (1, 2))
    yes, no = F.lit(True), F.lit(False)
    earlier_is = F.coalesce(two_before <= term, yes) & F.coalesce(before > behind, no)
    is_earlier = F.coalesce(before <= behind, yes) & F.coalesce(term > two_behind, no)
    falls = F.coalesce(term < before, no)
    return (falls & ~earlier_is) | (F.coalesce(behind < term, no) & is_earlier)


def queue_index_checks(tables: Tables) -> Iterator[Check]:
    """Check ConsumeQueue units against their records, and records without a unit."""
    suspects = _suspect_ranges(tables)
    judged = None
    if suspects:
        schema = pa.schema([("store", pa.string()), ("range", pa.int64())])
        judged = _units_judged(tables, tables.engine.table(suspects, schema).broadcast())
    columns = ("store", "position", "what", "topic", "queue_id", "queue_offset")
    without = F.col("what") == ABSENT
    for (name, title), wrong in zip(UNIT_CHECKS.items(), (~without, without), strict=True):
        yield Check(name, title, judged, wrong, columns, order=("store", "position"))


def multi_queue_check(tables: Tables) -> Check:
    """Check units of MULTI_QUEUE_PREFIX, each of which points at a record of any topic."""
    joined = None
    files = (file for store in tables.stores.values() for file in store.queue_files())
    if any(file.topic.startswith(MULTI_QUEUE_PREFIX) for file in files):
        there = records(tables.items).select("store", "position", F.col("size").alias("held"))
        units = tables.units.where(F.col("topic").startswith(MULTI_QUEUE_PREFIX))
        units = units.where(F.col("position") >= tables.limits.of("start"))
        joined = units.join(there, ["store", "position"], "left")
    return Check(
        "multi_queue",
        "units of %LMQ% queues that point at no record",
        joined,
        ~F.col("size").eqNullSafe(F.col("held")),
        ("store", "position", "topic", "queue_id", "queue_offset"),
        order=("store", "position"),
    )


def _units_judged(tables: Tables, suspects: Frame) -> Frame:
    """Return the units and records of suspect ranges (store, range), with the fault in `what`."""
    limits = tables.limits
    judged = (
        each(_within(tables, records(tables.shared_items).where("visible"), suspects))
        .join(suspects, ["store", "range"], "left_semi")
        .select(
            "store",
            "position",
            F.col("size").alias("record_size"),
            F.col("topic").alias("record_topic"),
            F.col("queue_id").alias("record_queue"),
            F.col("queue_offset").alias("record_offset"),
            F.col("tags_code").alias("record_tags_code"),
        )
    )
    units = (
        each(_within(tables, _of_records(tables.shared_units), suspects))
        .where(F.col("position") >= limits.of("start"))
        .join(suspects, ["store", "range"], "left_semi")
        .drop("range")
    )
    joined = units.join(judged, ["store", "position"], "full_outer")
    has_unit, has_record = F.col("size").isNotNull(), F.col("record_size").isNotNull()
    hashed = ~F.col("topic").isin(*TIMED_TOPICS) & (F.col("tags_code") > TAGS_CODE_EXTENDED_MAX)
    what = (
        F.when(has_unit & ~has_record, "points at no record")
        .when(F.col("topic") != F.col("record_topic"), "record of another topic")
        .when(F.col("queue_id") != F.col("record_queue"), "record of another queue")
        .when(F.col("queue_offset") != F.col("record_offset"), "record of another offset")
        .when(F.col("size") != F.col("record_size"), "wrong size")
        .when(hashed & (F.col("tags_code") != F.col("record_tags_code")), "wrong tags code")
        .when(~has_unit & (F.col("position") < limits.of("commit")), ABSENT)
    )
    return joined.select(
        "store",
        "position",
        what.alias("what"),
        F.coalesce("topic", "record_topic").alias("topic"),
        F.coalesce("queue_id", "record_queue").alias("queue_id"),
        F.coalesce("queue_offset", "record_offset").alias("queue_offset"),
    )


def _suspect_ranges(tables: Tables) -> list[tuple[str, int]]:
    """Return the ranges of the log (store, range) in which units and records differ by count or sum
    of hashes. Only these are compared individually. A unit and its record are in the same range,
    because both have the record's position."""
    units, of_log = by_store(tables.unit_sums), by_store(tables.staged_log.facts.units)
    return [
        (store, range_)
        for store in tables.stores
        for range_ in unlike(units.get(store, {}), of_log.get(store, {}))
    ]


def _within(tables: Tables, shared: Frame, suspects: Frame) -> Frame:
    """Return the rows in a suspect range of any store, with `range`."""
    ranges = tables.staged_log.ranges
    number = F.floor(F.col("position") / ranges.size_bytes)
    first, last = (F.lit(edge).cast("long") for edge in (ranges.first - 1, ranges.last + 1))
    rows = shared.withColumn("range", F.least(F.greatest(number, first), last))
    return rows.join(suspects.select("range").distinct(), ["range"], "left_semi")


def _of_records(units: Frame) -> Frame:
    """Return the units that point at records of their own queue."""
    return units.where(~F.col("topic").startswith(MULTI_QUEUE_PREFIX))
