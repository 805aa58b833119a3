"""The marker by which a group snapshot replaces a log in spite of crashes.

    raft/installation       the marker: a whole, checksummed group snapshot (see
                            dledger/raft/snapshot_install.py)
    raft/installed          SlotFile: the applied index of the last one, int64

1. `note`: the group snapshot is written beside, synced, renamed to the marker, the directory
   synced. After a crash before the rename is durable, the next start finds the old log untouched.
   (The replica had stopped sending, so it promised nothing since.)
2. From then on the old log is void. Before the store is opened, `pending` looks for the marker. If
   it exists, the new state is made: `write_empty_log` here, the application's part elsewhere. Every
   step starts by removing old data from its place, so after a crash the next start repeats all
   steps, and no mixture is ever used.
3. `done` removes the marker when all of that is durable.

`write_empty_log` leaves a log without segments that starts at P. Retention's note has (F, the term
of F - 1, P), and the checkpoint marks the log as durable and dispatched up to P. Term and vote
(raft/hardstate) stay.

If the marker is damaged, the state beside it may be incomplete, and all of it is removed
(`write_empty_store`). The replica is then like a replica with a new disk, except for its vote file,
and recovers.
"""

from __future__ import annotations

import struct

from raftmq.store.checkpoint import Checkpoint, CheckpointFields
from raftmq.store.disk import Disk

from ..raft.snapshot_install import GroupSnapshot, decode_group_snapshot
from ..storage.hard_state import distrust
from ..storage.log_storage import trim_note
from ..storage.two_slot_file import SlotFile, SlotsDamaged

_INSTALLED = struct.Struct(">q")
MARKER = "installation"
_WRITE_BYTES = 1 << 20


def note(disk: Disk, directory: str, data: bytes) -> None:
    """Make the marker durable. Blocking. After an OSError the marker may exist or not."""
    path = f"{directory}/{MARKER}"
    temporary = path + ".new"
    disk.makedirs(directory)
    file = disk.open(temporary)
    try:
        file.truncate(0)  # left by a crash
        for at in range(0, len(data), _WRITE_BYTES):
            file.pwrite(at, memoryview(data)[at : at + _WRITE_BYTES])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def pending(disk: Disk, directory: str) -> bool:
    """Return whether there is a marker, which must be carried out before anything is opened."""
    return disk.exists(f"{directory}/{MARKER}")


def read(disk: Disk, directory: str) -> GroupSnapshot:
    """Return the pending group snapshot. Blocking. Raises GroupSnapshotDamaged, OSError."""
    path = f"{directory}/{MARKER}"
    file = disk.open(path)
    try:
        # Sync again, because after a crash before the directory's sync a power cut could still
        # remove the name when the old state is partly gone.
        file.sync()
        data = file.pread(0, file.size_bytes)
    finally:
        file.close()
    disk.sync_directory(directory)
    return decode_group_snapshot(data)


def write_empty_log(
    disk: Disk, directory: str, snapshot: GroupSnapshot, commitlog: str, checkpoint: str
) -> None:
    """Make an empty log with the start of the group snapshot. Durable on return; may be repeated.
    `commitlog` is its directory, `checkpoint` that file. Blocking. Raises OSError."""
    _remove_files(disk, commitlog)
    first, previous_term = snapshot.first_index, snapshot.previous_term
    _save(disk, f"{directory}/trim", trim_note(first, previous_term, snapshot.position))
    if snapshot.configuration:
        _save(disk, f"{directory}/configuration", snapshot.configuration)
    else:
        _remove(disk, directory, "configuration")
    _reset_checkpoint(disk, checkpoint, snapshot.position)
    _save(disk, f"{directory}/installed", _INSTALLED.pack(snapshot.applied_index))


def write_empty_store(disk: Disk, directory: str, commitlog: str, checkpoint: str) -> None:
    """Make an empty log from byte 0, because the marker is damaged, after noting that this replica
    has lost promises. Blocking. Raises OSError."""
    distrust(disk, directory)
    _remove_files(disk, commitlog)
    for name in ("trim", "installed"):  # the saved configuration is committed, old or new
        _remove(disk, directory, name)
    _reset_checkpoint(disk, checkpoint, 0)


def done(disk: Disk, directory: str) -> None:
    """Remove the marker when everything is durable. Blocking. Raises OSError."""
    disk.remove(f"{directory}/{MARKER}")
    disk.sync_directory(directory)


def installed_index(disk: Disk, directory: str) -> int:
    """Return the applied index of the last group snapshot, up to which the application's state may
    be ahead of the log; 0 if there was none, or it is unknown. Blocking. Raises OSError."""
    slots = SlotFile(disk, f"{directory}/installed")
    try:
        content = _load(slots)
    finally:
        slots.close()
    return 0 if content is None else int(_INSTALLED.unpack(content)[0])


def _save(disk: Disk, path: str, content: bytes) -> None:
    slots = SlotFile(disk, path)
    try:
        _load(slots)
        slots.save(content)
    finally:
        slots.close()


def _remove(disk: Disk, directory: str, name: str) -> None:
    if disk.exists(f"{directory}/{name}"):
        disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)


def _load(slots: SlotFile) -> bytes | None:
    try:
        return slots.load()
    except SlotsDamaged:
        return None  # the content is rebuilt, or not needed


def _remove_files(disk: Disk, directory: str) -> None:
    disk.makedirs(directory)
    for name in disk.listdir(directory):
        disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)


def _reset_checkpoint(disk: Disk, path: str, position: int) -> None:
    checkpoint = Checkpoint(disk, path)
    checkpoint.open(verify=True)
    try:
        checkpoint.lower_durable(position)
        index_ms = checkpoint.fields.index_timestamp_ms
        checkpoint.write(CheckpointFields(index_timestamp_ms=index_ms, confirm_offset=position))
        checkpoint.sync()
    finally:
        checkpoint.close()
