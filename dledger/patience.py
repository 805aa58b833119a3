"""How long a replica waits for word of the others before it gives them up. Pure.

Raft 5.6 asks that a message's way be short beside the election time-out. A machine that is starved
does not keep to that: with fixed time-outs (Raft 9.3 chooses them for a machine that does) every
leader is given up while its heartbeats are on their way, and each candidacy while its votes are.
So the configured time-outs are multiplied by `factor`, as failure detectors do that learn from
suspicions that were false (Chandra and Toueg 1996, on partial synchrony): 1 at first, and doubled
by each mistake but the first, up to FACTOR_MAX.

What counts is proof of slowness, and proof only: somebody who was given up for silence, and whose
connection never closed, speaks after all (`mistaken`, asked by election.py and core.py). Nobody
learns anything from a leader that died, a link that closed, leadership that was handed over, or an
election that is lost in good time; and a replica that is cut off, and asks for PreVotes in vain
(thesis 9.6), hears nobody and so waits no longer than it ever did. So the first election after
quiet times, and a second behind it, take what is configured.

Once somebody has led without a break for CALM_TIMEOUTS of the longest configured time-out, and no
silence of that time was too long for the configured ones, with MARGIN to spare, all is forgiven:
that is what the end of starvation looks like. One step is, where they still were, after
CALM_TIMEOUTS of those in use, if none was too long for the smaller factor.
"""

from __future__ import annotations

FACTOR_MAX = 16  # a group that is slower still than this has no leader worth having
MISTAKES_MAX = 5  # 2 ** (5 - 1) is FACTOR_MAX
CALM_TIMEOUTS = 10  # nearly a hundred heartbeats: a rest of the starved would be among them
MARGIN = 1.5  # times the longest silence: heartbeats may come at half of the shortest time-out


class Patience:
    """One per replica. Times in milliseconds, of the core's clock."""

    __slots__ = ("_calm", "_calm_ms", "_min_ms", "_mistakes", "_steady", "factor")

    def __init__(self, election_ms_min: float, election_ms_max: float) -> None:
        self.factor = 1
        self._min_ms = election_ms_min
        self._calm_ms = CALM_TIMEOUTS * election_ms_max
        self._mistakes = 0
        self._calm: _Led | None = None  # in time-outs as configured; None: nobody leads
        self._steady: _Led | None = None  # in those in use

    @property
    def tried(self) -> bool:
        """Whether there is something to be forgiven: only then `heard` has to be told."""
        return self._mistakes > 0

    def mistaken(self) -> None:
        """Somebody was given up who was only slow."""
        self.interrupted()
        self._set(min(self._mistakes + 1, MISTAKES_MAX))

    def interrupted(self) -> None:
        """Nobody leads, for whatever reason."""
        self._calm = self._steady = None

    def heard(self, now_ms: float, silent_ms: float) -> None:
        """Somebody leads, and was silent for `silent_ms` before this word."""
        if self._calm is None or self._steady is None:
            self._calm, self._steady = _Led(now_ms), _Led(now_ms)
            return
        self._calm.silences(silent_ms)
        self._steady.silences(silent_ms)
        if now_ms - self._calm.since_ms >= self._calm_ms:
            if self._outlasts(self._calm.longest_ms, 0):
                self._set(0)
            self._calm = _Led(now_ms)
        if now_ms - self._steady.since_ms >= self._calm_ms * self.factor:
            if self._outlasts(self._steady.longest_ms, self._mistakes - 1):
                self._set(max(0, self._mistakes - 1))
            self._steady = _Led(now_ms)

    def _outlasts(self, silent_ms: float, mistakes: int) -> bool:
        """Whether that few would have been enough."""
        return silent_ms * MARGIN < self._min_ms * _factor(mistakes)

    def _set(self, mistakes: int) -> None:
        self._mistakes = mistakes
        self.factor = _factor(mistakes)


class _Led:
    """A time for which somebody has led, and the longest silence in it."""

    __slots__ = ("longest_ms", "since_ms")

    def __init__(self, since_ms: float) -> None:
        self.since_ms = since_ms
        self.longest_ms = 0.0

    def silences(self, silent_ms: float) -> None:
        self.longest_ms = max(self.longest_ms, silent_ms)


def _factor(mistakes: int) -> int:
    return 1 << max(0, mistakes - 1)


assert _factor(MISTAKES_MAX) == FACTOR_MAX
