"""Retention of the log: the segments to delete, and the clock by which messages age.

`expired_before` decides as Apache's broker does. Segments older than `reserved_hours` are deleted
in the hours `delete_when`, or at any time once disk use reaches `filling`. A `forced` policy
deletes the oldest segments of any age once disk use reaches `crowded`; otherwise the disk may fill
up. The last segment and everything at or above the given limit are never deleted. A segment's age
is that of its last record, not the file's mtime as in Apache's broker, so a copied store keeps its
ages. In a Raft group a majority has to agree (dledger.node.peer_info).

A wrong wall clock could make every message look a year old. `LogClock` therefore keeps the log's
own time, which passes only while the store is open. It continues by the monotonic clock from the
time in the checkpoint (store.checkpoint). A wall clock that is ahead of the log's own time by more
than CLOCK_JUMP_MS is *doubted*. While it is doubted,

- older messages age by the log's own time,
- messages stored since (`since_ms`) age by the wall clock that stamped them.

A clock that is a year ahead looks like a group that was off for a year; its messages live as long
as if the store had not been off. The doubt ends when the clocks agree again, when no older message
is left, or when an operator confirms the wall clock (`trust`).

`Expiry` supplies the facts, ages of segments, disk usage and the local hour.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EIO
from functools import partial

from .checkpoint import Checkpoint
from .commitlog.commitlog import CommitLog
from .derived_files import DerivedFiles
from .disk import DiskMark, DiskUsage
from .frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, parse_header
from .record import (
    BLANK,
    HEAD_SIZE_BYTES,
    HEAD_WITH_HOSTS_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    store_timestamp_at,
)

CLOCK_JUMP_MS = 5 * 60_000  # more than NTP slews; a few minutes do not matter for ages of hours


@dataclass(frozen=True, slots=True)
class LogNow:
    """The current time for the ages of a log's messages."""

    wall_ms: int
    own_ms: int  # the log's own time; the wall clock's unless that is doubted
    since_ms: int = 0  # the wall clock's time when the doubt started; 0 without doubt

    def age_ms(self, stored_ms: int) -> int:
        if self.since_ms and stored_ms >= self.since_ms:
            return self.wall_ms - stored_ms
        return min(self.wall_ms, self.own_ms) - stored_ms

    @property
    def lead_ms(self) -> int:
        """The wall clock's lead over the log's time (negative: behind); 0 while they agree."""
        return self.wall_ms - self.own_ms


class LogClock:
    """The clock of a log, in ms. `clock_ms` is monotonic."""

    __slots__ = ("_ahead_ms", "_since_ms")

    def __init__(self, clock_ms: int, own_ms: int, since_ms: int = 0) -> None:
        """`own_ms` and `since_ms` are from the last time the store was open."""
        self._ahead_ms = own_ms - clock_ms
        self._since_ms = since_ms

    def compare(self, wall_ms: int, clock_ms: int, log_start_ms: int = -1) -> LogNow:
        """Compare the clocks, before each decision by age. `log_start_ms` is the store time of the
        oldest message, -1 if unknown."""
        own_ms = clock_ms + self._ahead_ms
        lead_ms = wall_ms - own_ms
        if 0 < self._since_ms <= log_start_ms:
            self.trust(wall_ms, clock_ms)
            return LogNow(wall_ms, wall_ms)
        if lead_ms <= CLOCK_JUMP_MS:
            self._since_ms = 0
            return LogNow(wall_ms, wall_ms if lead_ms >= -CLOCK_JUMP_MS else own_ms)
        self._since_ms = self._since_ms or wall_ms
        return LogNow(wall_ms, own_ms, self._since_ms)

    def trust(self, wall_ms: int, clock_ms: int) -> None:
        self._ahead_ms, self._since_ms = wall_ms - clock_ms, 0


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
    segments_at_once_max: int = 10  # so that a pass does not stall the node

    @property
    def due_hour(self) -> int:
        return min(self.delete_when)


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment and an upper bound of its records' store times."""

    start: int
    end: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Expired:
    """CommitLog offsets. Whole segments below `before` are to be deleted now. Segments below
    `by_age` are older than the policy's limit, at any hour and disk use; 0 if there are none."""

    before: int
    by_age: int
    doubted_bytes: int = 0  # kept, although older by the doubted wall clock


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
    `segments` are oldest first, without gaps; `hour` is the local hour. Segments beyond `limit`
    (not yet dispatched, durable or replicated) are kept."""
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


@dataclass(eq=False)
class Expiry:
    """The ages of a log's segments. For the loop only."""

    _commitlog: CommitLog
    _derived: DerivedFiles
    _confirmed: Checkpoint | None  # in Raft mode nothing above its confirmPhyOffset expires

    def expired(
        self,
        policy: RetentionPolicy,
        now: LogNow,
        usage: DiskUsage,
        hour: int | None = None,
    ) -> Expired:
        """Return the segments to delete; `hour` defaults to the local hour. Raises OSError."""
        log, ages = self._commitlog, self._ages(now, policy.segments_at_once_max + 2)
        limit = min(self._derived.dispatched_offset, log.durable_offset)
        if self._confirmed is not None:
            limit = min(limit, self._confirmed.fields.confirm_offset)
        hour = time.localtime(now.wall_ms / 1000).tm_hour if hour is None else hour
        decide = partial(expired_before, ages, policy, limit=limit)
        empty, log_start = DiskUsage(0, 1), log.min_offset
        old = decide(now=now, hour=policy.due_hour, usage=empty)
        doubted = LogNow(now.wall_ms, now.wall_ms)
        held = decide(now=doubted, hour=policy.due_hour, usage=empty) if now.since_ms else old
        return Expired(
            decide(now=now, hour=hour, usage=usage) if ages else log_start,
            old if old > log_start else 0,
            max(0, held - old),
        )

    def _ages(self, now: LogNow, count: int) -> list[SegmentAge]:
        """Return the ages of the `count` oldest segments. The age of a segment's last record is
        bounded by the first readable time in a later segment. Damaged and unreadable segments are
        repaired elsewhere and do not stop retention."""
        ages: list[SegmentAge] = []
        youngest_ms = max(now.wall_ms, now.own_ms)
        for segment in reversed(self._commitlog.segments()[:count]):
            ages.append(SegmentAge(segment.start, segment.end, youngest_ms))
            try:
                stamp = self._first_time(segment.start)
            except OSError as error:
                if error.errno != EIO:
                    raise
                stamp = -1
            youngest_ms = stamp if stamp >= 0 else youngest_ms
        return ages[::-1]

    def log_start_time(self) -> int:
        """Return the time in ms of the oldest frame or record in the log; -1 if it has none."""
        times = (self._first_time(segment.start) for segment in self._commitlog.segments())
        return next((stamp for stamp in times if stamp >= 0), -1)

    def log_end_time(self) -> int:
        """Return a time in ms at or before the store time of the log's last message, as exact as
        possible without reading a whole segment; 0 for an empty log. Raises OSError."""
        times = map(self._first_time, (s.start for s in reversed(self._commitlog.segments())))
        return max(self._derived.newest_ms, next((stamp for stamp in times if stamp >= 0), 0))

    def _first_time(self, segment_start: int) -> int:
        """Return the time in ms of the segment's first frame or record; -1 if it is missing or
        damaged. Raises OSError."""
        head = self._commitlog.read(segment_start, HEAD_WITH_HOSTS_BYTES)
        if len(head) < HEADER_SIZE_BYTES:
            return -1
        magic = BLANK.unpack_from(head)[1]
        if magic == FRAME_MAGIC:
            try:
                return parse_header(head)[5]
            except FrameError:
                return -1
        if magic in (MAGIC_V1, MAGIC_V2) and len(head) >= HEAD_SIZE_BYTES:
            return store_timestamp_at(head, 0)
        return -1
