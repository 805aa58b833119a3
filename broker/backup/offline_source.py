"""The store of a stopped replica as a backup's source. Blocking.

The store is locked and not changed, so a running broker is rejected. Only frames that this replica
knew to be committed are included. After a clean stop these are all applied frames, after a kill
those up to the last flush of its ConsumeQueues. `full_log` includes everything in the log, also
messages acknowledged just before a kill and perhaps frames that were never committed. It is meant
for the only replica left of a group.

The tables are those of the last snapshot, possibly of an earlier frame than the log's end; a
restore brings them up to it (restore.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raftmq.dledger.raft.snapshot_install import GroupSnapshot
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.storage.hard_state import HardStateDamaged, HardStateFile
from raftmq.dledger.storage.log_storage import read_trim_note
from raftmq.dledger.storage.two_slot_file import SlotFile, SlotsDamaged
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.recovery import FrameHeader, FrameWalk
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore
from raftmq.store.disk import DiskUsage, File, OsDisk, OsFile
from raftmq.store.errors import QueuesLost
from raftmq.store.store_lock import StoreLock, lock_store

from ..config import BrokerConfig
from ..construction import store_config
from ..tables import snapshot
from ..tables.snapshot_install import MANIFEST, RAFT_DIRECTORY, RESTORING, BrokerCapture
from ..tables.state import BrokerState
from .manifest import BackupError
from .online_source import Offer
from .protocol import READ_BYTES_MAX, Facts
from .settings import settings_of


class UnwrittenFile:
    """A read-only file that appears extended or truncated, so that the state after a kill, such as
    an unallocated segment, is read as by a start."""

    def __init__(self, file: OsFile, allocate_bytes: int | None) -> None:
        self._file = file
        self._kept_bytes = file.size_bytes  # the rest reads as zeros
        self._size = max(file.size_bytes, allocate_bytes or 0)

    @property
    def size_bytes(self) -> int:
        return self._size

    def pread(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self._size - offset))
        kept = max(0, min(size, self._kept_bytes - offset))
        return self._file.pread(offset, kept).ljust(size, b"\0")

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        """Do nothing."""

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Do nothing."""

    def truncate(self, size: int) -> None:
        self._kept_bytes = min(self._kept_bytes, size)
        self._size = size

    def may_have_data(self, offset: int) -> bool:
        return self._file.may_have_data(offset)

    def sync(self) -> None:
        """Do nothing, because nothing was written."""

    def close(self) -> None:
        self._file.close()


class UnwrittenDisk:
    """A read-only disk. Removed files appear removed to the reader."""

    def __init__(self, root: str) -> None:
        self._disk = OsDisk(root)
        self._removed: set[str] = set()
        self.root = self._disk.root

    def open(self, path: str, *, allocate_bytes: int | None = None) -> File:
        """Open an existing file. Raises FileNotFoundError instead of creating one."""
        if not self.exists(path):
            raise FileNotFoundError(f"{self.root}/{path}")
        return UnwrittenFile(self._disk.open(path), allocate_bytes)

    def exists(self, path: str) -> bool:
        return path not in self._removed and self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        below = f"{path}/" if path else ""
        return [name for name in self._disk.listdir(path) if below + name not in self._removed]

    def makedirs(self, path: str) -> None:
        """Do nothing."""

    def remove(self, path: str) -> None:
        self._removed.add(path)

    def rename(self, source: str, target: str) -> None:
        """Do nothing."""

    def sync_tree(self, path: str) -> bool:
        """Return True, because nothing was written."""
        return True

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def usage(self) -> DiskUsage:
        return self._disk.usage()

    def boot_id(self) -> str:
        return self._disk.boot_id()


class StoppedSource:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        full_log: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._say = say
        self._full_log = full_log
        self._log: CommitLog | None = None
        self._lock: StoreLock | None = None

    async def start(self, at_least: int) -> Offer:
        self._check()
        assert self._lock is None, "begun twice"
        self._lock = lock_store(self._config.store_path_root_dir, "mqbroker backup")
        self._check()  # the earlier state may have been changing
        disk = UnwrittenDisk(self._config.store_path_root_dir)
        stores = store_config(self._config)
        first, previous_term, log_start, term = _noted(disk)
        self._log = CommitLog(disk, stores.path("commitlog"), stores.segment_size_bytes)
        self._log.open()
        if self._log.min_offset != log_start:
            raise BackupError(f"{disk.root}: the log's segments before {log_start} are missing")
        state = BrokerState()
        snapshot.load(disk, state)
        tables = snapshot.capture(state)
        checkpoint = Checkpoint(disk, stores.path("checkpoint"))
        checkpoint.open(verify=True)
        confirmed = checkpoint.fields.confirm_offset
        checkpoint.close()
        before = (first - 1, previous_term, log_start)
        index, last_term, end = self._end(before, tables.applied_index, confirmed)
        if index < at_least:
            raise BackupError(
                f"{disk.root} has frames up to {index}, and the backup there up to {at_least}"
            )
        if not first - 1 <= tables.applied_index <= index:
            raise BackupError(
                f"{disk.root}: config/ is of frame {tables.applied_index}, the log holds {first} to"
                f" {index}: start the replica, it mends itself from its peers"
            )
        queues = self._queues(disk, confirmed, log_start) if log_start else []
        content = BrokerCapture(tables, queues).encode()
        size = stores.segment_size_bytes
        group_snapshot = GroupSnapshot(
            first, previous_term, log_start, tables.applied_index, size, b"", content
        )
        facts = self._facts(index, last_term, log_start, max(term, last_term))
        return Offer(group_snapshot, facts, end, False)

    async def read(self, position: int, size: int) -> bytes:
        assert self._log is not None
        return self._log.read(position, min(size, READ_BYTES_MAX))

    async def met_damage(self, position: int) -> None:
        raise BackupError(
            f"{self._config.store_path_root_dir}: the log is damaged at {position}: start the"
            " replica, it mends itself from its peers, or take the backup from another one"
        )

    async def end(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check(self) -> None:
        """Check that the store is readable. Raises BackupError."""
        root = Path(self._config.store_path_root_dir)
        if not (root / RAFT_DIRECTORY / "hardstate").exists():
            raise BackupError(f"{root} is not the store of a Raft replica")
        if (root / RESTORING).exists():
            raise BackupError(f"{root} is half restored from a backup")
        if snapshotmarker.pending(UnwrittenDisk(str(root)), RAFT_DIRECTORY):
            raise BackupError(f"{root} is being refilled from its leader: start the replica first")

    def _end(
        self, before: tuple[int, int, int], applied: int, confirmed: int
    ) -> tuple[int, int, int]:
        """Return index, term and end of the last frame, from headers except in a torn tail."""
        assert self._log is not None
        walk = FrameWalk(self._log, before[2], None, confirmed, first_index=before[0] + 1)
        last: FrameHeader | None = None
        for header in walk:
            committed = header.end <= confirmed or header.index <= applied
            if not committed and not self._full_log:
                break
            last = header
        if self._full_log and walk.reason is not None:
            self._say(f"the log ends at {walk.end}: behind it, {walk.reason}")
        return before if last is None else (last.index, last.term, last.end)

    def _facts(self, index: int, term: int, start: int, current_term: int) -> Facts:
        config = self._config
        return Facts(
            group=config.group_name,
            broker=config.broker_name,
            cluster=config.broker_cluster_name,
            node=config.node_name,
            role="stopped",
            members=tuple(f"{p.node_id}-{p.host}:{p.port}" for p in config.peers),
            index=index,
            term=term,
            current_term=current_term,
            start=start,
            settings=settings_of(config),
            time_ms=time.time_ns() // 1_000_000,
        )

    def _queues(
        self, disk: UnwrittenDisk, confirmed: int, log_start: int
    ) -> list[tuple[str, int, int]]:
        """Return the queue starts. Raises BackupError, OSError."""
        stores = store_config(self._config)
        queues = ConsumeQueueStore(
            disk,
            stores.path("consumequeue"),
            stores.entries_per_file,
            manifest=stores.path(MANIFEST),
        )
        try:
            clean = not os.path.exists(f"{disk.root}/abort")
            queues.open(confirmed, clean=clean, log_start=log_start)
            if log_start and queues.unknown:
                raise BackupError(f"{disk.root}: {QueuesLost(log_start)}")
            if queues.damaged:
                topic, queue_id = next(iter(queues.damaged))
                raise BackupError(
                    f"{disk.root}: the ConsumeQueue of {topic}/{queue_id} is damaged: start the"
                    " replica, it makes it anew"
                )
            queues.correct_min_offset(log_start)
            return [(q.topic, q.queue_id, q.first_offset) for q in queues.queues()]
        finally:
            queues.close()


def _noted(disk: UnwrittenDisk) -> tuple[int, int, int, int]:
    """Return the log's first frame, the term of the frame before it, its start, and the current
    term. Raises BackupError, OSError."""
    trim = SlotFile(disk, f"{RAFT_DIRECTORY}/trim")
    votes = HardStateFile(disk, f"{RAFT_DIRECTORY}/hardstate")
    try:
        content = trim.load()
        noted = (1, 0, 0) if content is None else read_trim_note(content)
        return (*noted, votes.load().term)
    except (SlotsDamaged, HardStateDamaged) as damage:
        raise BackupError(f"{disk.root}: {damage}") from damage
    finally:
        trim.close()
        votes.close()
