"""Finds out whether a broker that owes an answer is slow or gone.

A leader whose disk is slow does not answer a send, and neither does one that is frozen or
partitioned. The first will answer later, and repeating the send would store it twice; the second
will not answer at all. A heartbeat tells them apart, because brokers answer it from memory, on the
same connection. It is sent only to a broker that has been silent for a while, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Beat = Callable[[str, float], Coroutine[Any, Any, bool]]  # address, ms → whether it answered
Spawn = Callable[[Coroutine[Any, Any, bool], str], "asyncio.Task[bool]"]


class Pulses:
    """The pulses (heartbeats) of all brokers of one client; times are the loop's, in seconds."""

    def __init__(self, beat: Beat, spawn: Spawn, now: Callable[[], float]) -> None:
        self._beat = beat
        self._spawn = spawn
        self._now = now
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._asked: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def take(self, address: str, timeout_s: float) -> asyncio.Task[bool]:
        """Return the running pulse, or start one; its result is True if the broker answers in
        time."""
        task = self._running.get(address)
        if task is None:
            self._asked[address] = self._now()
            task = self._spawn(self._take(address, timeout_s), f"pulse {address}")
            self._running[address] = task
            task.add_done_callback(lambda _: self._running.pop(address, None))
        return task

    def watch(self, address: str, interval_s: float) -> None:
        """Take the broker's pulse if none was taken within the interval."""
        if self._now() - self._asked.get(address, float("-inf")) >= interval_s:
            self.take(address, interval_s)

    def heard_within(self, address: str, seconds: float) -> bool:
        """Return whether the broker answered a pulse within the last `seconds`."""
        return self._now() - self._heard.get(address, float("-inf")) <= seconds

    async def _take(self, address: str, timeout_s: float) -> bool:
        answered = await self._beat(address, timeout_s * 1000)
        if answered:
            self._heard[address] = self._now()
        return answered
