"""Compares the cost of commits under this replica as leader, and under each peer.

The cost of a leader is the estimated time of its write of a frame, and until a majority of the
voters has the frame durable. Its own copy needs a flush; a follower's copy needs a round trip, a
write and a flush. Each replica measures its writes, flushes and round trips, and sends these times
and its own cost to its peers every PERIOD_MS (`Pace`, which also measures the round trip).

A replica is slow if its cost is FACTOR times a peer's and DIFFERENCE_MS more, at each comparison
for HOLD_MS. So a delay of every majority makes no replica slow. A replica of unknown cost, as
without writes, is not slow. The distance from a majority alone does not make the preferred leader
slow, because an operator chose it.

A replica stays slow until REST_MS after the last such comparison. If it becomes slow again within
FORGET_MS, that time is multiplied by REST_FACTOR, so leadership does not move back and forth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .membership import Membership
from .messages import NUMBER_MAX, NodeId

FACTOR = 4
DIFFERENCE_MS = 2.0
PERIOD_MS = 1_000.0
HOLD_MS = 5_000.0  # longer than the effect of a single slow call (Durations)
REST_MS = 60_000.0
REST_FACTOR = 4
REST_MS_MAX = 3_600_000.0
FORGET_MS = 2 * REST_MS_MAX
KNOWN_MS = 5 * PERIOD_MS  # without a message, a peer's times count as unknown
ROUND_TRIPS = 5  # the shortest counts, because the others waited for a processor
_US = 1_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Reports the sender's times in microseconds; 0 means unknown. `echo_us` is the `sent_us` of
    the receiver's last message, which the sender received `held_us` ago."""

    sender: NodeId
    to: NodeId
    sent_us: int
    echo_us: int
    held_us: int
    write_us: int
    flush_us: int
    cost_us: int


@dataclass(slots=True)
class _Peer:
    """The last message of a peer, and the last round trips to it."""

    said: Pace
    heard_ms: float
    round_trips_ms: deque[float] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))

    def copy_ms(self) -> float:
        """Return the time until the peer's copy of a frame is acknowledged."""
        if not self.said.write_us or not self.round_trips_ms:
            return math.inf
        return min(self.round_trips_ms) + (self.said.write_us + self.said.flush_us) / _US


class Paces:
    """The times of a member and its peers. `write_ms` and `flush_ms` return the delay of a message
    (Durations.period); `flush_ms` is None if a frame counts as durable without a flush. `reason` is
    the reason why this replica is slow, or ""."""

    def __init__(
        self,
        node_id: NodeId,
        membership: Membership,
        write_ms: Callable[[], float | None],
        flush_ms: Callable[[], float | None] | None,
        clock_ms: Callable[[], float],
        send: Callable[[Pace], None],
    ) -> None:
        self.cost_ms = math.inf
        self.reason = ""
        self.disk_is_slow = False  # the reason is the disk
        self._node_id = node_id
        self._membership = membership
        self._write_ms = write_ms
        self._flush_ms = flush_ms
        self._clock_ms = clock_ms
        self._send = send
        self._peers: dict[NodeId, _Peer] = {}
        self._due_ms = 0.0
        self._worse_since_ms: float | None = None
        self._rest_ms = 0.0
        self._slow_until_ms = -math.inf

    def poll(self, now_ms: float) -> None:
        """Measure, compare and report once per period."""
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + PERIOD_MS
        peers = self._membership.peers
        self._peers = {
            name: peer
            for name, peer in self._peers.items()
            if name in peers and now_ms - peer.heard_ms < KNOWN_MS
        }
        write_ms = self._write_ms()
        flush_ms = None if self._flush_ms is None else self._flush_ms()
        self.cost_ms = self._cost_ms(write_ms, flush_ms or 0.0)
        self._compare(write_ms or 0.0, now_ms)
        times = _us(write_ms), _us(flush_ms), _us(self.cost_ms)
        sent_us = _us(self._clock_ms())
        for name in peers:
            peer = self._peers.get(name)
            echo_us, held_us = 0, 0
            if peer is not None:
                echo_us, held_us = peer.said.sent_us, _us(self._clock_ms() - peer.heard_ms)
            self._send(Pace(self._node_id, name, sent_us, echo_us, held_us, *times))

    def take(self, said: Pace) -> None:
        """Note a peer's times, and the round trip that its message completes."""
        if said.sender not in self._membership.peers:
            return
        now_ms = self._clock_ms()
        peer = self._peers.setdefault(said.sender, _Peer(said, now_ms))
        peer.said, peer.heard_ms = said, now_ms
        if said.echo_us:
            peer.round_trips_ms.append(max(0.0, now_ms - (said.echo_us + said.held_us) / _US))

    def is_faster(self, peer: NodeId) -> bool:
        """Return whether commits would be faster under `peer`, by the limits for a slow replica."""
        known = self._peers.get(peer)
        return known is not None and self._is_worse_than(known.said)

    def _cost_ms(self, write_ms: float | None, flush_ms: float) -> float:
        voters = self._membership.voters
        if write_ms is None or self._node_id not in voters:
            return math.inf
        copies = [flush_ms]
        for voter in voters - {self._node_id}:
            peer = self._peers.get(voter)
            copies.append(math.inf if peer is None else peer.copy_ms())
        copies.sort()
        return write_ms + copies[len(voters) // 2]

    def _is_worse_than(self, said: Pace) -> bool:
        theirs_ms = said.cost_us / _US
        return 0 < theirs_ms * FACTOR <= self.cost_ms < math.inf and (
            self.cost_ms - theirs_ms >= DIFFERENCE_MS
        )

    def _compare(self, write_ms: float, now_ms: float) -> None:
        voters = self._membership.voters
        said = [peer.said for name, peer in self._peers.items() if name in voters]
        better = [pace for pace in said if self._is_worse_than(pace)]
        disk_is_slow = write_ms >= DIFFERENCE_MS
        chosen = self._membership.configurations.current.preferred == self._node_id
        if not better or (chosen and not disk_is_slow):
            self._worse_since_ms = None
            if now_ms >= self._slow_until_ms:
                self.reason, self.disk_is_slow = "", False
            return
        if self._worse_since_ms is None:
            self._worse_since_ms = now_ms
        if now_ms - self._worse_since_ms < HOLD_MS:
            return
        if not self.reason:
            was_ms = now_ms - self._slow_until_ms
            longer_ms = min(REST_MS_MAX, self._rest_ms * REST_FACTOR)
            self._rest_ms = REST_MS if was_ms >= FORGET_MS else longer_ms
        self._slow_until_ms = now_ms + self._rest_ms
        best = min(better, key=lambda pace: pace.cost_us)
        self.disk_is_slow = disk_is_slow
        self.reason = (
            f"a commit takes {self.cost_ms:.1f} ms with {self._node_id} as leader (a write to its"
            f" log {write_ms:.1f} ms), {best.cost_us / _US:.1f} ms with {best.sender}"
        )


def _us(ms: float | None) -> int:
    """Return microseconds; 0 for a time that is not known."""
    if ms is None or ms == math.inf:
        return 0
    return max(1, min(NUMBER_MAX, int(ms * _US)))
