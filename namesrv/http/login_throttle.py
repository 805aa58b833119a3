"""Room for what a provider is asked for logins (namesrv.http.oidc). Shell: the clock.

Whoever begins a login can have the provider asked, without an account. So a login gets one exchange
(its state is remembered), EXCHANGES_MAX are under way at a time, and others wait their turn: first
those of the client addresses that have the fewest under way, in the order in which they came. One
address cannot keep out another, and a login that finds no room can be tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EXCHANGES_MAX = 16  # at one time
WAITING_MAX = 64  # of one address; a proxy's is that of all who come by it
WAIT_S = 5.0
USED_MAX = 10_000  # beyond, a login may have a second exchange, for which no provider has a code


class NoExchange(Exception):
    """The login gets no exchange: it had one, or (`for_now`) there is no room."""

    def __init__(self, reason: str, *, for_now: bool) -> None:
        super().__init__(reason)
        self.for_now = for_now


class Exchanges:
    """The exchanges of one process. `lasts_s`: how long a login may take."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._used: dict[str, float] = {}  # by state, until when; oldest first
        self._under_way: Counter[str] = Counter()  # by address
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []  # first come first

    @asynccontextmanager
    async def one(self, state: str, address: str) -> AsyncIterator[None]:
        """Wait for room, and keep it during the block. Raises NoExchange."""
        now_s = time.monotonic()
        while self._used and (oldest := next(iter(self._used))):
            if self._used[oldest] > now_s and len(self._used) < USED_MAX:
                break
            del self._used[oldest]
        if state in self._used:
            raise NoExchange("this login has had its exchange", for_now=False)
        self._used[state] = now_s + self._lasts_s
        try:
            await self._enter(address)
        except BaseException:
            self._used.pop(state, None)  # it may be tried again
            raise
        try:
            yield
        finally:
            self._leave(address)

    async def _enter(self, address: str) -> None:
        if self._under_way.total() < EXCHANGES_MAX:
            self._under_way[address] += 1
            return
        if sum(owner == address for owner, _ in self._waiting) >= WAITING_MAX:
            raise NoExchange(f"{WAITING_MAX} logins of {address} wait already", for_now=True)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = (address, turn)
        self._waiting.append(waits)
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            if waits in self._waiting:
                self._waiting.remove(waits)
            else:  # its turn came at the same time
                self._leave(address)
            if isinstance(error, TimeoutError):
                raise NoExchange(f"no room within {WAIT_S:g} s", for_now=True) from error
            raise

    def _leave(self, address: str) -> None:
        """Give the place to whoever is next."""
        self._under_way[address] -= 1
        self._under_way += Counter()  # without those that have none
        waiting = [item for item in self._waiting if not item[1].done()]
        if waiting:
            first = min(waiting, key=lambda item: self._under_way[item[0]])
            self._waiting.remove(first)
            self._under_way[first[0]] += 1
            first[1].set_result(None)
