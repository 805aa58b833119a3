"""Which segments may go: a decision, pure. MessageStore carries it out.

Following Apache's broker: segments older than `reserved_hours` go in the hours `delete_when`, or
at any time once the disk is fuller than `disk_ratio_max`. Above `disk_ratio_force` the oldest go
whatever their age. The last segment never goes, nor anything at or above the limit handed in.
Unlike there, a segment's age is that of its last record, not the file's mtime: copying a store
to another machine does not make its messages young again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Names in brackets are Apache's."""

    reserved_hours: int = 72  # fileReservedTime
    delete_when: frozenset[int] = frozenset({4})  # deleteWhen: local hours of the day
    disk_ratio_max: float = 0.75  # diskMaxUsedSpaceRatio
    disk_ratio_force: float = 0.85  # diskSpaceCleanForciblyRatio
    segments_at_once_max: int = 10  # so that one pass does not stall the node


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment and an upper bound of its records' store times."""

    start: int
    end: int
    newest_ms: int


def expired_before(
    segments: Sequence[SegmentAge],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    hour: int,
    disk_used_ratio: float,
    limit: int,
) -> int:
    """The offset below which whole segments shall be removed; the log's start for none.

    `segments` oldest first, without gaps; `hour` is the local hour of `now_ms`. Segments that
    reach beyond `limit` (what is not yet dispatched, durable or replicated) are kept.
    """
    if not segments:
        return 0
    offset = segments[0].start
    forced = disk_used_ratio >= policy.disk_ratio_force
    due = hour in policy.delete_when or disk_used_ratio >= policy.disk_ratio_max
    if not forced and not due:
        return offset
    old_ms = now_ms - policy.reserved_hours * HOUR_MS
    for segment in segments[:-1][: policy.segments_at_once_max]:
        if segment.end > limit or not (forced or segment.newest_ms < old_ms):
            break
        offset = segment.end
    return offset
