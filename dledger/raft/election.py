"""A candidacy: how a replica asks for votes. Raft 5.2, thesis 9.6 (PreVote). Pure.

An election starts with PreVote: nobody's term rises before a majority has said that it would
vote. Voters that have not answered are asked again every heartbeat interval, so a lost message
costs that much and not a whole time-out. A voter grants its vote again to the same candidate.

A replica whose disk is short of room stands back: it lets one more time-out pass before it asks for
votes, so that those that have room go first. If none of them can be elected it is, since somebody
has to lead. It also tells its leader that it is short of room (follower.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .log_index import LogIndex
from .messages import NodeId, VoteRequest, VoteResponse
from .quorum import Tally


@dataclass(slots=True, eq=False)
class Candidacy:
    """One round of votes, or of PreVotes, for `term`. `transfer`: the leader asked for it."""

    _node_id: NodeId
    _incarnation: int
    term: int
    pre_vote: bool
    transfer: bool
    tally: Tally
    began_ms: float
    due_ms: float = 0.0  # when unanswered requests are sent again

    def requests(self, peers: Iterable[NodeId], log: LogIndex) -> Iterator[VoteRequest]:
        """Yield a request to each voter whose answer may still change something."""
        tally = self.tally
        for peer in peers:
            # A refused PreVote may be granted a moment later, when the voter misses the leader
            # too. A refused vote is final for its term.
            if (
                peer not in tally.voters
                or peer in tally.granted
                or (not self.pre_vote and peer in tally.refused)
            ):
                continue
            yield VoteRequest(
                self._node_id,
                peer,
                self.term,
                log.last_index,
                log.last_term,
                self.pre_vote,
                self.transfer,
                self._incarnation,
            )

    def is_answered_by(self, response: VoteResponse) -> bool:
        """Return whether the response answers a request of this round of votes."""
        return (response.pre_vote, response.request_term) == (self.pre_vote, self.term)
