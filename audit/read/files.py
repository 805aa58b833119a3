"""Files below a path or URI (s3://bucket/n0/store, hdfs://…), listed, and read by range.

A local file is mapped. A file at a URI is never read as a whole: each task reads the ranges that it
needs.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raftmq.spark.filesystem import below, opened

READ_BYTES = 8 << 20  # a request
READS_AT_ONCE = 4  # by a task
_ZEROS = bytes(READ_BYTES)


def is_uri(path: str) -> bool:
    return "://" in path


@dataclass(frozen=True, slots=True)
class File:
    """A file of `size_bytes`, called `name` below `root`, a path or URI."""

    root: str
    name: str
    size_bytes: int

    @property
    def path(self) -> str:
        """The path or URI, for people."""
        return below(self.root, self.name)

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes [start, end), fewer if the file ends before. Raises OSError."""
        end = self.size_bytes if end is None else end
        with self._open() as file:
            return bytes(file.read_at(end - start, start))

    def view(self) -> View:
        """Raises OSError."""
        if is_uri(self.root):
            return View(np.zeros(self.size_bytes, np.uint8).data, remote=self)
        with open(f"{self.root}/{self.name}", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return View(memoryview(mapped), self.written_bytes())

    def written_bytes(self) -> int:
        """Return the number of written bytes before a sparse or absent end; the size if the file
        system does not support it. Raises OSError."""
        if is_uri(self.root):
            return self.size_bytes
        with open(f"{self.root}/{self.name}", "rb") as file:
            end = 0
            try:
                while True:
                    start = os.lseek(file.fileno(), end, os.SEEK_DATA)
                    end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            except OSError as error:
                return end if error.errno == errno.ENXIO else os.fstat(file.fileno()).st_size

    def identity(self) -> tuple[int, int] | str:
        """Return the device and inode of a file on this machine, or its URI. Raises OSError."""
        if is_uri(self.root):
            return self.path
        stat = os.stat(f"{self.root}/{self.name}")
        return stat.st_dev, stat.st_ino

    def load(self, data: memoryview, start: int, end: int) -> None:
        """Read bytes [start, end) into the same place of `data`, which has zeros there. Memory of
        zeros is not touched, so it needs none. Raises OSError."""
        starts = range(start, end, READ_BYTES)
        with self._open() as file, ThreadPoolExecutor(READS_AT_ONCE) as pool:
            chunks = pool.map(lambda at: file.read_at(min(READ_BYTES, end - at), at), starts)
            for at, chunk in zip(starts, chunks, strict=True):
                if chunk != _ZEROS[: len(chunk)]:
                    data[at : at + len(chunk)] = chunk

    def _open(self) -> pa.NativeFile:
        system, root = _opened(self.root)
        return system.open_input_file(f"{root}/{self.name}")


class View:
    """The bytes of a file, `data`. From `written` on, they are zero. Those of a file at a URI are
    zero until they are loaded."""

    def __init__(
        self, data: memoryview, written: int | None = None, remote: File | None = None
    ) -> None:
        self.data = data
        self.written = len(data) if written is None else written
        self._remote = remote
        self._low = self._high = 0

    @property
    def is_partial(self) -> bool:
        return self._remote is not None and self._high - self._low < len(self.data)

    def clipped(self, low: int, high: int) -> tuple[int, int]:
        """Return the part of [low, high) that is there."""
        return (max(low, self._low), min(high, self._high)) if self.is_partial else (low, high)

    def load(self, low: int, high: int) -> None:
        """Have bytes [low, high), and those between them and earlier ones. Raises OSError."""
        if self._remote is None:
            return
        high = min(high, len(self.data))
        if self._low == self._high:
            self._low = self._high = low
        if low < self._low:
            self._remote.load(self.data, low, self._low)
            self._low = low
        if high > self._high:
            self._remote.load(self.data, self._high, high)
            self._high = high


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a directory by name, sorted, and the names of its directories."""

    files: Mapping[str, File]
    directories: frozenset[str]


def listed(root: str) -> Listing:
    """Return all that is below a path or URI; nothing if it is not there. Raises OSError."""
    system, path = _opened(root)
    infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
    files, directories = {}, set()
    for info in infos:
        name = info.path[len(path) + 1 :]
        if info.type == fs.FileType.Directory:
            directories.add(name)
        elif info.type == fs.FileType.File:
            files[name] = File(root, name, info.size)
    # An object store has no directories.
    directories |= {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return Listing(dict(sorted(files.items())), frozenset(directories - {"."}))


def content_of(root: str, name: str) -> bytes | None:
    """Return a file's content; None if there is none. Raises OSError."""
    system, path = _opened(root)
    info = system.get_file_info(f"{path}/{name}")
    return File(root, name, info.size).read() if info.type == fs.FileType.File else None


@lru_cache(maxsize=64)  # a file system has its own connections
def _opened(root: str) -> tuple[fs.FileSystem, str]:
    """Return the file system, and the path in it. Raises OSError."""
    try:
        system, path = opened(root)
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"{root}: {error}") from error
    return system, path.rstrip("/")
