"""Tells how old the log's segments are, and which of them the retention policy deletes.

store.retention decides; this looks up the facts for it: ages, disk usage and the hour.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from errno import EIO
from functools import partial

from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog import CommitLog
from raftmq.store.derived import DerivedFiles
from raftmq.store.disk import Disk, DiskUsage
from raftmq.store.frame import FRAME_MAGIC, HEADER_SIZE_BYTES, FrameError, parse_header
from raftmq.store.record import (
    BLANK,
    HEAD_SIZE_BYTES,
    HEAD_WITH_HOSTS_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    store_timestamp_at,
)
from raftmq.store.retention import Expired, RetentionPolicy, SegmentAge, expired_before


@dataclass(eq=False)
class Expiry:
    """The ages of one log's segments. For one caller (the loop)."""

    _disk: Disk
    _commitlog: CommitLog
    _derived: DerivedFiles
    _confirmed: Checkpoint | None  # in Raft mode nothing above its confirmPhyOffset expires
    _policy: RetentionPolicy

    def expired(
        self,
        now_ms: int,
        usage: DiskUsage | None = None,
        hour: int | None = None,
        by_age: bool = True,
    ) -> Expired:
        """Return which segments the configured policy deletes (store.retention).

        `usage` is Disk.usage(), `hour` the local hour; both are looked up if not given. Without
        `by_age` the time does not matter, only usage. Raises OSError."""
        usage = self._disk.usage() if usage is None else usage
        log, ages = self._commitlog, self._ages(now_ms)
        limit = min(self._derived.dispatched_offset, log.durable_offset)
        if self._confirmed is not None:
            limit = min(limit, self._confirmed.fields.confirm_offset)
        hour = time.localtime(now_ms / 1000).tm_hour if hour is None else hour
        decide = partial(
            expired_before, ages, self._policy, now_ms=now_ms, limit=limit, by_age=by_age
        )
        old = decide(hour=self.due_hour, disk_used_ratio=0.0)
        return Expired(
            decide(hour=hour, disk_used_ratio=usage.used_ratio) if ages else log.min_offset,
            old if old > log.min_offset else 0,
        )

    @property
    def due_hour(self) -> int:
        """An hour in which the policy deletes what is old."""
        return min(self._policy.delete_when)

    def _ages(self, now_ms: int) -> list[SegmentAge]:
        """Return the ages of as many of the oldest segments as one pass may delete, and one more.
        The first record of the next segment that tells its time bounds the age of one's last: what
        is damaged or cannot be read is mended elsewhere, and retention goes on."""
        ages: list[SegmentAge] = []
        youngest_ms = now_ms
        count = self._policy.segments_at_once_max + 2
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
