"""Retention: decides which segments to delete. Pure; store.expiry asks it.

Following Apache's broker: segments older than `reserved_hours` are deleted in the hours
`delete_when`, or at any time once the disk is at the mark `filling`. What has not expired is kept,
however full the disk is, unless the policy is `forced`: then the oldest are deleted whatever their
age from the mark `crowded` on. The last segment is never deleted, nor anything at or above the
limit handed in. Unlike there, a segment's age is that of its last record, not the file's mtime:
copying a store to another machine does not make its messages young again. Which clock ages are
judged by, and when not by the wall clock, is in store.log_clock; in a Raft group a majority has to
agree, too (dledger.node.peer_info).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .disk import DiskMark, DiskUsage
from .log_clock import LogNow

HOUR_MS = 3_600_000
FILLING, CROWDED = DiskMark(75), DiskMark(85)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The retention policy. Names in comments are Apache's."""

    reserved_hours: int = 72  # fileReservedTime
    delete_when: frozenset[int] = frozenset({4})  # deleteWhen: local hours of the day
    filling: DiskMark = FILLING  # diskMaxUsedSpaceRatio
    crowded: DiskMark = CROWDED  # diskSpaceCleanForciblyRatio
    forced: bool = False  # cleanFileForciblyEnable
    segments_at_once_max: int = 10  # so that one pass does not stall the node

    @property
    def due_hour(self) -> int:
        """An hour in which it deletes what is old."""
        return min(self.delete_when)


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment and an upper bound of its records' store times."""

    start: int
    end: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Expired:
    """CommitLog offsets. `before`: whole segments below it are to be deleted now. `by_age`: below
    it they are older than the policy keeps them, whatever the hour and the disk; 0: none is."""

    before: int
    by_age: int
    doubted_bytes: int = 0  # kept, though they are older by a wall clock that is doubted


def expired_before(
    segments: Sequence[SegmentAge],
    policy: RetentionPolicy,
    *,
    now: LogNow,
    hour: int,
    usage: DiskUsage,
    limit: int,
) -> int:
    """Return the offset below which whole segments are to be removed; the log's start for none.

    `segments` are oldest first, without gaps; `hour` is the local hour. Segments that reach beyond
    `limit` (not yet dispatched, durable or replicated) are kept.
    """
    if not segments:
        return 0
    offset = segments[0].start
    forced = policy.forced and policy.crowded.is_reached(usage)
    if not (forced or hour in policy.delete_when or policy.filling.is_reached(usage)):
        return offset
    reserved_ms = policy.reserved_hours * HOUR_MS
    for segment in segments[:-1][: policy.segments_at_once_max]:
        if segment.end > limit or not (forced or now.age_ms(segment.newest_ms) > reserved_ms):
            break
        offset = segment.end
    return offset
