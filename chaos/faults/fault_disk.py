"""A disk that fails on request, and that records all changes that a power cut would undo.

`FaultDisk` is `store.disk.OsDisk` below a broker that the harness started through
chaos.faults.faulty_broker. Before each change it journals the content that the change destroys
(chaos.faults.power_loss_journal); a sync marks those records as durable. The journal is never
synced: it has to survive kill -9, not a real power cut. chaos.faults.power reads it when the
"power" is cut.

    DIR/<node>/faults/control, rules.json   steering
    DIR/<node>/faults/undo.log              the journal
    DIR/<node>/faults/grave/<number>        contents of files that lost their name by that change,
                                            kept (a hard link) until their directory is synced
    DIR/<node>/faults/boot                  how often the power was cut

A 16 KiB write past the end costs one small write to the journal, and no read. Only overwriting
bytes that may be non-zero reads first.

Not modelled: directories (they survive), renames between directories (rejected, EXDEV).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raftmq.store.disk import DiskUsage, OsDisk, OsFile

from .fault_control import ALLOCATE, ERROR, FULL, LIE, READ, SHORT, SYNC, WRITE, Control
from .power_loss_journal import Pending, Record, RecordKind, decode

PENDING_BYTES_MAX = 256 << 20  # of records that are still needed; beyond, writes fail with an error
REWRITE_BYTES = 4 << 20  # a journal longer than this is rewritten if most of it is struck out
_PIECE_BYTES = 1 << 20
JOURNAL, GRAVE, BOOT = "undo.log", "grave", "boot"


class Journal:
    """undo.log: appends records and tracks pending changes. Thread-safe."""

    def __init__(self, home: Path, pending_bytes_max: int = PENDING_BYTES_MAX) -> None:
        """Continue the journal that is there. Raises OSError."""
        self.grave = home / GRAVE
        self.grave.mkdir(parents=True, exist_ok=True)
        self._path = home / JOURNAL
        self._pending_bytes_max = pending_bytes_max
        self._lock = threading.Lock()
        data = self._path.read_bytes() if self._path.exists() else b""
        self.pending = Pending(decode(data))
        self._fd = -1
        self._size = 0
        self._rewrite()
        kept = {str(change.number) for change in self.pending.names if change.buried}
        for name in os.listdir(self.grave):
            if name not in kept:
                os.remove(self.grave / name)

    def add(self, record: Record) -> list[Record]:
        """Append a record; return the changes of names that are durable because of it.

        Raises OSError.
        """
        with self._lock:
            pending = self.pending
            if pending.size_bytes > self._pending_bytes_max:
                raise OSError(errno.ENOSPC, "the fault layer's journal is full: nothing is synced")
            if self._size > REWRITE_BYTES and self._size > 4 * pending.size_bytes:
                self._rewrite()
            self._append(record.encode())
            return pending.add(record)

    def number(self) -> int:
        """Return the next number. The caller holds the lock that keeps its records in order."""
        with self._lock:
            self.pending.number += 1
            return self.pending.number

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        while written < len(data):  # a short write is legal
            written += os.write(self._fd, data[written:])
        self._size += len(data)

    def _rewrite(self) -> None:
        """Rewrite the journal without durable records; replace the old file when complete."""
        self.close()
        temporary = self._path.with_suffix(".new")
        self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o640)
        self._size = 0
        self._append(b"".join(record.encode() for record in self.pending.records()))
        os.replace(temporary, self._path)


class Inode:
    """The state that all open descriptors of a file share."""

    __slots__ = ("gone", "lock", "number", "size", "zero_from")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.zero_from = size  # from here on the file holds zeros only
        self.gone = False  # has lost its last name for good
        # Held over a record and its change, so that no sync happens between them. Reentrant:
        # OsFile.pwritev may call pwrite.
        self.lock = threading.RLock()


class FaultFile(OsFile):
    def __init__(self, disk: FaultDisk, name: str, path: str, allocate_bytes: int | None) -> None:
        self._disk = disk
        self._name = name
        new = not os.path.exists(path)
        if new:
            disk.fail_if_ruled(ALLOCATE, name)
        super().__init__(path, None)
        try:
            result = os.fstat(self._fd)
            self._inode = disk.inode(result.st_ino, result.st_size)
            if new:
                disk.created(name, result.st_ino)
            if allocate_bytes is not None and self._size < allocate_bytes:
                self._allocate(allocate_bytes)
        except OSError:
            self.close()
            raise

    def pread(self, offset: int, size: int) -> bytes:
        self._disk.fail_if_ruled(READ, self._name)
        return super().pread(offset, size)

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        effect = self._disk.fail_if_ruled(WRITE, self._name)
        if effect == FULL and self._needs_blocks(offset, len(data)):
            raise OSError(errno.ENOSPC, "the disk is full, as told", self._name)
        view = memoryview(data)[: len(data) // 2] if effect == SHORT else data
        inode, length = self._inode, len(view)
        with inode.lock:
            self._remember(offset, length)
            super().pwrite(offset, view)
            inode.size = max(inode.size, offset + length)
            inode.zero_from = max(inode.zero_from, offset + length)
        if effect == SHORT:
            raise OSError(errno.EIO, "half of it was written, as told", self._name)

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        self.pwrite(offset, b"".join(buffers))

    def truncate(self, size: int) -> None:
        self._disk.fail_if_ruled(WRITE, self._name)
        inode = self._inode
        with inode.lock:
            self._remember_size(size)
            super().truncate(size)
            inode.size = size
            inode.zero_from = min(inode.zero_from, size)

    def sync(self) -> None:
        effect = self._disk.control.effect(SYNC, self._name)
        journal, inode = self._disk.journal, self._inode
        with inode.lock:
            until = journal.pending.number
        if effect == LIE or inode.gone:
            return
        try:
            if effect == ERROR:
                raise OSError(errno.EIO, "told to fail", self._name)
            super().sync()
        except OSError:
            journal.add(Record(RecordKind.FAILED, until, inode.number, until))
            raise
        journal.add(Record(RecordKind.SYNCED, until, inode.number, until))

    def _allocate(self, size: int) -> None:
        if self._disk.fail_if_ruled(ALLOCATE, self._name) == FULL:
            raise OSError(errno.ENOSPC, "the disk is full, as told", self._name)
        inode = self._inode
        with inode.lock:
            self._remember_size(size)
            os.posix_fallocate(self._fd, 0, size)
            inode.size = self._size = size

    def _remember(self, offset: int, length: int) -> None:
        """Journal the content that a write destroys. The caller holds the inode's lock."""
        inode, journal = self._inode, self._disk.journal
        if inode.gone or not length:
            return
        if offset + length > inode.size:
            self._remember_size(offset + length)
        before = b"" if offset >= inode.zero_from else self._content(offset, length)
        number = journal.number()
        journal.add(Record(RecordKind.BYTES, number, inode.number, offset, length, before))

    def _remember_size(self, size: int) -> None:
        """Journal the size that a change destroys. The caller holds the inode's lock."""
        inode, journal = self._inode, self._disk.journal
        if inode.gone or size == inode.size:
            return
        number = journal.number()
        journal.add(Record(RecordKind.SIZE, number, inode.number, inode.size, size))
        end = min(inode.size, inode.zero_from)
        at = _next_data(self._fd, size, end)
        while at < end:
            length = min(_PIECE_BYTES - at % _PIECE_BYTES, end - at)
            before = self._content(at, length)
            if before:
                journal.add(Record(RecordKind.BYTES, number, inode.number, at, length, before))
            at = _next_data(self._fd, at + length, end)

    def _content(self, offset: int, length: int) -> bytes:
        """Return the bytes there, zeros past the end; b"" if all of it is zeros."""
        data = super().pread(offset, length)
        if data == bytes(len(data)):
            return b""
        return data.ljust(length, b"\0")

    def _needs_blocks(self, offset: int, length: int) -> bool:
        """Return whether a write there needs blocks that the file does not have yet."""
        result = os.fstat(self._fd)
        if offset + length > result.st_size:
            return True
        if result.st_blocks * 512 >= result.st_size:
            return False
        last = offset + max(1, length) - 1
        return any(_next_data(self._fd, at, at + 1) > at for at in (offset, last))


class FaultDisk(OsDisk):
    """The disk below a broker under test. A directory has a single writer, as in Disk."""

    def __init__(self, root: str, home: Path, control: Control) -> None:
        """`home`: the node's directory of faults, beside `root` and in the same file system."""
        super().__init__(root)
        self.control = control
        self.journal = Journal(home)
        self._cuts = read_boot(home)
        self._inodes: dict[int, Inode] = {}
        self._lock = threading.RLock()  # of `_inodes`; held over a record and its change of names
        known = inodes_below(Path(self.root)) | inodes_below(self.journal.grave)
        for number in set(self.journal.pending.files) - set(known):
            self.journal.add(Record(RecordKind.FORGET, self.journal.number(), number))

    def fail_if_ruled(self, call: str, name: str) -> str:
        """Return the effect steered for this call. Raises OSError if it is to fail."""
        effect = self.control.effect(call, name)
        if effect == ERROR:
            raise OSError(errno.EIO, "told to fail", name)
        return effect

    def inode(self, number: int, size: int) -> Inode:
        """Return the inode of that number; `size` bytes long if it was not known yet."""
        with self._lock:
            result = self._inodes.get(number)
            if result is None:
                result = self._inodes[number] = Inode(number, size)
            return result

    def created(self, name: str, inode: int) -> None:
        with self._lock:
            self._name_record(RecordKind.CREATE, inode, 0, name)

    def open(self, path: str, *, allocate_bytes: int | None = None) -> FaultFile:
        return FaultFile(self, path, self._path(path), allocate_bytes)

    def remove(self, path: str) -> None:
        inode = os.stat(self._path(path)).st_ino
        with self._lock:
            self._name_record(RecordKind.REMOVE, inode, 0, path, bury=path)
            super().remove(path)

    def rename(self, source: str, target: str) -> None:
        if source.rpartition("/")[0] != target.rpartition("/")[0]:
            raise OSError(errno.EXDEV, "the fault layer renames within a directory only", source)
        inode = os.stat(self._path(source)).st_ino
        with self._lock:
            old = os.stat(self._path(target)).st_ino if self.exists(target) else 0
            names = f"{source}\0{target}"
            self._name_record(RecordKind.RENAME, inode, old, names, bury=target if old else "")
            super().rename(source, target)

    def sync_tree(self, path: str) -> bool:
        """Return False: each file must be synced by itself, for its rules and the journal."""
        return False

    def sync_directory(self, path: str) -> None:
        effect = self.fail_if_ruled(SYNC, path + "/")
        journal = self.journal
        with self._lock:
            until = journal.pending.number
        if effect == LIE:
            return
        super().sync_directory(path)
        with self._lock:
            done = journal.add(Record(RecordKind.NAMED, until, 0, until, 0, path.encode()))
            for change in done:
                if change.buried:
                    journal.add(Record(RecordKind.FORGET, journal.number(), change.buried))
                    gone = self._inodes.pop(change.buried, None)
                    if gone is not None:
                        gone.gone = True
                    os.remove(journal.grave / str(change.number))

    def usage(self) -> DiskUsage:
        usage = super().usage()
        return replace(usage, available_bytes=0) if self.control.is_full() else usage

    def boot_id(self) -> str:
        """Return an id that changes with each simulated or real power cut."""
        return f"{super().boot_id()}+{self._cuts}"

    def close(self) -> None:
        """Close the journal (tests; a broker's ends with its process)."""
        self.journal.close()

    def _name_record(
        self, kind: RecordKind, inode: int, old: int, names: str, bury: str = ""
    ) -> None:
        """Journal a change of names; the caller holds the lock."""
        number = self.journal.number()
        if bury:
            os.link(self._path(bury), self.journal.grave / str(number))
        self.journal.add(Record(kind, number, inode, old, 0, names.encode()))


def inodes_below(root: Path) -> dict[int, Path]:
    """Return inode → path of every regular file below `root`."""
    result: dict[int, Path] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            result[path.lstat().st_ino] = path
    return result


def read_boot(home: Path) -> int:
    """Return how often the node's power was cut."""
    path = home / BOOT
    return int(path.read_text(encoding="ascii")) if path.exists() else 0


def _next_data(descriptor: int, at: int, end: int) -> int:
    """Return the first offset in [at, end) that may hold non-zero bytes; `end` if there is none."""
    if at >= end:
        return end
    try:
        return min(end, os.lseek(descriptor, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        raise
