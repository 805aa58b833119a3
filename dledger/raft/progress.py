"""The leader's view of a follower, and the limits of sending to it.

In state PROBE the match of the logs is unknown, and requests are sent singly. In state REPLICATE it
is known, and requests are pipelined, bounded by messages and by bytes in flight. In state STRANDED
retention has deleted the frames that the follower needs. It gets heartbeats only, until its own log
reaches ours again (snapshot_install.py).

Invariants: match_index < next_index; requests in flight are between them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from .messages import NodeId


class PeerState(Enum):
    """The state of replication to a follower, see the module."""

    PROBE = "probe"
    REPLICATE = "replicate"
    STRANDED = "stranded"


PROBE = PeerState.PROBE
REPLICATE = PeerState.REPLICATE
STRANDED = PeerState.STRANDED


@dataclass(slots=True, eq=False)
class Progress:
    """A follower, as its leader sees it during a leadership."""

    peer: NodeId
    next_index: int
    heard_ms: float  # last answer of this leadership
    _messages_max: int
    _bytes_max: int
    _resend_ms: float
    voter: bool = True  # false for learners, and during removal
    departs_ms: float | None = None  # the end of notifications to a removed follower
    state: PeerState = PROBE
    match_index: int = 0
    match_round: int = 0  # the last round before `match_index` was acknowledged
    verified_index: int = 0  # written there, by its last heartbeat response
    tried_last: int = -1  # STRANDED: its last index at the last probe
    paused: bool = False  # PROBE: a request waits for its answer
    probe_last: int = 0  # the last index that the request proves
    inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes) of each
    inflight_bytes: int = 0
    moved_ms: float = field(init=False)  # time of the last advance, or of being idle
    resend_after_ms: float = field(init=False)  # doubles without answers
    round: int = 0  # highest heartbeat round it answered
    link_round: int = -1  # the last round before its link was opened or closed
    recovered_index: int = 0  # acknowledged while recovered; counts for commit
    recovered_round: int = 0  # highest heartbeat round answered while recovered
    recovering: int | None = None  # 0: recovered; its incarnation; None: not heard yet
    reported_index: int = 0  # match_index of its newest heartbeat response
    barrier_index: int = 0  # the frame that completes its recovery (recovery.py)
    certified: int = 0  # the incarnation that is certified
    no_room_reported: bool = False  # reported ahead of its next heartbeat response
    no_room: bool = False  # unwilling to lead, by its last heartbeat response
    full_reported: bool = False
    full: bool = False  # accepts no frames, by the same
    regressions: int = 0  # losses of acknowledged frames (ASYNC_FLUSH only)

    def __post_init__(self) -> None:
        self.moved_ms = self.heard_ms
        self.resend_after_ms = self._resend_ms

    @property
    def known_match(self) -> int | None:
        """`match_index`, or None until the follower has answered."""
        unheard = self.recovering is None and not self.match_index
        return None if unheard else self.match_index

    @property
    def known_recovered(self) -> bool | None:
        """True if the follower is recovered; None until it has answered."""
        return None if self.recovering is None else not self.recovering

    def may_send(self) -> bool:
        """Return whether a request with frames may be sent now; always true with none in flight."""
        if self.state is REPLICATE:
            return not self.inflight or (
                len(self.inflight) < self._messages_max and self.inflight_bytes < self._bytes_max
            )
        return self.state is PROBE and not self.paused

    def window_bytes(self) -> int:
        return max(0, self._bytes_max - self.inflight_bytes)

    def sent(self, last: int, size_bytes: int, now_ms: float) -> None:
        """Record a request with frames next_index..last (none if last < next_index)."""
        if self.state is REPLICATE:
            if not self.inflight:
                self.moved_ms = now_ms
            self.inflight.append((last, size_bytes))
            self.inflight_bytes += size_bytes
            self.next_index = last + 1
        else:
            self.paused = True
            self.probe_last = last
            self.moved_ms = now_ms

    def acknowledged(self, match_index: int, now_ms: float) -> bool:
        """Handle an acknowledgement; return whether `match_index` rises."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= match_index:
            self.inflight_bytes -= inflight.popleft()[1]
        news = match_index > self.match_index
        if news:
            self.match_index = match_index
            self.verified_index = max(self.verified_index, match_index)
            self.moved_ms = now_ms
            self.resend_after_ms = self._resend_ms
            if self.next_index <= match_index:
                self.next_index = match_index + 1
        if self.state is not REPLICATE and match_index >= self.match_index:
            self.state = REPLICATE  # the match is proven, so the pipeline may start
            self.next_index = self.match_index + 1
            self.paused = False
        return news

    def probe_from(self, next_index: int) -> None:
        """Forget the requests in flight, and probe at `next_index` (above match)."""
        assert next_index > self.match_index, (self.peer, next_index, self.match_index)
        self.state = PROBE
        self.next_index = next_index
        self.paused = False
        self.inflight.clear()
        self.inflight_bytes = 0

    def rejected(self, prev_index: int) -> bool:
        """Return whether a refusal of the request at `prev_index` is news.

        A refusal at or below match is obsolete. During a probe only its single request can be
        refused; a pipeline's refusals behind the first are echoes."""
        if prev_index <= self.match_index:
            return False
        return self.state is REPLICATE or (self.paused and prev_index == self.next_index - 1)

    def stalled(self, now_ms: float, verified_index: int) -> bool:
        """Return whether a heartbeat response shows that a request in flight is lost. Frames that
        the follower has written but not made durable are only slow."""
        if verified_index > self.verified_index:
            self.verified_index = verified_index
            self.moved_ms = now_ms
        if self.state is REPLICATE:
            waiting = bool(self.inflight) and verified_index < self.next_index - 1
        else:
            waiting = self.state is PROBE and self.paused and verified_index < self.probe_last
        return waiting and now_ms - self.moved_ms >= self.resend_after_ms

    def back_off_resend(self, after_ms_max: float) -> None:
        """Double the wait before the next resend, so that a dead peer does not get data forever."""
        self.resend_after_ms = min(self.resend_after_ms * 2, after_ms_max)

    def regressed(self, last_index: int) -> None:
        """Restart from `last_index`, because the follower's disk lost acknowledged frames."""
        self.regressions += 1
        self.match_index = 0
        self.recovered_index = 0
        self.verified_index = 0
        self.probe_from(last_index + 1)

    def forget(self, last_index: int) -> None:
        """Forget all acknowledgements, and probe the end of a follower without memory."""
        self.match_index = 0
        self.recovered_index = 0
        self.verified_index = 0
        self.reported_index = 0
        self.tried_last = -1
        if self.state is not STRANDED:
            self.probe_from(last_index + 1)

    def believes(self, recovering: bool) -> bool:
        """Return whether an acknowledgement still counts. If it claims to be recovered while the
        follower recovers, it was sent before the loss of memory."""
        return recovering or not self.recovering or self.certified == self.recovering

    @property
    def said_recovered(self) -> bool:
        """True if the follower has reported that it is recovered."""
        return self.recovering == 0 or (self.recovering is None and self.recovered_index > 0)

    def strand(self) -> None:
        """Note that retention deleted the follower's next frames."""
        self.probe_from(self.next_index)
        self.state = STRANDED

    def __repr__(self) -> str:
        return (
            f"<Progress {self.peer} {self.state.value} match {self.match_index} "
            f"next {self.next_index} inflight {len(self.inflight)}>"
        )
