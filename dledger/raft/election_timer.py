"""The election timer: when a replica gives up its leader or its candidacy, and what it knows of
silence. Raft 5.2, 9.3. Pure.

Each time-out is drawn anew between the configured bounds, lengthened by the election back-off
(election_backoff.py) or, in calm times, halved (election_halving.py). A peer that was given up for
silence, whose connection never closed, and which is heard within the longest possible time-out
after all, was only slow: that lengthens the next ones.

Invariants: `yielded` and `stood_back` hold until the timer is set anew, so each lengthens a
time-out at most once; a peer in `given_up` is not in `closed`. Times are the core's, in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .config import NEVER_MS, CoreConfig, Random
from .election_backoff import FACTOR_MAX, ElectionBackOff
from .election_halving import ElectionHalving
from .messages import NodeId


@dataclass(slots=True, eq=False)
class ElectionTimer:
    """One replica's election timer. `closed`: the peers whose connection is known to be closed.
    `contact_ms`: when the leader was heard last."""

    _config: CoreConfig
    _rng: Random
    back_off: ElectionBackOff
    halving: ElectionHalving
    closed: set[NodeId] = field(default_factory=set)
    given_up: set[NodeId] = field(default_factory=set)  # for silence, though connected
    _given_up_ms: float = 0.0
    contact_ms: float = NEVER_MS
    due_ms: float = 0.0
    _yielded: bool = False  # to another's PreVote
    _stood_back: bool = False  # for lack of disk room

    def reset(self, now_ms: float) -> None:
        """Begin a new time-out."""
        low, high = self._config.election_ms_min, self._config.election_ms_max
        drawn_ms = low + self._rng.random() * (high - low)
        self.due_ms = now_ms + drawn_ms * self.back_off.factor * self.halving.scale
        self._yielded = self._stood_back = False

    @property
    def longest_ms(self) -> float:
        """The longest time-out, with the back-off as it is now, not halved."""
        return self._config.election_ms_max * self.back_off.factor

    def jitter_ms(self) -> float:
        """Draw a short delay, so that followers that see the same close do not ask at once."""
        return self._rng.random() * self._config.close_jitter_ms

    # -- the leader -------------------------------------------------------------------------

    def hears(self, leader: NodeId | None, now_ms: float) -> bool:
        """Return whether there is reason to believe that `leader` leads still. Uses the configured
        time-out, perhaps halved, without the back-off: this replica must not keep others from
        replacing a leader that is gone."""
        return (
            leader is not None
            and leader not in self.closed
            and now_ms - self.contact_ms < self._config.election_ms_min * self.halving.scale
        )

    def leader_heard(self, now_ms: float) -> None:
        """Note a message of the leader, before the timer is set anew for it."""
        silent_ms = now_ms - self.contact_ms
        if self.back_off.tried:
            self.back_off.heard(now_ms, silent_ms)
        self.halving.heard(now_ms, silent_ms)
        self.contact_ms = now_ms

    def mistaken(self) -> None:
        """Note that a peer was given up that was only slow."""
        self.back_off.mistaken()
        self.halving.mistaken()

    # -- peers ------------------------------------------------------------------------------

    def heard(self, peer: NodeId, now_ms: float) -> None:
        """Note a message of any peer: one that sends is connected. Needs to be called only while
        `closed` or `given_up` has entries."""
        self.closed.discard(peer)
        if peer in self.given_up:
            self.given_up.clear()
            if now_ms - self._given_up_ms < FACTOR_MAX * self._config.election_ms_max:
                self.mistaken()

    def give_up(self, peers: Iterable[NodeId], now_ms: float) -> None:
        """Note that `peers` are given up as silent for too long."""
        self.back_off.interrupted()
        self.halving.interrupted()
        self.given_up = set(peers) - self.closed
        self._given_up_ms = now_ms

    def peer_closed(self, peer: NodeId) -> None:
        """Note that the peer's connection is closed: its silence means nothing more."""
        self.closed.add(peer)
        self.given_up.discard(peer)

    # -- changes of the time-out ------------------------------------------------------------

    def leader_closed(self, now_ms: float) -> None:
        """Cut the time-out short: the leader's connection closed."""
        self.due_ms = min(self.due_ms, now_ms + self.jitter_ms())

    def yield_once(self, now_ms: float) -> None:
        """Wait long enough for another replica's election to be decided: the first one to ask goes
        first, because two that saw the same close would split the vote. Only once: the answer may
        not reach that replica."""
        if not self._yielded:
            self._yielded = True
            decided_ms = self._config.heartbeat_ms * self.back_off.factor
            self.due_ms = max(self.due_ms, now_ms + decided_ms + self.jitter_ms())

    def stands_back(self, now_ms: float) -> bool:
        """Let one more time-out pass, once; return whether that was not done yet. Others go first
        because this replica's disk is short of room."""
        if self._stood_back:
            return False
        self._stood_back = True
        self.due_ms = now_ms + self.longest_ms
        return True

    def stepped_down(self) -> None:
        """Lengthen the time-out of a leader that gave up by itself: everybody else goes first."""
        self.due_ms += self._config.election_ms_max

    def lost_election(self, began_ms: float, now_ms: float) -> None:
        """Shorten the time-out, set just now, after a lost election that began at `began_ms`."""
        if self.closed:
            # A split vote with the third replica known to be gone. Waiting a whole time-out
            # would only be waiting for the dead.
            self.due_ms = now_ms + (self._config.close_jitter_ms / 2 + self.jitter_ms())
        elif now_ms - began_ms < self._config.election_ms_min:
            # The peers answer fast: undo the election back-off for this time-out.
            self.due_ms = now_ms + (self.due_ms - now_ms) / self.back_off.factor
