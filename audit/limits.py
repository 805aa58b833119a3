"""Computes up to which position each store's log, and the group's, has to be right.

An audit must know which bytes are promised. There are three positions for each store and one for
the group:

- *commit*: confirmPhyOffset of the store's checkpoint: the commit position as this replica knew it.
  After a kill it may be stale, but never too large.
- *agreed*: the end of the last frame that this store holds, intact and equal in every field and
  checksum, together with a majority of the stores. Whatever was acknowledged lies below it on a
  majority, because an acknowledgement needs a majority.
- *limit* = max(commit, agreed): below it this store's bytes must be right, since by log matching a
  frame held in common vouches for everything before it. Beyond it may lie a torn write, or frames
  of a deposed leader that were never committed.
- the group's *agreed end*: the largest `agreed`. A message is stored if a majority of stores hold
  it intact below this position. A store may lag: its own limit is then smaller.

Frames left over behind a truncation have a lower term than frames before them in the file; they do
not vouch for anything. The majority is counted among the stores given: give every store of the
group.

Classic mode (a master, perhaps slaves that copy its bytes; a log without frames) has no majority: a
message is stored if any of the stores holds it intact, and each store must be right up to its own
last item. It is no fault if a slave has not copied everything yet. Its *commit* is the position
below which the ConsumeQueues must be complete: the end of a log that was closed in order, else the
position the checkpoint vouches for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from raftmq.audit.files import confirmed_position, segments
from raftmq.audit.layout import ItemKind

RAFT, CLASSIC = "raft", "classic"
MODES = (RAFT, CLASSIC)
ABORT = "abort"  # a store has this file while it is open: it was not closed in order


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The positions of one store; the module's docstring defines them."""

    store: str
    begin: int  # position of the first segment's first byte
    data_end: int  # end of the last item found
    commit: int
    agreed: int
    records: int  # found intact, anywhere in the log
    frames: int

    @property
    def limit(self) -> int:
        return max(self.commit, self.agreed)


@dataclass(frozen=True, slots=True)
class Limits:
    """The positions of every store and of the group."""

    stores: tuple[StoreLimits, ...]
    mode: str = RAFT

    @property
    def needed(self) -> int:
        """The number of stores that must hold a message for it to count as stored."""
        return len(self.stores) // 2 + 1 if self.mode == RAFT else 1

    @property
    def agreed_end(self) -> int:
        return max(store.agreed for store in self.stores)

    @property
    def begin(self) -> int:
        """The smallest log position that any store still has."""
        return min(store.begin for store in self.stores)

    def of(self, name: str) -> Column:
        """Return a column of `name` ('limit', 'commit', 'begin') by the row's `store`."""
        value = F.lit(0).cast("long")
        for store in self.stores:
            position = F.lit(int(getattr(store, name))).cast("long")
            value = F.when(F.col("store") == store.store, position).otherwise(value)
        return value


def frame_end() -> Column:
    """Return the position just after a frame's payload."""
    return F.col("position") + F.col("size") + F.col("payload_length")


def find_limits(items: DataFrame, stores: Mapping[str, str], mode: str | None = None) -> Limits:
    """Compute the limits from the staged log items (LOG_SCHEMA). Raises StoreError.

    Without a `mode`, logs with frames are taken as Raft's, others as classic.
    """
    names = list(stores)
    ends = _data_ends(items)
    data_ends = [ends.get(name, (0, 0, 0))[0] for name in names]
    by_frames = None if mode == CLASSIC else _agreed_by_frames(items, names)
    mode = mode or (CLASSIC if by_frames is None else RAFT)
    if mode == CLASSIC:
        agreed = data_ends
    else:
        agreed = by_frames or [0] * len(names)
    found = []
    for name, agreed_end in zip(names, agreed, strict=True):
        files = segments(stores[name])
        data_end, records, frames = ends.get(name, (0, 0, 0))
        found.append(
            StoreLimits(
                store=name,
                begin=files[0].base if files else 0,
                data_end=data_end,
                commit=_commit(stores[name], mode, data_end),
                agreed=agreed_end,
                records=records,
                frames=frames,
            )
        )
    return Limits(tuple(found), mode)


def _commit(store: str, mode: str, data_end: int) -> int:
    confirmed = confirmed_position(store)
    if mode == RAFT:
        return confirmed
    closed = not (Path(store) / ABORT).exists()
    return data_end if closed else min(confirmed, data_end)


def _data_ends(items: DataFrame) -> dict[str, tuple[int, int, int]]:
    """Return per store the end of its last item, its number of intact records and of frames."""
    record = F.col("kind") == int(ItemKind.RECORD)
    frame = F.col("kind") == int(ItemKind.FRAME)
    end = F.when(record, F.col("position") + F.col("size")).when(frame, frame_end())
    rows = items.groupBy("store").agg(
        F.coalesce(F.max(end), F.lit(0)).alias("data_end"),
        F.count(F.when(record & F.col("intact"), 1)).alias("records"),
        F.count(F.when(frame, 1)).alias("frames"),
    )
    return {
        row["store"]: (row["data_end"], row["records"], row["frames"]) for row in rows.collect()
    }


def _agreed_by_frames(items: DataFrame, names: list[str]) -> list[int] | None:
    """Return where each store's agreement with a majority ends; None if there is no frame."""
    frames = items.where(F.col("kind") == int(ItemKind.FRAME))
    before = (
        Window.partitionBy("store").orderBy("position").rowsBetween(Window.unboundedPreceding, -1)
    )
    highest = F.max("frame_term").over(before)
    sound = (
        frames.withColumn("highest", highest)
        .where(F.col("intact") & (F.coalesce("highest", F.lit(0)) <= F.col("frame_term")))
        .withColumn("end", frame_end())
    )
    bits = F.lit(0).cast("long")
    for i, name in enumerate(names):
        bits = F.when(F.col("store") == name, F.lit(1 << i).cast("long")).otherwise(bits)
    # A store has at most one frame at a position, so the sum is the set of holders.
    identity = ["position", "end", "frame_index", "frame_term", "payload_crc", "header_crc"]
    held = sound.groupBy(*identity).agg(F.sum(bits).alias("holders"))
    majority = len(names) // 2 + 1
    by_majority = F.bit_count("holders") >= majority
    row = held.agg(
        F.count("*").alias("frames"),
        *[
            F.max(
                F.when(by_majority & (F.col("holders").bitwiseAND(1 << i) != 0), F.col("end"))
            ).alias(f"end_{i}")
            for i in range(len(names))
        ],
    ).collect()[0]
    if row["frames"] == 0:
        return None
    return [row[f"end_{i}"] or 0 for i in range(len(names))]
