"""Snapshot install on disk: how a group snapshot takes the place of a log, whenever the process
dies.

    raft/installation       the marker: a whole, checksummed group snapshot (see
                            dledger/raft/snapshot_install.py)
    raft/installed          SlotFile: the applied index of the last one, int64

1. `note`: the group snapshot is written beside, synced, renamed to the marker, the directory
   synced. Killed before the rename is durable, the old log stands untouched and is what the next
   start finds. (The replica fell silent before, so nothing was promised meanwhile.)
2. From then on the old log is void. Before the store is opened, the marker is looked for
   (`pending`); if it is there, the new state is made: `begin_log` here, the application's part
   elsewhere.
   Every step begins by removing what stands in its place, so after a kill at any point the next
   start does all steps again, and nobody ever sees a mixture.
3. `done` removes the marker when all of that is durable.

`begin_log` leaves a log without segments that begins at P: retention's note says so (F, the term of
F - 1, P), and the checkpoint says that it was durable and dispatched up to P. Term and vote
(raft/hardstate) are not touched.

If the marker is damaged, the state beside it may be half made: all of it is removed
(`begin_nothing`). The replica is then like one with a new disk, except for its vote file, and
recovers.
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
_MARKER = "installation"
_WRITE_BYTES = 1 << 20


def note(disk: Disk, directory: str, data: bytes) -> None:
    """Make the marker durable. Blocking. Raises OSError: the marker may exist then, or not."""
    path = f"{directory}/{_MARKER}"
    beside = path + ".new"
    disk.makedirs(directory)
    file = disk.open(beside)
    try:
        file.truncate(0)  # left by a crash
        for at in range(0, len(data), _WRITE_BYTES):
            file.pwrite(at, memoryview(data)[at : at + _WRITE_BYTES])
        file.sync()
    finally:
        file.close()
    disk.rename(beside, path)
    disk.sync_directory(directory)


def pending(disk: Disk, directory: str) -> bool:
    """Return whether there is a marker: then nothing may be opened before it is carried out."""
    return disk.exists(f"{directory}/{_MARKER}")


def read(disk: Disk, directory: str) -> GroupSnapshot:
    """Return the pending group snapshot. Blocking. Raises GroupSnapshotDamaged, OSError."""
    path = f"{directory}/{_MARKER}"
    file = disk.open(path)
    try:
        # If the process was killed before the directory was synced, a power cut could still take
        # the name away when the old state is half gone.
        file.sync()
        data = file.pread(0, file.size_bytes)
    finally:
        file.close()
    disk.sync_directory(directory)
    return decode_group_snapshot(data)


def begin_log(
    disk: Disk, directory: str, snapshot: GroupSnapshot, commitlog: str, checkpoint: str
) -> None:
    """Make the log an empty one that begins where the group snapshot says. Durable on return; may
    be repeated. `commitlog`: its directory, `checkpoint`: that file. Blocking. Raises OSError."""
    _remove_files(disk, commitlog)
    first, previous_term = snapshot.first_index, snapshot.previous_term
    _save(disk, f"{directory}/trim", trim_note(first, previous_term, snapshot.position))
    if snapshot.configuration:
        _save(disk, f"{directory}/configuration", snapshot.configuration)
    else:
        _remove(disk, directory, "configuration")
    _reset_checkpoint(disk, checkpoint, snapshot.position)
    _save(disk, f"{directory}/installed", _INSTALLED.pack(snapshot.applied_index))


def begin_nothing(disk: Disk, directory: str, commitlog: str, checkpoint: str) -> None:
    """Make the log an empty one from byte 0, instead of `begin_log`, if the marker is damaged. That
    this replica has lost promises is noted first. Blocking. Raises OSError."""
    distrust(disk, directory)
    _remove_files(disk, commitlog)
    for name in ("trim", "installed"):  # the configuration noted is a committed one, old or new
        _remove(disk, directory, name)
    _reset_checkpoint(disk, checkpoint, 0)


def done(disk: Disk, directory: str) -> None:
    """Remove the marker when everything is durable. Blocking. Raises OSError."""
    disk.remove(f"{directory}/{_MARKER}")
    disk.sync_directory(directory)


def installed_index(disk: Disk, directory: str) -> int:
    """Return the applied index of the last group snapshot: up to it the application's state may be
    ahead of the log. 0: there was none, or it is not known. Blocking. Raises OSError."""
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
        return None  # its content is rebuilt, or not needed


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
