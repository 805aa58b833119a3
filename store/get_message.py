"""Selection of the messages of a pull, and the reads of the CommitLog for them.

A batch ends at the requested count or bytes, at the smaller limits if its first message is cold, or
when a filter has read enough entries. The first message always fits. Pure, without I/O.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, compress, pairwise
from operator import add
from typing import NamedTuple

from .dispatch import QUEUE_ENTRY_BYTES

SCAN_BYTES_MIN = 16_000  # of the ConsumeQueue, read while filtering
GAP_BYTES_MAX = 4096  # reading across such a gap costs less than a second read
SPAN_BYTES_MAX = 1 << 20


class GetStatus(Enum):
    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch. Hot data is at or above offset `hot_from`, cold data below."""

    count_max: int
    bytes_max: int
    cold_count_max: int
    cold_bytes_max: int
    hot_from: int


def offset_status(offset: int, minimum: int, maximum: int) -> tuple[GetStatus, int] | None:
    """Return (status, next offset) for an offset without a message; None if unsure."""
    if maximum == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < minimum:
        return GetStatus.OFFSET_TOO_SMALL, minimum
    if offset == maximum:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > maximum:
        return GetStatus.OFFSET_OVERFLOW_BADLY, maximum
    return None


def scan_count(count_max: int) -> int:
    return max(SCAN_BYTES_MIN // QUEUE_ENTRY_BYTES, count_max)


class Selected(NamedTuple):
    """The chosen messages as parallel CommitLog offsets, sizes in bytes and queue offsets.
    `scanned` counts the entries read for them."""

    positions: list[int]
    sizes: list[int]
    offsets: Sequence[int]
    scanned: int

    def from_position(self, first: int) -> Selected:
        """Return the messages at or behind CommitLog offset `first`."""
        kept = [at >= first for at in self.positions]
        return Selected(
            list(compress(self.positions, kept)),
            list(compress(self.sizes, kept)),
            list(compress(self.offsets, kept)),
            self.scanned,
        )

    def first(self, count: int) -> Selected:
        return Selected(
            self.positions[:count], self.sizes[:count], self.offsets[:count], self.scanned
        )


def select(entries: bytes, offset: int, limits: Limits, tag_codes: Set[int] | None) -> Selected:
    """Choose among entries from queue offset `offset`; all with `tag_codes` None."""
    scanned = len(entries) // QUEUE_ENTRY_BYTES
    # A single call, since a call per entry takes three times as long. numpy is faster from 300
    # entries on, and slower below.
    fields = struct.unpack(f">{'qiq' * scanned}", entries)
    positions, sizes = list(fields[::3]), list(fields[1::3])
    offsets: Sequence[int] = range(offset, offset + scanned)
    if tag_codes is not None:
        matching = [code in tag_codes for code in fields[2::3]]
        positions, sizes = list(compress(positions, matching)), list(compress(sizes, matching))
        offsets = list(compress(offsets, matching))
    if positions:
        count_max, bytes_max = limits.count_max, limits.bytes_max
        if positions[0] < limits.hot_from:
            count_max = min(count_max, limits.cold_count_max)
            bytes_max = min(bytes_max, limits.cold_bytes_max)
        taken = max(1, min(count_max, bisect_right(list(accumulate(sizes)), bytes_max)))
        if taken < len(positions):
            scanned = offsets[taken] - offset
            positions, sizes, offsets = positions[:taken], sizes[:taken], offsets[:taken]
    return Selected(positions, sizes, offsets, scanned)


class Span(NamedTuple):
    """A read of the CommitLog with `length` bytes at `start`, for the chosen messages from number
    `first` on. `pieces` has the start and end of the messages in it; adjacent messages share a
    piece."""

    start: int
    length: int
    first: int
    pieces: list[tuple[int, int]]


def spans(chosen: Selected, segment_size_bytes: int, first_segment: int) -> list[Span]:
    """Return the reads that fetch the chosen records, each within a segment. Neighbours are read
    together across small gaps, such as unrelated records or a frame header."""
    positions = chosen.positions
    ends = list(map(add, positions, chosen.sizes))
    start, last_end = positions[0], ends[-1]
    segment = (start - first_segment) // segment_size_bytes
    is_one = segment == (last_end - 1 - first_segment) // segment_size_bytes
    following = positions[1:]
    if is_one and following == ends[:-1]:
        return [Span(start, last_end - start, 0, [(start, last_end)])]
    breaks = [
        number
        for number, (position, end) in enumerate(zip(following, ends, strict=False), 1)
        if position != end or (not is_one and not (position - first_segment) % segment_size_bytes)
    ]
    result: list[Span] = []
    reached = segment_end = -1
    for first, stop in pairwise([0, *breaks, len(positions)]):
        start, end = positions[first], ends[stop - 1]
        before = result[-1] if result else None
        if (
            before is not None
            and 0 <= start - reached <= GAP_BYTES_MAX
            and end - before.start <= SPAN_BYTES_MAX
            and start < segment_end
        ):
            before.pieces.append((start, end))
            result[-1] = before._replace(length=end - before.start)
        else:
            result.append(Span(start, end - start, first, [(start, end)]))
            number = (start - first_segment) // segment_size_bytes
            segment_end = first_segment + (number + 1) * segment_size_bytes
        reached = end
    return result
