"""Distinguishes messages that retention removed from lost messages.

Each replica removes its oldest segments independently. So for a while a majority may not have
messages that one replica still has, without any loss. An acknowledged message that is not stored
now (audit.read.committed_range) is classified by the stores' copies:

- A store has it before the current start of the group's log. Retention removed the rest.
- A store has it behind that. It is lost.
- No store has it. It is lost if a store goes back to log position 0, and on to the group's start.
  Otherwise it may have been removed, unless its queue offset is behind the first that they have
  of its queue.

Retention removes only messages of its age (`Retention`), so younger messages are lost, and so are
messages of unknown time if the group's log begins with a younger message.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..engine import columns as F
from ..engine.frames import Frame
from .committed_range import Limits
from .log_facts import LogFacts
from .store_files import STORES_SEPARATOR, Store

HOUR_MS = 3_600_000
HOURS = 72  # fileReservedTime's default
TIME_MAX_MS = 1 << 62
NOTED_MS = 60_000  # between two notes of the log's own time (broker.retention)


@dataclass(frozen=True, slots=True)
class Retention:
    """The messages that retention may have removed, those stored before `kept_from_ms`.

    `now_ms` is the time to which a store was open, as the brokers noted it, else that of the audit.
    `first_ms` has the store time of the first message in each store that does not begin at 0.
    `too_early`: the group's log begins with a message that is younger.
    """

    now_ms: int
    kept_from_ms: int
    first_ms: Mapping[str, int]
    too_early: bool

    def age_s(self, stored_ms: int) -> int:
        return max(0, self.now_ms - stored_ms) // 1000


def retention_of(
    stores: Mapping[str, Store],
    facts: LogFacts,
    limits: Limits,
    hours: int | None,
    audited_at_ms: int,
    *,
    from_start: bool = True,
) -> Retention:
    """Return what a retention of so many hours (None: the default) may have removed by the time the
    stores were closed. Unless the log was read `from_start`, nothing is known of ages. Raises
    OSError."""
    now_ms = max(store.last_open_ms() for store in stores.values()) or audited_at_ms
    if not from_start:
        return Retention(now_ms, TIME_MAX_MS, {}, too_early=False)
    hours = HOURS if hours is None else hours
    kept_from_ms = now_ms + NOTED_MS - hours * HOUR_MS
    starts = {store.store: store.start for store in limits.stores if store.start}
    first_ms = {name: facts.times[name].first_low for name in starts if name in facts.times}
    at_start = (first_ms.get(name, 0) for name in limits.voting if starts.get(name) == limits.start)
    return Retention(now_ms, kept_from_ms, first_ms, max(at_start, default=0) > kept_from_ms)


def with_gone(
    rows: Frame,
    records: Frame,
    limits: Limits,
    retention: Retention,
    queue_id: str,
    queue_offset: str,
    time: str,
) -> Frame:
    """Add `gone`: the message is not stored (`copies`), and retention may have removed it. `rows`
    has topic, id_text, and the acknowledged queue, offset and time (ms; null if unknown) in columns
    of these names. `records` has the stores' records, intact or not, with the names of all stores
    that have each."""
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
    of_age = F.coalesce(F.col(time) < retention.kept_from_ms, F.lit(not retention.too_early))
    may_be = of_age & (F.coalesce("held_before", no) | unseen) & ~F.coalesce("held_behind", no)
    return (
        rows.join(held, ["topic", "id_text"], "left")
        .join(starts.broadcast(), ["topic", queue_id], "left")
        .withColumn("gone", (F.coalesce("copies", F.lit(0)) == 0) & may_be)
        .drop("held_before", "held_behind", "first")
    )
