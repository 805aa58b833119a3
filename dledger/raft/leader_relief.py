"""Decides when a leader that is not willing, its disk being full or slow or its clock wrong, hands
leadership over, and to which replica. Pure.

A follower that is not willing says so with every heartbeat it answers (follower.py), so a leader
knows. The message says that it has no room, whatever the reason. `look` is called a few times a
second:

- leadership goes to a replica that can take over at once and has room, the one with most of the
  log first;
- the same replica is not chosen again before a back-off, which doubles each time: neither a
  transfer that fails nor a replica that cannot keep leadership is tried over and over;
- `hoped` says whether sends are still accepted: as long as some replica may have room, for HOPE_MS
  at most. Then they are refused, and the search goes on.

When nobody has room leadership stays where it is. A replica counts as short of room until it is
well below the mark at which its disk was full (broker.disk_space), and a slow one for a while
(pace.py), so two of them never take turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from .messages import NodeId

HOPE_MS = 5_000  # for a follower that catches up, and for one transfer that fails on the way
BACK_OFF_MS = 5_000  # after the first time that a replica was chosen
BACK_OFF_MS_MAX = 320_000
FORGET_MS = 2 * BACK_OFF_MS_MAX  # without being chosen, after which its back-off starts afresh


class Relief:
    """Chooses a successor for a leader that is not willing; one per replica. Its memory outlasts a
    leadership."""

    __slots__ = ("_since_ms", "_told", "hoped")

    def __init__(self) -> None:
        self.hoped = False
        self._since_ms: float | None = None  # wanted
        self._told: dict[NodeId, tuple[int, float]] = {}  # how often, and when last

    def look(
        self,
        wanted: bool,
        transferring: bool,
        roomy: Sequence[NodeId],
        able: Sequence[NodeId],
        now_ms: float,
    ) -> NodeId | None:
        """Return the replica to transfer leadership to now, else None. `wanted`: this replica leads
        and is not willing; `roomy`: replicas that may be; `able`: those of them that can take over
        at once, the best first. A caller that gets a name begins the transfer before its next
        call."""
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
