"""The commands and configurations among the frames that a group holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind

from ..engine import columns as F
from ..engine.frames import Frame
from ..read.committed_range import frame_end
from ..read.range_digests import FrameRun
from ..read.store_files import Segment, Store, map_file
from ..read.tables import Tables, each

_IDENTITY = ("frame_index", "position", "payload_crc", "header_crc")


@dataclass(frozen=True, slots=True)
class GroupFrames:
    """Frames that enough stores hold intact, below the agreed end.

    `first` and `last` are the smallest and the largest index (without frames, `last` is the index
    before), `term` the term of the last. `complete` is True if no index between is missing. `terms`
    has each store's last term below its limit. `frames` has _IDENTITY, frame_kind, frame_term,
    store_timestamp, payload_at, records_at (the end of a command) and holder. `configurations` has
    index, holder, start and end of each configuration's payload.
    """

    first: int
    last: int
    term: int
    complete: bool
    terms: Mapping[str, int]
    frames: Frame
    configurations: Sequence[tuple[int, str, int, int]]

    @property
    def commands(self) -> Frame:
        """The frames that are or start with a command, by index."""
        first_part_only = F.col("records_at") > F.col("payload_at")
        messages = F.col("frame_kind") == int(FrameKind.MESSAGES)
        command = F.col("frame_kind") == int(FrameKind.COMMAND)
        return self.frames.where(command | (messages & first_part_only)).orderBy("frame_index")


def group_frames(tables: Tables) -> GroupFrames:
    limits = tables.limits
    frames = tables.shared_items.where(F.col("kind") == int(ItemKind.FRAME))
    if tables.alike is not None and len(limits.voting) >= limits.needed:
        run = tables.alike.frames
        if run is None or run.end <= limits.agreed_end:
            return _of_all(tables, run, frames)
    intact = each(frames.where(F.col("intact") & (frame_end() <= limits.agreed_end)))
    voting = F.col("store").isin(*limits.voting)
    held = (
        intact.groupBy(*_IDENTITY)
        .agg(
            F.count_if(voting).alias("holders"),
            F.min("store").alias("holder"),
            F.first("frame_kind").alias("frame_kind"),
            F.first("frame_term").alias("frame_term"),
            F.first("store_timestamp").alias("store_timestamp"),
            F.first(F.col("position") + F.col("size")).alias("payload_at"),
            F.first("records_at").alias("records_at"),
        )
        .where(F.col("holders") >= limits.needed)
        .drop("holders")
    )
    staged = tables.staged(held, "frames")
    configures = F.col("frame_kind") == int(FrameKind.CONFIGURATION)
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
        [
            (row["frame_index"], row["holder"], row["payload_at"], row["records_at"])
            for row in staged.where(configures).collect()
        ],
    )


def _of_all(tables: Tables, run: FrameRun | None, frames: Frame) -> GroupFrames:
    """Return the frames if all stores have the same log; no query is needed."""
    since, names = tables.since, tuple(tables.stores)
    before, term = (since.index, since.term) if since else (0, 0)
    payload_at = F.col("position") + F.col("size")
    columns = (*_IDENTITY, "frame_kind", "frame_term", "store_timestamp", "records_at")
    rows = frames.select(*columns, payload_at.alias("payload_at"), F.lit(names[0]).alias("holder"))
    if run is None:
        return GroupFrames(before + 1, before, term, True, {}, rows, [])
    return GroupFrames(
        run.first,
        run.last,
        run.last_term,
        True,
        dict.fromkeys(names, run.last_term),
        rows,
        [(index, names[0], start, end) for index, start, end in run.configurations],
    )


def configurations_of(stores: Mapping[str, Store], held: GroupFrames) -> dict[int, bytes]:
    """Return the payloads of the group's configuration frames, by index. Raises OSError."""
    locations = ((holder, start, end) for _, holder, start, end in held.configurations)
    contents = payloads(stores, locations)
    indexes = (index for index, *_ in held.configurations)
    return {index: bytes(payload) for index, payload in zip(indexes, contents, strict=True)}


def payloads(
    stores: Mapping[str, Store], locations: Iterable[tuple[str, int, int]]
) -> Iterator[memoryview]:
    """Yield the bytes at each (store, start, end), none of them across segments. Raises OSError."""
    mapped: dict[str, memoryview] = {}
    for store, start, end in locations:
        segment = _holding(stores[store].segments, start)
        if segment.path not in mapped:
            mapped[segment.path] = map_file(segment.path)
        yield mapped[segment.path][start - segment.base : end - segment.base]


def _holding(among: list[Segment], position: int) -> Segment:
    low, high = 0, len(among)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if among[middle].base <= position else (low, middle)
    return among[low]
