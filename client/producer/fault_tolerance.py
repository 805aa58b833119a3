"""Fault tolerance of a producer, to avoid failing broker groups and probe silent brokers.

`FaultAvoidance` is RocketMQ's latency fault tolerance. A group that failed or answered slowly is
avoided for a time that grows with the latency. If every group is avoided, all are used.

`Liveness` sends a heartbeat to a silent broker. A leader with a slow disk answers it from memory,
on the same connection, and will answer the send later; repeating the send would store it twice. A
frozen or partitioned broker does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

# Milliseconds, ascending: an answer's latency, and the resulting avoidance of the group.
SLOW_ASIDE_MS = ((550, 1000), (1000, 3000), (3000, 10000))
ERROR_ASIDE_MS = 500  # short, because Raft groups fail over in well under a second


class FaultAvoidance:
    """The avoided broker groups, with the end of their avoidance."""

    def __init__(self) -> None:
        self._aside_until_ms: dict[str, float] = {}

    @property
    def quiet(self) -> bool:
        """Return whether no group is avoided, the common case."""
        return not self._aside_until_ms

    def failed(self, broker_name: str, now_ms: float) -> None:
        until = now_ms + ERROR_ASIDE_MS
        self._aside_until_ms[broker_name] = max(self._aside_until_ms.get(broker_name, 0), until)

    def answered(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """Record a successful answer; a quick answer clears the group, a slow answer marks it."""
        aside_ms = 0.0
        for threshold_ms, duration_ms in SLOW_ASIDE_MS:
            if latency_ms >= threshold_ms:
                aside_ms = duration_ms
        if aside_ms:
            self._aside_until_ms[broker_name] = now_ms + aside_ms
        else:
            self._aside_until_ms.pop(broker_name, None)

    def available(self, broker_name: str, now_ms: float) -> bool:
        until = self._aside_until_ms.get(broker_name)
        if until is None:
            return True
        if now_ms >= until:
            del self._aside_until_ms[broker_name]
            return True
        return False


Beat = Callable[[str, float], Coroutine[Any, Any, bool]]  # address, ms → whether it answered
Spawn = Callable[[Coroutine[Any, Any, bool], str], "asyncio.Task[bool]"]


class Liveness:
    """Heartbeats to the brokers of a client, with the loop's times in seconds."""

    def __init__(self, beat: Beat, spawn: Spawn, now: Callable[[], float]) -> None:
        self._beat = beat
        self._spawn = spawn
        self._now = now
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._probed_at: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}

    def probe(self, address: str, timeout_s: float) -> asyncio.Task[bool]:
        """Return the running or a new heartbeat; True if the broker answers in time."""
        task = self._running.get(address)
        if task is None:
            self._probed_at[address] = self._now()
            task = self._spawn(self._probe(address, timeout_s), f"pulse {address}")
            self._running[address] = task
            task.add_done_callback(lambda _: self._running.pop(address, None))
        return task

    def watch(self, address: str, interval_s: float) -> None:
        """Send a heartbeat if there was none within the interval."""
        if self._now() - self._probed_at.get(address, float("-inf")) >= interval_s:
            self.probe(address, interval_s)

    def alive_within(self, address: str, seconds: float) -> bool:
        """Return whether the broker answered a heartbeat within the last `seconds`."""
        return self._now() - self._answered_at.get(address, float("-inf")) <= seconds

    async def _probe(self, address: str, timeout_s: float) -> bool:
        answered = await self._beat(address, timeout_s * 1000)
        if answered:
            self._answered_at[address] = self._now()
        return answered
