"""A timer of the loop that can be set to ring earlier."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

SOON_MS = 1  # not 0, so that the loop reads arrived data first


class Alarm:
    """Calls a function. Nothing rings before `start` or after `stop`.

    `due_s` is the loop's time at which it rings: 0 for at once, infinite while it is not set."""

    __slots__ = ("_ring", "_timer", "due_s")

    def __init__(self) -> None:
        self._ring: Callable[[], None] | None = None
        self._timer: asyncio.Handle | None = None
        self.due_s = math.inf

    def start(self, ring: Callable[[], None]) -> None:
        """Call `ring` whenever the alarm rings from now on, and set it to ring soon."""
        self._ring = ring
        self.soon()

    def stop(self) -> None:
        """Do not ring any more."""
        self._ring = None
        self._cancel()

    def set(self, in_ms: float) -> None:
        """Ring once, after this time or SOON_MS, instead of the time set before."""
        self._cancel()
        if self._ring is not None:
            loop = asyncio.get_running_loop()
            self.due_s = loop.time() + max(SOON_MS, math.ceil(in_ms)) / 1000
            self._timer = loop.call_at(self.due_s, self._rings)

    def now(self) -> None:
        """Ring after the data that the loop has read by now is handled."""
        if self._ring is not None and self.due_s > 0:
            self._cancel()
            self.due_s = 0.0
            self._timer = asyncio.get_running_loop().call_soon(self._rings)

    def soon(self) -> None:
        """Ring in SOON_MS, unless it rings earlier."""
        if self._ring is not None:
            if asyncio.get_running_loop().time() + SOON_MS / 1000 < self.due_s:
                self.set(SOON_MS)

    def _cancel(self) -> None:
        self.due_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self.due_s = math.inf
        if self._ring is not None:
            self._ring()
