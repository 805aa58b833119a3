"""Shares the turns of an event loop between connections and whatever else has to be on time.

A loop hands out everything that arrived since its last turn at once: with many busy connections
that is hundreds of milliseconds of work, in which no timer runs and no other socket is read. A
leader that cannot send its heartbeats for so long is deposed. So arrivals are worked on for
`TURN_S` a turn; what is left waits for the next turns, in order, and its connections are not read
meanwhile. One arrival (at most 256 KiB, what one read brings) is never divided.

A turn is over when what its first arrival had called soon is called. (`loop.time()` does not tell:
it moves on within a turn, on uvloop, too, which may read 32 times 256 KiB of every connection in
one turn.) Shell.
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
    """One per server. `put_off`: arrivals that had to wait for another turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_s: float = TURN_S) -> None:
        self.put_off = 0
        self._loop = loop
        self._turn_s = turn_s
        self._left_s = 0.0
        self._begun = False  # and `_end` will be called
        self._waiting: deque[Arrived] = deque()

    def begin(self) -> bool:
        """Whether an arrival may be worked on now; if so, tell `done` how long it took."""
        if not self._begun:
            self._begun = True
            self._left_s = self._turn_s
            self._loop.call_soon(self._end)
        return self._left_s > 0 and not self._waiting

    def done(self, seconds: float) -> None:
        self._left_s -= seconds

    def wait(self, connection: Arrived) -> None:
        """Have `take_turn` called in a later turn."""
        self.put_off += 1
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
                    waiting.popleft()  # behind its turn: who arrives in it waits behind all others
        finally:  # whatever one of them raises, the others have their turns
            if waiting:
                self._loop.call_soon(self._run)
