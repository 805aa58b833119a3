"""Tells how old the log's segments are, and which of them the retention policy deletes.

store.retention decides; this looks up the facts for it: ages, disk usage and the hour.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from errno import EIO
from functools import partial

from .checkpoint import Checkpoint
from .commitlog.commitlog import CommitLog
from .derived_files import DerivedFiles
from .disk import DiskUsage
from .frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, parse_header
from .log_clock import LogNow
from .record import (
    BLANK,
    HEAD_SIZE_BYTES,
    HEAD_WITH_HOSTS_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    store_timestamp_at,
)
from .retention import Expired, RetentionPolicy, SegmentAge, expired_before


@dataclass(eq=False)
class Expiry:
    """The ages of one log's segments. For one caller (the loop)."""

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
        """Return which segments `policy` deletes (store.retention); `hour` is the local one, and
        looked up if it is not given. Raises OSError."""
        log, ages = self._commitlog, self._ages(now, policy.segments_at_once_max + 2)
        limit = min(self._derived.dispatched_offset, log.durable_offset)
        if self._confirmed is not None:
            limit = min(limit, self._confirmed.fields.confirm_offset)
        hour = time.localtime(now.wall_ms / 1000).tm_hour if hour is None else hour
        decide = partial(expired_before, ages, policy, limit=limit)
        empty, begin = DiskUsage(0, 1), log.min_offset
        old = decide(now=now, hour=policy.due_hour, usage=empty)
        doubted = LogNow(now.wall_ms, now.wall_ms)
        held = decide(now=doubted, hour=policy.due_hour, usage=empty) if now.since_ms else old
        return Expired(
            decide(now=now, hour=hour, usage=usage) if ages else begin,
            old if old > begin else 0,
            max(0, held - old),
        )

    def _ages(self, now: LogNow, count: int) -> list[SegmentAge]:
        """Return the ages of the `count` oldest segments.
        The first record of the next segment that tells its time bounds the age of one's last: what
        is damaged or cannot be read is mended elsewhere, and retention goes on."""
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
        """Return a time in ms at or before which the log's last message was stored, as near as it
        is known without reading all of a segment; 0 if it has none. Raises OSError."""
        times = map(self._first_time, (s.start for s in reversed(self._commitlog.segments())))
        return max(self._derived.newest_ms, next((stamp for stamp in times if stamp >= 0), 0))

    def _first_time(self, segment_start: int) -> int:
        """Return the time in ms of the segment's first frame or record; -1 if it has none, or if
        that is damaged. Raises OSError."""
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
