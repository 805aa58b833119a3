"""Restore of a backup into the stores of a new group. Blocking.

A store is made like a snapshot install (broker.tables.snapshot_install): tables, queue starts,
start of the log. Then the log's frames are written as by a follower, at their old positions. Frames
up to the tables' frame are dispatched at once; later frames are applied by the broker at its start.

Configurations of the old group in the log would be in force (dledger.raft.configuration). So a
configuration frame with the new members is appended, in a term above the old group's at the backup.

The new group has a new id (dledger.transport.group_id), in a command after that frame and in every
store's file. So no replica ever connects to the old group, or to a store of an earlier restore with
different frames at the same index and term. Both frames are equal in every store of a restore,
since they depend only on the manifest, the peers and the incarnation, which names this restore.

Every store's vote file marks promises as lost, because an incarnation restored again may have
promised more than the backup has. So all replicas recover first (dledger.raft.recovery), as in a
new group. The best log leads, and its first frame commits the content.

Never do this to a single replica of a working group. An unfinished store has the file `restoring`,
and no broker starts with it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import orjson

from raftmq.dledger.raft.configuration import (
    MEMBERS_MAX,
    SIZE_BYTES_MAX,
    Configuration,
    encode_configuration,
    founding,
)
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.raft.snapshot_install import GroupSnapshot
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.storage.configuration_file import ConfigurationFile
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.dledger.transport.group_id import file_of
from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES
from raftmq.store.config import StoreConfig
from raftmq.store.disk import Disk, OsDisk
from raftmq.store.frame import Frame, FrameKind, seal_frame
from raftmq.store.message_store import MessageStore
from raftmq.store.store_lock import LOCK_FILE, lock_store

from ..tables import snapshot
from ..tables.broker_group import group_id
from ..tables.snapshot_install import (
    RAFT_DIRECTORY,
    RESTORING,
    BrokerCapture,
    carry_out,
)
from ..tables.state import BrokerState
from .directory import OF_DISKS, BackupDirectory, segment_name
from .log_verifier import ChainBroken, FrameChain
from .manifest import BackupDamaged, BackupError, Manifest, SegmentCopy, StateFile
from .point_in_time import last_by
from .settings import store_config_of
from .table_snapshots import decode

SYNC_BYTES = 64 << 20  # between two fdatasyncs of the log


@dataclass(frozen=True, slots=True)
class Point:
    """The point of a restore, with frames up to `index`, and the tables of `state` (None for
    empty), which the broker brings up to that index from the log. `next_ms` is the stamp of the
    following frame, if a time was requested."""

    index: int
    state: StateFile | None
    next_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """The backup's last frame, the new configuration frame, the log's end, the new group id."""

    index: int
    configuration_index: int
    term: int
    end: int
    time_ms: int  # of the last frame from the backup
    group_id: bytes


def point_of(
    directory: BackupDirectory,
    manifest: Manifest,
    *,
    to_index: int | None = None,
    to_time_ms: int | None = None,
) -> Point:
    """Return the point of frame `to_index`, of the last frame stamped at or before `to_time_ms`, or
    of the complete backup. Raises BackupError (also for unreliable clocks), BackupDamaged, OSError.
    """
    index, next_ms = manifest.commit_index, None
    if to_index is not None:
        index = to_index
    elif to_time_ms is not None:
        moment = last_by(frames_of(directory, manifest), manifest, to_time_ms)
        index, next_ms = moment.index, moment.next_ms
    lowest = manifest.first_index - 1
    if not max(lowest, 1) <= index <= manifest.commit_index:
        raise BackupError(
            f"frame {index} is not in this backup: it holds {manifest.first_index} to"
            f" {manifest.commit_index}, taken {manifest.taken}"
        )
    usable = [state for state in manifest.states if lowest <= state.index <= index]
    if usable:
        return Point(index, max(usable, key=lambda state: state.index), next_ms)
    if manifest.first_index == 1:
        return Point(index, None, next_ms)
    oldest = min(state.index for state in manifest.states)
    raise BackupError(
        f"frame {index} cannot be restored to: the log begins with frame {manifest.first_index}, so"
        f" tables are needed, and the oldest ones in this backup are of frame {oldest}"
    )


def check_empty(store: str) -> None:
    """Raise BackupError unless the directory is empty, but for a lock and `lost+found`."""
    path = Path(store)
    if not path.exists():
        return
    if not path.is_dir():
        raise BackupError(f"{store} is no directory")
    names = sorted({*os.listdir(path)} - {LOCK_FILE} - OF_DISKS)
    if RESTORING in names:
        raise BackupError(f"{store}: a restore was interrupted there: remove what is in it")
    if names:
        raise BackupError(f"{store} is not empty ({', '.join(names[:5])}): nothing is overwritten")


def restore(
    directory: BackupDirectory,
    manifest: Manifest,
    point: Point,
    stores: Sequence[str],
    peers: Sequence[tuple[str, str]],
    incarnation: UUID,
    *,
    config: StoreConfig | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Make each directory in `stores` the storePathRootDir of a replica. `peers` are (id,
    host:port) of all new members, in the order of dLegerPeers. `incarnation` is new for each
    restore, and the same for all of its stores. `config` is the brokers' configuration, by default
    the backup's. Raises StoreInUse, BackupError, BackupDamaged, ConfigError, OSError."""
    config = config or store_config_of(manifest.settings)
    if config.segment_size_bytes != manifest.segment_size_bytes:
        raise BackupError(
            f"the backup has segments of {manifest.segment_size_bytes} bytes: the brokers need"
            f" mappedFileSizeCommitLog={manifest.segment_size_bytes}"
        )
    members = founding(peers)
    if not 0 < len(members.ids) == len(peers) <= MEMBERS_MAX:
        raise BackupError(f"{len(peers)} members: a group has 1 to {MEMBERS_MAX}, each with its id")
    if len(stores) > len(members.ids):
        raise BackupError(f"{len(stores)} stores for {len(members.ids)} members: each has one")
    if len(encode_configuration(members)) > SIZE_BYTES_MAX:
        raise BackupError(f"ids and addresses of the members exceed {SIZE_BYTES_MAX} bytes")
    made: Restored | None = None
    with ExitStack() as held:
        for store in stores:
            held.callback(lock_store(store, "mqbroker restore").release)
        for store in stores:
            check_empty(store)
        for store in stores:
            say(f"{store}: frames {manifest.first_index} to {point.index}")
            disk = OsDisk(store)
            made = restore_one(directory, manifest, point, disk, members, incarnation, config)
    assert made is not None, "no store is named"
    return made


def restore_one(
    directory: BackupDirectory,
    manifest: Manifest,
    point: Point,
    disk: Disk,
    members: Configuration,
    incarnation: UUID,
    config: StoreConfig,
) -> Restored:
    """Make a store on an empty disk. Raises BackupDamaged, BackupError, OSError."""
    disk.open(RESTORING).close()
    disk.sync_directory("")
    config = replace(config, index_enable=False)  # the broker builds the index later
    tables_index = _install(directory, manifest, point, disk, config)
    store = MessageStore(disk, config)
    store.open()
    raft_log = RaftLog(store.commitlog, SlotFile(disk, f"{RAFT_DIRECTORY}/trim"), 0)
    try:
        raft_log.open()
        store.derived.log_recovered()
        last_ms = manifest.taken_ms
        unsynced = 0
        for frame in frames_of(directory, manifest, point.index):
            raft_log.append((frame,))
            if frame.index <= tables_index:
                store.derived.dispatch_frame(frame)
            last_ms = frame.timestamp_ms
            unsynced += frame.size_bytes
            if unsynced >= SYNC_BYTES:
                _sync(raft_log)
                unsynced = 0
        if raft_log.last_index != point.index:
            raise BackupDamaged(f"the log ends with frame {raft_log.last_index}")
        added = _founding_frame(raft_log, members, manifest.current_term + 1, last_ms)
        identity = _id_of(manifest, added, incarnation)
        naming = group_id(identity, if_absent=False)
        end = _add(raft_log, added.term, last_ms, FrameKind.COMMAND, naming).end
        _sync(raft_log)
        store.close()
    except BaseException:
        store.close_unclean()
        raise
    finally:
        raft_log.close()
    _note_group(disk, added, members, identity)
    disk.sync_directory("")
    disk.remove(RESTORING)
    disk.sync_directory("")
    return Restored(point.index, added.index, added.term, end, last_ms, identity)


def frames_of(
    directory: BackupDirectory, manifest: Manifest, last_index: int | None = None
) -> Iterator[Frame]:
    """Yield the checked frames, up to `last_index` if given. Raises BackupDamaged, OSError."""
    for segment in manifest.segments:
        if last_index is not None and segment.before_index >= last_index:
            return
        for frame in _frames_of_segment(directory, segment, manifest.segment_size_bytes):
            if last_index is not None and frame.index > last_index:
                return
            yield frame


def _frames_of_segment(
    directory: BackupDirectory, segment: SegmentCopy, segment_size_bytes: int
) -> Iterator[Frame]:
    chain = FrameChain(segment.before_index, segment.before_term, segment.start, segment_size_bytes)
    for data in directory.chunks(segment):
        try:
            yield from chain.feed(data)
        except ChainBroken as broken:
            raise BackupDamaged(f"commitlog/{segment_name(segment.start)}: {broken}") from broken
    if chain.index != segment.last.index:
        raise BackupDamaged(
            f"commitlog/{segment_name(segment.start)}: ends with frame {chain.index}, the manifest"
            f" says {segment.last.index}"
        )


def _install(
    directory: BackupDirectory,
    manifest: Manifest,
    point: Point,
    disk: Disk,
    config: StoreConfig,
) -> int:
    """Write tables, queue starts and an empty log. Returns the tables' frame."""
    latest = max(manifest.states, key=lambda state: state.index)
    # The queue starts depend on the log's start, and only the latest state has them, because an
    # earlier state may be of a longer log.
    queues = decode(latest, directory.state(latest)).queues
    if point.state is None:
        tables = snapshot.capture(BrokerState())
    else:
        tables = decode(point.state, directory.state(point.state)).tables
    noted = GroupSnapshot(
        manifest.first_index,
        manifest.previous_term,
        manifest.start,
        max(tables.applied_index, manifest.first_index - 1),
        manifest.segment_size_bytes,
        b"",
        BrokerCapture(tables, queues).encode(),
    )
    snapshotmarker.note(disk, RAFT_DIRECTORY, noted.encode())
    carry_out(disk, config, RAFT_DIRECTORY)
    # The file marks tables ahead of the log, which is not the case here.
    disk.remove(f"{RAFT_DIRECTORY}/installed")
    disk.sync_directory(RAFT_DIRECTORY)
    return tables.applied_index


def _founding_frame(raft_log: RaftLog, members: Configuration, term: int, time_ms: int) -> Frame:
    """Append the new group's configuration."""
    payload = encode_configuration(members)
    return _add(raft_log, term, time_ms, FrameKind.CONFIGURATION, payload)


def _id_of(manifest: Manifest, founded: Frame, incarnation: UUID) -> bytes:
    """Return a group id determined by members, point, backup and incarnation, because the hosts of
    a restore do not communicate."""
    made_of = orjson.dumps([manifest.group, manifest.current_term, manifest.taken_ms, incarnation])
    return hashlib.sha256(made_of + founded.data).digest()[:GROUP_ID_SIZE_BYTES]


def _add(raft_log: RaftLog, term: int, time_ms: int, kind: FrameKind, payload: bytes) -> Frame:
    index, position = raft_log.last_index + 1, raft_log.allocate(len(payload))
    frame = seal_frame(index, term, position, time_ms, kind, 0, payload)
    raft_log.append((frame,))
    return frame


def _sync(raft_log: RaftLog) -> None:
    ticket = raft_log.start_sync()
    if ticket is not None:
        ticket.run()
        raft_log.finish_sync(ticket)


def _note_group(disk: Disk, founded: Frame, members: Configuration, identity: bytes) -> None:
    """Write the group's files of a new replica."""
    group = file_of(disk, RAFT_DIRECTORY)
    file = ConfigurationFile(disk, RAFT_DIRECTORY)
    votes = HardStateFile(disk, f"{RAFT_DIRECTORY}/hardstate")
    try:
        group.load()
        group.save(identity)
        file.load()
        file.save(founded.index, members)
        votes.load()
        votes.save(HardState(founded.term, None, recovered=False))
    finally:
        group.close()
        file.close()
        votes.close()
