"""The append throttle limits the bytes per second to followers that are far behind.

A follower that catches up uses bandwidth, the leader's time and its disk. So the leader sends old
frames to all such followers together at no more than `bytes_per_s`. Old frames are committed (so no
sender waits for this follower) and further back than the frames in flight. All other frames are
sent at once, so commit does not depend on the throttle.

It is a token bucket, filled at that rate up to a tenth of a second's worth. A request may be sent
while the bucket is not empty, whatever the request's size. So the rate is exceeded by at most one
request.
"""

from __future__ import annotations

BURST_S = 0.1
NEVER_DUE_MS = float("inf")


class AppendThrottle:
    """The leader's append throttle for all followers. Times are the core's, in ms."""

    __slots__ = ("_allowance", "_bytes_per_s", "_filled_ms", "due_ms")

    def __init__(self, bytes_per_s: int) -> None:
        """`bytes_per_s` 0: no limit."""
        self._bytes_per_s = bytes_per_s
        self._allowance = bytes_per_s * BURST_S
        self._filled_ms = 0.0
        self.due_ms = NEVER_DUE_MS  # when a throttled follower may get more

    def may_send(self, now_ms: float) -> bool:
        """Return whether a request may be sent; if not, `due_ms` is the next try."""
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
        self._allowance -= size_bytes
