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
from .store_files import without

BLOCK_BYTES = 1 << 20
Bytes = npt.NDArray[np.uint8]
Block = tuple[int, dict[str, tuple[int, bytes]]]  # its start; by store, its end and SHA-256


@dataclass(frozen=True, slots=True)
class DifferentBlocks:
    """Compares the parts of `log` in tasks.

    Each store is compared up to its position in `limits`, without the sorted `skipped` ranges of
    garbage. Blocks end at multiples of BLOCK_BYTES from the part's start, and at each of `cuts`.
    """

    log: LogReader | LiveLog
    limits: Mapping[str, int]
    skipped: Mapping[str, Sequence[tuple[int, int]]]
    cuts: Sequence[int]

    def count(self, part: Any) -> int:
        return len(self.blocks(part))

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
                        parts = without(low, block_end, self.skipped.get(name, ()))
                        copies[name] = block_end, [raw[a - start : b - start] for a, b in parts]
            (first_end, first), *_ = [*copies.values(), (0, [])]
            if all(e == first_end and _same(parts, first) for e, parts in copies.values()):
                continue
            block = {name: (e, _digest(parts)) for name, (e, parts) in copies.items()}
            if len({*block.values()}) > 1:
                blocks.append((low, block))
        return blocks


def _same(parts: Sequence[Bytes], others: Sequence[Bytes]) -> bool:
    """Return whether byte ranges are equal; copies with different ranges need hashes."""
    return len(parts) == len(others) and all(map(np.array_equal, parts, others))


def _digest(parts: Sequence[Bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.digest()
