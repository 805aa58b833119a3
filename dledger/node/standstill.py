"""Detects a group that has no leader although all its voters are connected.

A majority with stores that were set back together may have elected a leader before the other
replicas reported their notes. Then there are two histories. The replica with more frames is kept
out by its peers, or they recover and wait for its vote. No election ends that. An operator has to
choose (`mqbroker rescue`), and needs the contents of each store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..raft.core import RaftCore
from ..raft.messages import NodeId

log = logging.getLogger("raftmq.dledger.node.standstill")

STEADY_MS = 3_000  # a leader for this long counts; a group in trouble has leaders for moments
STANDSTILL_MS = 30_000  # without such a leader


@dataclass(frozen=True, slots=True)
class Extent:
    """The end of a replica's log, and whether the replica has recovered."""

    term: int
    index: int
    recovered: bool

    def __str__(self) -> str:
        recovering = "" if self.recovered else ", recovering"
        return f"frames up to {self.index} of term {self.term}{recovering}"


def compared(extents: Mapping[NodeId, Extent]) -> str:
    """Return the end of each replica's log, the longest first, and advice for the choice."""
    longest = sorted(extents, key=lambda node: (-extents[node].index, node))
    each = "; ".join(f"{node} holds {extents[node]}" for node in longest)
    return (
        f"{each}. Each may hold messages that no other has: copy the stores, and compare them with"
        " mqbroker rescue before you change any"
    )


class Standstill:
    """Watches a member. `reason` describes a stuck group, or is ""."""

    def __init__(
        self,
        core: RaftCore,
        extents: Callable[[], Mapping[NodeId, Extent]],
        is_there: Callable[[NodeId], bool],
    ) -> None:
        """`extents()` returns the ends of this replica's and the peers' logs. `is_there(peer)` is
        true if it is connected, or kept out for its history."""
        self.reason = ""
        self._core = core
        self._extents = extents
        self._is_there = is_there
        self._since_ms: float | None = None  # a leader is known
        self._steady_ms: float | None = None  # when a steady leader was known last

    def poll(self, now_ms: float) -> None:
        """Check for a leader, a few times per second. `now_ms` must not count time in which the
        process was stopped (dledger.raft.clock), since no leader was heard then."""
        core = self._core
        if self._steady_ms is None:
            self._steady_ms = now_ms
        leads = core.leader == core.node_id
        if core.leader is None or (leads and not core.leader_ready):
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        if self._since_ms is not None and now_ms - self._since_ms >= STEADY_MS:
            self._steady_ms = now_ms
            self.reason = ""
        elif not self.reason and not self._all_are_there():
            self._steady_ms = now_ms  # a partitioned group is not stuck
        elif not self.reason and now_ms - self._steady_ms >= STANDSTILL_MS:
            self.reason = (
                "no leader although all voters are there: their histories differ, or too many"
                f" recover. {compared(self._extents())}"
            )
            log.error("standstill node=%s %s", core.node_id, self.reason)

    def _all_are_there(self) -> bool:
        membership = self._core.membership
        peers = membership.voters - {self._core.node_id}
        return bool(peers) and membership.is_voter and all(map(self._is_there, peers))
