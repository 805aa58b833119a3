"""The commands and configurations among the frames that a group holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind

from ..engine import columns as F
from ..engine.frames import Frame
from ..read.committed_range import frame_end
from ..read.log_facts import FrameRun
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
    frames = tables.shared_items.where(F.col("kind") == int(ItemKind.FRAME))
    if tables.alike.complete and len(limits.voting) >= limits.needed:
        run = tables.alike.frames
        if run is None or run.end <= limits.agreed_end:
            return _of_all(tables, run, frames)
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
    since = tables.since
    before, term = (since.index, since.term) if since else (0, 0)
    below = each(frames).where(F.col("position") < limits.of("limit"))
    last_term = F.max_by("frame_term", "position").alias("term")  # no term before it is higher
    terms = below.groupBy("store").agg(last_term).collect()
    last = int(row["last"] or before)
    first = int(row["first"] or last + 1)
    if since is not None:
        first = min(first, before + 1)  # a higher index means that frames are missing
    return GroupFrames(
        first,
        last,
        int(row["term"] or term),
        row["count"] == last - first + 1,
        {each_row["store"]: int(each_row["term"]) for each_row in terms},
        staged,
    )


def _of_all(tables: Tables, run: FrameRun | None, frames: Frame) -> GroupFrames:
    """Return the frames if all stores have the same log; no query is needed."""
    since, names = tables.since, tuple(tables.stores)
    before, term = (since.index, since.term) if since else (0, 0)
    rows = frames.select(*_IDENTITY, *_COLUMNS)
    if run is None:
        return GroupFrames(before + 1, before, term, True, {}, rows)
    terms = dict.fromkeys(names, run.last_term)
    return GroupFrames(run.first, run.last, run.last_term, True, terms, rows)
