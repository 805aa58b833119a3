"""Finds the last copies of acknowledged messages that no majority holds as they were sent.

Such a message is lost to the group and can be recovered from its last copy only. So the check names
file and offset of each copy, and its store never counts as deviating.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..engine import columns as F
from ..engine.frames import Frame
from ..read.store_files import Store
from ..read.tables import Tables, records
from ..report.report import CheckResult, Offender


@dataclass(frozen=True, slots=True)
class LastCopies:
    """Intact, unaltered copies of acknowledged messages that too few stores hold. `first` has each
    store's first log position, `locations` the copies by topic and message id."""

    first: Mapping[str, int]
    locations: Mapping[tuple[str, str], tuple[str, ...]]


NONE = LastCopies({}, {})
_AS_SENT = {"content_crc": "crc", "fields_sum": "fields", "born_timestamp": "born"}


def last_copies(tables: Tables, checks: Sequence[CheckResult], lost: Frame) -> LastCopies:
    """Find copies of the messages that these checks counted. `lost` has their topic and id_text,
    and if known `crc` of the body, `fields` and `born` as they were sent."""
    if not any(check.count for check in checks):
        return NONE
    as_sent = F.lit(True)
    for stored, sent in _AS_SENT.items():
        # A stored null is content that cannot be read, unlike any that was sent.
        as_sent &= F.col(sent).isNull() | F.col(stored).eqNullSafe(F.col(sent))
    copies = (
        records(tables.items)
        .where(F.col("visible") & F.col("intact"))
        .withColumn("id_text", F.col("uniq_key"))
        .join(lost, ["topic", "id_text"])
        .where(as_sent)
        .select("topic", "id_text", "store", "position")
    )
    # Unaltered copies in every store, beside an altered copy, single out no store.
    by_all = (
        copies.groupBy("topic", "id_text")
        .agg(F.count_distinct("store").alias("stores"))
        .where(F.col("stores") == len(tables.stores))
    )
    telling = copies.join(by_all, ["topic", "id_text"], "left_anti")
    first = telling.groupBy("store").agg(F.min("position").alias("position")).collect()
    shown = [str(offender["id_text"]) for check in checks for offender in check.offenders]
    return LastCopies(
        {row["store"]: row["position"] for row in first}, _locations(tables.stores, copies, shown)
    )


def _locations(
    stores: Mapping[str, Store], copies: Frame, ids: list[str]
) -> dict[tuple[str, str], tuple[str, ...]]:
    locations: dict[tuple[str, str], tuple[str, ...]] = {}
    rows = copies.where(F.col("id_text").isin(*ids)).orderBy("store", "position").collect()
    for row in rows:
        key = row["topic"], row["id_text"]
        location = f"{row['store']}/{stores[row['store']].file_at(row['position'])}"
        locations[key] = (*locations.get(key, ()), location)
    return locations


def with_holders(check: CheckResult, copies: LastCopies) -> CheckResult:
    """Return the check with `held_by`, the copies as store/file:offset, in each offender."""
    offenders: list[Offender] = [
        {
            **offender,
            "held_by": list(copies.locations.get((offender["topic"], offender["id_text"]), ())),
        }
        for offender in check.offenders
    ]
    return replace(check, offenders=tuple(offenders))
