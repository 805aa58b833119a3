"""Measures how long writes to the log, or its syncs, delay a message.

Only the time counts in which the thread slept in a call, which is the duration less the time in
which the thread computed or waited for a processor (/proc/thread-self/schedstat). So a starved
machine does not look like a slow disk. That read costs 5 microseconds, so it is done only before
calls that follow a call of SUSPECT_MS within SUSPECT_FOR_MS, and at most every ASK_MS. A call of
SUSPECT_MS without it does not count.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

SUSPECT_MS = 2.0  # a usual write takes 0.01 to 0.1 ms
SUSPECT_FOR_MS = 10_000.0
ASK_MS = 2.0
PERIODS = 4  # that an average goes back
SCHEDSTAT = "/proc/thread-self/schedstat"
_NS_PER_MS = 1e6
_own = threading.local()  # this thread's descriptor of SCHEDSTAT; opening it takes 50 microseconds


def on_processor_ms() -> float | None:
    """Return this thread's time of computing or waiting for a processor; None if unknown."""
    try:
        if not hasattr(_own, "file"):
            _own.file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        run_ns, waited_ns, _ = map(int, os.pread(_own.file, 100, 0).split())
    except (OSError, ValueError):
        return None
    return (run_ns + waited_ns) / _NS_PER_MS or None


class Durations:
    """Measures calls, one at a time."""

    def __init__(
        self,
        clock_ms: Callable[[], float],
        on_processor_ms: Callable[[], float | None] = on_processor_ms,
    ) -> None:
        """`clock_ms` never goes back. With a constant `on_processor_ms`, all call time counts."""
        self._clock_ms = clock_ms
        self._on_processor_ms = on_processor_ms
        self._since_ms = self._started_ms = clock_ms()
        self._under_way = False
        self._busy_ms: float | None = None  # on_processor_ms at the beginning of the call
        self._suspect_until_ms = self._requested_ms = 0.0  # the kernel
        self._count = 0
        self._sum_ms = self._squares = 0.0
        # Length, count, sum and sum of squares of the last periods.
        self._periods: deque[tuple[float, int, float, float]] = deque(maxlen=PERIODS)

    def start(self) -> None:
        self._started_ms = now_ms = self._clock_ms()
        self._under_way = True
        self._busy_ms = None
        if now_ms < self._suspect_until_ms and now_ms - self._requested_ms >= ASK_MS:
            self._requested_ms = now_ms
            self._busy_ms = self._on_processor_ms()

    def end(self) -> None:
        now_ms = self._clock_ms()
        self._under_way = False
        slept_ms = now_ms - self._started_ms
        if slept_ms >= SUSPECT_MS:
            self._suspect_until_ms = now_ms + SUSPECT_FOR_MS
            busy_ms = None if self._busy_ms is None else self._on_processor_ms()
            if self._busy_ms is None or busy_ms is None:
                return
            slept_ms = max(0.0, slept_ms - (busy_ms - self._busy_ms))
        self._count += 1
        self._sum_ms += slept_ms
        self._squares += slept_ms * slept_ms

    def period(self) -> float | None:
        """End a period. Return the average delay of a message over the last periods, in
        milliseconds. A message waits for its own call, and for the call under way at its arrival.
        None without calls."""
        now_ms = self._clock_ms()
        self._periods.append((now_ms - self._since_ms, self._count, self._sum_ms, self._squares))
        self._since_ms, self._count, self._sum_ms, self._squares = now_ms, 0, 0.0, 0.0
        passed_ms, count, total_ms, squares = map(sum, zip(*self._periods, strict=True))
        under_way_ms = now_ms - self._started_ms if self._under_way else 0.0
        if not count:
            return under_way_ms or None
        return max(under_way_ms, total_ms / count + squares / (2 * max(passed_ms, 1.0)))
