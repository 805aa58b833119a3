"""A loop of asyncio that takes no time for standing still, for tests with everybody on one loop.

A busy machine gives a process of tests no turn for seconds. A client then finds that its servers,
who had no turn either, have been silent for longer than it waits for them. So of what passes
between two looks at the clock STEP_S counts at most, and of a wait what it was to be at most: a
loop that nobody keeps from its work has the time that everybody has. `tests/loopclock.py` is the
same for brokers' replicas, which bring their own clock.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

from tests.loopclock import STEP_MS_MAX

STEP_S = STEP_MS_MAX / 1000


class SteadyClock:
    """Seconds; never goes back."""

    def __init__(self, real_s: Callable[[], float] = time.monotonic) -> None:
        self._real_s = real_s
        self._seen_s = self._now_s = real_s()

    def now_s(self) -> float:
        return self._look(STEP_S)

    def waited(self, asked_s: float | None) -> None:
        """After a wait, before which there was a look; None: it was for no certain time."""
        self._look(float("inf") if asked_s is None else asked_s)

    def _look(self, most_s: float) -> float:
        real_s = self._real_s()
        self._now_s += min(real_s - self._seen_s, most_s)
        self._seen_s = real_s
        return self._now_s


class _Selector(selectors.DefaultSelector):
    """Tells the clock how long it was to wait."""

    def __init__(self, clock: SteadyClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._clock.now_s()
        result = super().select(timeout)
        self._clock.waited(timeout)
        return result


class SteadyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = SteadyClock()
        super().__init__(_Selector(self._clock))

    def time(self) -> float:
        return self._clock.now_s()
