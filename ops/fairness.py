"""Shares limits and connections among peers, so that no peer shuts out the rest.

`SharedLimit` admits requests, streams or bytes. A holder is an account or, without accounts, an
address. A holder may have at most `share` times the free amount, so it gets less while much is in
use (a dynamic threshold, Choudhury and Hahne 1998). A single holder gets share / (1 + share) of the
limit. A holder that has nothing is admitted while the requested amount is free. Pure.

`Evictor` chooses the connection that a full server closes for a new connection. Connections without
an accepted account are closed first, while their number exceeds a reserve. Without the reserve, a
new connection would be closed before its first request. Otherwise a connection with an account is
closed. Each closed connection belongs to a holder with more than half of the greatest holder's
number. A connection with an account and a request in progress is not closed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

RANKED_MAX = 1_000  # connections ranked per pass, for a flood of new connections
RESERVE_MAX = 64  # for connections without an account
RESERVE_FRACTION = 8  # of all connections, at most


class SharedLimit:
    """A limit for all holders together, and for each of them."""

    def __init__(self, limit: int, share: float) -> None:
        self.limit = limit
        self.used = 0
        self._share = share
        self._held: Counter[str] = Counter()

    def take(self, holder: str, amount: int = 1) -> bool:
        """Count `amount` for a holder; return False if that is too much."""
        free, held = self.limit - self.used, self._held[holder]
        if amount > free or (held and held + amount > self._share * free):
            return False
        self.used += amount
        self._held[holder] += amount
        return True

    def give_back(self, holder: str, amount: int = 1) -> None:
        self.used -= amount
        self._held[holder] -= amount
        if not self._held[holder]:
            del self._held[holder]

    def held_by(self, holder: str) -> int:
        return self._held.get(holder, 0)


class Held(Protocol):
    """The attributes of a connection that the eviction uses."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """A request with a limit of its own is in progress."""
        ...

    @property
    def has_account(self) -> bool: ...

    @property
    def holder(self) -> str: ...

    @property
    def last_active_s(self) -> float: ...


C = TypeVar("C", bound=Held)


class Evictor(Generic[C]):
    def __init__(self, *, with_accounts: bool) -> None:
        """`with_accounts` closes connections without an account by age; otherwise the connection
        with the longest silence is closed."""
        self._with_accounts = with_accounts
        self._connections: dict[C, None] = {}  # longest held first
        self._ranked: list[C] = []  # the last is closed next; may be out of date
        self._active_s: dict[C, float] = {}  # each ranked connection's last_active_s at ranking

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[C]:
        return iter(self._connections)

    def added(self, connection: C) -> None:
        self._connections[connection] = None

    def removed(self, connection: C) -> None:
        self._connections.pop(connection, None)

    def choose(self, connections_max: int) -> C | None:
        """Remove and return the connection to close; None if all are busy."""
        while True:
            while self._ranked:
                connection = self._ranked.pop()
                if connection in self._connections and self._is_as_ranked(connection):
                    self.removed(connection)
                    return connection
            if not self._rank(max(1, min(RESERVE_MAX, connections_max // RESERVE_FRACTION))):
                return None

    def _is_as_ranked(self, connection: C) -> bool:
        """Return whether the connection was neither active nor accepted since the ranking."""
        by_age = self._with_accounts and not connection.has_account
        return _may_go(connection) and (
            by_age or connection.last_active_s == self._active_s[connection]
        )

    def _rank(self, reserve: int) -> bool:
        candidates = [one for one in self._connections if _may_go(one)]
        strangers = [one for one in candidates if not one.has_account]
        accepted = [one for one in candidates if one.has_account]
        count_max = RANKED_MAX
        if not accepted:
            pool = strangers
        elif len(strangers) > reserve:
            pool, count_max = strangers, min(RANKED_MAX, len(strangers) - reserve)
        else:
            pool = accepted
        holders = Counter(one.holder for one in pool)
        level = max(holders.values(), default=0) // 2
        quotas = {holder: count - level for holder, count in holders.items() if count > level}
        pool = [one for one in pool if one.holder in quotas]
        if not self._with_accounts or (pool and pool[0].has_account):
            pool = heapq.nsmallest(RANKED_MAX, pool, key=lambda one: one.last_active_s)
        chosen: list[C] = []
        for one in pool:
            if quotas[one.holder] and len(chosen) < count_max:
                quotas[one.holder] -= 1
                chosen.append(one)
        self._ranked = chosen[::-1]
        self._active_s = {one: one.last_active_s for one in chosen}
        return bool(chosen)


def _may_go(connection: Held) -> bool:
    return connection.is_open and not (connection.is_busy and connection.has_account)
