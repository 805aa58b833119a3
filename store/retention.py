"""Retention: decides which segments to delete. Pure; store.expiry asks it.

Following Apache's broker: segments older than `reserved_hours` are deleted in the hours
`delete_when`, or at any time once the disk is fuller than `disk_ratio_max`. Above
`disk_ratio_force` the oldest are deleted whatever their age. The last segment is never deleted, nor
anything at or above the limit handed in. Unlike there, a segment's age is that of its last record,
not the file's mtime: copying a store to another machine does not make its messages young again.

Ages are judged by the wall clock, which may be wrong. `SteadyClock` compares it with the monotonic
clock; for an hour after a jump nothing is deleted because of its age. Above `disk_ratio_force`,
where age does not matter, the oldest are deleted all the same. A clock that is wrong from the start
on cannot be told from a right one here; in a Raft group a majority has to agree
(dledger.surroundings).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000
CLOCK_JUMP_MS = 5 * 60_000  # more than NTP slews away; next to hours of age, less does not matter
CLOCK_STEADY_MS = HOUR_MS  # for an operator, or NTP, to put a clock right that has jumped


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The retention policy. Names in comments are Apache's."""

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


class SteadyClock:
    """Detects jumps of the wall clock against the monotonic one (both in ms).

    It watches the difference between them since the start, or since the last jump: many small
    steps count as one large one does."""

    __slots__ = ("_ahead_ms", "_jumped_at_ms", "jump_ms")

    def __init__(self, wall_ms: int, clock_ms: int) -> None:
        self.jump_ms = 0  # the last jump; 0: none yet
        self._ahead_ms = wall_ms - clock_ms
        self._jumped_at_ms: int | None = None

    def look(self, wall_ms: int, clock_ms: int) -> int:
        """Return by how many ms the wall clock has jumped: positive forward, negative back, 0 not
        at all. Each jump is reported once. Call it before each decision by age."""
        jump_ms = wall_ms - clock_ms - self._ahead_ms
        if abs(jump_ms) <= CLOCK_JUMP_MS:
            return 0
        self.jump_ms = jump_ms
        self._ahead_ms += jump_ms
        self._jumped_at_ms = clock_ms
        return jump_ms

    def held_ms(self, clock_ms: int) -> int:
        """Return for how many more ms no age may be judged by the wall clock; 0: it may."""
        if self._jumped_at_ms is None:
            return 0
        return max(0, self._jumped_at_ms + CLOCK_STEADY_MS - clock_ms)


@dataclass(frozen=True, slots=True)
class Expired:
    """CommitLog offsets. `before`: whole segments below it are to be deleted now. `by_age`: below
    it they are older than the policy keeps them, whatever the hour and the disk; 0: none is."""

    before: int
    by_age: int


def expired_before(
    segments: Sequence[SegmentAge],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    hour: int,
    disk_used_ratio: float,
    limit: int,
    by_age: bool = True,
) -> int:
    """Return the offset below which whole segments are to be removed; the log's start for none.

    `segments` are oldest first, without gaps; `hour` is the local hour of `now_ms`. Segments that
    reach beyond `limit` (not yet dispatched, durable or replicated) are kept. Without `by_age` no
    age is judged: segments are removed only above `disk_ratio_force`.
    """
    if not segments:
        return 0
    offset = segments[0].start
    forced = disk_used_ratio >= policy.disk_ratio_force
    due = by_age and (hour in policy.delete_when or disk_used_ratio >= policy.disk_ratio_max)
    if not forced and not due:
        return offset
    old_ms = now_ms - policy.reserved_hours * HOUR_MS
    for segment in segments[:-1][: policy.segments_at_once_max]:
        if segment.end > limit or not (forced or segment.newest_ms < old_ms):
            break
        offset = segment.end
    return offset
