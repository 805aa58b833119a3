"""Tells what retention has removed from what was lost. Builds queries only.

Each replica removes its oldest segments at a time of its own: at its own hour, when its own disk is
full. So for a while a majority may no longer have what another replica has, and no loss is in it.
Of an acknowledged message that is not stored any more (audit.read.committed_range) it is known
where it stood:

- A store has it before the position where the group's log begins now: retention removed it from the
  others.
- A store has it behind that: it is lost.
- No store has it. If one goes back to the very first position of the log, and on to where the
  group's begins, it was never stored, and is lost. If all begin later, it may have stood before
  that, unless its queue offset is behind the first one that they have of its queue.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .committed_range import Limits
from .store_files import STORES_SEPARATOR


def with_gone(
    rows: DataFrame, records: DataFrame, limits: Limits, queue_id: str, queue_offset: str
) -> DataFrame:
    """Add `gone`: it is not stored (`copies`), and retention may have removed it. `rows`: topic,
    id_text, and the place where each was acknowledged, in columns of these names; `records`: those
    that the stores have, intact or not, each row with the names of all that have it."""
    if limits.begin == 0:
        return rows.withColumn("gone", F.lit(False))
    reaching = [
        store
        for store in limits.stores
        if store.store in limits.voting and store.limit >= limits.begin
    ]
    first_position = min((store.begin for store in reaching), default=limits.begin)
    names = F.array(*[F.lit(store.store) for store in reaching])
    reaches = F.arrays_overlap(F.split("store", STORES_SEPARATOR), names)
    kept = records.where(F.col("visible") & F.col("intact"))
    before = F.col("position") < limits.begin
    held = kept.groupBy("topic", F.col("uniq_key").alias("id_text")).agg(
        F.max(before & reaches).alias("held_before"), F.max(~before).alias("held_behind")
    )
    begins = (
        kept.where(reaches)
        .groupBy("topic", F.col("queue_id").alias(queue_id))
        .agg(F.min("queue_offset").alias("first"))
    )
    no, yes = F.lit(False), F.lit(True)
    unseen = F.lit(first_position > 0) & F.coalesce(F.col(queue_offset) < F.col("first"), yes)
    may_be = (F.coalesce("held_before", no) | unseen) & ~F.coalesce("held_behind", no)
    return (
        rows.join(held, ["topic", "id_text"], "left")
        .join(F.broadcast(begins), ["topic", queue_id], "left")
        .withColumn("gone", (F.coalesce("copies", F.lit(0)) == 0) & may_be)
        .drop("held_before", "held_behind", "first")
    )
