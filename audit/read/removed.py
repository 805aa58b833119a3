"""Distinguishes messages that retention removed from lost messages.

Each replica removes its oldest segments independently. So for a while a majority may not have
messages that one replica still has, without any loss. An acknowledged message that is not stored
now (audit.read.committed_range) is classified by the stores' copies:

- A store has it before the current start of the group's log. Retention removed the rest.
- A store has it behind that. It is lost.
- No store has it. It is lost if a store goes back to log position 0, and on to the group's start.
  Otherwise it may have been removed, unless its queue offset is behind the first that they have
  of its queue.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .committed_range import Limits
from .store_files import STORES_SEPARATOR


def with_gone(
    rows: DataFrame, records: DataFrame, limits: Limits, queue_id: str, queue_offset: str
) -> DataFrame:
    """Add `gone`: the message is not stored (`copies`), and retention may have removed it. `rows`
    has topic, id_text, and the acknowledged queue and offset in columns of these names. `records`
    has the stores' records, intact or not, with the names of all stores that have each."""
    if limits.start == 0:
        return rows.withColumn("gone", F.lit(False))
    reaching = [
        store
        for store in limits.stores
        if store.store in limits.voting and store.limit >= limits.start
    ]
    first_position = min((store.start for store in reaching), default=limits.start)
    names = F.array(*[F.lit(store.store) for store in reaching])
    reaches = F.arrays_overlap(F.split("store", STORES_SEPARATOR), names)
    kept = records.where(F.col("visible") & F.col("intact"))
    before = F.col("position") < limits.start
    held = kept.groupBy("topic", F.col("uniq_key").alias("id_text")).agg(
        F.max(before & reaches).alias("held_before"), F.max(~before).alias("held_behind")
    )
    starts = (
        kept.where(reaches)
        .groupBy("topic", F.col("queue_id").alias(queue_id))
        .agg(F.min("queue_offset").alias("first"))
    )
    no, yes = F.lit(False), F.lit(True)
    unseen = F.lit(first_position > 0) & F.coalesce(F.col(queue_offset) < F.col("first"), yes)
    may_be = (F.coalesce("held_before", no) | unseen) & ~F.coalesce("held_behind", no)
    return (
        rows.join(held, ["topic", "id_text"], "left")
        .join(F.broadcast(starts), ["topic", queue_id], "left")
        .withColumn("gone", (F.coalesce("copies", F.lit(0)) == 0) & may_be)
        .drop("held_before", "held_behind", "first")
    )
