"""A stall-aware clock, for a replica with a process that may not get to run.

A process without a processor, or with a blocked loop, receives nothing, although the messages are
in its sockets. If such a time counted as silence, the replica would give up a leader in spite of
its heartbeats. So the core's clock advances by at most `step_ms_max` from one turn of the loop to
the next, however long the turn took. Between two turns everything that had arrived was read. A
time-out spans at least time-out / step_ms_max turns.

The clock never goes back, and runs like its source clock while no turn is too long. It judges
silence and progress only, never promises in real time.
"""

from __future__ import annotations

from collections.abc import Callable

TURN_AFTER = 0.5  # of a step, so that a late turn loses no time


class StallAwareClock:
    """The stall-aware clock. Call it for the time, and call `turn` at most once per turn of the
    loop, several times per `step_ms_max`. From `turn_due_ms` on a turn is due before time is
    lost."""

    __slots__ = ("_at_turn_ms", "_clock_ms", "_turned_ms", "step_ms_max", "turn_due_ms")

    def __init__(self, clock_ms: Callable[[], float], step_ms_max: float) -> None:
        assert step_ms_max > 0
        self._clock_ms = clock_ms
        self.step_ms_max = step_ms_max
        self._turned_ms = self._at_turn_ms = clock_ms()
        self.turn_due_ms = self._at_turn_ms + step_ms_max * TURN_AFTER

    def __call__(self) -> float:
        passed_ms = self._clock_ms() - self._turned_ms
        return self._at_turn_ms + min(passed_ms, self.step_ms_max)

    def turn(self) -> float:
        """Record a turn of the loop. Return the time in milliseconds."""
        now_ms = self._clock_ms()
        self._at_turn_ms += min(now_ms - self._turned_ms, self.step_ms_max)
        self._turned_ms = now_ms
        self.turn_due_ms = self._at_turn_ms + self.step_ms_max * TURN_AFTER
        return self._at_turn_ms
