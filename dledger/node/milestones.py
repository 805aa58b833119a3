"""Replicas tell each other a committed frame that they have: the log's milestone. Shell.

A landmark (dledger.raft.follower) is compared where a leader's frames join a follower's. Two
replicas between which no leader stands would never compare, and yet one may repair the other's log.
So both ends of a new link say their last committed frame, and again every TOLD_MS as long as that
changes. Who knows the frame of that index as committed too, and has another one, is of another
history: the two part (dledger.transport.group_id). The one whose log is shorter always has its
frame compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..raft.core import RaftCore
from ..raft.errors import other_history
from ..raft.messages import NodeId
from ..storage.log_storage import RaftLog
from ..transport.wire import Milestone

TOLD_MS = 5_000


class Milestones:
    """The milestones of one member whose log is recovered. All methods run on the loop."""

    def __init__(
        self,
        core: RaftCore,
        log: RaftLog,
        committed: Callable[[], int],
        send: Callable[[Milestone], None],
    ) -> None:
        """`committed()` is the last frame in the log's files that is committed: the core may be
        ahead of them (Applier.commit_index)."""
        self._core = core
        self._log = log
        self._committed = committed
        self._send = send
        self._told_index = 0
        self._due_ms = 0.0

    def opened(self, peer: NodeId) -> None:
        """Tell the peer on a new link."""
        self._tell((peer,), self._index)

    def look(self, now_ms: float) -> None:
        """Tell all peers what was committed since, if it is time."""
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + TOLD_MS
            index = self._index
            if index != self._told_index:
                self._told_index = index
                self._tell(self._core.membership.peers, index)

    def take(self, told: Milestone) -> None:
        """Compare a peer's frame with the own one. Raises OtherHistory."""
        log, index = self._log.index, told.index
        if not log.first_index <= index <= self._index:
            return
        term, own = log.term_at(index), self._log.header_crc(index)
        if term != told.index_term or (own is not None and own != told.header_crc):
            raise other_history(told.sender, self._core.node_id, index, told.index_term, term)

    @property
    def _index(self) -> int:
        return min(self._committed(), self._log.last_index)

    def _tell(self, peers: Iterable[NodeId], index: int) -> None:
        crc = self._log.header_crc(index)
        if crc is not None:
            term = self._log.index.term_at(index)
            for peer in peers:
                self._send(Milestone(self._core.node_id, peer, index, term, crc))
