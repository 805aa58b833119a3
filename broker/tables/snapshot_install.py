"""Tables and queue starts in a snapshot install (dledger.raft.snapshot_install).

The state of a group snapshot is one JSON object:

    {"tables": {"topics.json": <the file's content>, …}, "queues": [[topic, [[id, offset], …]], …]}

A queue's offset is that of its first message at or behind the start of the log or, without any, of
its next message, so that numbering continues.

A start calls `prepare` first. With a pending install, `prepare` sets config/, consumequeue/,
index/, the log and the checkpoint to the recorded state, idempotently, and removes the record.
dledger.snapshot.marker explains why no start sees half of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from raftmq.dledger.raft.snapshot_install import GroupSnapshotDamaged
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.store.config import StoreConfig
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore
from raftmq.store.disk import Disk
from raftmq.store.message_store import MessageStore

from ..errors import StateError
from . import snapshot
from .broker_group import BrokerGroupTable
from .snapshot import Snapshot
from .state import BrokerState

log = logging.getLogger("raftmq.broker.installation")

RAFT_DIRECTORY = "raft"  # of a Raft replica (dledger.settings), below the store's root
MANIFEST = "consumequeue.manifest"
RESTORING = "restoring"  # a file that marks a restore in progress (broker.backup.restore)


@dataclass(frozen=True, slots=True)
class BrokerCapture:
    """Consistent copies of the tables and of the queue starts."""

    tables: Snapshot
    queues: list[tuple[str, int, int]]  # topic, queue id, offset

    @property
    def applied_index(self) -> int:
        return self.tables.applied_index

    def encode(self) -> bytes:
        by_topic: dict[str, list[tuple[int, int]]] = {}
        for topic, queue_id, offset in self.queues:
            by_topic.setdefault(topic, []).append((queue_id, offset))
        return orjson.dumps({"tables": self.tables.to_json(), "queues": list(by_topic.items())})


class Source:
    """The engine's source of snapshots for other replicas, and its callback for an own install."""

    def __init__(
        self, state: BrokerState, store: MessageStore, on_installed: Callable[[str], None]
    ) -> None:
        """`on_installed(reason)` restarts this broker."""
        self._state = state
        self._store = store
        self.installed = on_installed

    def capture(self) -> BrokerCapture | None:
        return capture(self._state, self._store)


def capture(state: BrokerState, store: MessageStore) -> BrokerCapture | None:
    """Copy the state on the loop, without disk reads. Return None while queue starts are unknown,
    just after retention with a flush in progress, and while damaged queues wait for their log."""
    queues = store.queues
    if queues.corrected_to != store.commitlog.min_offset or queues.damaged or len(store.repairs):
        return None
    starts = [(q.topic, q.queue_id, q.first_offset) for q in queues.queues()]
    return BrokerCapture(snapshot.capture(state), starts)


def prepare(disk: Disk, config: StoreConfig, raft_directory: str) -> int:
    """Complete a pending snapshot install before anything is opened. Return the index up to which
    the tables may be ahead of the log afterwards. Blocking.

    Raises StateError (the record is from a different version, or this store is partly restored),
    OSError."""
    if disk.exists(RESTORING):
        raise StateError(
            "this store is half restored or half set aside: complete that by the same command, and"
            " keep a copy of what is there before you remove anything"
        )
    if snapshotmarker.pending(disk, raft_directory):
        carry_out(disk, config, raft_directory)
    return snapshotmarker.installed_index(disk, raft_directory)


def carry_out(disk: Disk, config: StoreConfig, raft_directory: str) -> None:
    """Set this store to the recorded snapshot install. Raises StateError, OSError."""
    try:
        noted = snapshotmarker.read(disk, raft_directory)
    except GroupSnapshotDamaged as damage:
        log.error("installation_lost reason=%s: this replica begins with nothing", damage)
        remove_derived(disk, config)
        snapshotmarker.write_empty_store(
            disk, raft_directory, config.path("commitlog"), config.path("checkpoint")
        )
        snapshotmarker.done(disk, raft_directory)
        return
    tables, queues = decode_state(noted.state)
    remove_derived(disk, config)
    snapshotmarker.write_empty_log(
        disk, raft_directory, noted, config.path("commitlog"), config.path("checkpoint")
    )
    create_queues(disk, config, queues)
    snapshot.write(disk, tables)
    snapshotmarker.done(disk, raft_directory)
    log.warning(
        "installed first=%d position=%d applied=%d queues=%d",
        noted.first_index,
        noted.position,
        noted.applied_index,
        len(queues),
    )


def decode_state(data: bytes) -> tuple[Snapshot, list[tuple[str, int, int]]]:
    """Return the tables and the queue starts. Raises StateError."""
    try:
        value = orjson.loads(data)
        tables = snapshot.from_json(value["tables"])
        queues = [
            (str(topic), int(queue_id), int(offset))
            for topic, starts in value["queues"]
            for queue_id, offset in starts
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"not the state of a group snapshot: {error!r}") from error
    return tables, queues


def group_id_in(data: bytes) -> bytes:
    """Return the group id in a group snapshot's state, or b"". Raises StateError."""
    tables, _ = decode_state(data)
    return next(table.value for _, table in tables.tables if isinstance(table, BrokerGroupTable))


def remove_derived(disk: Disk, config: StoreConfig) -> None:
    """Remove tables, queues and index of the old log, durably and idempotently."""
    for directory in (snapshot.DIRECTORY, config.path("index")):
        _remove_files(disk, directory)
    directory = config.path("consumequeue")
    for topic in disk.listdir(directory):
        for queue_id in disk.listdir(f"{directory}/{topic}"):
            _remove_files(disk, f"{directory}/{topic}/{queue_id}")
    manifest = config.path(MANIFEST)
    if disk.exists(manifest):
        disk.remove(manifest)
        disk.sync_directory(manifest.rpartition("/")[0])


def _remove_files(disk: Disk, directory: str) -> None:
    names = disk.listdir(directory)
    for name in names:
        disk.remove(f"{directory}/{name}")
    if names:
        disk.sync_directory(directory)


def create_queues(disk: Disk, config: StoreConfig, queues: list[tuple[str, int, int]]) -> None:
    """Create the queues at their offsets, durably."""
    store = ConsumeQueueStore(
        disk,
        config.path("consumequeue"),
        config.entries_per_file,
        open_files_max=config.open_files_max,
        manifest=config.path(MANIFEST),
    )
    try:
        for topic, queue_id, offset in queues:
            if offset:
                store.start_at(topic, queue_id, offset)
        store.flush()
    finally:
        store.close()
