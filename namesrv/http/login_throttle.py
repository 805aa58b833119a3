"""Limits of token requests to the OpenID provider (namesrv.http.oidc).

Anonymous visitors can trigger requests to the provider. So each login has a single exchange (its
state is remembered), and at most EXCHANGES_MAX run at a time. Waiting logins run in order of
arrival, but first those of the client addresses with the fewest running exchanges, so no address
blocks the rest. A login that finds no capacity can be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EXCHANGES_MAX = 16  # at one time
WAITING_MAX = 64  # per client address; clients behind a proxy share an address
WAIT_S = 5.0
USED_MAX = 10_000  # the oldest are evicted; the provider rejects a repeated exchange anyway


class NoExchange(Exception):
    """The login had its exchange, or, with `for_now`, the limits deny it."""

    def __init__(self, reason: str, *, for_now: bool) -> None:
        super().__init__(reason)
        self.for_now = for_now


class Exchanges:
    """The exchanges of a process. `lasts_s` is the time limit of a login."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._used: dict[str, float] = {}  # state → expiry; oldest first
        self._under_way: Counter[str] = Counter()  # by address
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []  # in order of arrival

    @asynccontextmanager
    async def one(self, state: str, address: str) -> AsyncIterator[None]:
        """Wait for a slot and occupy it during the block. Raises NoExchange."""
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
            self._used.pop(state, None)  # for a repetition
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
            else:  # its slot became free at the same time
                self._leave(address)
            if isinstance(error, TimeoutError):
                raise NoExchange(f"no room within {WAIT_S:g} s", for_now=True) from error
            raise

    def _leave(self, address: str) -> None:
        """Release the slot to the next waiter."""
        self._under_way[address] -= 1
        self._under_way += Counter()  # drops zero counts
        waiting = [item for item in self._waiting if not item[1].done()]
        if waiting:
            first = min(waiting, key=lambda item: self._under_way[item[0]])
            self._waiting.remove(first)
            self._under_way[first[0]] += 1
            first[1].set_result(None)
