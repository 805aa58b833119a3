"""Computes up to which log position each store, and the group, must be right.

An audit must know which bytes were promised. Each store has three positions, and the group has one:

- *commit*: confirmPhyOffset of the store's checkpoint, the commit position as the replica knew it.
  It may be stale after a kill, but never too large. (Apache's DLedger keeps a committedIndex.)
- *agreed*: the end of the last intact frame that this store and a majority of the voters hold
  with equal fields and checksums. All acknowledged messages are below it on a majority.
- *limit* = max(commit, agreed). Below it the store's bytes must be right, since by log matching
  a common frame vouches for everything before it. A torn write, or uncommitted frames of a
  deposed leader, may follow.
- the group's *agreed end*: the largest `agreed`. A message is stored if a majority of the voters
  hold it intact below this position. The limit of a lagging store is smaller.

Frames left behind a truncation have a lower term than earlier frames of the file, and vouch for
nothing. Nothing is truncated below a commit position, so there each intact frame counts whatever
the terms: a bad frame invalidates only itself.

audit.read.voters determines the voters. A voter without a store holds nothing. The store of a
learner or of a removed member is judged, but counts for no majority.

Classic mode (a master and perhaps slaves, with a log without frames) has no majority. A message is
stored if any store holds it intact, and each store must be right up to its own last item. A slave
may lag. *commit* is the position below which the ConsumeQueues must be complete: the end of a log
that was closed in order, or else the checkpoint's position.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raftmq.spark.layout import ItemKind
from raftmq.store.frame import FrameKind

from ..engine import columns as F
from ..engine.columns import Column, Window
from ..engine.frames import Frame
from .cluster_info import CLASSIC, RAFT, Subject
from .incremental import TAIL_BYTES, Ended, tail_of
from .log_facts import Alike
from .store_files import Store, StoreError
from .voters import ConfigurationFrame, Members, members_of


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The positions of a store, as defined by the module."""

    store: str
    start: int  # position of the first segment's first byte
    data_end: int
    commit: int
    agreed: int
    records: int  # intact, anywhere in the log
    frames: int

    @property
    def limit(self) -> int:
        return max(self.commit, self.agreed)


@dataclass(frozen=True, slots=True)
class Limits:
    """The positions of every store and of the group. `voting` has the names of the voters' stores,
    `absent` the voters without a store."""

    stores: tuple[StoreLimits, ...]
    members: Members
    voting: tuple[str, ...]
    absent: tuple[str, ...]
    mode: str = RAFT

    @property
    def needed(self) -> int:
        """The number of voters that must hold a message for it to count as stored."""
        return self.members.majority if self.mode == RAFT else 1

    @property
    def agreed_end(self) -> int:
        return max(store.agreed for store in self.stores)

    @property
    def start(self) -> int:
        """The first log position that as many voters as needed still have, since each removes
        segments independently."""
        starts = sorted(store.start for store in self.stores if store.store in self.voting)
        return starts[min(self.needed, len(starts)) - 1]

    @property
    def read_from(self) -> int:
        """The smallest log position that any store still has."""
        return min(store.start for store in self.stores)

    def enough(self, stores: Iterable[str]) -> bool:
        """Return whether the group holds what these stores hold."""
        return len({*stores} & {*self.voting}) >= self.needed

    def of(self, name: str) -> Column:
        """Return a column of `name` ('limit', 'commit', 'start') by the row's `store`."""
        return _by_store({store.store: int(getattr(store, name)) for store in self.stores})


@dataclass(frozen=True, slots=True)
class _Held:
    """Frames that the same stores hold alike: the end of the last, and for configuration frames the
    index, and start and end of the payload."""

    holders: frozenset[str]
    end: int
    configurations: Sequence[tuple[int, int, int]]


def frame_end() -> Column:
    return F.col("position") + F.col("size") + F.col("payload_length")


def find_limits(
    items: Frame,
    ends: Mapping[str, tuple[int, int, int]],
    alike: Alike,
    stores: Mapping[str, Store],
    subject: Subject,
    since: Ended | None = None,
) -> Limits:
    """Compute the limits from the frames among the staged log items (LOG_SCHEMA). `ends` has each
    store's last item end, number of intact records and number of frames. `alike` is the start
    of the log without differences, `since` is set if the items start where the audit before ended.

    Without a mode, logs with frames are Raft's, all remaining logs classic. Raises StoreError, also
    if no store is a voter's.
    """
    names = list(stores)
    earlier = {name: _earlier_end(stores[name], since) for name in names}
    data_ends = [max(ends.get(name, (0, 0, 0))[0], earlier[name]) for name in names]
    held = []
    if subject.mode != CLASSIC:
        held = [_Held(frozenset(of), run.end, run.configurations) for of, run in alike.runs]
    if not alike.complete and subject.mode != CLASSIC:
        known_ends = dict(zip(names, data_ends, strict=True))
        rest = items.where(F.col("position") >= alike.end)
        held += _held(rest, known_ends, stores, alike.ended[1] if alike.ended else 0)
    framed = held or (since is not None and since.index > 0)
    mode = subject.mode or (RAFT if framed else CLASSIC)
    commits = [
        _commit_of_dledger(items, stores[name]) or _commit(stores[name], mode, data_end)
        for name, data_end in zip(names, data_ends, strict=True)
    ]
    nodes = {name: subject.nodes.get(name, name) for name in names}
    commit_of = dict(zip(names, commits, strict=True))
    saved = _saved(items, alike, stores, since)
    members = _members(held, stores, commit_of, subject, nodes, saved)
    voting = tuple(name for name in names if nodes[name] in members.voters)
    if not voting:
        raise StoreError(
            f"the stores are named {', '.join(names)}, but the voters are "
            f"{', '.join(sorted(members.voters))} ({members.source}): name each store as its voter"
        )
    absent = members.voters - {nodes[name] for name in voting}
    agreed = data_ends
    if mode == RAFT:
        agreed = [
            max(earlier[name], _agreed(held, name, frozenset(voting), members.majority))
            for name in names
        ]
    store_limits = []
    for name, commit, agreed_end in zip(names, commits, agreed, strict=True):
        files = stores[name].segments
        _, records, frames = ends.get(name, (0, 0, 0))
        data_end = max(ends.get(name, (0, 0, 0))[0], earlier[name])
        store_limits.append(
            StoreLimits(
                store=name,
                start=max(files[0].base if files else 0, since.position if since else 0),
                data_end=data_end,
                commit=commit,
                agreed=agreed_end,
                records=records,
                frames=frames,
            )
        )
    return Limits(tuple(store_limits), members, voting, tuple(sorted(absent)), mode)


def _members(
    held: Sequence[_Held],
    stores: Mapping[str, Store],
    commits: Mapping[str, int],
    subject: Subject,
    nodes: Mapping[str, str],
    saved: Sequence[tuple[int, bytes]],
) -> Members:
    """Return the group's members by the stores' `nodes` and the configurations in files."""
    frames = []
    for group in held:
        holder = min(group.holders)
        for index, start, end in group.configurations:
            payload = stores[holder].read(start, end)
            owners = frozenset(nodes[name] for name in group.holders)
            frames.append(ConfigurationFrame(index, end, payload, owners))
    return members_of(
        frames,
        {nodes[name]: commit for name, commit in commits.items()},
        saved,
        subject.founders or nodes.values(),
        subject.founded_by if subject.founders else "the stores that were given",
    )


def _saved(
    items: Frame, alike: Alike, stores: Mapping[str, Store], since: Ended | None
) -> list[tuple[int, bytes]]:
    """Return the configurations saved by stores and by the audit before that no log and no larger
    number of stores contradicts (audit.read.voters)."""
    each = [store.saved_configuration() for store in stores.values()]
    each.append(since.configuration if since else None)
    saved = [one for one in each if one is not None]
    if not saved:
        return []
    if not alike.complete:
        first, last, taken = _frames_at(items, [index for index, _ in saved])
    else:
        frames = alike.frames
        if frames is None:
            return saved
        first, last = frames.first, frames.last
        there = {index for index, _, _ in frames.configurations}
        taken = {index for index, _ in saved if first <= index <= last} - there
    keepers = Counter(one for one in saved if one[0] < first)
    most = max(keepers.values(), default=0)
    return [
        one
        for one in saved
        if one[0] <= last and one[0] not in taken and (one[0] >= first or keepers[one] == most)
    ]


def _by_store(positions: Mapping[str, int]) -> Column:
    """Return a column of the position of the row's `store`, or 0."""
    value = F.lit(0).cast("long")
    for store, position in positions.items():
        value = F.when(F.col("store") == store, F.lit(position).cast("long")).otherwise(value)
    return value


def _earlier_end(store: Store, since: Ended | None) -> int:
    """Return the end of the audit before if this store has the bytes before it; else 0. Raises
    StoreError if the log does not reach back to it."""
    if since is None:
        return 0
    files = store.segments
    if files and files[0].base > max(0, since.position - TAIL_BYTES):
        raise StoreError(
            f"the log of {store.path} begins at {files[0].base}, and the audit before ended at "
            f"{since.position}: audit all of it (without --incremental)"
        )
    return since.position if tail_of(store, since.position) == since.tail else 0


def _frames_at(items: Frame, indexes: Sequence[int]) -> tuple[int, int, set[int]]:
    """Return the lowest and the highest index of intact frames in any log, and those of `indexes`
    at which a log has a frame that is no configuration."""
    there = items.where((F.col("kind") == int(ItemKind.FRAME)) & F.col("intact"))
    other = (F.col("frame_kind") != int(FrameKind.CONFIGURATION)) & F.col("frame_index").isin(
        *indexes
    )
    row = there.agg(
        F.min("frame_index").alias("first"),
        F.max("frame_index").alias("last"),
        F.collect_set(F.when(other, F.col("frame_index"))).alias("taken"),
    ).collect()[0]
    if row["first"] is None:
        return 0, max(indexes), set()
    return row["first"], row["last"], {*row["taken"]}


def _agreed(held: Sequence[_Held], name: str, voting: frozenset[str], majority: int) -> int:
    """Return the end of a store's agreement with a majority of the voters."""
    ends = [
        group.end
        for group in held
        if name in group.holders and len(group.holders & voting) >= majority
    ]
    return max(ends, default=0)


def _commit(store: Store, mode: str, data_end: int) -> int:
    confirmed = store.confirmed_position()
    if mode == RAFT:
        return confirmed
    return data_end if store.closed else min(confirmed, data_end)


def _commit_of_dledger(items: Frame, store: Store) -> int:
    """Return the commit position that a replica of Apache's DLedger saved, else 0."""
    index = store.committed_index()
    if index is None:
        return 0
    frame = (F.col("store") == store.name) & (F.col("kind") == int(ItemKind.FRAME))
    known = items.where(frame & (F.col("frame_index") <= index))
    return int(known.agg(F.coalesce(F.max(frame_end()), F.lit(0)).alias("end")).collect()[0]["end"])


def _relied_on(store: Store, data_end: int) -> int:
    """Return a store's commit position if it is plausible; else 0. DLedger's index is not used,
    because frames behind a truncation may have the same index."""
    position = store.confirmed_position()
    return position if store.committed_index() is None and position <= data_end else 0


def not_left_over(frames: Frame, commits: Mapping[str, int], term: int) -> Frame:
    """Return the intact frames, with `end`, without those left behind a truncation. `commits` has
    each store's position below which nothing is truncated, `term` is the term of the frame before
    all.

    Beyond the commit position, a frame's term must be the highest so far. A committed frame's term
    counts only up to its neighbour's, because a higher term is damage.
    """
    in_store = Window.partitionBy("store").orderBy("position")
    before = in_store.all_before()
    committed, last = F.col("committed"), F.lag("frame_term").over(in_store)
    of_two = F.when(last.isNotNull(), F.least("frame_term", last))
    at_commit = F.when(committed, F.col("frame_term"))
    lowest = F.greatest(
        F.lit(term).cast("long"),
        F.max("told").over(before),
        F.last_known(at_commit).over(before),
    )
    return (
        frames.withColumn("end", frame_end())
        .withColumn("committed", F.col("end") <= _by_store(commits))
        .withColumn("told", F.when(committed, of_two).otherwise(F.col("frame_term")))
        .withColumn("lowest", lowest)
        .where(F.col("intact") & (committed | (F.col("frame_term") >= F.col("lowest"))))
    )


def _held(
    items: Frame, ends: Mapping[str, int], stores: Mapping[str, Store], term: int
) -> list[_Held]:
    """Return the valid frames by the stores that hold them alike; empty without frames. `term` is
    the term of the frame before the items, `ends` has the end of each store's last item."""
    names = list(stores)
    frames = items.where(F.col("kind") == int(ItemKind.FRAME))
    commits = {name: _relied_on(stores[name], ends[name]) for name in names}
    start = F.col("position") + F.col("size")
    sound = not_left_over(frames, commits, term).withColumn("start", start)
    bits = F.lit(0).cast("long")
    for i, name in enumerate(names):
        bits = F.when(F.col("store") == name, F.lit(1 << i).cast("long")).otherwise(bits)
    # A store has at most one frame per position, so the sum is the set of holders.
    identity = ["position", "end", "frame_index", "frame_term", "payload_crc", "header_crc"]
    configures = F.col("frame_kind") == int(FrameKind.CONFIGURATION)
    rows = (
        sound.groupBy(*identity)
        .agg(
            F.sum(bits).alias("holders"),
            F.first("frame_kind").alias("frame_kind"),
            F.first("start").alias("start"),
        )
        .groupBy("holders")
        .agg(
            F.max("end").alias("end"),
            F.collect_list(F.when(configures, F.struct("frame_index", "start", "end"))).alias(
                "configurations"
            ),
        )
        .collect()
    )
    return [
        _Held(
            frozenset(name for i, name in enumerate(names) if row["holders"] >> i & 1),
            row["end"],
            [tuple(each.values()) for each in row["configurations"]],
        )
        for row in rows
    ]
