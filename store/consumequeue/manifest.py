"""The manifest of the ConsumeQueues: which files there are, and how far each queue goes.

A queue's own files cannot tell that one of them is gone, or that their last units are. So each
flush notes, in one small file that is replaced as a whole:

    RMQQ 1 <CRC-32C of what follows, hex>
    <first file's first unit> <last file's> <end> <CommitLog offset of the last unit> <id> <topic>
    …                                                          one line a queue, LF, UTF-8

It is a lower bound: after a start, a queue that has fewer files or units than noted is damaged,
unless its last noted unit pointed at or above the confirmed offset (then it was rightly dropped).
A manifest that is missing or damaged is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from google_crc32c import value as crc32c

from ..disk import Disk

_HEAD = "RMQQ 1 "
_READ_BYTES_MAX = 64 << 20  # half a million queues


class QueueExtent(NamedTuple):
    """One queue as it was at a flush."""

    first_file: int
    last_file: int
    end: int
    last_position: int
    queue_id: int
    topic: str


def write_manifest(disk: Disk, path: str, extents: Iterable[QueueExtent]) -> None:
    """Replace the manifest, durably. Blocking. Raises OSError."""
    lines = [f"{a} {b} {c} {d} {e} {topic}\n" for a, b, c, d, e, topic in extents]
    body = "".join([line for line in lines if line.count("\n") == 1]).encode()
    beside = path + ".new"
    file = disk.open(beside)
    try:
        file.truncate(0)  # left by a crash
        file.pwrite(0, f"{_HEAD}{crc32c(body):08x}\n".encode() + body)
        file.sync()
    finally:
        file.close()
    disk.rename(beside, path)
    disk.sync_directory(path.rpartition("/")[0])


def read_manifest(disk: Disk, path: str) -> dict[tuple[str, int], QueueExtent]:
    """Return the extents by topic and queue id; empty if the manifest is missing or damaged. Raises
    OSError."""
    if not disk.exists(path):
        return {}
    file = disk.open(path)
    try:
        data = file.pread(0, min(file.size_bytes, _READ_BYTES_MAX))
    finally:
        file.close()
    head, _, body = data.partition(b"\n")
    if head != f"{_HEAD}{crc32c(body):08x}".encode():
        return {}
    extents = {}
    for line in body.decode().split("\n")[:-1]:
        first, last, end, position, queue_id, topic = line.split(" ", 5)
        extent = QueueExtent(int(first), int(last), int(end), int(position), int(queue_id), topic)
        extents[topic, extent.queue_id] = extent
    return extents
