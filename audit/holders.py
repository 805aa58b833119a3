"""Finds who still has an acknowledged message that no majority holds.

Such a message is lost to the group, and its last copy is what can be mended from: the store that
has it is named with file and offset, and is never taken for the one that deviates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from raftmq.audit.files import file_at
from raftmq.audit.report import CheckResult, Offender
from raftmq.audit.tables import Tables, records


@dataclass(frozen=True, slots=True)
class LastCopies:
    """Intact copies of acknowledged messages that too few stores hold. `first`: by store, the log
    position of its first one. `places`: by message id, where its copies stand."""

    first: Mapping[str, int]
    places: Mapping[str, tuple[str, ...]]


NONE = LastCopies({}, {})


def last_copies(tables: Tables, missing: CheckResult, lost: DataFrame) -> LastCopies:
    """Look for the messages that the check `missing` counted; `lost` has their topic and
    id_text."""
    if not missing.count:
        return NONE
    found = (
        records(tables.items)
        .where(F.col("visible") & F.col("intact"))
        .select("topic", F.col("uniq_key").alias("id_text"), "store", "position")
        .join(lost, ["topic", "id_text"])
    )
    first = found.groupBy("store").agg(F.min("position").alias("position")).collect()
    shown = [str(offender["id_text"]) for offender in missing.offenders]
    return LastCopies(
        {row["store"]: row["position"] for row in first}, _places(tables.stores, found, shown)
    )


def _places(
    stores: Mapping[str, str], found: DataFrame, ids: list[str]
) -> dict[str, tuple[str, ...]]:
    places: dict[str, tuple[str, ...]] = {}
    rows = found.where(F.col("id_text").isin(*ids)).orderBy("store", "position").collect()
    for row in rows:
        place = f"{row['store']}/{file_at(stores[row['store']], row['position'])}"
        places[row["id_text"]] = (*places.get(row["id_text"], ()), place)
    return places


def with_holders(missing: CheckResult, copies: LastCopies) -> CheckResult:
    """Return the check with `held_by` in each offender: its copies, as store/file:offset."""
    offenders: list[Offender] = [
        {**offender, "held_by": list(copies.places.get(str(offender["id_text"]), ()))}
        for offender in missing.offenders
    ]
    return replace(missing, offenders=tuple(offenders))
