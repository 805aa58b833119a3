"""The checks of what the history says of the cluster by itself: offsets, metadata, leaders, logs.

Queries only; each is made only where the history has such events. Times decide what may be wrong: a
read is held to what was answered before it was asked for (`invoked_ns`, in old histories the moment
of its answer).
"""

from collections.abc import Iterator, Mapping

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from audit.checks import Check
from audit.consumption import of_topic
from audit.history import of_group
from audit.tables import Tables

# What a node may say that was hit by a fault of these kinds: a broken disk stops it, on purpose.
EXPECTED_KINDS = "^(disk|eio|short|flip|torn|lost|lying)-|power-cut"
EXPECTED_LINES = "OSError|No space left|Input/output error|fsync|member_failed|StoreDamaged|damaged"


def observed_checks(tables: Tables, kinds: Mapping[str, Row]) -> Iterator[Check]:
    """Every check for which the history has events."""
    if "commit" in kinds or "fetch" in kinds:
        yield from offset_checks(tables)
    if "meta_read" in kinds:
        yield metadata_check(tables)
    if "leader" in kinds:
        yield leader_check(tables)
    if "log_line" in kinds or "logs" in kinds:
        yield log_check(tables)


def offset_checks(tables: Tables) -> Iterator[Check]:
    """Consumer offsets that went back: as answered, and as committed by one consumer.

    A reset, or a lower commit of another consumer that took a queue over, begins a new epoch: only
    what is of one epoch is compared. A fetch may answer what a lower commit has written that was
    not answered yet when it was asked for.
    """
    place = ("group", "broker", "queue")
    answered = (
        of_topic(tables)
        .where(F.col("f").isin("commit", "fetch", "reset"))
        .withColumn("broker", F.coalesce("broker", F.lit("")))
        .select(
            *place,
            "f",
            "op",
            "p",
            "offset",
            "t_ns",
            F.coalesce("invoked_ns", "t_ns").alias("asked_ns"),
        )
    )
    rows = _with_epochs(answered, tables, place)
    low = _fetched(rows, place).where(F.coalesce("offset", F.lit(-1)) < F.col("floor"))
    open_then = F.col("done_ns").isNull() | (F.col("done_ns") >= F.col("asked_ns"))
    excused = low.join(_commits(tables), [*place, "offset"]).where(open_then).select("op")
    columns = ("group", "broker", "queue", "p", "offset", "floor")
    yield Check(
        "offsets_back",
        "consumer offsets answered below one that was acknowledged before",
        True,
        low.join(excused, "op", "left_anti"),
        F.lit(True),
        columns,
        ("group", "broker", "queue"),
    )
    yield Check(
        "commits_back",
        "commits of a consumer below its own last one",
        True,
        rows,
        F.col("own_lower"),
        ("group", "broker", "queue", "p", "offset", "before"),
        ("group", "broker", "queue"),
    )


def _fetched(rows: DataFrame, place: tuple[str, ...]) -> DataFrame:
    """The fetches with `floor`, the highest value of their epoch known when they were asked for."""
    in_epoch = (
        Window.partitionBy(*place, "epoch")
        .orderBy("t_ns", "kind")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    fetches = rows.where(F.col("f") == "fetch")
    asks = fetches.select(
        *place, "op", "epoch", F.col("asked_ns").alias("t_ns"), F.lit(0).alias("kind")
    )
    values = rows.select(
        *place, "op", "epoch", "t_ns", F.lit(1).alias("kind"), F.col("offset").alias("known")
    )
    floors = (
        values.unionByName(asks, allowMissingColumns=True)
        .withColumn("floor", F.max("known").over(in_epoch))
        .where("kind = 0")
        .select("op", "floor")
    )
    return fetches.join(floors, "op")


def _commits(tables: Tables) -> DataFrame:
    """Commits that say when they began: c_op, place, offset, begun_ns, done_ns (null: none)."""
    ours = (F.col("topic") == tables.topic) & of_group(tables.group)
    found = tables.events.where((F.col("f") == "commit") & ours)
    broker = F.coalesce("broker", F.lit("")).alias("broker")
    op = F.col("op").alias("c_op")
    begun = found.where(F.col("type") == "invoke").select(
        op, "group", broker, "queue", "offset", F.col("t_ns").alias("begun_ns")
    )
    done = found.where(F.col("type") == "ok").select(op, F.col("t_ns").alias("done_ns"))
    return begun.join(done, "c_op", "left")


def _with_epochs(answered: DataFrame, tables: Tables, place: tuple[str, ...]) -> DataFrame:
    """`answered` with `begun_ns`, `before` (the last commit's offset), `own_lower`, `epoch`."""
    begun = _commits(tables).select(F.col("c_op").alias("op"), "begun_ns")
    rows = answered.join(begun, "op", "left").withColumn("begun_ns", F.coalesce("begun_ns", "t_ns"))
    order = Window.partitionBy(*place).orderBy("t_ns", "op")
    is_commit = F.col("f") == "commit"

    def last(name: str) -> Column:
        earlier = order.rowsBetween(Window.unboundedPreceding, -1)
        return F.last(F.when(is_commit, F.col(name)), ignorenulls=True).over(earlier)

    rows = rows.withColumn("before", last("offset")).withColumn("before_p", last("p"))
    rows = rows.withColumn("before_ns", last("t_ns"))
    lower = is_commit & (F.col("offset") < F.col("before"))
    own = (F.col("p") == F.col("before_p")) & (F.col("before_ns") <= F.col("begun_ns"))
    own_lower = F.coalesce(lower & own, F.lit(False))
    set_back = F.coalesce(lower, F.lit(False)) | (F.col("f") == "reset")
    return rows.withColumn("own_lower", own_lower & ~_reset_between(order)).withColumn(
        "epoch", F.sum(set_back.cast("int")).over(order)
    )


def _reset_between(order: Window) -> Column:
    """The event before this one, if it is no fetch, was a reset."""
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    writing = F.when(F.col("f") != "fetch", F.col("f"))
    return F.coalesce(F.last(writing, ignorenulls=True).over(earlier) == "reset", F.lit(False))


def metadata_check(tables: Tables) -> Check:
    """Versions read back below one that was acknowledged or read before, or that nobody wrote."""
    thing = ("broker", "what", "name")
    events = tables.events.where(
        F.col("f").isin("meta_write", "meta_read") & of_group(tables.group)
    ).withColumn("broker", F.coalesce("broker", F.lit("")))
    answered = events.where(F.col("type") == "ok")
    begun = events.where(F.col("type") == "invoke").select("op", F.col("t_ns").alias("asked_ns"))
    reads = answered.where(F.col("f") == "meta_read").join(begun, "op")
    asks = reads.select(
        *thing, "op", F.col("asked_ns").alias("t_ns"), F.lit(0).alias("kind"), "version"
    )
    values = answered.select(
        *thing, "op", "t_ns", F.lit(1).alias("kind"), F.col("version").alias("known")
    )
    before = (
        Window.partitionBy(*thing)
        .orderBy("t_ns", "kind")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    written = (
        events.where((F.col("f") == "meta_write") & (F.col("type") == "invoke"))
        .groupBy(*thing)
        .agg(F.max("version").alias("written"))
    )
    judged = (
        values.unionByName(asks, allowMissingColumns=True)
        .withColumn("floor", F.max("known").over(before))
        .where("kind = 0")
        .join(written, [*thing], "left")
    )
    version = F.coalesce("version", F.lit(-1))
    gone = version < F.coalesce("floor", F.lit(-1))
    invented = version > F.coalesce("written", F.lit(-1))
    return Check(
        "metadata_back",
        "topics and groups read back older than acknowledged, or as nobody wrote them",
        True,
        judged,
        gone | (F.col("version").isNotNull() & invented),
        (*thing, "op", "version", "floor", "written"),
        (*thing, "op"),
    )


def leader_check(tables: Tables) -> Check:
    """One leader per term and broker group; classic masters have no terms."""
    claims = (
        tables.events.where((F.col("f") == "leader") & (F.col("term") > 0))
        .groupBy(F.coalesce("group", F.lit("")).alias("group"), "term")
        .agg(F.sort_array(F.collect_set("node")).alias("leaders"))
    )
    return Check(
        "two_leaders",
        "terms in which two nodes led",
        True,
        claims,
        F.size("leaders") > 1,
        ("group", "term", "leaders"),
        ("group", "term"),
    )


def log_check(tables: Tables) -> Check:
    """Assertion failures and tracebacks in the nodes' logs that no injected fault explains."""
    hit = (
        tables.events.where(
            (F.col("f") == "inject") & (F.col("type") == "ok") & F.col("kind").rlike(EXPECTED_KINDS)
        )
        .select(F.explode("nodes").alias("node"))
        .distinct()
        .withColumn("hit", F.lit(True))
    )
    lines = tables.events.where(F.col("f") == "log_line").select("op", "node", "line")
    excused = F.coalesce("hit", F.lit(False)) & F.col("line").rlike(EXPECTED_LINES)
    return Check(
        "log_lines",
        "failures in the nodes' logs that no injected fault explains",
        True,
        lines.join(hit, "node", "left"),
        ~excused,
        ("node", "line"),
        ("op",),
    )
