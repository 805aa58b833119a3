"""Reads the logs of a running group's replicas, each range of whole frames from a single replica.

A task asks a replica for the frames of its window, reads and hashes them, and asks the rest for
their digests of the same bytes. Only bytes with another digest are read as well. Replicas take
turns as the replica that is read, so all of them have equal work.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raftmq.remoting.client import RemotingClient
from raftmq.spark.layout import BLANK_MAGIC, BLANK_SIZE_BYTES

from .files import View
from .live_queues import ExpectedUnits, WrongUnits
from .log_reader import Content, Copy, SharedItems, shared_items
from .replica import Replica, connected
from .store_files import STORES_SEPARATOR

WINDOW_BYTES = 16 << 20
_BLANK = struct.Struct(">ii")  # the bytes to the segment's end, magic


@dataclass(frozen=True, slots=True)
class Window:
    """Log positions [start, end) in a segment. Frames belong to the window in which they start."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LiveLog:
    """The logs of `replicas` from a frame's position `start` on."""

    replicas: Sequence[Replica]
    start: int

    def partitions(self) -> list[Window]:
        segment_bytes = self.replicas[0].segment_size_bytes
        start = max(self.start, min(each.start for each in self.replicas))
        ends = [each.end for each in self.replicas]
        windows = []
        while start < max(ends):
            base = start - start % segment_bytes
            behind = base + (start - base) // WINDOW_BYTES * WINDOW_BYTES + WINDOW_BYTES
            edges = behind, base + segment_bytes, *(end for end in ends if end > start)
            windows.append(Window(start, min(edges)))
            start = windows[-1].end
        return windows

    def parts(self, window: Window) -> Iterator[SharedItems]:
        """Read the equal items of several replicas (audit.read.log_reader.shared_items)."""
        contents = self.contents(window)
        if not contents:
            return
        views = self._segments(contents)
        copies = [
            Copy(STORES_SEPARATOR.join(each.names), View(view, len(each.data)))
            for each, view in zip(contents, views, strict=True)
        ]
        size = max(map(len, views))
        yield from shared_items(copies, contents[0].start, 0, size, stores=len(self.replicas))

    def wrong_units(self, names: Sequence[str], expected: ExpectedUnits) -> WrongUnits:
        """Compare the ConsumeQueues of some replicas. Raises ReplicaLost, BackupError."""
        return expected.compared([each for each in self.replicas if each.name in names])

    def contents(self, window: Window) -> list[Content]:
        """Read the window's frames. Raises ReplicaLost, BackupError."""
        return asyncio.run(self._contents(window))

    async def _contents(self, window: Window) -> list[Content]:
        there = [each for each in self.replicas if each.start <= window.start < each.end]
        reaching = [each for each in there if each.end >= window.end] or there
        if not there:
            return []
        read = reaching[window.start // WINDOW_BYTES % len(reaching)]
        async with connected(read.connection) as client:
            bounds = window.start, min(window.end, read.end)
            start, end = await read.frames_by(client, *bounds)
            ends = {each: min(end, each.end) for each in there if each.end > start}
            if start == end:
                return []
            others = [each for each in ends if each != read]
            data, *digests = await asyncio.gather(
                read.read_by(client, start, end),
                *(each.digest_by(client, start, ends[each]) for each in others),
            )
            return await _grouped(
                client, read, start, data, ends, dict(zip(others, digests, strict=True))
            )

    def _segments(self, contents: Sequence[Content]) -> list[memoryview]:
        """Return the contents as the ends of segments of zeros if a blank record ends them."""
        segment_bytes = self.replicas[0].segment_size_bytes
        left = segment_bytes - contents[0].start % segment_bytes
        blanks = (
            _BLANK.pack(left - len(each.data) + BLANK_SIZE_BYTES, BLANK_MAGIC) for each in contents
        )
        ended = any(each.data.endswith(blank) for each, blank in zip(contents, blanks, strict=True))
        size = left if ended else 0
        return [memoryview(each.data.ljust(size, b"\0")) for each in contents]


async def _grouped(
    client: RemotingClient,
    read: Replica,
    start: int,
    data: bytes,
    ends: Mapping[Replica, int],
    digests: Mapping[Replica, bytes],
) -> list[Content]:
    """Return the different contents, by the names of the replicas that have them."""
    own = {end: hashlib.sha256(data[: end - start]).digest() for end in {*ends.values()}}
    groups: dict[tuple[int, bytes], list[Replica]] = {(ends[read], own[ends[read]]): [read]}
    for replica, digest in digests.items():
        groups.setdefault((ends[replica], digest), []).append(replica)
    contents = []
    for (end, digest), alike in groups.items():
        content = data[: end - start]
        if digest != own[end]:
            content = await alike[0].read_by(client, start, end)
        contents.append(Content(tuple(sorted(each.name for each in alike)), start, content))
    return contents
