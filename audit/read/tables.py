"""Decodes all inputs of the checks once, and stages them as Parquet.

The logs are parsed and verified in a single pass over the bytes; every check then reads columns.
The driver holds no messages.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from raftmq.spark.filesystem import below
from raftmq.spark.layout import SYSFLAG_TRANSACTION, ItemKind

from ..engine import columns as F
from ..engine.frames import Engine, Frame
from . import history
from .cluster_info import Subject
from .committed_range import Limits, find_limits
from .group_parts import GroupParts, group_parts
from .incremental import Ended
from .live_log import LiveLog
from .log_facts import Alike
from .range_sums import StoreSums
from .removed import Retention, retention_of, with_gone
from .spark_sources import LogReader, QueueReader
from .staging import StagedLog, staged_log, staged_units
from .store_files import STORES_SEPARATOR, Store, replicas_of

_ENDS = pa.schema([("topic", pa.string()), ("queue_id", pa.int32()), ("ended", pa.int64())])
# Copies on two stores are the same record if these fields are equal.
_IDENTITY = (
    "size",
    "topic",
    "queue_id",
    "queue_offset",
    "uniq_key",
    "content_crc",
    "body_crc",
    "tags_code",
    "sysflag",
    "store_timestamp",
    "reconsume_times",
    "rest_hash",
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The staged tables of an audit.

    items  every item of every store's log (audit.read.log_reader.LOG_SCHEMA)
    units  every ConsumeQueue unit (audit.read.spark_sources.UNIT_SCHEMA)
    shared_items, shared_units  the same, with one row for equal items of several stores
    staged_log  the same items, their runs, and the facts about them (audit.read.log_facts)
    unit_sums  sums of the units by ranges of the log (audit.read.range_sums)
    alike  the start of the log without differences, usually all of it
    parts  the parts of the log that the group holds
    topics  the topics to judge, see `_topics`
    log  the records the group holds (a majority, or in classic mode any store) as position, size,
        topic, queue_id, queue_offset, id, id_text, content_crc, fields_sum, visible,
        born_timestamp, store_timestamp, reconsume_times, sysflag
    events  the history's lines
    sends  a row per send (history.sends)
    retention  what retention may have removed (audit.read.removed)
    since  the end of the audit before, if this audit starts there
    ledger  a row per topic and message id, sent or stored (`_ledger`), with `gone` if retention may
        have removed it (audit.read.removed)
    """

    engine: Engine
    directory: str
    stores: Mapping[str, Store]
    topics: tuple[str, ...]
    subject: Subject
    limits: Limits
    staged_log: StagedLog
    alike: Alike
    parts: GroupParts
    shared_units: Frame
    unit_sums: StoreSums
    log: Frame
    retention: Retention
    events: Frame
    sends: Frame
    ledger: Frame
    since: Ended | None = None

    @property
    def shared_items(self) -> Frame:
        return self.staged_log.items

    @property
    def items(self) -> Frame:
        return each(self.shared_items)

    @property
    def units(self) -> Frame:
        return each(self.shared_units)

    @property
    def group_runs(self) -> Frame | None:
        """The runs of queue offsets in the group's log (audit.read.summaries.RUN_SCHEMA), if
        none of its records had to be compared."""
        return self.staged_log.runs.where(self.parts.are_held) if self.parts.complete else None

    @property
    def group(self) -> str | None:
        return self.subject.group

    @property
    def queues_ended(self) -> Frame:
        """The queue ends of the audit before, if this audit starts there."""
        queues = self.since.queues if self.since else {}
        ends = [(*queue, offset) for queue, offset in queues.items()]
        return self.engine.table(ends, _ENDS)

    def staged(self, frame: Frame, name: str) -> Frame:
        """Write the rows to a file and return them from it, for several queries."""
        return self.engine.staged(frame, below(self.directory, name))


def size_bytes_of(stores: Mapping[str, Store]) -> int:
    """Return the size of all logs on the disk. Raises OSError."""
    replicas = replicas_of(stores)
    if replicas:
        return sum(replica.end - replica.start for replica in replicas)
    segments = (segment for store in stores.values() for segment in store.segments)
    return sum(segment.file.written_bytes() for segment in segments)


def stage(
    engine: Engine,
    stores: Mapping[str, Store],
    history_path: str | None,
    topic: str,
    directory: str,
    subject: Subject,
    since: Ended | None = None,
    *,
    retention_hours: int | None = None,
    audited_at_ms: int,
    progress: Callable[[str], None] = lambda step: None,
) -> Tables:
    """Decode stores and history into `directory` (a path or URI). Without a history, events, sends
    and ledger are empty. An empty `topic` means every topic that the history sends to. Without
    `retention_hours`, a broker's default counts. Raises StoreError, HistoryUnfit or OSError."""

    # Python workers parse the logs and the JVM the history, so together they use two cores.
    with ThreadPoolExecutor(1) as pool:
        of_history = pool.submit(_history, engine, history_path, subject.group, directory)
        reader = reader_of(stores, since)
        logs = staged_log(engine, reader, tuple(stores), below(directory, "decoded"), progress)
        queues = QueueReader(_options(since), stores.values())
        units, sums = staged_units(engine, queues, logs.ranges, below(directory, "units"))
        frames = each(logs.items.where(F.col("kind") == int(ItemKind.FRAME)))
        alike = logs.facts.alike(tuple(stores), (since.index, since.term) if since else None)
        limits = find_limits(frames, logs.facts.ends, alike, stores, subject, since)
        parts = group_parts(logs.facts, logs.windows, limits)
        log = _log(engine, logs, parts, limits, below(directory, "log"))
        events, sends = of_history.result()
    topics = (topic,) if topic or history_path is None else _topics(sends)
    retention = retention_of(
        *(stores, logs.facts, limits, retention_hours, audited_at_ms),
        from_start=since is None,
    )
    ledger = sends
    if history_path is not None:
        ledger = _ledger(log, sends, topics)
        columns = "ack_queue", "ack_offset", "born"
        ledger = with_gone(ledger, records(logs.items), limits, retention, *columns)
        # The message id may contain the position.
        before = F.coalesce(F.col("ack_position") < limits.start, F.lit(True))
        ledger = ledger.withColumn("gone", F.col("gone") & before)
        ledger = engine.staged(ledger, below(directory, "ledger"))
    return Tables(
        *(engine, directory, stores, topics, subject, limits),
        *(logs, alike, parts, units, sums, log),
        *(retention, events, sends, ledger, since),
    )


def _history(
    engine: Engine, path: str | None, group: str | None, directory: str
) -> tuple[Frame, Frame]:
    """Return events and sends of the history, staged. Raises HistoryUnfit."""
    if path is None:
        none = history.no_events(engine)
        return none, none
    events = engine.staged(history.read_events(engine, path), below(directory, "events"))
    history.refuse_invalid(events, path)
    return events, engine.staged(history.sends(events, group), below(directory, "sends"))


def reader_of(stores: Mapping[str, Store], since: Ended | None) -> LogReader | LiveLog:
    """Return the reader of the logs, from the end of the audit before on."""
    replicas = replicas_of(stores)
    if replicas:
        return LiveLog(replicas, since.position if since else 0)
    return LogReader(_options(since), stores.values())


def _options(since: Ended | None) -> dict[str, str]:
    return {"shared": "true", "from": str(since.position if since else 0)}


def _topics(sends: Frame) -> tuple[str, ...]:
    """Return the topics with sends, sorted; the expected content of other topics is unknown."""
    rows = sends.where(F.col("topic").isNotNull()).select("topic").distinct().collect()
    return tuple(sorted(row["topic"] for row in rows))


def records(items: Frame) -> Frame:
    """Return the staged records, with `visible` for those that consumers can receive."""
    bits = F.col("sysflag").bitwiseAND(SYSFLAG_TRANSACTION)
    rows = items.where(F.col("kind") == int(ItemKind.RECORD))
    return rows.withColumn("visible", bits.isin(0, 8))


def each(shared: Frame) -> Frame:
    """Return a row per store, of rows that may name several."""
    return shared.exploded("store", F.split("store", STORES_SEPARATOR))


def _log(
    engine: Engine, logs: StagedLog, parts: GroupParts, limits: Limits, directory: str
) -> Frame:
    """Return the records that enough stores hold intact below the agreed end. They stay in their
    staged file; those of open ranges are compared and written to `directory`."""
    kept = (
        *("position", "size", "topic", "queue_id", "queue_offset", "uniq_key", "content_crc"),
        *("fields_sum", "visible", "born_timestamp", "store_timestamp", "reconsume_times"),
        "sysflag",
    )

    end = F.col("position") + F.col("size")
    sound = records(logs.items).where(F.col("intact") & (end <= limits.agreed_end))
    log = sound.where(parts.are_held & ~parts.are_open).select(*kept)
    if parts.open:
        held = (
            each(sound.where(parts.are_open))
            .withColumn("identity", F.xxhash64(*_IDENTITY))
            .groupBy("position", "size", "identity")
            .agg(
                F.count_if(F.col("store").isin(*limits.voting)).alias("holders"),
                *[F.first(name).alias(name) for name in kept[2:]],
            )
            .where(F.col("holders") >= limits.needed)
            .select(*kept)
        )
        log = log.unionByName(engine.staged(held, directory))
    return log.withColumn("id", history.binary_id("uniq_key")).withColumnRenamed(
        "uniq_key", "id_text"
    )


def _ledger(log: Frame, sends: Frame, topics: Sequence[str]) -> Frame:
    """Return a row per topic and id, with its send and its stored copies.

    topic, id, id_text; sent; op, outcome, attempts, order, seq, born, ack_queue, ack_offset,
    ack_position (null if never sent); copies; altered (copies with another body, fields or born
    time than sent); at_ack (a copy is at the acknowledged position); first_position, first_queue,
    first_offset.
    """
    copies = log.where(F.col("topic").isin(*topics) & F.col("visible")).select(
        "topic",
        "id",
        F.col("id_text").alias("log_id"),
        "position",
        "queue_id",
        "queue_offset",
        "content_crc",
        "fields_sum",
        "born_timestamp",
    )
    sent = _by_id(sends.where(F.col("topic").isin(*topics)))
    at_ack = (
        (F.col("queue_id") == F.col("ack_queue"))
        & (F.col("queue_offset") == F.col("ack_offset"))
        & F.coalesce(F.col("position") == F.col("ack_position"), F.lit(True))
    ) | F.col("reused")
    other_body = F.col("crc").isNotNull() & ~F.col("content_crc").eqNullSafe(F.col("crc"))
    other_fields = F.col("fields").isNotNull() & (F.col("fields_sum") != F.col("fields"))
    other_birth = F.col("born").isNotNull() & (F.col("born_timestamp") != F.col("born"))
    altered = other_body | other_fields | other_birth
    acknowledged = ("ack_queue", "ack_offset", "ack_position")
    once = ("op", "outcome", "attempts", "order", "seq", "born", *acknowledged)
    stored = F.col("position").isNotNull()
    return (
        copies.join(sent, ["topic", "id"], "full_outer")
        .groupBy("topic", "id")
        .agg(
            F.max(F.coalesce("id_text", "log_id")).alias("id_text"),
            *[F.max(name).alias(name) for name in once],
            F.count("position").alias("copies"),
            F.count(F.when(stored & altered, 1)).alias("altered"),
            F.coalesce(F.max(at_ack), F.lit(False)).alias("at_ack"),
            F.min(F.when(stored, F.struct("position", "queue_id", "queue_offset"))).alias("first"),
        )
        .select(
            "topic",
            "id",
            "id_text",
            F.col("op").isNotNull().alias("sent"),
            *once,
            "copies",
            "altered",
            "at_ack",
            F.col("first.position").alias("first_position"),
            F.col("first.queue_id").alias("first_queue"),
            F.col("first.queue_offset").alias("first_offset"),
        )
    )


def _by_id(sends: Frame) -> Frame:
    """Return a row per topic and id. Sends that share an id (`reused`) cannot be told apart: their
    content and attempts are unknown, and a copy may be at the place of any."""
    names = ("id_text", "op", "outcome", "order", "seq")
    positions = ("ack_queue", "ack_offset", "ack_position")
    single = ("crc", "fields", "born", "attempts")
    columns = [F.max(name).alias(name) for name in (*names, *positions, *single)]
    rows = sends.groupBy("topic", "id").agg(
        *columns,
        F.max(F.col("outcome") == "ok").alias("acknowledged"),
        (F.count("*") > 1).alias("reused"),
    )
    outcome = F.when(F.col("acknowledged"), F.lit("ok")).otherwise(F.col("outcome"))
    unknown = {name: F.when(~F.col("reused"), F.col(name)) for name in single}
    return rows.withColumns({**unknown, "outcome": outcome}).drop("acknowledged")
