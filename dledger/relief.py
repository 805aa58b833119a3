"""When a leader whose disk is full hands leadership to a replica with room, and to whom. Pure.

A follower whose disk is short of room says so with every heartbeat it answers (following.py), so
a leader knows who has some. It is asked here some times a second:

- somebody who can take over at once and has room is told so, who has most of the log first;
- whoever was told is not told again before a while, twice as long each time: neither a transfer
  that comes to nothing nor a replica that cannot keep leadership is tried over and over;
- `hoped` says whether sends are taken meanwhile: as long as somebody may have room, for HOPE_MS at
  most. Then they are refused, and the search goes on.

When nobody has room leadership stays where it is. A replica counts as short of room until it is
well below the mark at which its disk was full (broker.diskroom), so two full ones never take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.dledger.messages import NodeId

HOPE_MS = 5_000  # for a follower that catches up, and for one transfer that fails on the way
BACK_OFF_MS = 5_000  # after the first time that a replica was told
BACK_OFF_MS_MAX = 320_000
FORGET_MS = 2 * BACK_OFF_MS_MAX  # as long as it kept leadership, or was not asked for it


class Relief:
    """One per replica; what it remembers outlasts its leaderships."""

    __slots__ = ("_since_ms", "_told", "hoped")

    def __init__(self) -> None:
        self.hoped = False
        self._since_ms: float | None = None  # full and leading
        self._told: dict[NodeId, tuple[int, float]] = {}  # how often, and when last

    def look(
        self,
        wanted: bool,
        transferring: bool,
        roomy: Sequence[NodeId],
        able: Sequence[NodeId],
        now_ms: float,
    ) -> NodeId | None:
        """To whom leadership should go now. `wanted`: this replica leads and its disk is full;
        `roomy`: who may have room, `able`: who of them can take over at once, the best first.
        Whoever is told a name begins the transfer before the next look."""
        if not wanted:
            self._since_ms, self.hoped = None, False
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        in_time = now_ms - self._since_ms < HOPE_MS
        self.hoped = in_time and (transferring or bool(roomy))
        if transferring:
            return None
        for peer in able:
            if now_ms >= self._due_ms(peer, now_ms):
                count, _ = self._told.get(peer, (0, 0.0))
                self._told[peer] = (count + 1, now_ms)
                return peer
        return None

    def _due_ms(self, peer: NodeId, now_ms: float) -> float:
        count, told_ms = self._told.get(peer, (0, 0.0))
        if count and now_ms - told_ms >= FORGET_MS:
            del self._told[peer]
            count = 0
        if not count:
            return now_ms
        # The exponent is bounded: a float has room for a thousand doublings, a count has not.
        return told_ms + min(BACK_OFF_MS_MAX, BACK_OFF_MS * 2.0 ** min(count - 1, 64))
