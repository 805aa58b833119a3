"""The systems of bench.peers, with their start and their loads.

A *system* runs while its block runs, in a directory of its own, and leaves nothing behind. Its
loads are rows of the table; a row that it has no load for stays empty.

Paced rows are an open loop at a share of the capacity, which is the rate of MANY in the same round.
The messages of an end-to-end row count from the time when they were due until a push consumer has
them.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.wire import STAMP, LoadResult

BODY = b"x" * 128
LARGE_BODY = b"x" * (64 << 10)
WARM_UP = "warm-up"  # measured, but not shown
ONE = "1 in flight"
MANY = "256 in flight"
LARGE = "64 KiB, 64 in flight"
BATCHES = "batches of 100"
PULLS = "raw pulls"
PUSH = "push consumer"
KILL = "kill -9 to next ack"
SHARES = (10, 25, 50, 75)  # percent of the capacity
SENDS_AT = {f"sends at {share} %": share for share in SHARES}
END_TO_END_AT = {f"end to end at {share} %": share for share in SHARES}
PACED_AT = SENDS_AT | END_TO_END_AT
# The kill is last, because it damages a system.
ROWS = (ONE, MANY, BATCHES, PULLS, PUSH, LARGE, *PACED_AT, KILL)
PACED_S, PACED_S_MIN = 10.0, 0.5  # duration of a paced row at scale 1
SENDS = {WARM_UP: 20_000, ONE: 5_000, MANY: 100_000, BATCHES: 2_000, LARGE: 4_000}  # at scale 1
SENDS_MIN = 100
WINDOWS = {WARM_UP: 256, ONE: 1, MANY: 256, BATCHES: 4, LARGE: 64}
BATCH = 100
CONSUME_TIMEOUT_S = 120.0

Load = Callable[[], Awaitable[LoadResult]]
# Rate, seconds, and whether arrivals at a consumer count.
PacedLoad = Callable[[float, float, bool], Awaitable[LoadResult]]


class Missing(Exception):
    """A system cannot be had on this machine; the message says why."""


class Failed(Exception):
    """A system or its client did not do what was asked; the message says what."""


@dataclass(frozen=True, slots=True)
class Running:
    """A system that accepts load, its loads by row, and its server processes."""

    loads: Mapping[str, Load]
    processes: Callable[[], list[int]]
    paced: PacedLoad | None = None

    def load(self, row: str, capacity: float | None, scale: float) -> Load | None:
        """Return the load of a row; None if the system has none, or its capacity is unknown."""
        if row not in PACED_AT:
            return self.loads.get(row)
        if self.paced is None or capacity is None:
            return None
        rate, seconds = capacity * PACED_AT[row] / 100, max(PACED_S_MIN, PACED_S * scale)
        return partial(self.paced, rate, seconds, row in END_TO_END_AT)


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
        return LoadResult(self._count, took, array("q"))


class Stamps:
    """Latencies of paced messages, by the times in their bodies. Bodies of other rows are
    ignored."""

    def __init__(self) -> None:
        self._first_ns = time.perf_counter_ns()
        self._latencies: array[int] = array("q")
        self._expected = 0
        self._all_seen = asyncio.Event()

    def see(self, body: bytes) -> None:
        now_ns = time.perf_counter_ns()
        (due_ns,) = STAMP.unpack_from(body)
        if self._first_ns <= due_ns <= now_ns:
            self._latencies.append(now_ns - due_ns)
            if len(self._latencies) == self._expected:
                self._all_seen.set()

    async def arrived(self, sent: LoadResult) -> LoadResult:
        """Return the latencies of all of `sent` once they have come. Raises TimeoutError."""
        self._expected = sent.messages
        if len(self._latencies) < self._expected:
            await asyncio.wait_for(self._all_seen.wait(), CONSUME_TIMEOUT_S)
        return LoadResult(sent.messages, sent.seconds, self._latencies)


def sends_of(row: str, scale: float) -> int:
    """Return how many requests a row of sends has."""
    return max(SENDS_MIN, int(SENDS[row] * scale))


def body_of(row: str) -> bytes:
    return LARGE_BODY if row == LARGE else BODY
