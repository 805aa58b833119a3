"""The files of the ConsumeQueues, which of them are not durable yet, and their manifest.

A queue has a directory, `<directory>/<topic>/<queue id>`. Each file in it is named by the byte
position of its first entry (format: store.consumequeue.consumequeue). This module identifies a file
by that directory and the offset of its first entry, its `start`.

A queue's files cannot show that a file or its last entries are missing. Each flush therefore
replaces a small manifest:

    RMQQ 2 <CRC-32C of the rest, hex>
    <entries per file> <log start> <confirmed>              as of the flush, of the CommitLog
    <first file's first entry> <last file's> <end> <CommitLog offset of the last entry>
        <first message> <its CommitLog offset, or -1> <id> <topic>
    …                                                       one line per queue, LF, UTF-8

It has all entries below `confirmed`, and may have later ones.

The manifest is a lower bound. After a start, a queue with fewer files or entries is damaged, unless
its last listed entry pointed at or above the confirmed offset and was dropped for that reason. A
missing or damaged manifest is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from google_crc32c import value as crc32c

from ..disk import Disk
from ..dispatch import QUEUE_ENTRY_BYTES
from ..file_cache import OPEN_FILES_MAX, FileCache

# Up to this many files and directories are synced individually. Each sync commits the file system's
# journal and delays the CommitLog's syncs: 10,000 new queues took ten seconds. Beyond, a single
# call syncs the whole file system in a second, including unrelated files.
SYNCS_MAX = 256
ADOPT_QUEUES = 4  # per topic, for reading file sizes

QueueKey = tuple[str, int]  # topic, queue id
EntryKey = tuple[str, int, int]  # topic, queue id, queue offset

log = logging.getLogger("raftmq.store.consumequeue.queue_files")


@dataclass(frozen=True, slots=True)
class DirtyFiles:
    """Files and directories to sync: `run` it in the pool."""

    disk: Disk
    directory: str  # of all files
    paths: list[str]
    directories: list[str]

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError; they stay dirty then."""
        many = len(self.paths) + len(self.directories) > SYNCS_MAX
        if many and self.disk.sync_tree(self.directory):
            return
        for path in self.paths:
            # A separate descriptor, because the cache may close its own.
            file = self.disk.open(path)
            try:
                file.sync()
            finally:
                file.close()
        for directory in self.directories:
            self.disk.sync_directory(directory)


@dataclass(slots=True)
class FlushFiles:
    """Writes and syncs files in the pool for a single flush. The loop may write the same files
    through QueueFiles, but only the same bytes."""

    disk: Disk
    directory: str
    entries_per_file: int
    dirty: DirtyFiles  # written by the loop since the last flush
    paths: dict[str, None] = field(default_factory=dict)  # written or created here
    directories: dict[str, None] = field(default_factory=dict)

    def write(self, queue: str, offset: int, entries: bytes, last_file: int) -> None:
        """Write entries to their files, which are created if missing. Files behind `last_file` may
        be there from before a kill, and not be durable. Blocking. Raises OSError."""
        for at, chunk in within_files(offset, entries, self.entries_per_file):
            start = at - at % self.entries_per_file
            path = path_of(queue, start)
            if start > last_file or not self.disk.exists(path):
                self.disk.makedirs(queue)
                directories = (queue, queue.rpartition("/")[0], self.directory)
                self.directories |= dict.fromkeys(directories)
            file = self.disk.open(path)
            try:
                self.paths[path] = None
                if file.size_bytes < self.entries_per_file * QUEUE_ENTRY_BYTES:
                    file.truncate(self.entries_per_file * QUEUE_ENTRY_BYTES)
                file.pwrite((at - start) * QUEUE_ENTRY_BYTES, chunk)
            finally:
                file.close()

    def all_dirty(self) -> DirtyFiles:
        """Return the files to sync, or those still dirty after a failure."""
        paths = dict.fromkeys(self.dirty.paths) | self.paths
        directories = dict.fromkeys(self.dirty.directories) | self.directories
        return DirtyFiles(self.disk, self.directory, list(paths), list(directories))


class QueueFiles:
    """Reads and writes the files of all queues of a store. For the loop only."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        entries_per_file: int,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        self.directory = directory
        self.entries_per_file = entries_per_file
        self._disk = disk
        self._size_bytes = entries_per_file * QUEUE_ENTRY_BYTES
        self._open = FileCache(disk, open_files_max)
        self._dirty_paths: dict[str, None] = {}
        self._dirty_directories: dict[str, None] = {}
        self.suspects: dict[EntryKey, int] = {}  # listed entries that no file has, their positions

    def adopt_size(self, *, clean: bool) -> None:
        """Use the size of existing files instead of the configured size, because neither this store
        nor Apache's broker can read a queue with files of two sizes. A file has that size if the
        next file's name proves it. After a `clean` stop two files of equal size are enough. After a
        kill or a power cut any file may be shorter."""
        sizes: set[int] = set()
        for topic in self._disk.listdir(self.directory):
            for queue_id in self._disk.listdir(f"{self.directory}/{topic}")[:ADOPT_QUEUES]:
                queue = f"{self.directory}/{topic}/{queue_id}"
                starts = self.starts(queue)[:2]
                for start in starts:
                    size = self._open.get(path_of(queue, start)).size_bytes
                    is_shown = start * QUEUE_ENTRY_BYTES + size == starts[-1] * QUEUE_ENTRY_BYTES
                    if (size and is_shown) or (clean and size in sizes):
                        self._adopt(size)
                        return
                    sizes.add(size)

    def adopt(self, entries_per_file: int) -> None:
        """Use this size instead of the configured size."""
        self._adopt(entries_per_file * QUEUE_ENTRY_BYTES)

    def _adopt(self, size_bytes: int) -> None:
        if (
            size_bytes > 0
            and size_bytes % QUEUE_ENTRY_BYTES == 0
            and size_bytes != self._size_bytes
        ):
            log.info("queue_file_size_adopted bytes=%d configured=%d", size_bytes, self._size_bytes)
            self._size_bytes = size_bytes
            self.entries_per_file = size_bytes // QUEUE_ENTRY_BYTES

    def start_of(self, offset: int) -> int:
        """Return the start of the file that contains the entry at `offset`."""
        return offset - offset % self.entries_per_file

    def starts(self, queue: str) -> list[int]:
        """Return the starts of the files in the queue directory `queue`, in order."""
        return [int(name) // QUEUE_ENTRY_BYTES for name in self._disk.listdir(queue)]

    def read(self, queue: str, offset: int, count: int) -> bytes:
        """Return `count` entries from `offset`, all in the same file."""
        start = self.start_of(offset)
        size = count * QUEUE_ENTRY_BYTES
        file = self._open.get(path_of(queue, start))
        data = file.pread((offset - start) * QUEUE_ENTRY_BYTES, size)
        assert len(data) == size, (queue, offset, count)
        return data

    def read_again(self, queue: str, offset: int, count: int) -> bytes:
        """Return `count` entries of a file that is opened for it, with zeros where it ends. In the
        pool. Raises OSError."""
        start, size = self.start_of(offset), count * QUEUE_ENTRY_BYTES
        path, data = path_of(queue, start), b""
        if self._disk.exists(path):
            file = self._disk.open(path)
            try:
                data = file.pread((offset - start) * QUEUE_ENTRY_BYTES, size)
            finally:
                file.close()
        return data.ljust(size, b"\0")

    def may_have_entries(self, queue: str, offset: int) -> bool:
        """Return False if the file of `offset` has no entries from there on."""
        start = self.start_of(offset)
        file = self._open.get(path_of(queue, start))
        return file.may_have_data((offset - start) * QUEUE_ENTRY_BYTES)

    def write(self, queue: str, offset: int, entries: bytes | memoryview) -> None:
        """Write entries within an existing file. Raises OSError."""
        start = self.start_of(offset)
        path = path_of(queue, start)
        self._open.get(path).pwrite((offset - start) * QUEUE_ENTRY_BYTES, entries)
        self._dirty_paths[path] = None

    def create(self, queue: str, start: int, *, first: bool) -> None:
        """Create a file; with `first`, the queue's only file. Raises OSError."""
        self._dirty_directories[queue] = None
        if first:
            self._disk.makedirs(queue)
            self._dirty_directories[queue.rpartition("/")[0]] = None
            self._dirty_directories[self.directory] = None
        self.fill_up(queue, start)

    def restore(self, queue: str, start: int) -> None:
        """Create a file that is missing, as a hole. Raises OSError."""
        if self._disk.exists(path_of(queue, start)):
            self.fill_up(queue, start)
        else:
            log.error("queue_file_missing queue=%s start=%d", queue, start)
            self.create(queue, start, first=True)

    def fill_up(self, queue: str, start: int) -> None:
        """Extend a sparse file to its size; it may be new, or left half made by a kill."""
        file = self._open.get(path_of(queue, start))
        if file.size_bytes < self._size_bytes:
            file.truncate(self._size_bytes)

    def truncate(self, queue: str, start: int, end: int) -> None:
        """Drop a file's entries from queue offset `end` on."""
        size = (end - start) * QUEUE_ENTRY_BYTES
        if size < self._size_bytes:
            path = path_of(queue, start)
            file = self._open.get(path)
            file.truncate(size)
            file.truncate(self._size_bytes)
            self._dirty_paths[path] = None

    def remove(self, queue: str, start: int) -> None:
        path = path_of(queue, start)
        self._open.forget(path)
        self._dirty_paths.pop(path, None)
        self._disk.remove(path)
        self._dirty_directories[queue] = None

    def take_dirty(self) -> DirtyFiles:
        """Return the files to sync, which count as durable from now on."""
        paths, self._dirty_paths = list(self._dirty_paths), {}
        directories, self._dirty_directories = list(self._dirty_directories), {}
        return DirtyFiles(self._disk, self.directory, paths, directories)

    def start_flush(self) -> FlushFiles:
        """Return the files for a flush in the pool; dirty files count as durable from now on."""
        return FlushFiles(self._disk, self.directory, self.entries_per_file, self.take_dirty())

    def mark_dirty(self, dirty: DirtyFiles) -> None:
        self._dirty_paths |= dict.fromkeys(dirty.paths)
        self._dirty_directories |= dict.fromkeys(dirty.directories)

    def close(self) -> None:
        self._open.close()


def path_of(queue: str, start: int) -> str:
    """Return the path of a queue's file that begins with the entry at `start`."""
    return f"{queue}/{start * QUEUE_ENTRY_BYTES:020d}"


def within_files(
    offset: int, entries: bytes, entries_per_file: int
) -> Iterator[tuple[int, memoryview]]:
    """Split entries from `offset` on at file boundaries; yield offset and part."""
    data = memoryview(entries)
    while data:
        take = (entries_per_file - offset % entries_per_file) * QUEUE_ENTRY_BYTES
        yield offset, data[:take]
        offset += take // QUEUE_ENTRY_BYTES
        data = data[take:]


_HEAD = "RMQQ 2 "
_READ_BYTES_MAX = 64 << 20  # half a million queues


class QueueExtent(NamedTuple):
    """The extent of a queue at a flush."""

    first_file: int
    last_file: int
    end: int
    last_position: int
    first_offset: int
    first_position: int
    queue_id: int
    topic: str


class ManifestHead(NamedTuple):
    """The first line of a manifest."""

    entries_per_file: int = 0
    log_start: int = 0  # below it no queue had a message
    confirmed: int = 0


def line_of(extent: QueueExtent) -> str:
    """Return the queue's line, or "" if its topic has a line feed."""
    a, b, c, d, e, f, queue_id, topic = extent
    return "" if "\n" in topic else f"{a} {b} {c} {d} {e} {f} {queue_id} {topic}\n"


def extent_of(line: str) -> QueueExtent:
    """Read a line without its line feed."""
    *numbers, topic = line.split(" ", 7)
    a, b, c, d, e, f, queue_id = map(int, numbers)
    return QueueExtent(a, b, c, d, e, f, queue_id, topic)


def write_manifest(
    disk: Disk,
    path: str,
    head: ManifestHead,
    extents: Iterable[QueueExtent],
    further: bytes = b"",
) -> None:
    """Replace the manifest by lines of `extents` and `further` lines, durably. Blocking. Raises
    OSError."""
    body = f"{head[0]} {head[1]} {head[2]}\n{''.join(map(line_of, extents))}".encode() + further
    temporary = path + ".new"
    file = disk.open(temporary)
    try:
        file.truncate(0)  # left by a crash
        file.pwrite(0, f"{_HEAD}{crc32c(body):08x}\n".encode() + body)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.rpartition("/")[0])


def read_manifest(disk: Disk, path: str | None) -> tuple[ManifestHead, dict[QueueKey, QueueExtent]]:
    """Return the head and the extents, empty ones without a manifest. Raises OSError."""
    extents: dict[QueueKey, QueueExtent] = {}
    if path is None or not disk.exists(path):
        return ManifestHead(), extents
    file = disk.open(path)
    try:
        data = file.pread(0, min(file.size_bytes, _READ_BYTES_MAX))
    finally:
        file.close()
    start, _, body = data.partition(b"\n")
    if start != f"{_HEAD}{crc32c(body):08x}".encode():
        return ManifestHead(), extents
    head, *lines = body.decode().split("\n")[:-1]
    for extent in map(extent_of, lines):
        extents[extent.topic, extent.queue_id] = extent
    return ManifestHead(*map(int, head.split())), extents
