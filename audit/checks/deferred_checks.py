"""The checks of messages that arrive later than they are sent. Builds queries only.

A transaction, a delayed message or a retry is not acknowledged in the place where consumers get it.
So each is judged by what the group's log holds under its id: in the topic it was sent to, in the
brokers' own topics where it waited, and in a consumer group's retry and dead letter topics.
`chaos/checks` judges the deliveries that a run saw; this module judges every stored record by the
same rules (docs/history.md).

A message counts as lost only once it cannot arrive any more: after a complete drain of the topic (a
commit that the broker confirmed, at once). With several broker groups the history does not say
which one took a message; then only a message delivered nowhere is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..read.history import of_group
from ..read.system_topics import SCHEDULE_TOPIC
from ..read.tables import Tables
from .checks import Check

TRANSACTIONS, DELAYED, RETRIES = "transactions", "delayed", "retries"  # values of `work`
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
TOLERANCE_MS = 10  # two looks at one machine's clock may differ by this
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """The kinds of event in the history that these checks need, as (f, work)."""

    events: frozenset[tuple[str, str]]
    whole: bool  # the log has its beginning; else what is not there may have been removed
    clocks_moved: bool  # then an early message proves nothing
    several: bool  # broker groups

    def has(self, function: str, work: str = "") -> bool:
        return (function, work) in self.events


def evidence(tables: Tables) -> Evidence:
    """Collect the evidence in one query."""
    moved = (F.col("f") == "inject") & F.col("kind").startswith("clock")
    wanted = F.col("f").isin("post", "give_back", "deliver", "scan", "work")
    rows = (
        tables.events.where(wanted | moved)
        .groupBy("f", F.coalesce("work", F.lit("")).alias("work"))
        .agg(F.coalesce(F.max(~of_group(tables.group)), F.lit(False)).alias("elsewhere"))
        .collect()
    )
    return Evidence(
        frozenset((row["f"], row["work"]) for row in rows if row["f"] != "inject"),
        tables.limits.begin == 0,
        any(row["f"] == "inject" for row in rows),
        any(row["elsewhere"] for row in rows if row["f"] in ("deliver", "work")),
    )


def later_checks(tables: Tables, found: Evidence) -> Iterator[Check]:
    """Yield every check for which the history has events."""
    works = {work for function, work in found.events if function == "post"}
    if works:
        posted = tables.staged(_posted(tables), "posted")
        yield from _post_checks(tables, found, posted)
        if TRANSACTIONS in works:
            yield from _transaction_checks(found, posted)
        if DELAYED in works:
            yield from _delayed_checks(found, posted)
        if RETRIES in works:
            yield from _retry_checks(tables, found, posted)


# ---- what is known of each message --------------------------------------------------------------


def _operations(tables: Tables, function: str, *keys: str) -> DataFrame:
    """Return one row per `keys`: outcome (null: none yet), attempts, begun_ns, done_ns (of an ok),
    and the fields of the invoke."""
    begun = F.col("type") == "invoke"
    return (
        tables.events.where(F.col("f") == function)
        .groupBy(*keys)
        .agg(
            F.max("topic").alias("topic"),
            F.max("delay_ms").alias("delay_ms"),
            F.max("id").alias("about"),
            F.max("times").alias("times"),
            F.max("seen").alias("seen"),
            F.max("tries").alias("tries"),
            F.coalesce(F.max("dead"), F.lit(False)).alias("dead"),
            F.max(F.when(~begun, F.col("type"))).alias("outcome"),
            F.max(F.when(~begun, F.col("attempts"))).alias("attempts"),
            F.min(F.when(begun, F.col("t_ns"))).alias("begun_ns"),
            F.max(F.when(F.col("type") == "ok", F.col("t_ns"))).alias("done_ns"),
        )
    )


def _posted(tables: Tables) -> DataFrame:
    """Return one row per message (`work`, `id`) that was sent or stands in a topic of a workload.

    As sent: sent, topic, delay_ms, outcome, attempts, begun_ns, done_ns, drained_ns (when its topic
    was drained last). As stored: copies (in its topic, visible to consumers), in_work (in any topic
    of the workload), anywhere, first_position, first_ms (store time of the first copy), waits_ms
    (of the first record elsewhere), letters (dead ones), given_up. As seen: seen_ns (first
    delivery), accepted, elsewhere (delivered by another broker group), scanned (found waiting at
    the end). As decided: commit_ns, confirmed, decided. open_backs: given back, without an outcome.
    waited_ms: the time the brokers held it; passed_ms: from the send to the first delivery.
    """
    posts = _operations(tables, "post", "work", "id").drop("about", "times", "seen", "tries")
    stored = F.col("position").isNotNull()
    own = stored & F.col("visible") & (F.col("at_topic") == F.coalesce("topic", "at_topic"))
    # Workloads that share a topic: its records are joined once for each.
    of_another = (F.col("at_topic") == F.col("topic")) & (F.col("work_at") != F.col("sent_work"))
    ms = F.col("store_timestamp")
    kept = ("topic", "delay_ms", "outcome", "attempts", "begun_ns", "done_ns")
    rows = (
        _records(tables)
        .join(posts.withColumnRenamed("work", "sent_work"), "id", "full_outer")
        .withColumn("work", F.coalesce("sent_work", "work_at"))
        .where(F.col("work").isNotNull() & F.col("id").isNotNull())
        .where(~F.coalesce(of_another, F.lit(False)))
        .groupBy("work", "id")
        .agg(
            *[F.max(name).alias(name) for name in kept],
            F.max(F.col("sent_work").isNotNull()).alias("sent"),
            F.count(F.when(own, 1)).alias("copies"),
            F.count(F.when(F.col("visible") & F.col("work_at").isNotNull(), 1)).alias("in_work"),
            F.count("position").alias("anywhere"),
            F.min(F.when(own, F.col("position"))).alias("first_position"),
            F.min(F.when(own, ms)).alias("first_ms"),
            F.min(F.when(stored & ~own, ms)).alias("waits_ms"),
            F.count(F.when(F.col("at_topic").startswith(DLQ_PREFIX), 1)).alias("letters"),
            F.coalesce(F.max(F.col("at_topic") == GIVEN_UP_TOPIC), F.lit(False)).alias("given_up"),
        )
    )
    scan = (
        tables.events.where(F.col("f") == "stored")
        .groupBy("work", "id")
        .agg(F.min("store_ms").alias("scan_ms"))
    )
    counts = ("copies", "in_work", "anywhere", "letters")
    flags = ("sent", "given_up", "accepted", "elsewhere", "confirmed", "decided", "open_backs")
    joined = (
        rows.join(scan, ["work", "id"], "full_outer")
        .withColumn("scanned", F.col("scan_ms").isNotNull())
        .withColumn("waits_ms", F.least("waits_ms", "scan_ms"))
        .join(_seen(tables), ["work", "id"], "left")
        .join(_decided(tables), "id", "left")
        .join(_open_backs(tables), "id", "left")
        .join(F.broadcast(_drained(tables)), "topic", "left")
        .fillna(0, list(counts))
        .fillna(False, list(flags))
    )
    passed_ns = F.col("seen_ns") - F.col("begun_ns")
    return joined.withColumn("waited_ms", F.col("first_ms") - F.col("waits_ms")).withColumn(
        "passed_ms", (passed_ns / NS_PER_MS).cast("long")
    )


def _records(tables: Tables) -> DataFrame:
    """Return the group's records, with `work_at`: the workload whose topic each stands in, if any.
    Records of plain sends, which are most, are left out."""
    named = tables.events.where(F.col("f") == "post").select("work", "topic")
    groups = tables.events.where((F.col("f") == "deliver") & (F.col("work") == RETRIES))
    both = F.explode(
        F.array(*[F.concat(F.lit(prefix), "group") for prefix in (RETRY_PREFIX, DLQ_PREFIX)])
    )
    topics = named.union(groups.select("work", both.alias("topic"))).distinct()
    at = topics.select(F.col("topic").alias("at_topic"), F.col("work").alias("work_at"))
    records = tables.log.select(
        F.col("id_text").alias("id"),
        F.col("topic").alias("at_topic"),
        "queue_id",
        "visible",
        "position",
        "store_timestamp",
        "reconsume_times",
    ).join(F.broadcast(at), "at_topic", "left")
    plain = F.col("at_topic").isin(*tables.topics)
    return records.where(~plain | F.col("work_at").isNotNull())


def _seen(tables: Tables) -> DataFrame:
    letter = F.col("topic").startswith(DLQ_PREFIX)
    return (
        tables.events.where(F.col("f") == "deliver")
        .groupBy("work", "id")
        .agg(
            F.min("t_ns").alias("seen_ns"),
            F.max(F.col("accepted") & ~letter).alias("accepted"),
            F.max(~of_group(tables.group)).alias("elsewhere"),
        )
    )


def _decided(tables: Tables) -> DataFrame:
    commit = F.col("decision") == "commit"
    return (
        tables.events.where(F.col("f") == "decide")
        .groupBy("id")
        .agg(
            F.min(F.when(commit, F.col("t_ns"))).alias("commit_ns"),
            F.max(commit & (F.col("type") == "ok")).alias("confirmed"),
            F.max(F.col("decision") != "undecided").alias("decided"),
        )
    )


def _backs(tables: Tables) -> DataFrame:
    """Return one row per send-back: id, times, seen, tries, dead, outcome, begun_ns, done_ns."""
    rows = _operations(tables, "give_back", "op").withColumnRenamed("about", "id")
    return rows.select("id", "times", "seen", "tries", "dead", "outcome", "begun_ns", "done_ns")


def _open_backs(tables: Tables) -> DataFrame:
    return _backs(tables).groupBy("id").agg(F.max(F.col("outcome").isNull()).alias("open_backs"))


def _drained(tables: Tables) -> DataFrame:
    complete = tables.events.where((F.col("f") == "drain") & F.col("complete"))
    return complete.groupBy("topic").agg(F.max("t_ns").alias("drained_ns"))


# ---- the checks ---------------------------------------------------------------------------------


def _check(
    table: DataFrame, name: str, title: str, wrong: Column, *columns: str, fault: bool = True
) -> Check:
    """Make a check in which an unknown (null) condition is not wrong; sort offenders by id."""
    shown = ("id", *columns)
    return Check(name, title, fault, table, F.coalesce(wrong, F.lit(False)), shown, shown)


def _absent(
    found: Evidence, table: DataFrame, name: str, title: str, wrong: Column, *columns: str
) -> Check:
    """Make a check of what should be stored and is not: no fault is certain once retention has
    removed the log's beginning."""
    removed = "" if found.whole else " (retention has removed messages: not decided)"
    return _check(table, name, title + removed, wrong, *columns, fault=found.whole)


def _of(work: str) -> Column:
    return F.col("work") == work


def _there() -> Column:
    return (F.col("copies") > 0) | F.col("elsewhere")


def _too_many(count: str, allowed: str) -> Column:
    return F.col(count) > F.greatest(F.lit(1), F.coalesce(allowed, F.lit(0)))


def _post_checks(tables: Tables, found: Evidence, posted: DataFrame) -> Iterator[Check]:
    whole = found.whole and not found.several
    yield _check(
        posted,
        "post_missing",
        "messages to come later that were acknowledged, and are stored nowhere",
        F.lit(whole) & (F.col("outcome") == "ok") & (F.col("anywhere") == 0) & ~F.col("elsewhere"),
        "work",
        "topic",
    )
    yield _check(
        posted,
        "post_phantom",
        "stored for consumers, but never sent, or failed for certain",
        (F.col("in_work") > 0) & (~F.col("sent") | (F.col("outcome") == "fail")),
        "work",
        "first_position",
        "in_work",
    )


def _transaction_checks(found: Evidence, posted: DataFrame) -> Iterator[Check]:
    here, commit_ns = _of(TRANSACTIONS), F.col("commit_ns")
    confirmed = F.col("confirmed") & F.lit(not found.several)
    yield _absent(
        found,
        posted,
        "transaction_lost",
        "transactions committed, but not stored for consumers",
        here & ~_there() & (confirmed | (commit_ns <= F.col("drained_ns"))),
        "topic",
        "confirmed",
    )
    shown = (F.col("copies") > 0) | F.col("seen_ns").isNotNull()
    yield _check(
        posted,
        "transaction_uncommitted",
        "transactions stored for consumers, though nobody had said commit",
        here & shown & (commit_ns.isNull() | (F.col("seen_ns") < commit_ns)),
        "first_position",
        "decided",
    )
    yield _check(
        posted,
        "transaction_copies",
        "transactions stored more often than their producer tried",
        here & F.col("outcome").isNotNull() & _too_many("copies", "attempts"),
        "first_position",
        "copies",
        "attempts",
    )
    if not found.has("scan", TRANSACTIONS):
        return
    gone = ~F.col("scanned") & ~shown & ~F.col("given_up")
    undecided = (F.col("outcome") == "ok") & ~F.col("decided")
    yield _absent(
        found,
        posted,
        "transaction_halves",
        "half messages open though decided, or gone though not",
        here & ((F.col("scanned") & (~F.col("sent") | F.col("decided"))) | (undecided & gone)),
        "scanned",
        "decided",
    )


def _delayed_checks(found: Evidence, posted: DataFrame) -> Iterator[Check]:
    here, delay_ms = _of(DELAYED), F.col("delay_ms")
    acknowledged = F.col("outcome") == "ok"
    yield _absent(
        found,
        posted,
        "delayed_lost",
        "delayed messages that never came",
        here & acknowledged & ~_there() & (F.col("done_ns") <= F.col("drained_ns")),
        "topic",
        "delay_ms",
        "waits_ms",
    )
    yield _check(
        posted,
        "delayed_early",
        "delayed messages before their time"
        + (" (clocks were moved: not decided)" if found.clocks_moved else ""),
        here
        & F.col("sent")
        & (F.coalesce("outcome", F.lit("open")) != "fail")
        & (
            F.coalesce(F.col("waited_ms") < delay_ms - TOLERANCE_MS, F.lit(False))
            | F.coalesce(F.col("passed_ms") < delay_ms - TOLERANCE_MS, F.lit(False))
        ),
        "delay_ms",
        "waited_ms",
        "passed_ms",
        fault=not found.clocks_moved,
    )
    yield _check(
        posted,
        "delayed_copies",
        "delayed messages stored more often than their client tried",
        here & F.col("outcome").isNotNull() & _too_many("copies", "attempts"),
        "first_position",
        "copies",
        "attempts",
    )


def _retry_checks(tables: Tables, found: Evidence, posted: DataFrame) -> Iterator[Check]:
    here = _of(RETRIES)
    ended = F.col("accepted") | (F.col("letters") > 0)
    yield _absent(
        found,
        posted,
        "retry_lost",
        "messages with retries neither consumed nor a dead letter",
        here & (F.col("outcome") == "ok") & ~ended & (F.col("done_ns") <= F.col("drained_ns")),
        "topic",
        "copies",
    )
    yield _check(
        posted,
        "retry_first_copies",
        "messages with retries stored more often than their client tried",
        here
        & F.col("outcome").isNotNull()
        & ~F.col("open_backs")
        & _too_many("copies", "attempts"),
        "first_position",
        "copies",
        "attempts",
    )
    sent = posted.where(here & F.col("sent")).select(
        "id", "drained_ns", "letters", "open_backs", F.col("outcome").alias("sent_as")
    )
    again, backs = tables.staged(_again(tables), "again"), tables.staged(_backs(tables), "backs")
    yield _came_again(found, backs, again, sent)
    yield from _called_for(backs, again, sent)
    yield from _waits(tables, found, sent)


def _again(tables: Tables) -> DataFrame:
    """Return one row per id and redelivery count, and one for its dead letters (`letter`, times
    -1): copies (stored here), first_position, seen_ns."""
    letter = F.col("topic").startswith(DLQ_PREFIX)
    retry = F.col("topic").startswith(RETRY_PREFIX)
    stored = (
        _records(tables)
        .withColumnRenamed("at_topic", "topic")
        .where(F.col("visible") & (F.col("work_at") == RETRIES) & (letter | retry))
        .select(
            "id",
            letter.alias("letter"),
            F.when(letter, F.lit(-1)).otherwise(F.col("reconsume_times")).alias("times"),
            "position",
            F.lit(None).cast("long").alias("t_ns"),
        )
    )
    seen = tables.events.where(
        (F.col("f") == "deliver") & (F.col("work") == RETRIES) & (letter | retry)
    ).select(
        "id",
        letter.alias("letter"),
        F.when(letter, F.lit(-1)).otherwise(F.col("times")).alias("times"),
        F.lit(None).cast("long").alias("position"),
        "t_ns",
    )
    return (
        stored.unionByName(seen)
        .groupBy("id", "letter", "times")
        .agg(
            F.count("position").alias("copies"),
            F.min("position").alias("first_position"),
            F.min("t_ns").alias("seen_ns"),
        )
    )


def _came_again(known: Evidence, backs: DataFrame, again: DataFrame, sent: DataFrame) -> Check:
    """Check that what was given back came again or became a dead letter.

    A client that redelivered a message by itself counts further than the stored record does, so a
    range of counts answers such a send-back.
    """
    back, found = backs.alias("back"), again.select("id", "letter", "times").alias("found")
    answers = (F.col("back.id") == F.col("found.id")) & _answers()
    rows = (
        back.join(sent, "id")
        .join(found, answers, "left")
        .groupBy("back.id", "back.times", "back.seen", "back.dead", "outcome", "done_ns")
        .agg(
            F.count("found.id").alias("found"),
            F.max("drained_ns").alias("drained_ns"),
        )
    )
    return _absent(
        known,
        rows,
        "retry_not_again",
        "given back, and neither there again nor a dead letter",
        (F.col("outcome") == "ok")
        & (F.col("found") == 0)
        & (F.col("done_ns") <= F.col("drained_ns")),
        "times",
        "dead",
    )


def _answers() -> Column:
    """Return whether the record `found` is the result of the send-back `back`."""
    times = F.col("found.times")
    in_turn = (F.col("back.times") < times) & (times <= F.col("back.seen") + 1)
    return F.when(F.col("found.letter"), F.col("back.dead")).otherwise(in_turn)


def _called_for(backs: DataFrame, again: DataFrame, sent: DataFrame) -> Iterator[Check]:
    back, found = backs.alias("back"), again.alias("found")
    answers = (F.col("back.id") == F.col("found.id")) & _answers()
    rows = (
        found.join(sent, "id")
        .join(back, answers, "left")
        .groupBy("found.id", "found.times", "letter")
        .agg(
            F.max("copies").alias("copies"),
            F.max("first_position").alias("first_position"),
            F.max("seen_ns").alias("seen_ns"),
            F.count("back.id").alias("backs"),
            F.min("back.begun_ns").alias("back_ns"),
            F.sum("back.tries").alias("tries"),
            F.max("open_backs").alias("open_backs"),
            F.max("sent_as").alias("sent_as"),
        )
    )
    yield _check(
        rows,
        "retry_out_of_turn",
        "retries and dead letters that nobody had given back so often",
        (F.col("backs") == 0) | (F.col("seen_ns") < F.col("back_ns")),
        "times",
        "first_position",
    )
    yield _check(
        rows,
        "retry_copies",
        "retries and dead letters stored more often than they were given back",
        ~F.col("open_backs") & F.col("sent_as").isNotNull() & _too_many("copies", "tries"),
        "times",
        "first_position",
        "copies",
        "tries",
    )


def _waits(tables: Tables, found: Evidence, sent: DataFrame) -> Iterator[Check]:
    """Yield the checks of how long a message given back waited: its delay level is the queue it
    waited in, and its due time stands in that queue's units."""
    due = (
        tables.units.where(F.col("topic") == SCHEDULE_TOPIC)
        .groupBy("position")
        .agg(F.max("tags_code").alias("due_ms"))
    )
    # A send-back that is repeated waits twice, and comes twice: each in its turn.
    of_back = Window.partitionBy("id", "times")
    came = (
        _records(tables)
        .where(F.col("visible") & F.col("at_topic").startswith(RETRY_PREFIX))
        .select("id", F.col("reconsume_times").alias("times"), "store_timestamp", "position")
        .withColumn("turn", F.row_number().over(of_back.orderBy("store_timestamp", "position")))
        .select("id", "times", "turn", F.col("store_timestamp").alias("came_ms"))
    )
    in_turn = Window.partitionBy("id").orderBy("times", "position")
    rows = (
        _records(tables)
        .where((F.col("at_topic") == SCHEDULE_TOPIC) & (F.col("reconsume_times") > 0))
        .select("id", F.col("reconsume_times").alias("times"), "queue_id", "position")
        .join(sent.select("id"), "id")
        .withColumn("level", F.col("queue_id") + 1)
        .withColumn("level_before", F.lag("level").over(in_turn))
        .join(due, "position", "left")
        .withColumn("turn", F.row_number().over(of_back.orderBy("due_ms", "position")))
        .join(came, ["id", "times", "turn"], "left")
    )
    yield _check(
        rows,
        "retry_sooner",
        "given back again, and made to wait for less than the time before",
        F.col("level") < F.col("level_before"),
        "times",
        "level_before",
        "level",
    )
    yield _check(
        rows,
        "retry_early",
        "retries before their time"
        + (" (clocks were moved: not decided)" if found.clocks_moved else ""),
        F.col("came_ms") < F.col("due_ms") - TOLERANCE_MS,
        "times",
        "due_ms",
        "came_ms",
        fault=not found.clocks_moved,
    )
