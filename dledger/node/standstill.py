"""Finds a group that has no leader although all voters are there, and will have none. Shell.

A majority whose stores were set back together may have elected a leader before the others reported
what they remember. Then there are two histories: the replica with more frames is kept out by its
peers, or they recover and wait for its vote. No election ends that. An operator has to choose
(`mqbroker rescue`), and has to know which store holds what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..raft.core import RaftCore
from ..raft.messages import NodeId

log = logging.getLogger("raftmq.dledger.node.standstill")

STEADY_MS = 3_000  # a leader of so long is a leader; a group in trouble has some for moments
STANDSTILL_MS = 30_000  # without such a leader


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a replica's log reaches, and whether the replica has recovered."""

    term: int
    index: int
    recovered: bool

    def __str__(self) -> str:
        recovering = "" if self.recovered else ", recovering"
        return f"frames up to {self.index} of term {self.term}{recovering}"


def compared(extents: Mapping[NodeId, Extent]) -> str:
    """Return how far the log of each replica reaches, the longest first, and how to choose."""
    longest = sorted(extents, key=lambda node: (-extents[node].index, node))
    each = "; ".join(f"{node} holds {extents[node]}" for node in longest)
    return (
        f"{each}. Each may hold messages that no other has: copy the stores, and compare them with"
        " mqbroker rescue before you change any"
    )


class Standstill:
    """Watches one member. `reason` says that its group is stuck; "" if it is not."""

    def __init__(
        self,
        core: RaftCore,
        extents: Callable[[], Mapping[NodeId, Extent]],
        is_there: Callable[[NodeId], bool],
    ) -> None:
        """`extents()` returns this replica's and what peers reported. `is_there(peer)`: it is
        connected, or kept out for its history."""
        self.reason = ""
        self._core = core
        self._extents = extents
        self._is_there = is_there
        self._since_ms: float | None = None  # a leader is known
        self._steady_ms: float | None = None  # when a steady leader was known last

    def look(self, now_ms: float) -> None:
        """Look whether there is a leader; a few times a second. `now_ms` must not count time in
        which the process was stopped (dledger.raft.clock): it has heard of no leader then."""
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
            self._steady_ms = now_ms  # a group that is apart is not stuck
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
