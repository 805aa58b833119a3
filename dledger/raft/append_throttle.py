"""The append throttle for followers that are far behind: a limit in bytes a second. Pure.

Catching up takes bandwidth, the leader's time and its disk from live traffic. So the leader sends
old frames to all such followers together no faster than `bytes_per_s`. Old frames are those that
are already committed (so that nobody waits for this follower's acknowledgement) and lie further
back than what may be in flight. Everything else is never held back: commit does not depend on the
throttle.

It is a token bucket: it fills at that rate up to a tenth of a second's worth, and a request may be
sent as long as it is not empty, whatever the request's size. So the rate holds over any longer
time, and is exceeded by at most one request.
"""

from __future__ import annotations

BURST_S = 0.1
NEVER_DUE_MS = float("inf")


class AppendThrottle:
    """The leader's append throttle, for all its followers. Times are the core's, in
    milliseconds."""

    __slots__ = ("_allowance", "_bytes_per_s", "_filled_ms", "due_ms")

    def __init__(self, bytes_per_s: int) -> None:
        """`bytes_per_s` 0: no limit."""
        self._bytes_per_s = bytes_per_s
        self._allowance = bytes_per_s * BURST_S
        self._filled_ms = 0.0
        self.due_ms = NEVER_DUE_MS  # when a follower that was held back may get more

    def may_send(self, now_ms: float) -> bool:
        """Return whether a request may be sent now; if not, `due_ms` says when to ask again."""
        rate = self._bytes_per_s
        if not rate:
            return True
        filled = self._allowance + (now_ms - self._filled_ms) * rate / 1000
        self._allowance = min(filled, rate * BURST_S)
        self._filled_ms = now_ms
        if self._allowance > 0:
            return True
        wait_ms = 1 - self._allowance * 1000 / rate
        self.due_ms = min(self.due_ms, now_ms + wait_ms)
        return False

    def sent(self, size_bytes: int) -> None:
        """Note that a throttled request of that size was sent."""
        self._allowance -= size_bytes
