"""Counts messages: totals since the start and since midnight, and recent rates.

Names follow Apache's runtime info, whose totals also begin with the process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

SAMPLE_MS = 10_000
SAMPLES_MAX = 61  # ten minutes and the sample before them
WINDOWS_MS = (10_000, 60_000, 600_000)


class Rates:
    """The rates of one running total. `sample` is called about every SAMPLE_MS."""

    def __init__(self, now_ms: int, day: int) -> None:
        """`day` is any number that changes at local midnight."""
        self._samples: deque[tuple[int, int]] = deque([(now_ms, 0)], SAMPLES_MAX)
        self._day = day
        self.at_midnight = 0  # the total when today began
        self.at_midnight_before = 0

    def sample(self, now_ms: int, total: int, day: int) -> None:
        self._samples.append((now_ms, total))
        if day != self._day:
            self._day = day
            self.at_midnight_before, self.at_midnight = self.at_midnight, total

    def text(self, now_ms: int, total: int) -> str:
        """Return messages a second over 10 s, one minute and ten, as Apache writes them."""
        return " ".join(str(self._over(window, now_ms, total)) for window in WINDOWS_MS)

    def _over(self, window_ms: int, now_ms: int, total: int) -> float:
        """Return the rate since the latest sample at least `window_ms` old, or the oldest."""
        since_ms, before = self._samples[0]
        for sampled_ms, sampled in self._samples:
            if sampled_ms > now_ms - window_ms:
                break
            since_ms, before = sampled_ms, sampled
        return (total - before) * 1000 / max(1, now_ms - since_ms)


class Throughput:
    """The rates of messages stored and pulled; one per broker."""

    def __init__(self, clock_ms: Callable[[], int], wall_ms: Callable[[], int],
                 put_count: Callable[[], int], get_count: Callable[[], int]) -> None:  # fmt: skip
        """`put_count()` and `get_count()` are the totals since the process began."""
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._put_count = put_count
        self._get_count = get_count
        self.put = Rates(clock_ms(), self._today())
        self.get = Rates(clock_ms(), self._today())

    def sample(self) -> None:
        """Note the totals; a chore, every SAMPLE_MS."""
        now_ms, today = self._clock_ms(), self._today()
        self.put.sample(now_ms, self._put_count(), today)
        self.get.sample(now_ms, self._get_count(), today)

    def put_text(self) -> str:
        return self.put.text(self._clock_ms(), self._put_count())

    def get_text(self) -> str:
        return self.get.text(self._clock_ms(), self._get_count())

    def _today(self) -> int:
        return time.localtime(self._wall_ms() / 1000).tm_yday
