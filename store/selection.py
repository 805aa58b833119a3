"""Decides which messages a pull gets, and how the CommitLog is read for them. Pure.

A batch ends at the count or the bytes asked for, at the smaller limits for cold data, or when a
filter has read enough units. The first message always fits.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

from raftmq.store.dispatch import UNIT, UNIT_SIZE_BYTES

SCAN_BYTES_MIN = 16_000  # of the ConsumeQueue, read while filtering
GAP_BYTES_MAX = 4096  # reading over a gap this long costs less than another read
SPAN_BYTES_MAX = 1 << 20


class GetStatus(Enum):
    """Apache's GetMessageStatus."""

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
    """The limits of one batch. Hot data lies at or above offset `hot_from`, cold data below."""

    count_max: int
    bytes_max: int
    cold_count_max: int
    cold_bytes_max: int
    hot_from: int


def offset_status(offset: int, minimum: int, maximum: int) -> tuple[GetStatus, int] | None:
    """Return (status, next offset) of an offset that names no message; None if it may name one."""
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
    """Return how many units one pull may read."""
    return max(SCAN_BYTES_MIN // UNIT_SIZE_BYTES, count_max)


def select(
    units: bytes, limits: Limits, tag_codes: Set[int] | None
) -> tuple[list[tuple[int, int]], int]:
    """Return (CommitLog offset and size of each chosen message, number of units read). With
    `tag_codes` None every message is chosen."""
    chosen: list[tuple[int, int]] = []
    total = looked_at = 0
    for position, size, code in UNIT.iter_unpack(units):
        if tag_codes is None or code in tag_codes:
            if chosen:
                hot = position >= limits.hot_from
                count_max = (
                    limits.count_max if hot else min(limits.count_max, limits.cold_count_max)
                )
                bytes_max = (
                    limits.bytes_max if hot else min(limits.bytes_max, limits.cold_bytes_max)
                )
                if len(chosen) >= count_max or total + size > bytes_max:
                    break
            chosen.append((position, size))
            total += size
        looked_at += 1
    return chosen, looked_at


def spans(
    chosen: list[tuple[int, int]], segment_size_bytes: int, first_segment: int
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return the reads that fetch the chosen records: (offset, size, records), each within one
    segment.

    Neighbours are read together if little else lies between them: the other queues' records of
    the same frame, the next frame's header.
    """
    found: list[tuple[int, int, list[tuple[int, int]]]] = []
    start, end, records = chosen[0][0], sum(chosen[0]), [chosen[0]]
    segment = (start - first_segment) // segment_size_bytes
    for record in chosen[1:]:
        position, size = record
        if (
            0 <= position - end <= GAP_BYTES_MAX
            and position + size - start <= SPAN_BYTES_MAX
            and (position - first_segment) // segment_size_bytes == segment
        ):
            records.append(record)
        else:
            found.append((start, end - start, records))
            start, records = position, [record]
            segment = (start - first_segment) // segment_size_bytes
        end = position + size
    found.append((start, end - start, records))
    return found


def cut_records(data: bytes, start: int, records: list[tuple[int, int]]) -> list[bytes]:
    """Cut the records out of one read; adjacent ones stay in one piece."""
    pieces: list[bytes] = []
    run_start = run_end = records[0][0] - start
    for position, size in records:
        if position - start != run_end:
            pieces.append(data[run_start:run_end])
            run_start = position - start
        run_end = position - start + size
    if run_start == 0 and run_end == len(data):
        return [data]
    pieces.append(data[run_start:run_end])
    return pieces
