"""The time by which the messages of one log age. Pure.

A wall clock may be wrong: after a start at a time that is a year ahead every message looks a year
old. So a log has a time of its own, which passes only while its store is open: it goes on from the
time noted when the store was last open (store.checkpoint), by the monotonic clock. While the wall
clock agrees with it, ages are those of the wall clock. A wall clock that is ahead of it by more
than CLOCK_JUMP_MS is *doubted*, whether it jumped or was ahead at the start. Then

- messages that were there before age by the log's own time,
- messages that are stored from then on (`since_ms`) age by the wall clock, which stamped them.

A group that really was off for a year cannot be told from a clock that is a year ahead. Its
messages live as long as if the store had not been off. Nothing is lost in either case. The doubt
ends when the wall clock agrees again, when no message from before it is left, or when an operator
confirms the wall clock (`trust`).
"""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_JUMP_MS = 5 * 60_000  # more than NTP slews away; next to hours of age, less does not matter


@dataclass(frozen=True, slots=True)
class LogNow:
    """The present, as the ages of a log's messages are judged by it."""

    wall_ms: int
    own_ms: int  # the log's own time; the wall clock's if that is not doubted
    since_ms: int = 0  # the wall clock's time when the doubt began; 0: there is none

    def age_ms(self, stored_ms: int) -> int:
        if self.since_ms and stored_ms >= self.since_ms:
            return self.wall_ms - stored_ms
        return min(self.wall_ms, self.own_ms) - stored_ms

    @property
    def lead_ms(self) -> int:
        """By how much the wall clock is ahead of the log's own time (negative: behind); 0 while
        they agree."""
        return self.wall_ms - self.own_ms


class LogClock:
    """The time of one log (all in ms). `clock_ms` is monotonic."""

    __slots__ = ("_ahead_ms", "_since_ms")

    def __init__(self, clock_ms: int, own_ms: int, since_ms: int = 0) -> None:
        """`own_ms`, `since_ms`: as noted when the store was last open."""
        self._ahead_ms = own_ms - clock_ms
        self._since_ms = since_ms

    def look(self, wall_ms: int, clock_ms: int, log_begins_ms: int = -1) -> LogNow:
        """Compare the clocks. Call it before each decision by age. `log_begins_ms`: the store time
        of the oldest message, -1 if unknown."""
        own_ms = clock_ms + self._ahead_ms
        lead_ms = wall_ms - own_ms
        if 0 < self._since_ms <= log_begins_ms:
            self.trust(wall_ms, clock_ms)
            return LogNow(wall_ms, wall_ms)
        if lead_ms <= CLOCK_JUMP_MS:
            self._since_ms = 0
            return LogNow(wall_ms, wall_ms if lead_ms >= -CLOCK_JUMP_MS else own_ms)
        self._since_ms = self._since_ms or wall_ms
        return LogNow(wall_ms, own_ms, self._since_ms)

    def trust(self, wall_ms: int, clock_ms: int) -> None:
        """Take the wall clock for right."""
        self._ahead_ms, self._since_ms = wall_ms - clock_ms, 0
