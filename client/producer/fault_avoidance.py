"""Fault avoidance: for a while after an error, sends go to other broker groups. Pure.

This is RocketMQ's latency fault tolerance: a group that failed or answered slowly is avoided for a
time that grows with the latency. If every group is avoided, all are used.
"""

from __future__ import annotations

# Milliseconds, ascending: an answer's latency, and how long the group is avoided from there on.
SLOW_ASIDE_MS = ((550, 1000), (1000, 3000), (3000, 10000))
ERROR_ASIDE_MS = 500  # brief, because Raft groups fail over in well under a second


class FaultAvoidance:
    """Keeps track of which broker groups to avoid, and until when."""

    def __init__(self) -> None:
        self._aside_until_ms: dict[str, float] = {}

    @property
    def quiet(self) -> bool:
        """Return whether no group is avoided, which is the common case."""
        return not self._aside_until_ms

    def failed(self, broker_name: str, now_ms: float) -> None:
        until = now_ms + ERROR_ASIDE_MS
        self._aside_until_ms[broker_name] = max(self._aside_until_ms.get(broker_name, 0), until)

    def answered(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """Take note of a successful answer: a quick one clears the group, a slow one marks it."""
        aside_ms = 0.0
        for threshold_ms, duration_ms in SLOW_ASIDE_MS:
            if latency_ms >= threshold_ms:
                aside_ms = duration_ms
        if aside_ms:
            self._aside_until_ms[broker_name] = now_ms + aside_ms
        else:
            self._aside_until_ms.pop(broker_name, None)

    def available(self, broker_name: str, now_ms: float) -> bool:
        """Return whether the group may be used now."""
        until = self._aside_until_ms.get(broker_name)
        if until is None:
            return True
        if now_ms >= until:
            del self._aside_until_ms[broker_name]
            return True
        return False
