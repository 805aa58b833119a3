"""Power cuts of a node from the fault layer's journal, or by the kernel on a loop device.

`cut` needs no root. The node's processes are dead (SIGKILL). A seeded choice undoes some of the
journal's pending changes in the files (chaos.faults.power_loss_journal), and the journal is
emptied. The files then look like a disk's after a power cut.

`LoopDisk` uses a real file system and needs root. It is ext4 in a file, shut down without
flushing its log (FS_IOC_SHUTDOWN), unmounted, mounted again.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raftmq.store.store_lock import StoreInUse, lock_store

from ..cluster.clusterfile import ClusterError
from .fault_disk import BOOT, GRAVE, JOURNAL, inodes_below, read_boot
from .power_loss_journal import (
    PAGE_BYTES,
    FileChanges,
    Pending,
    Record,
    RecordKind,
    Temper,
    by_page,
    decode,
    draw_temper,
    file_fate,
    rebuild,
    surviving,
)

FAULTS = "faults"  # below a node's directory, beside its store

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
LOOP_BYTES = 512 << 20  # sparse
COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Cut:
    """The losses of a power cut. `files` counts those that lost contents or size."""

    files: int
    pages: int
    names: int
    pending_pages: int
    pending_names: int

    def __str__(self) -> str:
        return (
            f"{self.pages} of {self.pending_pages} unsynced pages in {self.files} files and "
            f"{self.names} of {self.pending_names} unsynced names lost"
        )


def cut(home: Path, store: Path, rng: random.Random, temper: Temper | None = None) -> Cut:
    """Remove unsynced changes from `store`; `home` is the node's directory of faults. Blocking.

    Without a `temper` a random temper is drawn. Raises OSError; ClusterError while a process has
    the store open.
    """
    with owned(store):
        return _cut(home, store, rng, temper or draw_temper(rng))


@contextmanager
def owned(store: Path) -> Iterator[None]:
    """Own a dead node's store for changes. Raises ClusterError if it is open, OSError."""
    try:
        lock = lock_store(str(store), "mqchaos")
    except StoreInUse as error:
        raise ClusterError(str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _cut(home: Path, store: Path, rng: random.Random, temper: Temper) -> Cut:
    path = home / JOURNAL
    pending = Pending(decode(path.read_bytes() if path.exists() else b""))
    keep = surviving(len(pending.names), temper, rng)
    for change in reversed(pending.names[keep:]):
        _undo_name(change, store, home / GRAVE)
    paths = inodes_below(store)
    files = pages = pending_pages = 0
    for inode, changes in sorted(pending.files.items(), key=lambda item: item[1].changes[0].number):
        file_path = paths.get(inode)
        if file_path is None:
            continue  # its creation was undone, or its removal survived
        hurt, of, shorter = _undo_contents(file_path, changes, temper, rng)
        files += hurt > 0 or shorter
        pages += hurt
        pending_pages += of
    forget(home)
    (home / BOOT).write_text(str(read_boot(home) + 1), encoding="ascii")
    lost_names = len(pending.names) - keep
    return Cut(files, pages, lost_names, pending_pages, len(pending.names))


def forget(home: Path) -> None:
    """Empty the journal: everything is durable now. No process may use the store."""
    (home / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(home / GRAVE, ignore_errors=True)


def _undo_name(change: Record, store: Path, grave: Path) -> None:
    """Undo a change of names, if it was made (a kill may fall between record and change)."""
    target = store / change.paths[-1]
    kept = grave / str(change.number)
    if change.kind is RecordKind.CREATE:
        if _inode(target) == change.inode:
            target.unlink()
    elif change.kind is RecordKind.REMOVE:
        if _inode(target) is None and kept.exists():
            os.link(kept, target)
    elif _inode(target) == change.inode:
        os.replace(target, store / change.paths[0])
        if change.a and kept.exists():
            os.link(kept, target)


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _undo_contents(
    path: Path, changes: FileChanges, temper: Temper, rng: random.Random
) -> tuple[int, int, bool]:
    """Undo a file; return pages that lost, pages that could lose, whether the size changed."""
    with path.open("r+b", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        fate = file_fate(changes, size, temper, rng)
        pieces = by_page(changes)
        for page in fate.pages:
            if min(page.below, page.above) == page.count:
                continue
            content = os.pread(descriptor, PAGE_BYTES, page.page * PAGE_BYTES)
            rebuilt = rebuild(content.ljust(PAGE_BYTES, b"\0"), pieces[page.page], page)
            os.pwrite(descriptor, rebuilt, page.page * PAGE_BYTES)
        os.ftruncate(descriptor, fate.size)
    return fate.hurt, len(fate.pages), fate.size != size


# ---- by the kernel --------------------------------------------------------------------------


class LoopDisk:
    """A file system in a file, mounted. Blocking throughout; methods raise ClusterError."""

    def __init__(self, mount_point: Path) -> None:
        """The file lies beside the directory where it is mounted."""
        self.mount_point = mount_point
        self.image = mount_point.with_name(f"{mount_point.name}.ext4")

    @classmethod
    def of_store(cls, store: Path) -> LoopDisk:
        """Return the loop disk of this store. Raises ClusterError if there is none."""
        result = cls(store)
        if result.image.exists() and os.path.ismount(store):
            return result
        raise ClusterError(
            f"{store} is no file system of its own; make a LoopDisk there before the first start"
        )

    def make(self) -> Path:
        """Create and mount it; return where."""
        reason = unavailable()
        if reason is not None:
            raise ClusterError(reason)
        self.mount_point.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as image:
            image.truncate(LOOP_BYTES)
        _run([_program("mkfs.ext4"), "-q", str(self.image)])
        self._mount()
        (self.mount_point / "lost+found").rmdir()  # no file of a store
        return self.mount_point

    def cut(self) -> None:
        """Lose all data that is not on the device. No process may have a file open there, or have
        it as a working directory. Raises ClusterError."""
        with owned(self.mount_point):
            pass  # no process runs there; an open lock file would prevent unmounting
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("=I", NO_LOG_FLUSH))
        except OSError as error:
            raise ClusterError(f"{self.mount_point} cannot be shut down: {error}") from error
        finally:
            os.close(descriptor)
        self._unmount()
        self._copy_image()
        self._mount()

    def remove(self) -> None:
        """Put its files into a directory in its place; harmless if it is not there."""
        if os.path.ismount(self.mount_point):
            copy = self.mount_point.with_name(f"{self.mount_point.name}.copy")
            try:
                _run([_program("cp"), "-a", "--sparse=always", str(self.mount_point), str(copy)])
            finally:
                self._unmount()
            copy.replace(self.mount_point)
        self.image.unlink(missing_ok=True)

    def _copy_image(self) -> None:
        """Copy the contents to a new file. A process in its own mount namespace (from `ip netns
        exec`) keeps the file system that was shut down, and mounting the same file again would
        mount that file system: every access fails with EIO."""
        copy = self.image.with_name(f"{self.image.name}.copy")
        _run([_program("cp"), "--sparse=always", "--reflink=auto", str(self.image), str(copy)])
        copy.replace(self.image)

    def _mount(self) -> None:
        where = [str(self.image), str(self.mount_point)]
        _run([_program("mount"), "-t", "ext4", "-o", "loop", *where])

    def _unmount(self) -> None:
        _run([_program("umount"), str(self.mount_point)])


def unavailable() -> str | None:
    """Return why a LoopDisk cannot be had on this machine; None if it can."""
    if os.geteuid() != 0:
        return "a loop device and mounting need root"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices (/dev/loop-control)"
    for name in ("mount", "umount", "mkfs.ext4"):
        if _program(name) == "":
            return f"{name} is not installed"
    if "ext4" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        return "the kernel has no ext4 (/proc/filesystems)"
    return None


def _program(name: str) -> str:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") or ""


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(command)}: {text}")
