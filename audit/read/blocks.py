"""Finds the blocks in which the copies of a log differ."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .live_log import LiveLog
from .log_reader import Content
from .spark_sources import LogReader

BLOCK_BYTES = 1 << 20
FIRST_MAX = 20  # parts that are named
Bytes = npt.NDArray[np.uint8]
Block = tuple[int, dict[str, tuple[int, bytes]]]  # its start; by store, its end and SHA-256


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of different blocks, and the numbers of the first parts with some."""

    count: int = 0
    first: tuple[int, ...] = ()

    def merge(self, behind: Counted) -> Counted:
        return Counted(self.count + behind.count, (*self.first, *behind.first)[:FIRST_MAX])


@dataclass(frozen=True, slots=True)
class DifferentBlocks:
    """Compares the parts of `log` in tasks.

    Each store is compared up to its position in `limits`. Blocks end at multiples of BLOCK_BYTES
    from the part's start, and at each of `cuts`.
    """

    log: LogReader | LiveLog
    limits: Mapping[str, int]
    cuts: Sequence[int]

    def counted(self, numbered: tuple[int, Any]) -> Counted:
        number, part = numbered
        count = len(self.blocks(part))
        return Counted(count, (number,) if count else ())

    def blocks(self, part: Any) -> list[Block]:
        """Return the blocks that differ. Raises ReplicaLost, BackupError, OSError."""
        return self.compared(self.log.contents(part))

    def compared(self, contents: Sequence[Content]) -> list[Block]:
        if not contents:
            return []
        start = contents[0].start
        end = max(start + len(each.data) for each in contents)
        inner = {*range(start, end, BLOCK_BYTES), *self.cuts}
        edges = [start, *sorted(edge for edge in inner if start < edge < end), end]
        blocks = []
        for low, high in itertools.pairwise(edges):
            copies = {}
            for each in contents:
                raw = np.frombuffer(each.data, np.uint8)
                for name in each.names:
                    block_end = min(high, self.limits[name], start + len(raw))
                    if low < block_end:
                        copies[name] = block_end, raw[low - start : block_end - start]
            first, *others = [data for _, data in copies.values()] or [np.empty(0, np.uint8)]
            if not all(np.array_equal(first, data) for data in others):
                digests = {name: _digest(data) for name, (_, data) in copies.items()}
                blocks.append((low, {name: (copies[name][0], digests[name]) for name in copies}))
        return blocks


def _digest(data: Bytes) -> bytes:
    return hashlib.sha256(data.data).digest()
