"""Shares an event loop between busy connections and other work that has to be on time. Shell.

In one turn a loop hands out everything that has arrived since the turn before. With many busy
connections that is hundreds of milliseconds of work, during which no timer runs and no other socket
is read; a leader that cannot send its heartbeats for so long is deposed. So arrivals are processed
for at most `TURN_S` in each turn. The rest waits for the next turns, in order, and those
connections are not read meanwhile. One arrival (at most 256 KiB, the size of a read) is never
divided.

A turn is over when the callback that its first arrival scheduled with `call_soon` runs.
(`loop.time()` does not show it: it advances within a turn, also on uvloop, which may read 32 times
256 KiB from every connection in one turn.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Protocol

TURN_S = 0.005  # < a fifteenth of a heartbeat


class Arrived(Protocol):
    """A connection with an arrival that waits for its turn."""

    def take_turn(self) -> None: ...


class Turns:
    """The turns of one server's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_s: float = TURN_S) -> None:
        self._loop = loop
        self._turn_s = turn_s
        self._left_s = 0.0
        self._begun = False  # a turn has begun, and `_end` will be called
        self._waiting: deque[Arrived] = deque()

    def begin(self) -> bool:
        """Return whether an arrival may be processed now; if so, tell `done` how long it took."""
        if not self._begun:
            self._begun = True
            self._left_s = self._turn_s
            self._loop.call_soon(self._end)
        return self._left_s > 0 and not self._waiting

    def done(self, seconds: float) -> None:
        self._left_s -= seconds

    def wait(self, connection: Arrived) -> None:
        """Have `take_turn` called in a later turn."""
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append(connection)

    def _end(self) -> None:
        self._begun = False

    def _run(self) -> None:
        waiting = self._waiting
        ends_s = perf_counter() + self._turn_s
        try:
            while waiting and perf_counter() < ends_s:
                try:
                    waiting[0].take_turn()
                finally:
                    waiting.popleft()  # after its turn, so that arrivals within it queue up last
        finally:  # whatever one of them raises, the others get their turns
            if waiting:
                self._loop.call_soon(self._run)
