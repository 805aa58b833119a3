"""The commands and configurations among the frames that a group holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind

from ..engine import columns as F
from ..engine.columns import Column
from ..engine.frames import Frame, Row
from ..read.committed_range import frame_end
from ..read.tables import Tables, each

_IDENTITY = ("frame_index", "position", "payload_crc", "header_crc")
_COLUMNS = ("frame_kind", "frame_term", "store_timestamp", "command", "records_at")


@dataclass(frozen=True, slots=True)
class GroupFrames:
    """Frames that enough stores hold intact, below the agreed end.

    `first` and `last` are the smallest and the largest index (without frames, `last` is the index
    before), `term` the term of the last. `complete` is True if no index between is missing. `terms`
    has each store's last term below its limit. `frames` has _IDENTITY and _COLUMNS.
    """

    first: int
    last: int
    term: int
    complete: bool
    terms: Mapping[str, int]
    frames: Frame

    @property
    def commands(self) -> Frame:
        """The frames that are or start with a command, by index."""
        messages = F.col("frame_kind").isin(int(FrameKind.MESSAGES), int(FrameKind.COMMAND))
        return self.frames.where(messages & F.col("command").isNotNull()).orderBy("frame_index")

    def configurations(self) -> dict[int, bytes]:
        """Return the payloads of the group's configuration frames, by index."""
        configures = F.col("frame_kind") == int(FrameKind.CONFIGURATION)
        rows = self.frames.where(configures).select("frame_index", "command").collect()
        return {row["frame_index"]: bytes(row["command"]) for row in rows}


def group_frames(tables: Tables) -> GroupFrames:
    limits = tables.limits
    behind = any(store.limit > limits.agreed_end for store in limits.stores)
    return _from_rows(tables) if behind or not tables.alike.complete else _from_runs(tables)


def _from_runs(tables: Tables) -> GroupFrames:
    """Return the frames of a log without differences; no query is needed."""
    limits, runs = tables.limits, tables.alike.runs
    held = [run for stores, run in runs if limits.enough(stores)]
    reach = {store.store: store.limit for store in limits.stores}
    terms = {name: run.last_term for names, run in runs for name in names if run.end <= reach[name]}
    frames = tables.shared_items.where(_is_frame() & tables.parts.are_held)
    rows = frames.select(*_IDENTITY, *_COLUMNS)
    known: Row = {"count": sum(run.last - run.first + 1 for run in held)}
    if held:
        last = held[-1]
        known |= {"first": held[0].first, "last": last.last, "term": last.last_term}
    return _of(tables, known, terms, rows)


def _from_rows(tables: Tables) -> GroupFrames:
    limits = tables.limits
    frames = tables.shared_items.where(_is_frame())
    intact = each(frames.where(F.col("intact") & (frame_end() <= limits.agreed_end)))
    voting = F.col("store").isin(*limits.voting)
    held = (
        intact.groupBy(*_IDENTITY)
        .agg(
            F.count_if(voting).alias("holders"),
            *[F.first(name).alias(name) for name in _COLUMNS],
        )
        .where(F.col("holders") >= limits.needed)
        .drop("holders")
    )
    staged = tables.staged(held, "frames")
    row = staged.agg(
        F.min("frame_index").alias("first"),
        F.max("frame_index").alias("last"),
        F.max_by("frame_term", "frame_index").alias("term"),
        F.count_distinct("frame_index").alias("count"),
    ).collect()[0]
    below = each(frames).where(F.col("position") < limits.of("limit"))
    last_term = F.max_by("frame_term", "position").alias("term")  # no term before it is higher
    terms = {row["store"]: row["term"] for row in below.groupBy("store").agg(last_term).collect()}
    return _of(tables, row, terms, staged)


def _is_frame() -> Column:
    return F.col("kind") == int(ItemKind.FRAME)


def _of(tables: Tables, known: Row, terms: Mapping[str, int], frames: Frame) -> GroupFrames:
    """Return the frames; `known` has their `count`, and `first`, `last` and `term` if there are
    any."""
    since = tables.since
    before, term_before = (since.index, since.term) if since else (0, 0)
    last = known.get("last") or before
    first = known.get("first") or last + 1
    if since is not None:
        first = min(first, before + 1)  # a higher index means that frames are missing
    complete = known["count"] == last - first + 1
    return GroupFrames(first, last, known.get("term") or term_before, complete, terms, frames)
