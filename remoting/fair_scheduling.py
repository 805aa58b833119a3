"""Shares an event loop between busy connections and work that has to be on time.

In each turn a loop processes everything that has arrived since the previous turn. With many busy
connections that takes hundreds of milliseconds without timers or other sockets, and a leader
without heartbeats is deposed. Arrivals are therefore processed for at most `TURN_S` per turn. The
rest waits in order for the next turns, and those connections are not read. An arrival (at most 256
KiB, the size of a read) is divided between its requests.

A turn ends when the callback runs that its first arrival scheduled with `call_soon`. (`loop.time()`
does not show it, because it advances within a turn, also on uvloop, which may read 32 times 256 KiB
from every connection in a turn.)

A request longer than a turn is a generator of small steps. Its connection runs them before it
serves further requests, or `StepTurns` runs the steps of all such requests for one `TURN_S` per
turn of the loop. `Watch` counts and logs requests that occupy the loop for longer than WATCH_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Generator
from time import perf_counter
from typing import Protocol, TypeVar

LOG = logging.getLogger("raftmq.remoting")

TURN_S = 0.005  # < a fifteenth of a heartbeat
WATCH_S = 0.020  # < a third of a heartbeat
LONG_TURN = "long_turn code=%d ms=%d peer=%s"

T = TypeVar("T")
Steps = Generator[None, None, T]  # work that yields after each small step and returns a result


class Arrived(Protocol):
    """A connection with data that waits for its turn."""

    def take_turn(self) -> None: ...


class Watch:
    """Uninterrupted processor time of a server's requests on the loop, by request code."""

    def __init__(self) -> None:
        self.longest_s: dict[int, float] = {}
        self.long_turns: Counter[int] = Counter()  # longer than WATCH_S

    def note(self, code: int, peer: str, seconds: float) -> None:
        if seconds > self.longest_s.get(code, 0.0):
            self.longest_s[code] = seconds
        if seconds > WATCH_S:
            self.long_turns[code] += 1
            milliseconds = round(1000 * seconds)
            LOG.warning(LONG_TURN, code, milliseconds, peer, extra={"from_peer": True})


class Turns:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn_s: float = TURN_S, watch: Watch | None = None
    ) -> None:
        self.watch = watch or Watch()
        self._loop = loop
        self._turn_s = turn_s
        self._left_s = 0.0
        self._ends_s = 0.0  # when the current work's turn ends
        self._started = False  # a turn has started, and `_end` is scheduled
        self._waiting: deque[Arrived] = deque()

    def start(self) -> bool:
        """Return whether an arrival may be processed now; if so, call `done` afterwards."""
        if not self._started:
            self._started = True
            self._left_s = self._turn_s
            self._loop.call_soon(self._end)
        if self._left_s <= 0 or self._waiting:
            return False
        self._ends_s = perf_counter() + self._left_s
        return True

    def done(self) -> None:
        self._left_s = self._ends_s - perf_counter()

    @property
    def is_over(self) -> bool:
        """True if the current work's turn is over."""
        return perf_counter() >= self._ends_s

    def wait(self, connection: Arrived) -> None:
        """Schedule `take_turn` in a later turn."""
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append(connection)

    def _end(self) -> None:
        self._started = False

    def _run(self) -> None:
        waiting = self._waiting
        self._ends_s = perf_counter() + self._turn_s
        try:
            while waiting:
                try:
                    waiting[0].take_turn()
                finally:
                    waiting.popleft()  # after its turn, so that new arrivals are queued last
                if self.is_over:
                    break
        finally:  # even if one raises, the rest get their turns
            if waiting:
                self._loop.call_soon(self._run)


class StepTurns:
    """Runs steps of large work in turns shared by all such work of a loop."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps and return their result. Raises their errors."""
        try:
            while True:
                await self._turn()
                ends_s = perf_counter() + self._turn_s
                next(steps)
                while perf_counter() < ends_s:
                    next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _turn(self) -> None:
        """Wait for a turn of the loop without other large work."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)


def finish(steps: Steps[T]) -> T:
    """Run steps without turns, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
