"""A candidacy: how a replica asks for votes. Raft 5.2, thesis 9.6 (PreVote). Pure.

An election starts with PreVote: nobody's term rises before a majority has said that it would
vote. Voters that have not answered are asked again every heartbeat interval, so a lost message
costs that much and not a whole time-out. A voter grants its vote again to the same candidate.

A replica whose disk is short of room stands back: it lets one more time-out pass before it asks for
votes, so that those that have room go first. If none of them can be elected it is, since somebody
has to lead. It also tells its leader that it is short of room (following.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftmq.dledger.ballot import Ballot
from raftmq.dledger.index import LogIndex
from raftmq.dledger.messages import NodeId, VoteRequest, VoteResponse
from raftmq.dledger.quorum import Tally


class Candidacy:
    """One round of votes, or of PreVotes, for `term`; this replica votes for itself."""

    __slots__ = ("_node_id", "began_ms", "due_ms", "pre_vote", "tally", "term", "transfer")

    def __init__(
        self,
        node_id: NodeId,
        ballot: Ballot,
        voters: frozenset[NodeId],
        pre_vote: bool,
        transfer: bool,
        now_ms: float,
    ) -> None:
        self._node_id = node_id
        self.pre_vote = pre_vote
        self.transfer = transfer  # the leader asked for it
        self.term = ballot.term + 1 if pre_vote else ballot.term
        self.began_ms = now_ms
        self.due_ms = now_ms  # when unanswered requests are sent again
        self.tally = Tally(voters)
        self.tally.record(node_id, True, ballot.recovering)

    def requests(
        self, peers: Iterable[NodeId], log: LogIndex, incarnation: int
    ) -> Iterator[VoteRequest]:
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
                incarnation,
            )

    def is_answered_by(self, response: VoteResponse) -> bool:
        """Return whether the response answers a request of this round of votes."""
        return (response.pre_vote, response.request_term) == (self.pre_vote, self.term)
