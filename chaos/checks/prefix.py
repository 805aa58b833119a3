"""The highest value known before a moment, for values that should only rise. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left

KEPT_MAX = 65_536  # newest steps that are kept; `before` may return None for older moments


class PrefixMax:
    """Steps of a rising maximum over time. Memory: 16 bytes a step, 2 * KEPT_MAX steps at most.

    Add moments in order. A moment earlier than the last counts as the last, so `before` may only
    return less.
    """

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times = array("q")
        self._values = array("q")

    def note(self, t_ns: int, value: int) -> None:
        """Note that `value` was certain at `t_ns`."""
        times, values = self._times, self._values
        if values:
            if value <= values[-1]:
                return
            t_ns = max(t_ns, times[-1])
        times.append(t_ns)
        values.append(value)
        if len(times) > 2 * KEPT_MAX:
            del times[:KEPT_MAX]
            del values[:KEPT_MAX]

    def before(self, t_ns: int) -> int | None:
        """Return the highest value certain before `t_ns`; None if none or forgotten."""
        number = bisect_left(self._times, t_ns)
        return self._values[number - 1] if number else None

    @property
    def last(self) -> int | None:
        """The highest value of all; None without any."""
        return self._values[-1] if self._values else None

    def clear(self) -> None:
        """Clear all steps after a deliberate reset of the value."""
        del self._times[:]
        del self._values[:]
