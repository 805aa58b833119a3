"""A disk that forgets: `store.disk.Disk` in memory, with synced and unsynced bytes kept apart.

Every write goes to the page cache (`data`) and onto a list of what is not durable yet. `sync`
moves a file's list into `durable`; `sync_directory` does the same for names. A process kill loses
nothing. A power cut decides for every unsynced write by itself whether it is dropped, kept or
torn at a random byte, and applies the kept ones in random order. Changes of names survive up to
a random one of them: file systems journal them in order.

`crash_after(n)` makes the n-th operation from now raise SimCrash *instead of* happening (a write
may happen in part first), so that crashes fall between any two operations of one step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from raftmq.store.disk import DiskUsage

WHOLE_BYTES = 8  # never torn: they lie in one sector
CHECKPOINT_BYTES = 48  # nor are these, all of one checkpoint's
ALLOCATED = -1  # stands for the offset of a pending change of size


class SimCrash(BaseException):
    """The simulated process died inside a disk operation. No production code may catch it."""


class SimInode:
    """One file's bytes. A pending change is (number, offset, bytes), or of the size only:
    (number, ALLOCATED, size)."""

    __slots__ = ("data", "durable", "pending", "whole_bytes")

    def __init__(self, whole_bytes: int = WHOLE_BYTES) -> None:
        self.whole_bytes = whole_bytes
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, int, bytes | int]] = []

    def sync_but(self, begun: int, run: int) -> None:
        """Make durable what was written up to operation `begun` and after `run`: what somebody
        else wrote between them is not covered."""
        late = [change for change in self.pending if begun < change[0] <= run]
        for change in self.pending:
            if not begun < change[0] <= run:
                apply_change(self.durable, change)
        self.pending[:] = late

    def sync(self, horizon: int) -> None:
        """Make durable what was written up to operation `horizon`."""
        pending = self.pending
        if pending and pending[-1][0] <= horizon:
            for change in pending:
                apply_change(self.durable, change)
            pending.clear()
            return
        keep = 0
        while keep < len(pending) and pending[keep][0] <= horizon:
            apply_change(self.durable, pending[keep])
            keep += 1
        del pending[:keep]

    def lose_power(self, rng: Random) -> None:
        rng.shuffle(self.pending)
        for number, offset, content in self.pending:
            fate = rng.random()
            if fate < 0.4:
                continue
            if fate < 0.7 and isinstance(content, bytes) and len(content) > self.whole_bytes:
                at = rng.randrange(len(content))
                if rng.random() < 0.5:
                    content = content[:at]
                else:
                    offset, content = offset + at, content[at:]
            apply_change(self.durable, (number, offset, content))
        self.pending.clear()
        self.data = bytearray(self.durable)


def apply_change(target: bytearray, change: tuple[int, int, bytes | int]) -> None:
    _, offset, content = change
    if isinstance(content, int):
        if content < len(target):
            del target[content:]
        else:
            target.extend(bytes(content - len(target)))
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(content)] = content


class SimFile:
    """An open file of one incarnation of a process."""

    def __init__(self, disk: SimDisk, inode: SimInode) -> None:
        self._disk = disk
        self._inode = inode
        self._generation = disk.generation

    def _operation(self) -> int:
        assert self._generation == self._disk.generation, "a dead process uses its file"
        return self._disk.operation()

    @property
    def size_bytes(self) -> int:
        return len(self._inode.data)

    def pread(self, offset: int, size: int) -> bytes:
        assert self._generation == self._disk.generation, "a dead process uses its file"
        return bytes(self._inode.data[offset : offset + size])

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        content = bytes(data)
        self._grow(offset + len(content))
        try:
            number = self._operation()
        except SimCrash:
            if len(content) > self._inode.whole_bytes:
                done = self._disk.rng.randrange(len(content) + 1)
                self._change(self._disk.operations, offset, content[:done])
            raise
        self._change(number, offset, content)

    def _change(self, number: int, offset: int, content: bytes | int) -> None:
        change = (number, offset, content)
        apply_change(self._inode.data, change)
        self._inode.pending.append(change)

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        self.pwrite(offset, b"".join(buffers))

    def _grow(self, size: int) -> None:
        if self._disk.full and size > len(self._inode.data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size: int) -> None:
        self._grow(size)
        self._change(self._operation(), ALLOCATED, size)

    def may_have_data(self, offset: int) -> bool:
        return any(self._inode.data[offset:])

    def sync(self) -> None:
        number = self._operation()
        if self._disk.fails_sync:
            self._disk.fails_sync = False
            self._disk.rotted |= self._disk.rotted_at_rest  # it may have been mended in memory only
            self._inode.pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._disk.sync_gap is not None:
            self._inode.sync_but(*self._disk.sync_gap)
            return
        horizon = self._disk.sync_horizon
        self._inode.sync(number if horizon is None else horizon)

    def close(self) -> None:
        pass


class SimDisk:
    """A tree of files of one node; it outlives the node's processes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.generation = 0
        self.operations = 0
        self.power_cuts = 0
        self.sync_horizon: int | None = None  # a sync that is under way covers no later write
        self.sync_gap: tuple[int, int] | None = None  # the same, for a thread that wrote before it
        self.full = False  # no file grows
        # CommitLog positions at which a bit flipped under a process since power was lost.
        self.rotted: set[int] = set()
        self.rotted_at_rest: set[int] = set()  # and while none ran
        self.fails_sync = False  # the next sync fails, and what it was to cover never gets durable
        self.on_crash: Callable[[], None] = lambda: None  # told before SimCrash is raised
        self._crash_in: int | None = None
        self._names: dict[str, SimInode] = {}
        self._durable_names: dict[str, SimInode] = {}
        # what was done to names since the directory was synced: (kind, path, target or inode)
        self._pending: list[tuple[str, str, str | SimInode | None]] = []
        self._directories: set[str] = {""}

    # -- the simulator's side ---------------------------------------------------------------------

    def copied(self) -> SimDisk:
        """Return a disk with every file as a kill leaves it, and all of it durable."""
        made = SimDisk(self.rng)
        made.power_cuts = self.power_cuts
        made._directories = set(self._directories)
        for path, inode in self._names.items():
            copied = made._names[path] = SimInode(inode.whole_bytes)
            copied.data, copied.durable = bytearray(inode.data), bytearray(inode.data)
        made._durable_names = dict(made._names)
        return made

    def operation(self) -> int:
        """Count one operation; raise SimCrash if the process is to die here."""
        self.operations += 1
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in <= 0:
                self._crash_in = None
                self.on_crash()
                raise SimCrash
        return self.operations

    def crash_after(self, operations: int) -> None:
        self._crash_in = operations

    def kill_process(self) -> None:
        """Open files are gone; every byte stays."""
        self.generation += 1
        self._crash_in = None
        self.sync_horizon = self.sync_gap = None

    def lose_power(self) -> None:
        """Decide what of the unsynced survives."""
        self.kill_process()
        self.rotted_at_rest |= self.rotted
        self.rotted.clear()
        self.power_cuts += 1
        # Names are journalled: what survives is the beginning of what was done to them.
        for kind, path, other in self._pending[: self.rng.randint(0, len(self._pending))]:
            self._settle(kind, path, other)
        self._pending.clear()
        for inode in {id(i): i for i in self._names.values()}.values():
            inode.lose_power(self.rng)
        self._names = dict(self._durable_names)
        for inode in self._names.values():
            inode.lose_power(self.rng)  # removed without a synced directory: back again

    def _settle(self, kind: str, path: str, other: str | SimInode | None) -> None:
        if kind == "create":
            assert isinstance(other, SimInode)
            self._durable_names[path] = other
        elif kind == "remove":
            self._durable_names.pop(path, None)
        else:
            assert isinstance(other, SimInode)
            source, target = path.split("\0")
            self._durable_names.pop(source, None)
            self._durable_names[target] = other

    def image(self, durable: bool) -> dict[str, bytes]:
        """Every file's bytes: all, or what a power cut leaves for sure."""
        names = self._durable_names if durable else self._names
        return {p: bytes(i.durable if durable else i.data) for p, i in names.items()}

    def rot(self, path: str, offset: int) -> None:
        """A bit flips where it lies, of a file that nobody has open."""
        inode = self._names[path]
        for data in {id(d): d for d in (inode.data, inode.durable)}.values():
            if offset < len(data):
                data[offset] ^= 1 << self.rng.randrange(8)

    def spoil(self, path: str, offset: int, change: Callable[[bytes], bytes]) -> bool:
        """Change durable bytes from `offset` on, where they lie and in the page cache; False, and
        nothing is done, if something about the file is not durable, or nothing would change."""
        inode = self._names.get(path)
        if inode is None or inode.pending or self._durable_names.get(path) is not inode:
            return False
        assert inode.data == inode.durable
        rest = bytes(inode.data[offset:])
        changed = change(rest)
        for data in (inode.data, inode.durable):
            data[offset:] = changed
        return changed != rest

    def lose_file(self, path: str) -> bool:
        """A durable file is gone; False if there is none."""
        inode = self._names.get(path)
        if inode is None or self._durable_names.get(path) is not inode:
            return False
        del self._names[path], self._durable_names[path]
        return True

    def durable(self, path: str) -> bytes:
        """Return what a power cut leaves of a file for sure."""
        inode = self._durable_names.get(path)
        return b"" if inode is None else bytes(inode.durable)

    def holds(self, path: str, offset: int, content: bytes, durable: bool) -> bool:
        """Whether these bytes are in that file: what a power cut leaves for sure if `durable`."""
        inode = (self._durable_names if durable else self._names).get(path)
        if inode is None:
            return False
        data = inode.durable if durable else inode.data
        return data[offset : offset + len(content)] == content

    # -- Disk -------------------------------------------------------------------------------------

    def open(self, path: str, *, allocate_bytes: int | None = None) -> SimFile:
        inode = self._names.get(path)
        if inode is None:
            self.operation()
            assert path.rpartition("/")[0] in self._directories, f"no directory for {path}"
            whole_bytes = CHECKPOINT_BYTES if path.endswith("checkpoint") else WHOLE_BYTES
            inode = self._names[path] = SimInode(whole_bytes)
            self._pending.append(("create", path, inode))
        file = SimFile(self, inode)
        if allocate_bytes is not None and len(inode.data) < allocate_bytes:
            file.truncate(allocate_bytes)
        return file

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def listdir(self, path: str) -> list[str]:
        prefix = path + "/" if path else ""
        entries = {*self._names, *self._directories} - {path}
        return sorted({e[len(prefix) :].split("/")[0] for e in entries if e.startswith(prefix)})

    def makedirs(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._directories.add("/".join(parts[:count]))  # directories survive; files do not

    def remove(self, path: str) -> None:
        self.operation()
        if path not in self._names:
            raise FileNotFoundError(path)
        del self._names[path]
        self._pending.append(("remove", path, None))

    def rename(self, source: str, target: str) -> None:
        self.operation()
        if source not in self._names:
            raise FileNotFoundError(source)
        inode = self._names[target] = self._names.pop(source)
        self._pending.append(("rename", f"{source}\0{target}", inode))

    def sync_tree(self, path: str) -> bool:
        return False

    def sync_directory(self, path: str) -> None:
        self.operation()
        keep = []
        for kind, name, other in self._pending:
            if name.split("\0")[-1].rpartition("/")[0] == path:
                self._settle(kind, name, other)
            else:
                keep.append((kind, name, other))
        self._pending = keep

    def boot_id(self) -> str:
        return f"boot {self.power_cuts}"

    def usage(self) -> DiskUsage:
        used = sum(len(inode.data) for inode in self._names.values())
        return DiskUsage(used, (1 << 30) - used)
