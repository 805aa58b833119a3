"""Leader placement, by preference or because the present leader is unwilling.

**Preferred leader** (configuration.py, `preferred`). Every replica calls `PreferredLeader.check`
periodically, and the leader's call may return the replica that leadership goes to now. These rules
keep it from making service worse:

- for `steady_ms` without a break, the preferred replica was recovered, connected and caught up, and
  nothing was under way in the group (membership change, snapshot install, a replica that stops);
- leadership goes to it at most `moves_per_minute_max` times per minute, in all kinds of transfers;
- a failed transfer, or a leadership that does not last `settled_ms`, doubles the wait before the
  next transfer, up to `back_off_ms_max`. A leadership that lasts resets the wait.

Followers check too, so the next leader has the results of the last transfers. A replica that has
just started waits `steady_ms`.

**Unwilling leader**. A replica is unwilling while its disk is full or slow, or its clock is wrong.
Followers report that in their answers to heartbeats (follower.py), always as missing disk space.
`SuccessorSearch.check` is called a few times per second:

- leadership goes to a willing replica that is able at once, the longest log first;
- the same replica is chosen again only after a back-off, which doubles each time, so failing
  transfers and replicas that cannot keep leadership are not repeated forever;
- `successor_expected` keeps sends accepted while some replica may be willing, for EXPECTED_MS at
  most. Later sends are refused, and the search continues.

Without a willing replica leadership stays. A replica remains unwilling until its disk is well below
the mark at which it was full (broker.disk_space), and a slow replica for a while (pace.py), so two
of them never alternate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .messages import NodeId

MINUTE_MS = 60_000.0
EXPECTED_MS = 5_000  # for a follower that catches up, and for one transfer that fails on the way
BACK_OFF_MS = 5_000  # after the first time that a replica was chosen
BACK_OFF_MS_MAX = 320_000
FORGET_MS = 2 * BACK_OFF_MS_MAX  # without being chosen, after which its back-off starts afresh


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
class GroupView:
    """A replica's view of the group. The fields behind `preferred` matter on a leader only.

    `blocker` is the reason why the preferred replica could not lead now, or "". `busy` names the
    work in the group that a change of leader would disturb, or is "". `caught_up` marks a preferred
    replica with few missing frames, so that a transfer is short."""

    node_id: NodeId
    term: int
    leader: NodeId | None  # or None if unknown
    preferred: NodeId  # "": nobody
    ready: bool = False  # this replica leads, and its term's first frame is committed
    transferring: bool = False
    blocker: str = ""
    busy: str = ""
    caught_up: bool = False


@dataclass(slots=True, eq=False)
class PreferredLeader:
    """Decides when leadership goes to the preferred leader. `reason` explains the last decision."""

    _limits: PreferenceLimits
    reason: str = field(default="", init=False)
    _preferred: NodeId = field(default="", init=False)
    _last_leader: NodeId | None = field(default=None, init=False)  # the last leader seen
    _leader_since_ms: float = field(default=0.0, init=False)
    _ready_since_ms: float | None = field(default=None, init=False)
    _tried_term: int = field(default=0, init=False)  # of a transfer under way; 0: none
    _failures: int = field(default=0, init=False)  # in a row
    _wait_until_ms: float = field(default=0.0, init=False)
    _moves: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._moves = deque(maxlen=self._limits.moves_per_minute_max)

    def check(self, view: GroupView, now_ms: float) -> NodeId | None:
        """Return the replica to transfer leadership to now, or None. A caller that gets a name
        starts the transfer before its next call."""
        if view.preferred != self._preferred:
            self._preferred = view.preferred
            self._tried_term = self._failures = 0
            self._wait_until_ms = 0.0
            self._ready_since_ms = None
        self._observe_leader(view, now_ms)
        self.reason = self._blocker(view, now_ms)
        if self.reason:
            return None
        self.reason = f"leadership goes to {view.preferred}"
        self._ready_since_ms = None
        self._tried_term = view.term
        self._moves.append(now_ms)
        return view.preferred

    def _observe_leader(self, view: GroupView, now_ms: float) -> None:
        leader, preferred = view.leader, view.preferred
        if leader is not None and leader != self._last_leader:
            was, led_ms = self._last_leader, now_ms - self._leader_since_ms
            self._last_leader, self._leader_since_ms = leader, now_ms
            if leader == preferred and was is not None and not self._tried_term:
                self._moves.append(now_ms)  # by a transfer, or by election
            elif was == preferred != "" and led_ms < self._limits.settled_ms:
                self._failed(now_ms)
        settled = now_ms - self._leader_since_ms >= self._limits.settled_ms
        if leader is not None and leader == preferred:
            self._tried_term = 0
            if settled:
                self._failures = 0
        elif self._tried_term and leader is not None and not view.transferring:
            self._tried_term = 0  # given up, or a different replica was elected
            self._failed(now_ms)

    def _failed(self, now_ms: float) -> None:
        limits = self._limits
        longest = limits.back_off_ms_max
        # The exponent is bounded: a float has room for a thousand doublings, a count has not.
        wait_ms = min(longest, limits.back_off_ms * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._wait_until_ms = now_ms + wait_ms

    def _blocker(self, view: GroupView, now_ms: float) -> str:
        """Return the reason why leadership should not move now, or ""."""
        preferred = view.preferred
        if not preferred:
            reason = "nobody is preferred"
        elif view.leader == preferred:
            reason = f"{preferred} leads"
        elif not view.ready:
            reason = "the leader sees to it"
        elif view.transferring:
            reason = "leadership is being handed over"
        else:
            reason = view.blocker or view.busy
        if reason:
            self._ready_since_ms = None
            return reason
        return self._remaining_wait(view, now_ms)

    def _remaining_wait(self, view: GroupView, now_ms: float) -> str:
        limits = self._limits
        if self._ready_since_ms is None:
            self._ready_since_ms = now_ms
        steady_ms = now_ms - self._ready_since_ms
        if steady_ms < limits.steady_ms:
            return f"{view.preferred} has been able for {steady_ms / 1000:.0f} s"
        if now_ms < self._wait_until_ms:
            left_s = (self._wait_until_ms - now_ms) / 1000
            return f"tried {self._failures} times in vain, again in {left_s:.0f} s"
        full = len(self._moves) == limits.moves_per_minute_max
        if full and now_ms - self._moves[0] < MINUTE_MS:
            return f"leadership went to {view.preferred} {len(self._moves)} times in a minute"
        return "" if view.caught_up else f"{view.preferred} lacks the newest frames"


class SuccessorSearch:
    """Chooses a successor for an unwilling leader. One per replica; it outlasts a leadership."""

    __slots__ = ("_chosen", "_since_ms", "successor_expected")

    def __init__(self) -> None:
        self.successor_expected = False
        self._since_ms: float | None = None  # unwilling
        self._chosen: dict[NodeId, tuple[int, float]] = {}  # how often, and when last

    def check(
        self,
        unwilling: bool,
        transferring: bool,
        willing: Sequence[NodeId],
        able: Sequence[NodeId],
        now_ms: float,
    ) -> NodeId | None:
        """Return the replica to transfer leadership to now, else None.

        `unwilling` is true if this replica leads and is not willing. `willing` lists replicas that
        may be willing, `able` those of them that could lead at once, the best first. A caller that
        gets a name starts the transfer before its next call."""
        if not unwilling:
            self._since_ms, self.successor_expected = None, False
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        in_time = now_ms - self._since_ms < EXPECTED_MS
        self.successor_expected = in_time and (transferring or bool(willing))
        if transferring:
            return None
        for peer in able:
            if now_ms >= self._due_ms(peer, now_ms):
                count, _ = self._chosen.get(peer, (0, 0.0))
                self._chosen[peer] = (count + 1, now_ms)
                return peer
        return None

    def _due_ms(self, peer: NodeId, now_ms: float) -> float:
        count, chosen_ms = self._chosen.get(peer, (0, 0.0))
        if count and now_ms - chosen_ms >= FORGET_MS:
            del self._chosen[peer]
            count = 0
        if not count:
            return now_ms
        # The exponent is bounded: a float has room for a thousand doublings, a count has not.
        return chosen_ms + min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2.0 ** min(count - 1, 64))
