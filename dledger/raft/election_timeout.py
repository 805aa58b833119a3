"""Election time-outs, after which a replica gives up its leader or its candidacy. Raft 5.2, 9.3.

Each time-out is drawn between the configured bounds and multiplied by the election back-off or, in
calm times, halved. Times are the core's, in milliseconds.

**Back-off.** Raft 5.6 requires that messages are far faster than an election time-out. A starved
machine breaks that. With fixed time-outs every leader is given up while its heartbeats are in
flight, and each candidacy while its votes are. So the configured time-outs are multiplied by
`factor`, as in failure detectors that learn from false suspicions (Chandra and Toueg 1996, on
partial synchrony): 1 at first, and doubled by each mistake but the first, up to FACTOR_MAX.

Only a proof of slowness counts as a mistake, which is a message of a peer that was given up for
silence. Its connection must not have closed, and the message must arrive within the longest
possible time-out. A leader that died, a link that closed, a leadership transfer, or an election
that is lost in good time are no mistakes. A replica that is cut off, and asks for PreVotes in vain
(thesis 9.6), receives nothing and keeps its time-outs. So the first election after quiet times, and
a second election after that, use the configured time-outs.

The factor returns to 1 after CALM_TIMEOUTS times the longest configured time-out under a leader, if
no silence in that time was too long for the configured time-outs, with MARGIN to spare. After
longer silences it is halved, once CALM_TIMEOUTS times the time-out in use have passed, if none was
too long for the smaller factor.

**Halving.** The configured time-outs fit a machine that also runs other programs, and a leader that
freezes without a closed connection is missed for as long as they last. Half of that is enough after
a long time of punctual heartbeats (Raft 9.3 chooses time-outs by how regular messages are). A
replica earns the halves, and loses them at the first sign that they are too short:

- They hold after CALM_TIMEOUTS times the longest configured time-out under a leader, if no silence
  in it came near half of the shortest time-out, with MARGIN to spare.
- Such a silence, the loss of the leader, or a mistake ends them. A mistake also doubles the calm
  time that is required from then on, up to WAIT_FACTOR_MAX times.

A voter judges by its own time-outs whether the leader is silent (`scale`), so a calm group agrees
to an election early.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .config import NEVER_MS, CoreConfig, Random
from .messages import NodeId

FACTOR_MAX = 16  # a group that is slower still than this has no leader worth having
MISTAKES_MAX = 5  # 2 ** (5 - 1) is FACTOR_MAX
CALM_TIMEOUTS = 10  # nearly a hundred heartbeats, enough to show remaining starvation
MARGIN = 1.5  # times the longest silence
HALF = 0.5
WAIT_FACTOR_MAX = 8


@dataclass(slots=True, eq=False)
class ElectionTimer:
    """One replica's election timer. `closed` has the peers with closed connections, `contact_ms`
    the time of the leader's last message.

    Invariants: `_yielded` and `_stood_back` hold until `reset`, so each lengthens a time-out at
    most once; a peer in `given_up` is not in `closed`."""

    _config: CoreConfig
    _rng: Random
    back_off: ElectionBackOff = field(init=False)
    halving: ElectionHalving = field(init=False)
    closed: set[NodeId] = field(default_factory=set)
    given_up: set[NodeId] = field(default_factory=set)  # for silence, though connected
    _given_up_ms: float = 0.0
    contact_ms: float = NEVER_MS
    due_ms: float = 0.0
    _yielded: bool = False  # to another's PreVote
    _stood_back: bool = False  # while unwilling

    def __post_init__(self) -> None:
        low, high = self._config.election_ms_min, self._config.election_ms_max
        self.back_off, self.halving = ElectionBackOff(low, high), ElectionHalving(low, high)

    def reset(self, now_ms: float) -> None:
        """Start a new time-out."""
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

    def hears(self, leader: NodeId | None, now_ms: float) -> bool:
        """Return whether `leader` probably still leads. Uses the configured time-out, perhaps
        halved, without the back-off, so that this replica does not delay the replacement of a dead
        leader."""
        return (
            leader is not None
            and leader not in self.closed
            and now_ms - self.contact_ms < self._config.election_ms_min * self.halving.scale
        )

    def leader_heard(self, now_ms: float) -> None:
        """Note a message of the leader, before the timer is reset for it."""
        silent_ms = now_ms - self.contact_ms
        if self.back_off.tried:
            self.back_off.heard(now_ms, silent_ms)
        self.halving.heard(now_ms, silent_ms)
        self.contact_ms = now_ms

    def mistaken(self) -> None:
        """Note that a peer was given up that was only slow."""
        self.back_off.mistaken()
        self.halving.mistaken()

    def heard(self, peer: NodeId, now_ms: float) -> None:
        """Note a message of any peer, which is therefore connected. Needs to be called only while
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
        """Note that the peer's connection is closed, so that its silence means nothing."""
        self.closed.add(peer)
        self.given_up.discard(peer)

    def expect_no_leader(self, now_ms: float) -> None:
        """Shorten the time-out, because the leader's connection closed, or there was no leader."""
        self.due_ms = min(self.due_ms, now_ms + self.jitter_ms())

    def yield_once(self, now_ms: float) -> None:
        """Wait until the election of the first candidate is decided, because two replicas that saw
        the same close would split the vote. Wait only once, since the answer may be lost."""
        if not self._yielded:
            self._yielded = True
            decided_ms = self._config.heartbeat_ms * self.back_off.factor
            self.due_ms = max(self.due_ms, now_ms + decided_ms + self.jitter_ms())

    def stands_back(self, now_ms: float) -> bool:
        """Let a further time-out pass, once, so that willing replicas campaign first."""
        if self._stood_back:
            return False
        self._stood_back = True
        self.due_ms = now_ms + self.longest_ms
        return True

    def stepped_down(self) -> None:
        """Lengthen the time-out after stepping down, so that others campaign first."""
        self.due_ms += self._config.election_ms_max

    def lost_election(self, began_ms: float, now_ms: float) -> None:
        """Shorten the time-out, set just now, after a lost election that began at `began_ms`."""
        if self.closed:
            # A split vote with the third replica known to be gone. Waiting a whole time-out
            # would only be waiting for the dead.
            self.due_ms = now_ms + (self._config.close_jitter_ms / 2 + self.jitter_ms())
        elif now_ms - began_ms < self._config.election_ms_min:
            # The peers answer fast, so undo the election back-off for this time-out.
            self.due_ms = now_ms + (self.due_ms - now_ms) / self.back_off.factor


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
        """True if there are mistakes to forget. Otherwise `heard` need not be called."""
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
        """Return whether time-outs after that many mistakes outlast this silence."""
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


def _factor(mistakes: int) -> int:
    return 1 << max(0, mistakes - 1)


assert _factor(MISTAKES_MAX) == FACTOR_MAX
