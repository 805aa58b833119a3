"""Sends whose topic has no known route yet, each of which keeps its own time-out. Pure.

The producer parks them while one task for each topic asks for the route. The send engine ends those
that are overdue and counts all of them, so its limits hold here, too.
"""

from __future__ import annotations

import math

from ..errors import CODE_NO_ROUTE
from .pending_send import Pending


class Parked:
    """The parked sends of one producer, by topic, in the order of the calls."""

    def __init__(self) -> None:
        self._sends: dict[str, list[Pending]] = {}
        self._reasons: dict[str, str] = {}

    def add(self, topic: str, pending: Pending) -> None:
        self._sends.setdefault(topic, []).append(pending)

    def note(self, topic: str, reason: str) -> None:
        """Note why the route is not known, for the errors of sends that run out of time."""
        if topic in self._sends:
            self._reasons[topic] = reason

    def latest(self, topic: str) -> float | None:
        """Return the last deadline of the topic's sends; None if there are none."""
        return max((pending.deadline for pending in self._sends.get(topic, ())), default=None)

    def take(self, topic: str, until: float = math.inf) -> list[Pending]:
        """Remove and return the topic's sends whose deadline is `until` or before."""
        sends = self._sends.pop(topic, [])
        kept = [pending for pending in sends if pending.deadline > until]
        if kept:
            self._sends[topic] = kept
        else:
            self._reasons.pop(topic, None)
        return [pending for pending in sends if pending.deadline <= until]

    def take_all(self) -> list[Pending]:
        """Remove and return all sends."""
        return [pending for topic in list(self._sends) for pending in self.take(topic)]

    def overdue(self, now: float) -> list[Pending]:
        """Remove and return the sends whose deadline has passed, each with its reason."""
        found: list[Pending] = []
        for topic in list(self._sends):
            reason = self._reasons.get(topic, "no name server answered in time")
            for pending in self.take(topic, now):
                pending.failed_attempt(CODE_NO_ROUTE, f"topic {topic!r}: {reason}", False)
                found.append(pending)
        return found
