"""A monotonic clock for replicas that share one loop: a loop that stands still takes no time.

On a busy machine a process of tests can stand still for longer than an election time-out. Servers
of their own processes would go on meanwhile; those of one loop all wake at once, and each would
find its leader, or its followers, silent, though nobody could have said a word. So a stretch
between two looks counts at most STEP_MS_MAX. Time-outs stay what they are while the loop runs: the
clock looks by itself, because replicas at rest do not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_MS_MAX = 25.0  # a heartbeat's answer takes some turns of the loop
LOOK_S = 0.01


class LoopClock:
    """Milliseconds; never goes back. One for all that share the loop."""

    def __init__(self, real_s: Callable[[], float] = time.monotonic) -> None:
        self._real_s = real_s
        self._seen_ms = self._now_ms = real_s() * 1000

    def run(self) -> None:
        """Look every LOOK_S from now on, for as long as the loop runs."""
        self.now_ms()
        asyncio.get_running_loop().call_later(LOOK_S, self.run)

    def now_ms(self) -> float:
        real_ms = self._real_s() * 1000
        self._now_ms += min(real_ms - self._seen_ms, STEP_MS_MAX)
        self._seen_ms = real_ms
        return self._now_ms

    def skip(self, ms: float) -> None:
        """So much time passes at once: for what is over only when a test says so."""
        self._now_ms += ms

    def whole_ms(self) -> int:
        """As brokers count."""
        return int(self.now_ms())
