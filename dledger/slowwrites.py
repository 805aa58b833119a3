"""Tells whether writes to this replica's log are slow: a disk that is saturated or throttled lets
them wait, and a leader whose writes wait answers nobody meanwhile.

Time counts that the writing thread slept in a write: the duration, less what the thread computed
and less what it waited for a processor, as the kernel counts both (/proc/thread-self/schedstat;
where that cannot be had, no write is slow). So a starved machine does not look like a slow disk.
The kernel is asked only after a write that took SLOW_MS; that one is not counted itself.

Slow is a disk at which writes slept SHARE of WINDOW_MS, at least COUNT_MIN of them. It stays so
until writes have been fast for REST_MS, also because they became few: leadership is not to go to
and fro.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SLOW_MS = 20.0  # a usual write takes 0.01 to 0.1 ms
SHARE = 0.3
WINDOW_MS = 10_000.0
COUNT_MIN = 3  # one that hangs once says little
REST_MS = 60_000.0
SCHEDSTAT = "/proc/thread-self/schedstat"
_NS_PER_MS = 1e6


def on_processor_ms() -> float | None:
    """Return for how long this thread has computed or waited for a processor; None if the kernel
    does not tell."""
    try:
        with open(SCHEDSTAT, "rb") as file:
            run_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return (run_ns + waited_ns) / _NS_PER_MS or None


class SlowWrites:
    """Watches the writes of one thread."""

    def __init__(
        self,
        clock_ms: Callable[[], float],
        on_processor_ms: Callable[[], float | None] = on_processor_ms,
    ) -> None:
        """`clock_ms` never goes back."""
        self._clock_ms = clock_ms
        self._on_processor_ms = on_processor_ms
        self._begun_ms = 0.0
        self._busy_ms: float | None = None  # on_processor_ms, when the write under way began
        self._suspect_until_ms = 0.0  # the kernel is asked about each write
        self._slept: deque[tuple[float, float]] = deque()  # (end, ms) of the slow ones of a window
        self._slow_until_ms = 0.0

    def begin(self) -> None:
        """Note that a write begins."""
        self._begun_ms = now_ms = self._clock_ms()
        self._busy_ms = self._on_processor_ms() if now_ms < self._suspect_until_ms else None

    def end(self) -> None:
        """Note that it has ended."""
        now_ms = self._clock_ms()
        took_ms = now_ms - self._begun_ms
        if took_ms < SLOW_MS:
            return
        self._suspect_until_ms = now_ms + WINDOW_MS
        if self._busy_ms is None or (busy_ms := self._on_processor_ms()) is None:
            return
        slept_ms = took_ms - (busy_ms - self._busy_ms)
        if slept_ms < SLOW_MS:
            return
        slept = self._slept
        slept.append((now_ms, slept_ms))
        while slept[0][0] <= now_ms - WINDOW_MS:
            slept.popleft()
        if len(slept) >= COUNT_MIN and sum(ms for _, ms in slept) >= SHARE * WINDOW_MS:
            self._slow_until_ms = now_ms + REST_MS

    @property
    def are_slow(self) -> bool:
        """True while a replica with a better disk should lead."""
        return self._clock_ms() < self._slow_until_ms
