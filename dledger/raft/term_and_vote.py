"""A replica's term and vote, and whether it may have forgotten earlier promises. Raft 5.1, 5.2.

Invariants: the term never falls; a term has a single vote, which never changes. Every change is put
into the outbox as a HardState, which the driver makes durable before any message of the same Ready
is sent.
"""

from __future__ import annotations

from .messages import HardState, NodeId
from .ready import Outbox


class Ballot:
    """The promises of a replica. `recovered` is true if none are forgotten (recovery.py).
    `incarnation` is positive, and new for this node at each start and each loss of promises."""

    __slots__ = ("_outbox", "_voted_incarnation", "incarnation", "recovered", "term", "voted_for")

    def __init__(
        self, hard_state: HardState, incarnation: int, last_term: int, outbox: Outbox
    ) -> None:
        """`last_term` is the term of the log's last frame."""
        assert incarnation > 0, incarnation
        self._outbox = outbox
        self.incarnation = incarnation
        self.recovered = hard_state.recovered
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self._voted_incarnation = 0  # incarnation of this term's candidate; 0: unknown
        if last_term > self.term:
            # The process ended between the first frames of a new term and its hard state. No
            # message of that term was sent, so there was no vote in it.
            self.enter(last_term)

    @property
    def recovering(self) -> int:
        """The `recovering` field of this replica's messages: 0, or its incarnation."""
        return 0 if self.recovered else self.incarnation

    def enter(self, term: int) -> None:
        """Enter a higher term, without a vote."""
        assert term > self.term, (term, self.term)
        self.term = term
        self.voted_for = None
        self._voted_incarnation = 0
        self._changed()

    def is_free_for(self, candidate: NodeId, incarnation: int) -> bool:
        """Return whether the vote of this term is free, or was given to the same candidacy. The
        same candidate in another incarnation does not get it, because it may have led this term
        already."""
        return self.voted_for is None or (
            self.voted_for == candidate and self._voted_incarnation == incarnation
        )

    def vote_for(self, candidate: NodeId, incarnation: int) -> None:
        """Give the vote of this term to the candidate, or repeat it."""
        assert self.voted_for in (None, candidate), (self.voted_for, candidate)
        self._voted_incarnation = incarnation
        if self.voted_for is None:
            self.voted_for = candidate
            self._changed()

    def mark_recovered(self, leader: NodeId) -> None:
        """Note that all forgotten promises are recovered, in the term of `leader`."""
        assert not self.recovered
        self.recovered = True
        if self.voted_for is None:
            self.vote_for(leader, 0)
        self._changed()

    def lose(self, incarnation: int) -> None:
        """Note that earlier promises may be lost; later promises are of a new `incarnation`."""
        self.recovered = False
        self.incarnation = incarnation
        self._changed()

    def _changed(self) -> None:
        self._outbox.hard_state = HardState(self.term, self.voted_for, self.recovered)
        self._outbox.dirty = True
