"""Decides whether the store's disk has room for messages. Pure.

*Full*: sends are refused, or taken by another replica (broker.relief). A disk is full if the used
share has reached diskSpaceWarningLevelRatio, unless at least diskSpaceWarningFreeBytes are free: on
a large disk the share alone means little. *Short of room*: the disk has been full, and its use is
not well below that mark yet. A disk whose use goes up and down around the mark is short of room all
the time, so that leadership does not move to and fro because of it.
"""

from __future__ import annotations

from raftmq.store.disk import DiskUsage

MARGIN_PERCENT = 5  # more than the segments that retention removes in one pass of a small disk
MARGIN_FREE = 1.25  # times the free bytes below which it is full


class DiskRoom:
    """The room on the disk as it was last looked at."""

    __slots__ = ("full", "percent", "short")

    def __init__(self) -> None:
        self.full = False
        self.short = False
        self.percent = 0  # used, as df counts it

    def look(self, usage: DiskUsage, percent_max: int, free_bytes_min: int) -> None:
        """Judge the disk by the current limits, which may be changed while the broker runs.
        `free_bytes_min` 0: the percentage alone decides."""
        self.percent = usage.used_percent
        available = usage.available_bytes
        self.full = self.percent >= percent_max and (
            not free_bytes_min or available < free_bytes_min
        )
        roomy = self.percent < percent_max - MARGIN_PERCENT or (
            0 < free_bytes_min * MARGIN_FREE <= available
        )
        self.short = self.full or (self.short and not roomy)
