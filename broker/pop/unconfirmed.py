"""Which messages that heartbeats renew may never have reached their client. Pure.

A proxy that dies takes with it what it was about to hand on. Its client goes on, through another
proxy, and its heartbeats would keep those messages in flight for hours. So what was told through a
connection shortly before nothing came through it any more is not renewed: it comes again when its
time is over, if the client does not acknowledge it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..tables.pops import BatchKey, Place

TOLD_S = 2.0  # how long an answer may take from here to the client
BATCHES_MAX = 10_000  # of one connection in that time; the oldest are taken for heard


class Teller(Protocol):
    """A connection through which pops are answered."""

    last_active_s: float  # when something arrived last, by the loop's clock


class Told:
    """The batches told through each connection in the last seconds; one per broker."""

    def __init__(
        self, clock_s: Callable[[], float], is_there: Callable[[Place, BatchKey], bool]
    ) -> None:
        """`clock_s` is the clock of `last_active_s`; `is_there`: whether a batch is in flight."""
        self._clock_s = clock_s
        self._is_there = is_there
        self._recent: dict[Teller, deque[tuple[float, Place, BatchKey]]] = {}
        self._unheard: set[tuple[Place, BatchKey]] = set()

    def note(self, connection: Teller, place: Place, key: BatchKey) -> None:
        """Note that a batch was told through a connection."""
        recent = self._recent.setdefault(connection, deque(maxlen=BATCHES_MAX))
        self._drop_heard(connection, recent)
        recent.append((self._clock_s(), place, key))

    def closed(self, connection: Teller) -> None:
        """Take what was told through a connection at its end for unheard."""
        recent = self._recent.pop(connection, None)
        if recent is not None:
            self._drop_heard(connection, recent)
            self._unheard.update((place, key) for _, place, key in recent)
            self._unheard = {one for one in self._unheard if self._is_there(*one)}

    def is_unheard(self, place: Place, key: BatchKey) -> bool:
        return (place, key) in self._unheard

    def clear(self) -> None:
        """Forget everything: another leader decides now."""
        self._recent.clear()
        self._unheard.clear()

    def __len__(self) -> int:
        return len(self._unheard)

    @staticmethod
    def _drop_heard(connection: Teller, recent: deque[tuple[float, Place, BatchKey]]) -> None:
        while recent and recent[0][0] < connection.last_active_s - TOLD_S:
            recent.popleft()
