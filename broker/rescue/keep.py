"""The choice of the stores to keep, with the rest set aside. Blocking.

The group gets a new id (dledger.transport.group_id), so that no store outside of the rescue can
participate. In a kept store three small files of raft/ change, and no byte of the log: `group` has
the new id, `hardstate` has promises of that group, and `notes` is removed, because its histories
end here. The old files are in `before-rescue-TIME/`. The leader puts the id into the log
(broker.replication.identity).

Everything in the rest of the stores is renamed into a directory `aside-TIME/` of that store, which
works also if the store is a file system of its own. An empty store with its group's id is left. A
partly moved store has the file `restoring` with the name of that directory, and no broker starts
with it; the same command completes it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raftmq.dledger.node.rollback_detection import NOTES_FILE
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.transport.group_id import file_of
from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES
from raftmq.store.disk import OsDisk
from raftmq.store.store_lock import LOCK_FILE

from ..backup.directory import OF_DISKS
from ..tables.snapshot_install import RAFT_DIRECTORY, RESTORING
from .history import History, parting

ASIDE, BEFORE = "aside-", "before-rescue-"
CHANGED = ("group", "hardstate", NOTES_FILE)


class Refused(Exception):
    """A choice that cannot be carried out, for the reason in the text. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Done:
    """The directories with the previous content, and how to undo the rescue."""

    kept: dict[str, str]
    aside: dict[str, str]

    @property
    def undo(self) -> list[str]:
        return [
            *(f"mv {where}/* {store}/{RAFT_DIRECTORY}/" for store, where in self.kept.items()),
            *(
                f"move what is in {store} away, except {os.path.basename(where)}; then"
                f" mv {where}/* {store}/"
                for store, where in self.aside.items()
            ),
        ]


def check(
    histories: Sequence[History], keep: Sequence[str], joins: bytes, *, damaged: bool = False
) -> None:
    """Check that these of the read stores can be kept. `joins` is the group id from an earlier
    call. `damaged` permits a log that ends before durable frames. Raises Refused."""
    for name in ("group", "group_id"):
        ids = {str(getattr(history, name)) for history in histories} - {"", joins.hex()}
        if len(ids) > 1:
            raise Refused(f"these stores are of several groups: {name} {', '.join(sorted(ids))}")
    nodes = [history.node for history in histories]
    twice = {node for node in nodes if node and nodes.count(node) > 1}
    if twice:
        raise Refused(f"two of these stores are of {', '.join(sorted(twice))}")
    kept = [history for history in histories if history.store in keep]
    for history in kept:
        if not Path(history.store).is_dir():
            raise Refused(f"{history.store} is on another machine: keep it there")
        if history.damage and not damaged:
            raise Refused(f"the log of {history.store} is damaged {history.damage}")
    for at, one in enumerate(kept):
        for other in kept[at + 1 :]:
            parted = parting(one, other)
            if parted is None or parted.differs is not None:
                raise Refused(
                    f"{one.store} and {other.store} cannot both be kept: their histories differ"
                    f" behind frame {parted.common if parted else min(one.last, other.last)}"
                )


def carry_out(keep: Sequence[str], others: Sequence[str], group_id: bytes, stamp: str) -> Done:
    """Keep these stores, and set the rest aside. The caller has locked all of them. Their group's
    id becomes `group_id`, and `stamp` names the directories. After an OSError the same call
    completes the rescue."""
    assert len(group_id) == GROUP_ID_SIZE_BYTES, group_id
    aside = {store: _set_aside(store, group_id, stamp) for store in others}
    return Done({store: _keep(store, group_id, stamp) for store in keep}, aside)


def _keep(store: str, group_id: bytes, stamp: str) -> str:
    disk = OsDisk(store)
    before = f"{BEFORE}{stamp}"
    disk.makedirs(before)
    for name in CHANGED:
        path = f"{RAFT_DIRECTORY}/{name}"
        if disk.exists(path) and not disk.exists(f"{before}/{name}"):
            source, copy = disk.open(path), disk.open(f"{before}/{name}")
            try:
                copy.pwrite(0, source.pread(0, source.size_bytes))
                copy.sync()
            finally:
                source.close()
                copy.close()
    disk.sync_directory(before)
    disk.sync_directory("")
    if disk.exists(f"{RAFT_DIRECTORY}/{NOTES_FILE}"):
        disk.remove(f"{RAFT_DIRECTORY}/{NOTES_FILE}")
        disk.sync_directory(RAFT_DIRECTORY)
    _name(disk, group_id)
    votes = HardStateFile(disk, f"{RAFT_DIRECTORY}/hardstate")
    try:
        state = votes.load()
        votes.owner = replace(votes.owner, group_id=group_id)
        votes.save(state)
    finally:
        votes.close()
    return os.path.join(store, before)


def _set_aside(store: str, group_id: bytes, stamp: str) -> str:
    disk = OsDisk(store)
    marker = disk.open(RESTORING)
    try:
        name = marker.pread(0, 256).decode() or f"{ASIDE}{stamp}"
        marker.pwrite(0, name.encode())
        marker.sync()
    finally:
        marker.close()
    disk.makedirs(name)
    disk.sync_directory("")
    left = {LOCK_FILE, RESTORING, *OF_DISKS}
    for entry in disk.listdir(""):
        if entry not in left and not entry.startswith(ASIDE):
            disk.rename(entry, f"{name}/{entry}")
    disk.sync_directory(name)
    disk.sync_directory("")
    _name(disk, group_id)
    disk.remove(RESTORING)
    disk.sync_directory("")
    return os.path.join(store, name)


def _name(disk: OsDisk, group_id: bytes) -> None:
    file = file_of(disk, RAFT_DIRECTORY)
    try:
        file.load()
        file.save(group_id)
    finally:
        file.close()
