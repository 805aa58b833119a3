"""Decides when leadership goes to the preferred leader (configuration.py, `preferred`). Pure.

Every replica periodically tells `Preference.look` what it sees; on the leader the answer may be
"hand leadership over now". So that this never makes service worse:

- the preferred replica must have been recovered, connected and caught up, and nothing may have been
  under way in the group (no membership change, no snapshot install, no replica leaving), for
  `steady_ms` without a break;
- leadership goes to it at most `moves_per_minute_max` times in any minute, whoever handed it over;
- a hand-over that fails, or a leadership of it that does not last `settled_ms`, doubles the wait
  before the next, up to `back_off_ms_max`. A leadership that lasts resets the wait.

Followers look, too, so that the next leader knows how the last hand-overs went. A replica that was
just started does not know, and waits `steady_ms` like every other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .messages import NodeId

MINUTE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class PreferenceLimits:
    """Limits on moving leadership to the preferred leader. Times in milliseconds."""

    steady_ms: float = 5_000
    moves_per_minute_max: int = 2
    settled_ms: float = 60_000
    back_off_ms: float = 10_000  # after the first failure
    back_off_ms_max: float = 600_000

    def __post_init__(self) -> None:
        assert self.moves_per_minute_max > 0
        assert 0 < self.back_off_ms <= self.back_off_ms_max


@dataclass(frozen=True, slots=True)
class Seen:
    """The group at one moment, as one replica sees it. The fields behind `preferred` matter on a
    leader only. `hindrance`: why the preferred replica could not lead now, "" if it could; `busy`:
    what is under way in the group that a change of leader would disturb, "" for nothing; `at_hand`:
    the preferred replica lacks so little that a hand-over takes only a moment."""

    node_id: NodeId
    term: int
    leader: NodeId | None  # None: not known just now
    preferred: NodeId  # "": nobody
    ready: bool = False  # this replica leads, and its term's first frame is committed
    transferring: bool = False
    hindrance: str = ""
    busy: str = ""
    at_hand: bool = False


@dataclass(slots=True, eq=False)
class Preference:
    """Decides at one replica when leadership goes to the preferred leader. `reason` says in words
    why leadership is where it is."""

    _limits: PreferenceLimits
    reason: str = field(default="", init=False)
    _preferred: NodeId = field(default="", init=False)
    _led: NodeId | None = field(default=None, init=False)  # the last leader seen
    _led_since_ms: float = field(default=0.0, init=False)
    _able_since_ms: float | None = field(default=None, init=False)
    _tried_term: int = field(default=0, init=False)  # of a hand-over whose outcome is open; 0: none
    _failures: int = field(default=0, init=False)  # in a row
    _wait_until_ms: float = field(default=0.0, init=False)
    _moves: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._moves = deque(maxlen=self._limits.moves_per_minute_max)

    def look(self, seen: Seen, now_ms: float) -> NodeId | None:
        """Return the replica to hand leadership to now; None: it stays. A caller that gets a name
        begins the transfer before its next call."""
        if seen.preferred != self._preferred:
            self._preferred = seen.preferred
            self._tried_term = self._failures = 0
            self._wait_until_ms = 0.0
            self._able_since_ms = None
        self._note_leader(seen, now_ms)
        self.reason = self._what_stands_against(seen, now_ms)
        if self.reason:
            return None
        self.reason = f"leadership goes to {seen.preferred}"
        self._able_since_ms = None
        self._tried_term = seen.term
        self._moves.append(now_ms)
        return seen.preferred

    def _note_leader(self, seen: Seen, now_ms: float) -> None:
        leader, preferred = seen.leader, seen.preferred
        if leader is not None and leader != self._led:
            was, led_ms = self._led, now_ms - self._led_since_ms
            self._led, self._led_since_ms = leader, now_ms
            if leader == preferred and was is not None and not self._tried_term:
                self._moves.append(now_ms)  # another replica handed it over, or it was elected
            elif was == preferred != "" and led_ms < self._limits.settled_ms:
                self._failed(now_ms)
        settled = now_ms - self._led_since_ms >= self._limits.settled_ms
        if leader is not None and leader == preferred:
            self._tried_term = 0
            if settled:
                self._failures = 0
        elif self._tried_term and leader is not None and not seen.transferring:
            self._tried_term = 0  # given up, or somebody else was elected
            self._failed(now_ms)

    def _failed(self, now_ms: float) -> None:
        limits = self._limits
        longest = limits.back_off_ms_max
        # The exponent is bounded: a float has room for a thousand doublings, a count has not.
        wait_ms = min(longest, limits.back_off_ms * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._wait_until_ms = now_ms + wait_ms

    def _what_stands_against(self, seen: Seen, now_ms: float) -> str:
        """Return in words why leadership should not move now; "" if it should."""
        preferred = seen.preferred
        if not preferred:
            reason = "nobody is preferred"
        elif seen.leader == preferred:
            reason = f"{preferred} leads"
        elif not seen.ready:
            reason = "the leader sees to it"
        elif seen.transferring:
            reason = "leadership is being handed over"
        else:
            reason = seen.hindrance or seen.busy
        if reason:
            self._able_since_ms = None
            return reason
        return self._what_has_to_pass(seen, now_ms)

    def _what_has_to_pass(self, seen: Seen, now_ms: float) -> str:
        limits = self._limits
        if self._able_since_ms is None:
            self._able_since_ms = now_ms
        steady_ms = now_ms - self._able_since_ms
        if steady_ms < limits.steady_ms:
            return f"{seen.preferred} has been able for {steady_ms / 1000:.0f} s"
        if now_ms < self._wait_until_ms:
            left_s = (self._wait_until_ms - now_ms) / 1000
            return f"tried {self._failures} times in vain, again in {left_s:.0f} s"
        full = len(self._moves) == limits.moves_per_minute_max
        if full and now_ms - self._moves[0] < MINUTE_MS:
            return f"leadership went to {seen.preferred} {len(self._moves)} times in a minute"
        return "" if seen.at_hand else f"{seen.preferred} lacks the newest frames"
