"""The checks that need only the history: offsets, metadata, leaders, logs of the cluster.

Builds queries only, each only if the history has such events. Real-time order decides: a read is
compared with what had been answered before the read was asked for (`invoked_ns`; in old histories
the time of its answer).
"""

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..read.history import of_group
from ..read.tables import Tables
from .checks import Check

# Lines that a node may log from a fault of these kinds on: a broken disk stops it on purpose.
EXPECTED_KINDS = "^(disk|eio|short|flip|torn|lost|lying)-|power-cut"
EXPECTED_LINES = "OSError|No space left|Input/output error|fsync|member_failed|StoreDamaged|damaged"
CLOCKS_APART_NS = 100_000_000  # logs have milliseconds of a clock that may be set during a run


def observed_checks(tables: Tables, kinds: frozenset[str]) -> Iterator[Check]:
    """Yield every check for which the history has events."""
    if "commit" in kinds or "fetch" in kinds:
        yield from offset_checks(tables)
    if "meta_read" in kinds:
        yield metadata_check(tables)
    if "leader" in kinds:
        yield leader_check(tables)
    if "log_line" in kinds or "logs" in kinds:
        yield log_check(tables)


def offset_checks(tables: Tables) -> Iterator[Check]:
    """Yield the checks for consumer offsets that went back: as answered, and as committed by one
    consumer.

    A reset, or a lower commit of another consumer that took a queue over, begins a new epoch; only
    values of the same epoch are compared. A fetch may also answer the value of a lower commit that
    was still unanswered when the fetch was asked for.
    """
    place = ("group", "broker", "topic", "queue")
    moments = _moments(_operations(tables, ("commit", "fetch", "reset"), place, "offset"))
    table = _judged_offsets(moments, place)
    low = F.coalesce("offset", F.lit(-1)) < F.col("floor")
    excused = F.exists(
        "lower_commits",
        lambda c: (
            (c.offset == F.col("offset")) & (c.done_ns.isNull() | (c.done_ns >= F.col("asked_ns")))
        ),
    )
    same_epoch = F.col("epoch_asked") == F.col("epoch")
    columns = (*place, "p", "offset")
    yield Check(
        "offsets_back",
        "consumer offsets answered below one that was acknowledged before",
        True,
        table,
        (F.col("f") == "fetch") & low & same_epoch & ~excused,
        (*columns, "floor"),
        place,
    )
    yield Check(
        "commits_back",
        "commits of a consumer below its own last one",
        True,
        table,
        F.col("own_lower"),
        (*columns, "before"),
        place,
    )


def metadata_check(tables: Tables) -> Check:
    """Check for versions read back older than acknowledged or read before, or never written. An
    object of several writers is left to the harness, which looks for an order of its operations:
    its versions do not rise."""
    thing = ("broker", "what", "name")
    operations = _operations(tables, ("meta_write", "meta_read"), thing, "version")
    whole = Window.partitionBy(*thing)
    is_write, is_read = F.col("f") == "meta_write", F.col("f") == "meta_read"
    written = F.max(F.when(is_write, F.col("version"))).over(whole)
    before = whole.orderBy("t_ns", "kind").rowsBetween(Window.unboundedPreceding, -1)
    answered = F.when((F.col("kind") == 1) & (F.col("type") == "ok"), F.col("version"))
    writers = F.size(F.collect_set(F.when(is_write, F.col("p"))).over(whole))
    judged = (
        _moments(operations.withColumn("written", written).withColumn("writers", writers))
        .withColumn("floor", F.max(answered).over(before))
        .where((F.col("kind") == 0) & is_read & (F.col("type") == "ok") & (F.col("writers") <= 1))
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


def _operations(
    tables: Tables, functions: tuple[str, ...], place: tuple[str, ...], value: str
) -> DataFrame:
    """Return one row per operation: op, f, p, place, value, type (its outcome's; null: none),
    asked_ns, done_ns (null: no answer)."""
    ours = F.col("f").isin(*functions) & of_group(tables.group)
    if "queue" in place:
        ours = ours & F.col("topic").isin(*tables.topics)
    begun = F.col("type") == "invoke"
    answered = F.when(F.col("type") == "ok", F.col("t_ns"))
    return (
        tables.events.where(ours)
        .withColumn("broker", F.coalesce("broker", F.lit("")))
        .groupBy("op", "f", *place)
        .agg(
            F.max("p").alias("p"),
            F.max(value).alias(value),
            F.max(F.when(~begun, F.col("type"))).alias("type"),
            F.max(answered).alias("done_ns"),
            F.coalesce(
                F.max("invoked_ns"), F.max(F.when(begun, F.col("t_ns"))), F.max("t_ns")
            ).alias("asked_ns"),
        )
    )


def _moments(operations: DataFrame) -> DataFrame:
    """Return each operation twice: when it was asked for (kind 0) and when answered (kind 1)."""
    times = F.array(
        F.struct(F.col("asked_ns").alias("t_ns"), F.lit(0).alias("kind")),
        F.struct(F.col("done_ns").alias("t_ns"), F.lit(1).alias("kind")),
    )
    rows = operations.withColumn("moment", F.explode(times)).where("moment.t_ns is not null")
    return rows.select("*", "moment.t_ns", "moment.kind").drop("moment")


def _judged_offsets(moments: DataFrame, place: tuple[str, ...]) -> DataFrame:
    """Return one row per answered operation: before (the last commit's offset), own_lower, epoch,
    epoch_asked, floor (the highest value of its epoch known when it was asked for), lower_commits
    (offset and done_ns of the commits that certainly or possibly wrote less than was there)."""
    order = Window.partitionBy(*place).orderBy("t_ns", "kind", "op")
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    answer = F.col("kind") == 1
    is_commit = F.col("f") == "commit"

    def last(column: Column, among: Column) -> Column:
        return F.last(F.when(answer & among, column), ignorenulls=True).over(earlier)

    writes = F.col("f").isin("commit", "reset")
    rows = (
        moments.withColumn("before", last(F.col("offset"), is_commit))
        .withColumn("before_p", last(F.col("p"), is_commit))
        .withColumn("before_ns", last(F.col("t_ns"), is_commit))
        .withColumn("before_f", last(F.col("f"), writes))
    )
    lower = F.coalesce(is_commit & (F.col("offset") < F.col("before")), F.lit(False))
    own = (F.col("p") == F.col("before_p")) & (F.col("before_ns") <= F.col("asked_ns"))
    own_lower = answer & lower & own & (F.col("before_f") == "commit")
    set_back = answer & (lower | (F.col("f") == "reset"))
    maybe_lower = is_commit & (lower | F.col("done_ns").isNull())
    rows = (
        rows.withColumn("own_lower", F.coalesce(own_lower, F.lit(False)))
        .withColumn("epoch", F.sum(set_back.cast("int")).over(order))
        .withColumn(
            "lower_commits",
            F.collect_set(F.when(maybe_lower, F.struct("offset", "done_ns"))).over(
                Window.partitionBy(*place)
            ),
        )
    )
    in_epoch = (
        Window.partitionBy(*place, "epoch")
        .orderBy("t_ns", "kind", "op")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # Of two consumers' concurrent commits either may be the last: the higher is not certain.
    raced = is_commit & (F.col("before_f") == "commit") & (F.col("before_p") != F.col("p"))
    raced = F.coalesce(raced & (F.col("before_ns") > F.col("asked_ns")), F.lit(False))
    certain = F.when(answer & ~raced, F.col("offset"))
    rows = rows.withColumn("floor", F.max(certain).over(in_epoch))
    asked = F.col("kind") == 0
    return rows.groupBy("op", "f", *place, "p", "offset", "asked_ns").agg(
        F.max(F.when(answer, F.col("epoch"))).alias("epoch"),
        F.max(F.when(asked, F.col("epoch"))).alias("epoch_asked"),
        F.max(F.when(asked, F.col("floor"))).alias("floor"),
        F.max(F.when(answer, F.col("before"))).alias("before"),
        F.coalesce(F.max(F.when(answer, F.col("own_lower"))), F.lit(False)).alias("own_lower"),
        F.first("lower_commits").alias("lower_commits"),
    )


def leader_check(tables: Tables) -> Check:
    """Check that each term of a broker group has one leader; classic masters have no terms."""
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
    """Check for failures and tracebacks in the nodes' logs that no injected fault explains."""
    injects = (F.col("f") == "inject") & F.col("kind").rlike(EXPECTED_KINDS)
    done = F.max(F.when(F.col("type") == "ok", F.col("t_ns")))
    hit = (
        tables.events.where(injects)
        .groupBy("op")
        .agg(F.max("nodes").alias("nodes"), F.min("t_ns").alias("began_ns"), done.alias("done_ns"))
        .where(F.col("done_ns").isNotNull())
        .select(F.explode("nodes").alias("node"), "began_ns")
        .groupBy("node")
        .agg(F.min("began_ns").alias("hit_ns"))
    )
    lines = tables.events.where(F.col("f") == "log_line").select("op", "node", "line", "logged_ns")
    logged_ns = F.coalesce("logged_ns", F.lit(0))
    after = (logged_ns == 0) | (logged_ns + CLOCKS_APART_NS >= F.col("hit_ns"))
    excused = F.coalesce(after, F.lit(False)) & F.col("line").rlike(EXPECTED_LINES)
    return Check(
        "log_lines",
        "failures in the nodes' logs that no injected fault explains",
        True,
        lines.join(hit, "node", "left"),
        ~excused,
        ("node", "line"),
        ("op",),
    )
