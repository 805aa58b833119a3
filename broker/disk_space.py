"""Decides whether the store's disk has room for messages, and for how long. Pure.

*Full*: sends are refused, or taken by another replica (broker.leader_fitness). A disk is full if
 the used share has reached diskSpaceWarningLevelRatio, unless at least diskSpaceWarningFreeBytes
 are free: on a large disk the share alone means little. *Short of room*: the disk has been full,
 and its use is not well below that mark yet. A disk whose use goes up and down around the mark is
 short of room all the time, so that leadership does not move to and fro because of it.

`Forecast` computes from the rate of the last half hour when the disk will be full.
"""

from __future__ import annotations

from collections import deque

from raftmq.store.disk import DiskMark, DiskUsage

MARGIN_PERCENT = 5  # more than the segments that retention removes in one pass of a small disk
MARGIN_FREE = 1.25  # times the free bytes below which it is full
SAMPLE_MS = 30_000
SAMPLES = 60  # half an hour, because segments are allocated at once and make steps
SAMPLES_MIN = 10  # five minutes; a shorter burst is no rate
WARN_MS = 6 * 3_600_000  # time for an operator to make room


class DiskRoom:
    """The room on the disk as it was last looked at."""

    __slots__ = ("full", "percent", "short")

    def __init__(self) -> None:
        self.full = False
        self.short = False
        self.percent = 0  # used, as df counts it

    def look(self, usage: DiskUsage, mark: DiskMark) -> None:
        """Judge the disk by the current mark, which may be changed while the broker runs."""
        self.percent = usage.used_percent
        self.full = mark.is_reached(usage)
        roomy = self.percent < mark.percent - MARGIN_PERCENT or (
            0 < mark.free_bytes * MARGIN_FREE <= usage.available_bytes
        )
        self.short = self.full or (self.short and not roomy)


class Forecast:
    """Samples the room that is left before the disk is full."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)  # (ms, bytes)

    def look(self, room_bytes: int, clock_ms: int) -> None:
        """Take a sample, if it is time."""
        if not self._samples or clock_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((clock_ms, room_bytes))

    @property
    def full_in_ms(self) -> int | None:
        """In how many ms the disk is full at the rate of the last samples; None if it does not
        fill, or there are too few samples."""
        if len(self._samples) < SAMPLES_MIN:
            return None
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        return last * (last_ms - first_ms) // (first - last) if first > last else None

    @property
    def warning(self) -> str:
        """The forecast in words if the disk is full soon, else ""."""
        full_in_ms = self.full_in_ms
        if full_in_ms is None or full_in_ms >= WARN_MS:
            return ""
        minutes = full_in_ms // 60_000
        return f"the disk is full in {minutes // 60} h {minutes % 60} min at this rate"
