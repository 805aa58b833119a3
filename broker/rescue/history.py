"""The history of a stopped replica's store, and the fork of two histories. Blocking.

A history has the terms of the log's frames, and marks, which are digests of frames at rising
indexes. Equal marks mean equal frames, and equal frames before them (Raft 5.3). A log of up to
MARKS_MAX frames has a mark for every frame, a longer log for every second, fourth and so on, so
that two logs always share marks. A fork within a term then lies between two marks, and counts
behind it are upper bounds.

Reading changes nothing in the store, and holds its lock. A history is plain data (`to_json`), for
the comparison with a store on a different machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from google_crc32c import value as crc32c

from raftmq.dledger.node.rollback_detection import NOTES_FILE
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.storage.hard_state import HardStateDamaged, HardStateFile
from raftmq.dledger.storage.log_storage import read_trim_note
from raftmq.dledger.storage.two_slot_file import SlotFile, SlotsDamaged
from raftmq.dledger.transport.group_id import FILE as GROUP_FILE
from raftmq.dledger.transport.peer_info_message import PeerInfoError, decode_notes
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.recovery import FrameHeader, FrameWalk
from raftmq.store.disk import Disk
from raftmq.store.errors import StoreError
from raftmq.store.identity import read_identity
from raftmq.store.store_lock import StoreInUse, lock_store

from ..backup.offline_source import UnwrittenDisk
from ..errors import StateError
from ..tables import snapshot
from ..tables.snapshot_install import RAFT_DIRECTORY, RESTORING
from ..tables.state import BrokerState

MARKS_MAX = 65_536


class Unreadable(Exception):
    """A store with an unreadable history, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class Run:
    """The frames of a term."""

    term: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Frame `index`: its digest, the messages of the log up to it, and its time."""

    index: int
    digest: int
    messages: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class History:
    """A store's history. `committed` is the last frame known there to be committed. `noted` has for
    each replica the last frame, with term, that a leader recorded for it. `damage` is the reason
    for a log that ends before durable frames, or ""."""

    store: str
    node: str
    group: str
    group_id: str
    owner: str  # of the vote file, or ""
    term: int
    recovered: bool
    first: int
    runs: tuple[Run, ...]
    marks: tuple[Mark, ...]
    committed: int
    noted: dict[str, tuple[int, int]] = field(default_factory=dict)
    damage: str = ""

    @property
    def last(self) -> int:
        return self.runs[-1].last if self.runs else self.first - 1

    @property
    def last_term(self) -> int:
        return self.runs[-1].term if self.runs else 0

    def term_at(self, index: int) -> int:
        return next(run.term for run in self.runs if run.first <= index <= run.last)

    def up_to(self, index: int) -> Mark:
        """Return the last mark at or before a frame."""
        marks = [mark for mark in self.marks if mark.index <= index]
        return marks[-1] if marks else Mark(self.first - 1, 0, 0, 0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Parting:
    """The fork of two histories. They are equal at least up to frame `common`, and differ from some
    frame up to `differs` on, unless one is a prefix of the other (None, as far as marks show)."""

    common: int
    differs: int | None


@dataclass(frozen=True, slots=True)
class Only:
    """The frames that only one of two stores has."""

    first: int
    last: int
    messages: int  # an upper bound
    committed: int  # those known in the store to be committed
    from_ms: int
    to_ms: int


def parting(one: History, other: History) -> Parting | None:
    """Return the fork of two histories, or None without a common frame."""
    low, high = max(one.first, other.first), min(one.last, other.last)
    if low > high:
        adjacent = low == high + 1
        return Parting(high, None) if adjacent or not (one.runs and other.runs) else None
    terms = next((i for i in _edges(one, other, low, high) if _apart(one, other, i)), high + 1)
    common, digests = low - 1, {mark.index: mark.digest for mark in other.marks}
    for mark in one.marks:
        if low <= mark.index < terms and mark.index in digests:
            if digests[mark.index] != mark.digest:
                return Parting(common, mark.index)
            common = mark.index
    return Parting(common, None if terms > high else terms)


def only_in(one: History, other: History) -> Only | None:
    """Return the frames only in `one`, or None."""
    parted = parting(one, other)
    common = one.first - 1 if parted is None else parted.common
    if common >= one.last:
        return None
    before, end = one.up_to(common), one.marks[-1]
    behind = next(mark for mark in one.marks if mark.index > common)
    first = max(common + 1, one.first)
    committed = max(0, min(one.committed, one.last) - first + 1)
    messages = end.messages - before.messages
    return Only(first, one.last, messages, committed, behind.time_ms, end.time_ms)


def _edges(one: History, other: History, low: int, high: int) -> list[int]:
    """Return the frames where the term of either history may start to differ."""
    firsts = {run.first for run in (*one.runs, *other.runs)}
    return sorted({low, *(index for index in firsts if low <= index <= high)})


def _apart(one: History, other: History, index: int) -> bool:
    return one.term_at(index) != other.term_at(index)


def read(store: str, held: ExitStack) -> History:
    """Read a store, or a file with the history of a store. The store's lock is held until `held` is
    closed. Raises StoreInUse, Unreadable."""
    try:
        if os.path.isfile(store):
            return from_json(orjson.loads(Path(store).read_bytes()))
        if not os.path.isdir(store):
            raise Unreadable(f"{store}: there is no such directory")
        held.callback(lock_store(store, "mqbroker rescue").release)
        return _read(store, UnwrittenDisk(store))
    except StoreInUse:
        raise
    except (
        HardStateDamaged, KeyError, OSError, SlotsDamaged, StoreError, TypeError, ValueError
    ) as error:  # fmt: skip
        raise Unreadable(f"{store}: {error}") from error


def from_json(value: dict[str, Any]) -> History:
    """Read `to_json`. Raises KeyError, TypeError, ValueError."""
    value["runs"] = tuple(Run(**run) for run in value["runs"])
    value["marks"] = tuple(Mark(**mark) for mark in value["marks"])
    value["noted"] = {name: (term, index) for name, (term, index) in value["noted"].items()}
    return History(**value)


def _read(store: str, disk: UnwrittenDisk) -> History:
    if not disk.exists(RAFT_DIRECTORY) or not disk.exists("commitlog"):
        raise Unreadable(f"{store}: it is not the store of a Raft replica with a log")
    if disk.exists(RESTORING):
        raise Unreadable(f"{store}: mqbroker restore or rescue was interrupted there")
    if snapshotmarker.pending(disk, RAFT_DIRECTORY):
        raise Unreadable(f"{store}: it is being filled from its leader, and has no log")
    identity = read_identity(disk)
    trim = _content(disk, "trim")
    first, previous_term, log_start = (1, 0, 0) if trim is None else read_trim_note(trim)
    votes = HardStateFile(disk, f"{RAFT_DIRECTORY}/hardstate")
    try:
        state = votes.load()
    finally:
        votes.close()
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open(verify=True)
    confirmed = checkpoint.fields.confirm_offset
    checkpoint.close()
    log = CommitLog(disk, "commitlog", _segment_size(store, disk))
    log.open()
    try:
        if log.min_offset != log_start:
            raise Unreadable(f"{store}: the log's segments before {log_start} are missing")
        walk = FrameWalk(log, log_start, None, confirmed, first_index=first)
        runs, marks, committed = _walked(walk, first, confirmed)
        damaged = walk.reason is not None and walk.end < confirmed
        damage = f"at byte {walk.bad_position}: {walk.reason}" if damaged else ""
    finally:
        log.close()
    group_id = _content(disk, GROUP_FILE) or b""
    return History(
        store=store,
        node=identity.node if identity is not None else votes.owner.node_id,
        group=identity.group if identity is not None else "",
        group_id=group_id.hex(),
        owner=votes.owner.node_id,
        term=max(state.term, runs[-1].term if runs else previous_term),
        recovered=state.recovered,
        first=first,
        runs=runs,
        marks=marks,
        committed=max(committed, _applied(disk)),
        noted=_notes(disk),
        damage=damage,
    )


def _walked(
    walk: Iterable[FrameHeader], first: int, confirmed: int
) -> tuple[tuple[Run, ...], tuple[Mark, ...], int]:
    runs: list[Run] = []
    marks: list[Mark] = []
    step, messages, committed = 1, 0, first - 1
    last: Mark | None = None
    for header in walk:
        if runs and runs[-1].term == header.term:
            runs[-1] = Run(header.term, runs[-1].first, header.index)
        else:
            runs.append(Run(header.term, header.index, header.index))
        messages += header.record_count
        committed = header.index if header.end <= confirmed else committed
        last = Mark(header.index, _digest(header), messages, header.timestamp_ms)
        if header.index % step == 0:
            marks.append(last)
            if len(marks) > MARKS_MAX:
                step *= 2
                marks = [mark for mark in marks if mark.index % step == 0]
    if last is not None and (not marks or marks[-1] != last):
        marks.append(last)
    return tuple(runs), tuple(marks), committed


def _digest(header: FrameHeader) -> int:
    return int(crc32c(repr(header).encode()))


def _segment_size(store: str, disk: Disk) -> int:
    identity = read_identity(disk)
    if identity is not None and identity.segment_size_bytes:
        return identity.segment_size_bytes
    names = disk.listdir("commitlog")
    if not names:
        raise Unreadable(f"{store}: its log is empty")
    return os.path.getsize(os.path.join(store, "commitlog", names[0]))


def _content(disk: Disk, name: str) -> bytes | None:
    slots = SlotFile(disk, f"{RAFT_DIRECTORY}/{name}")
    try:
        return slots.load()
    finally:
        slots.close()


def _applied(disk: Disk) -> int:
    state = BrokerState()
    try:
        snapshot.load(disk, state)
    except (StateError, OSError):
        return 0
    return snapshot.capture(state).applied_index


def _notes(disk: Disk) -> dict[str, tuple[int, int]]:
    try:
        content = _content(disk, NOTES_FILE)
        notes = {} if content is None else decode_notes(content)
    except (SlotsDamaged, PeerInfoError):
        return {}
    return {node: (held.term, held.index) for node, held in sorted(notes.items())}
