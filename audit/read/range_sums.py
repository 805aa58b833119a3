"""Sums of hashes by range of the log, which are equal only if units and records are.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

RANGE_BYTES_MIN = 16 << 20
RANGES_MAX = 1024  # of a log of any length, because the driver has the sums of all ranges
# Odd 64-bit multipliers for the fields of a hash.
_FACTORS = np.random.Generator(np.random.PCG64(2)).integers(0, 1 << 63, 8, np.uint64) * np.uint64(
    2
) + np.uint64(1)
Array = npt.NDArray[Any]
Sums = Mapping[int, tuple[int, int]]  # by range of the log, a count and a sum of hashes
StoreSums = Mapping[tuple[str, ...], Sums]  # by stores with equal content


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of `size_bytes` of a log with positions [start, end). Positions elsewhere are in
    the range before `first` or behind `last`."""

    first: int
    last: int
    size_bytes: int

    @classmethod
    def of(cls, start: int, end: int) -> Ranges:
        """Return at most RANGES_MAX ranges, and the ends of two more."""
        doublings = ((end - start - 1) // (RANGE_BYTES_MIN * RANGES_MAX)).bit_length()
        size_bytes = RANGE_BYTES_MIN << doublings
        return cls(start // size_bytes, (end - 1) // size_bytes, size_bytes)

    def of_positions(self, positions: Array) -> Array:
        numbers: Array = np.clip(positions // self.size_bytes, self.first - 1, self.last + 1)
        return numbers


def unit_hashes(topics: Array, *fields: Array) -> Array:
    """Return a hash of each unit from its topic's hash and its integer `fields`."""
    mixed = topics.astype(np.uint64)
    for field, factor in zip(fields, _FACTORS, strict=False):
        mixed += field.astype(np.int64).view(np.uint64) * factor
    mixed ^= mixed >> np.uint64(32)
    mixed *= _FACTORS[-1]
    mixed ^= mixed >> np.uint64(29)
    return mixed


def sums(parts: Array, hashes: Array) -> dict[int, tuple[int, int]]:
    """Return the number of hashes and their sum by range of the log, of which `parts` has the
    numbers."""
    if not len(parts):
        return {}
    if (parts[1:] < parts[:-1]).any():  # only after damage
        order = np.argsort(parts, kind="stable")
        parts, hashes = parts[order], hashes[order]
    firsts = np.flatnonzero(np.append(True, parts[1:] != parts[:-1]))
    counts = np.diff(np.append(firsts, len(parts)))
    totals = np.add.reduceat(hashes.astype(np.int64, copy=False).view(np.uint64), firsts)
    rows = zip(parts[firsts].tolist(), counts.tolist(), totals.tolist(), strict=True)
    return {number: (count, added) for number, count, added in rows}


def total(parts: Iterable[Sums]) -> dict[int, tuple[int, int]]:
    sums_: dict[int, tuple[int, int]] = {}
    for addend in parts:
        for number, (count, added) in addend.items():
            before = sums_.get(number, (0, 0))
            sums_[number] = before[0] + count, (before[1] + added) % (1 << 64)
    return sums_


def added(left: StoreSums, right: StoreSums) -> StoreSums:
    return {
        stores: total((left.get(stores, {}), right.get(stores, {}))) for stores in {**left, **right}
    }


def by_store(parts: StoreSums) -> dict[str, dict[int, tuple[int, int]]]:
    sums_of_store: dict[str, list[Sums]] = {}
    for stores, sums_ in parts.items():
        for store in stores:
            sums_of_store.setdefault(store, []).append(sums_)
    return {store: total(of_store) for store, of_store in sums_of_store.items()}


def unlike(left: Sums, right: Sums) -> Iterator[int]:
    for number in sorted({*left, *right}):
        if left.get(number) != right.get(number):
            yield number


def text_hash(text: str) -> int:
    data = text.encode()
    return crc32(data) << 32 | crc32(data[::-1])
