"""Which connection a full server gives up for a new one. Pure.

With accounts: the longest held on which no account was accepted. Without: the one that has been
silent for longest; at a name server that is never a broker's that has registered.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

SORTED_MAX = 1_000  # so many are found in one look at all, for a flood of new ones


class Held(Protocol):
    """What is asked of a connection."""

    has_account: bool
    last_active_s: float


C = TypeVar("C", bound=Held)


class Places(Generic[C]):
    """The connections of one server."""

    def __init__(self, *, with_accounts: bool) -> None:
        self._with_accounts = with_accounts
        self._candidates: dict[C, None] = {}  # longest held first
        self._silent: list[tuple[float, C]] = []  # since when, longest last; may be out of date

    def taken(self, connection: C) -> None:
        self._candidates[connection] = None

    def left(self, connection: C) -> None:
        self._candidates.pop(connection, None)

    def first_to_go(self) -> C | None:
        """Take out which connection makes room for another; None: each has an account, or is
        kept."""
        found = self._stranger() if self._with_accounts else self._longest_silent()
        if found is not None:
            self.left(found)
        return found

    def _stranger(self) -> C | None:
        while self._candidates:
            first = next(iter(self._candidates))
            if not first.has_account:
                return first
            self.left(first)  # an account, once accepted, is not taken back
        return None

    def _longest_silent(self) -> C | None:
        while self._candidates:
            while self._silent:
                since_s, connection = self._silent.pop()
                is_here = connection in self._candidates and not connection.has_account
                if is_here and connection.last_active_s == since_s:
                    return connection
            for kept in [one for one in self._candidates if one.has_account]:
                self.left(kept)
            silent = ((one.last_active_s, one) for one in self._candidates)
            self._silent = heapq.nsmallest(SORTED_MAX, silent, key=lambda pair: pair[0])[::-1]
        return None
