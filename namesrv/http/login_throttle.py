"""Limits of token requests to the OpenID provider (namesrv.http.oidc).

Anonymous visitors can trigger requests to the provider. So each login has a single exchange (its
state is remembered), and at most EXCHANGES_MAX run at a time, of which each client address gets a
share. A login that finds no capacity can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from raftmq.ops.fairness import SharedLimit

EXCHANGES_MAX = 64  # at one time
SHARE = 1.0  # of the free exchanges; an address alone gets half of all
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
        self._running = SharedLimit(EXCHANGES_MAX, SHARE)

    @contextmanager
    def one(self, state: str, address: str) -> Iterator[None]:
        """Occupy a slot during the block. Raises NoExchange."""
        now_s = time.monotonic()
        while self._used and (oldest := next(iter(self._used))):
            if self._used[oldest] > now_s and len(self._used) < USED_MAX:
                break
            del self._used[oldest]
        if state in self._used:
            raise NoExchange("this login has had its exchange", for_now=False)
        if not self._running.take(address):
            raise NoExchange(f"{self._running.used} logins run already", for_now=True)
        self._used[state] = now_s + self._lasts_s
        try:
            yield
        finally:
            self._running.give_back(address)
