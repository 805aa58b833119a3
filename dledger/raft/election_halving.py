"""The halving of election time-outs: a follower whose leader is heard without any pause gives it up
in half of the configured time. Pure.

The configured time-outs fit a machine that others use as well, and a leader that freezes without a
closed connection is missed for as long as they last. Where heartbeats have come in time for long,
half of that is enough (Raft 9.3 chooses time-outs by how regular messages are). The halves are
earned, and lost at the first sign that they are too short:

- They hold once there has been a leader without a break for CALM_TIMEOUTS times the longest
  configured time-out, and no silence in it came near half of the shortest, with MARGIN to spare
  (both as the back-off's, election_backoff.py).
- Such a silence, no leader, or a mistake ends them. A mistake, a peer given up that was only slow,
  also doubles how long calm has to last from then on, up to WAIT_FACTOR_MAX times.

So a machine that stalls now and then is asked for more and more proof, and a starved one has the
configured time-outs, lengthened by the back-off. A voter that was asked for its vote goes by the
same time-outs as it would itself (`scale`), so a group that is calm agrees to an election early.
"""

from __future__ import annotations

from .election_backoff import CALM_TIMEOUTS, MARGIN

HALF = 0.5
WAIT_FACTOR_MAX = 8


class ElectionHalving:
    """Decides whether a replica halves its election time-outs. Times are the core's, in ms."""

    __slots__ = ("_calm_since_ms", "_silent_ms_max", "_wait_ms", "_wait_ms_max", "holds")

    def __init__(self, election_ms_min: float, election_ms_max: float) -> None:
        self.holds = False
        self._silent_ms_max = election_ms_min * HALF / MARGIN
        self._wait_ms = CALM_TIMEOUTS * election_ms_max
        self._wait_ms_max = WAIT_FACTOR_MAX * self._wait_ms
        self._calm_since_ms: float | None = None  # None: nobody leads

    @property
    def scale(self) -> float:
        """The factor on the configured time-outs."""
        return HALF if self.holds else 1.0

    def heard(self, now_ms: float, silent_ms: float) -> None:
        """Note that the leader was heard now after `silent_ms` of silence."""
        if self._calm_since_ms is None or silent_ms >= self._silent_ms_max:
            self.holds = False
            self._calm_since_ms = now_ms
        elif not self.holds and now_ms - self._calm_since_ms >= self._wait_ms:
            self.holds = True

    def interrupted(self) -> None:
        """Note that there is no leader, for whatever reason."""
        self.holds = False
        self._calm_since_ms = None

    def mistaken(self) -> None:
        """Note that a peer was given up that was only slow."""
        self.interrupted()
        self._wait_ms = min(2 * self._wait_ms, self._wait_ms_max)
