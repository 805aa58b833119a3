"""Free space of the store's disk, and its forecast.

A disk is *full* if the used share has reached diskSpaceWarningLevelRatio and fewer than
FULL_FREE_BYTES are free, since the share alone means little on a large disk. Sends are
then rejected or sent to a different replica (broker.leader_fitness). A disk that was full is *short
of room* until its use is well below that mark. This hysteresis keeps leadership from moving back
and forth.

`Forecast` extrapolates the last half hour to the time when the disk will be full. Pure.
"""

from __future__ import annotations

from collections import deque

from raftmq.store.disk import DiskMark, DiskUsage

FULL_FREE_BYTES = 16 << 30
MARGIN_PERCENT = 5  # more than retention removes in one pass of a small disk
MARGIN_FREE = 1.25  # times the free bytes of a full disk
SAMPLE_MS = 30_000
SAMPLES = 60  # half an hour, because allocated segments make steps
SAMPLES_MIN = 10  # five minutes; shorter bursts are no rate
WARN_MS = 6 * 3_600_000  # time for an operator to free space


class DiskRoom:
    """The disk's state at the last check."""

    __slots__ = ("full", "percent", "short")

    def __init__(self) -> None:
        self.full = False
        self.short = False
        self.percent = 0  # used, as df counts it

    def poll(self, usage: DiskUsage, mark: DiskMark) -> None:
        """Apply the current mark, which may change while the broker runs."""
        self.percent = usage.used_percent
        self.full = mark.is_reached(usage)
        roomy = self.percent < mark.percent - MARGIN_PERCENT or (
            0 < mark.free_bytes * MARGIN_FREE <= usage.available_bytes
        )
        self.short = self.full or (self.short and not roomy)


class Forecast:
    """Samples the bytes left before the disk is full."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)  # (ms, bytes)

    def poll(self, room_bytes: int, clock_ms: int) -> None:
        """Add a sample if it is due."""
        if not self._samples or clock_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((clock_ms, room_bytes))

    @property
    def full_in_ms(self) -> int | None:
        """Milliseconds until the disk is full; None if it does not fill, or with few samples."""
        if len(self._samples) < SAMPLES_MIN:
            return None
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        return last * (last_ms - first_ms) // (first - last) if first > last else None

    @property
    def warning(self) -> str:
        """The forecast as text if the disk is full soon, else ""."""
        full_in_ms = self.full_in_ms
        if full_in_ms is None or full_in_ms >= WARN_MS:
            return ""
        minutes = full_in_ms // 60_000
        return f"the disk is full in {minutes // 60} h {minutes % 60} min at this rate"
