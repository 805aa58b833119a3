"""The extents of deleted topics' queues, compressed.

A deleted topic's queue continues its offsets if the topic is created again, so its end must stay
known. As a ConsumeQueue it takes 600 bytes of memory, here some 20. The extents are the lines of a
manifest (store.consumequeue.queue_files), in buckets by topic.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from .queue_files import QueueExtent, extent_of, line_of

BUCKETS = 1024


class QueueArchive:
    def __init__(self) -> None:
        self._buckets = [b""] * BUCKETS
        self.size = 0
        self._absent = ""  # the last topic looked up in vain; often all of its queues are

    def add(self, extent: QueueExtent) -> None:
        self._absent = ""
        self.size += 1
        at = _bucket_of(extent.topic)
        lines = _unpacked(self._buckets[at]) + line_of(extent).encode()
        self._buckets[at] = zlib.compress(lines)

    def of_topic(self, topic: str) -> list[QueueExtent]:
        if topic == self._absent:
            return []
        bucket = self._buckets[_bucket_of(topic)]
        if not bucket or f" {topic}\n".encode() not in (lines := _unpacked(bucket)):
            self._absent = topic
            return []
        return [extent for extent in _extents(lines) if extent.topic == topic]

    def take(self, topic: str) -> list[QueueExtent]:
        """Remove and return the extents of a topic."""
        taken = self.of_topic(topic)
        if taken:
            self.size -= len(taken)
            at = _bucket_of(topic)
            kept = [one for one in _extents(_unpacked(self._buckets[at])) if one.topic != topic]
            lines = "".join(map(line_of, kept)).encode()
            self._buckets[at] = zlib.compress(lines) if lines else b""
        return taken

    def packed(self) -> list[bytes]:
        """Return the lines of all extents in pieces, for `unpacked` in the pool."""
        return [bucket for bucket in self._buckets if bucket]

    def __iter__(self) -> Iterator[QueueExtent]:
        for bucket in self.packed():
            yield from _extents(_unpacked(bucket))


def unpacked(buckets: list[bytes]) -> bytes:
    """Return the manifest's lines."""
    return b"".join(map(_unpacked, buckets))


def _bucket_of(topic: str) -> int:
    return zlib.crc32(topic.encode()) % BUCKETS


def _unpacked(bucket: bytes) -> bytes:
    return zlib.decompress(bucket) if bucket else b""


def _extents(lines: bytes) -> Iterator[QueueExtent]:
    return map(extent_of, lines.decode().split("\n")[:-1])
