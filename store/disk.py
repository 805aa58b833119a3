"""The disk interface of the store, the only seam between logs and operating system.

Every file format is written against `Disk` and `File`, so that the simulator can supply a disk that
loses unsynced data, tears writes or fails. `OsDisk` is the real disk. Paths are relative to the
disk's root, '/'-separated.

Rules for every implementation:
- `pwrite`/`pwritev` write everything or raise; written data is readable at once.
- Nothing is durable before `File.sync` (contents) and `Disk.sync_directory` (names) have returned.
- `sync` may be called from a second thread; the rest has a single caller.

Errors are the operating system's (`OSError`) and are never swallowed here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .store_lock import FILE_MODE, make_directory
from .transient_errors import NO_DESCRIPTOR

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
_SYNCFS = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # Linux only


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The usage of a file system, counted as df and Apache's brokers do. Space reserved for root is
    neither used nor available."""

    used_bytes: int
    available_bytes: int  # to this process

    @property
    def size_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_ratio(self) -> float:
        return self.used_bytes / self.size_bytes if self.size_bytes else 0.0

    @property
    def used_percent(self) -> int:
        """Rounded up, as df shows it."""
        size_bytes = self.size_bytes
        return -(-self.used_bytes * 100 // size_bytes) if size_bytes else 0


@dataclass(frozen=True, slots=True)
class DiskMark:
    """A mark of disk use, reached at `percent` if also less than `free_bytes` are available,
    because a percentage alone means little on a large disk. With `free_bytes` 0 the percentage
    decides."""

    percent: int
    free_bytes: int = 0

    def is_reached(self, usage: DiskUsage) -> bool:
        floor = self.free_bytes
        return usage.used_percent >= self.percent and (not floor or usage.available_bytes < floor)

    def capacity_bytes(self, usage: DiskUsage) -> int:
        """Return how many more bytes can be written before the mark is reached."""
        left = usage.size_bytes * (100 - self.percent) // 100
        if self.free_bytes:
            left = min(left, self.free_bytes)
        return max(0, usage.available_bytes - left)


class File(Protocol):
    """An open file of fixed or growing size."""

    @property
    def size_bytes(self) -> int: ...

    def pread(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer only at the end of the file."""

    def pwrite(self, offset: int, data: bytes | memoryview) -> None: ...

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None: ...

    def truncate(self, size: int) -> None: ...

    def may_have_data(self, offset: int) -> bool:
        """Return False if the file is a hole from `offset` on, so that everything there reads as
        zeros; True otherwise, or if unknown."""

    def sync(self) -> None:
        """Return once everything written before the call is durable (fdatasync)."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files."""

    def open(self, path: str, *, allocate_bytes: int | None = None) -> File:
        """Open `path` for reading and writing; create it if missing. With `allocate_bytes`, a new
        or shorter file is extended to that size with zeros."""

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] if there is no such directory."""

    def makedirs(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` atomically."""

    def sync_directory(self, path: str) -> None:
        """Make creations, removals and renames in this directory durable."""

    def sync_tree(self, path: str) -> bool:
        """Make all names and contents below this directory durable by a single call for the whole
        file system. Return False, with nothing done, if there is no such call."""

    def usage(self) -> DiskUsage:
        """Return how full the file system is."""

    def boot_id(self) -> str:
        """Return an id that changes whenever unsynced data may have been lost; "" if unknown."""


class OsFile:
    """A `File` over a file descriptor."""

    def __init__(self, path: str, allocate_bytes: int | None) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            self._size = os.fstat(self._fd).st_size
            if allocate_bytes is not None and self._size < allocate_bytes:
                os.posix_fallocate(self._fd, 0, allocate_bytes)
                self._size = allocate_bytes
        except OSError:  # a full disk must not also cost a descriptor
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        return self._size

    def pread(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            more = os.pread(self._fd, size - have, offset + have)
            if not more:
                break
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        written = os.pwrite(self._fd, data, offset)
        view = memoryview(data)
        while written < len(view):  # finish a short write, or raise
            written += os.pwrite(self._fd, view[written:], offset + written)
        self._size = max(self._size, offset + len(view))

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        total = sum(len(b) for b in buffers)
        if len(buffers) <= 64:  # far below IOV_MAX (1024)
            written = os.pwritev(self._fd, buffers, offset)
            if written == total:
                self._size = max(self._size, offset + total)
                return
        self.pwrite(offset, b"".join(buffers))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def may_have_data(self, offset: int) -> bool:
        try:
            os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            # other error numbers mean that this file system has no such information
            return error.errno != errno.ENXIO
        return True

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """A `Disk` below a root directory of the real file system. It keeps a descriptor of the root.
    If no descriptor is free, a directory is synced by a sync of the whole file system, which costs
    more."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        make_directory(self.root)
        self._root_fd = _open_directory(self.root)
        weakref.finalize(self, os.close, self._root_fd)

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        return OsFile(self._path(path), allocate_bytes)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def makedirs(self, path: str) -> None:
        make_directory(self._path(path))

    def remove(self, path: str) -> None:
        os.remove(self._path(path))

    def rename(self, source: str, target: str) -> None:
        os.replace(self._path(source), self._path(target))

    def sync_directory(self, path: str) -> None:
        try:
            fd = _open_directory(self._path(path))
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or not self._is_on_root_device(path):
                raise
            _sync_file_system(self._root_fd, path)
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_tree(self, path: str) -> bool:
        if _SYNCFS is None:
            return False
        fd = _open_directory(self._path(path))
        try:
            _sync_file_system(fd, path)
        finally:
            os.close(fd)
        return True

    def _is_on_root_device(self, path: str) -> bool:
        """Return whether a sync of the root's file system, if possible, covers `path`."""
        there = os.stat(self._path(path)).st_dev == os.fstat(self._root_fd).st_dev
        return there and _SYNCFS is not None

    def boot_id(self) -> str:
        """Return Linux's boot id, which is random for every boot."""
        try:
            with open(BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:  # without Linux a reboot must be assumed
            return ""

    def usage(self) -> DiskUsage:
        stat = os.statvfs(self.root)
        used = stat.f_blocks - stat.f_bfree
        return DiskUsage(used * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def _open_directory(path: str) -> int:
    """Return a descriptor of a directory, for syncs only."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _sync_file_system(fd: int, path: str) -> None:
    """Make the whole file system of `fd` durable. Raises OSError, which names `path`."""
    assert _SYNCFS is not None
    if _SYNCFS(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
