"""Keeps what happens again and again from filling a log: each kind of line once a minute. Pure, but
for the clock that it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

PAUSE_S = 60.0  # between two lines of a kind
KINDS_MAX = 256  # kinds remembered; beyond, the one that was logged longest ago is forgotten


@dataclass(slots=True)
class _Seen:
    logged_s: float
    left_out: int = 0


class LogPace:
    """When each kind was logged. `clock`: seconds that only go forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, _Seen] = {}  # the one that was logged longest ago comes first

    def due(self, kind: Hashable) -> int | None:
        """Return how many lines of a kind were left out since its last one, if another may be
        logged now, which is then counted as logged; None if this one is to be left out."""
        now_s = self._clock()
        seen = self._seen.get(kind)
        if seen is not None and now_s - seen.logged_s < PAUSE_S:
            seen.left_out += 1
            return None
        self._seen.pop(kind, None)
        if len(self._seen) >= KINDS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = _Seen(now_s)
        return 0 if seen is None else seen.left_out
