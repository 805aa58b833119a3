"""The election back-off: by how much a replica lengthens its election time-outs. Pure.

Raft 5.6 asks that the time a message takes be short beside the election time-out. A starved machine
does not meet that: with fixed time-outs (Raft 9.3 chooses them for a machine that does) every
leader is given up while its heartbeats are in flight, and each candidacy while its votes are.
So the configured time-outs are multiplied by `factor`, as in failure detectors that learn from
false suspicions (Chandra and Toueg 1996, on partial synchrony): 1 at first, and doubled by each
mistake but the first, up to FACTOR_MAX.

Only a proof of slowness counts as a mistake: a peer that was given up for silence, and whose
connection never closed, is heard after all (`mistaken`, called by election_timer.py and core.py). A
leader that died, a link that closed, leadership that was handed over, or an election that is lost
in good time count for nothing; and a replica that is cut off, and asks for PreVotes in vain (thesis
9.6), hears nobody and so keeps its time-outs. So the first election after quiet times, and a second
one after that, use the configured time-outs.

Once there has been a leader without a break for CALM_TIMEOUTS times the longest configured
time-out, and no silence in that time was too long for the configured time-outs, with MARGIN to
spare, the factor goes back to 1: the starvation has ended. If there were longer silences, it is
halved after CALM_TIMEOUTS times the time-out in use if none was too long for the smaller factor.
"""

from __future__ import annotations

FACTOR_MAX = 16  # a group that is slower still than this has no leader worth having
MISTAKES_MAX = 5  # 2 ** (5 - 1) is FACTOR_MAX
CALM_TIMEOUTS = 10  # nearly a hundred heartbeats: remaining starvation would show among them
MARGIN = 1.5  # times the longest silence: heartbeats may come at half of the shortest time-out


class ElectionBackOff:
    """The election back-off of one replica. Times are the core's, in milliseconds."""

    __slots__ = ("_calm", "_calm_ms", "_min_ms", "_mistakes", "_steady", "factor")

    def __init__(self, election_ms_min: float, election_ms_max: float) -> None:
        self.factor = 1
        self._min_ms = election_ms_min
        self._calm_ms = CALM_TIMEOUTS * election_ms_max
        self._mistakes = 0
        self._calm: _Led | None = None  # for the configured time-outs; None: nobody leads
        self._steady: _Led | None = None  # for the time-outs in use

    @property
    def tried(self) -> bool:
        """True if there are mistakes to forget: only then `heard` has to be called."""
        return self._mistakes > 0

    def mistaken(self) -> None:
        """Note that a peer was given up that was only slow."""
        self.interrupted()
        self._set(min(self._mistakes + 1, MISTAKES_MAX))

    def interrupted(self) -> None:
        """Note that there is no leader, for whatever reason."""
        self._calm = self._steady = None

    def heard(self, now_ms: float, silent_ms: float) -> None:
        """Note that there is a leader, which was heard now after `silent_ms` of silence."""
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
        """Return whether the time-outs after only that many mistakes would have outlasted this
        silence."""
        return silent_ms * MARGIN < self._min_ms * _factor(mistakes)

    def _set(self, mistakes: int) -> None:
        self._mistakes = mistakes
        self.factor = _factor(mistakes)


class _Led:
    """A period with a leader, and the longest silence in it."""

    __slots__ = ("longest_ms", "since_ms")

    def __init__(self, since_ms: float) -> None:
        self.since_ms = since_ms
        self.longest_ms = 0.0

    def silences(self, silent_ms: float) -> None:
        self.longest_ms = max(self.longest_ms, silent_ms)


def _factor(mistakes: int) -> int:
    return 1 << max(0, mistakes - 1)


assert _factor(MISTAKES_MAX) == FACTOR_MAX
