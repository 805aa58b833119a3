"""The systems of bench.peers, with their start and their loads.

A *system* runs while its block runs, in a directory of its own, and leaves nothing behind. Its
loads are rows of the table; a row that it has no load for stays empty.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.wire import LoadResult

BODY = b"x" * 128
WARM_UP = "warm-up"  # measured, but not shown
ONE = "1 in flight"
MANY = "256 in flight"
BATCHES = "batches of 100"
PULLS = "raw pulls"
PUSH = "push consumer"
KILL = "kill -9 to next ack"
ROWS = (ONE, MANY, BATCHES, PULLS, PUSH, KILL)  # the kill is last, because it damages a system
SENDS = {WARM_UP: 20_000, ONE: 5_000, MANY: 100_000, BATCHES: 2_000}  # requests at scale 1
SENDS_MIN = 100
WINDOWS = {WARM_UP: 256, ONE: 1, MANY: 256, BATCHES: 4}
BATCH = 100
CONSUME_TIMEOUT_S = 120.0

Load = Callable[[], Awaitable[LoadResult]]


class Missing(Exception):
    """A system cannot be had on this machine; the message says why."""


class Failed(Exception):
    """A system or its client did not do what was asked; the message says what."""


@dataclass(frozen=True, slots=True)
class Running:
    """A system that accepts load, its loads by row, and its server processes."""

    loads: Mapping[str, Load]
    processes: Callable[[], list[int]]


class System(Protocol):
    """Something to be measured."""

    @property
    def name(self) -> str: ...

    def running(self, directory: Path, scale: float) -> AbstractAsyncContextManager[Running]:
        """Run it while the block runs. Raises Missing or Failed."""
        ...


class Arrivals:
    """Messages that a consumer's callback sees, counted until `count` of them have come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen = 0
        self._first_s = 0.0
        self._took: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def see(self, _: object) -> None:
        if not self._seen:
            self._first_s = time.perf_counter()
        self._seen += 1
        if self._seen == self._count:
            self._took.set_result(time.perf_counter() - self._first_s)

    async def all_seen(self) -> LoadResult:
        """Return once all have come; the time counts from the first. Raises TimeoutError."""
        took = await asyncio.wait_for(self._took, CONSUME_TIMEOUT_S)
        return LoadResult(self._count, took, array("q"), 0)


def sends_of(row: str, scale: float) -> int:
    """Return how many requests a row of sends has."""
    return max(SENDS_MIN, int(SENDS[row] * scale))
