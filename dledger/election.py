"""Elections: how a replica asks for votes and grants them. Raft 5.2 and 5.4.1, thesis 9.6
(PreVote). Pure.

An election starts with PreVote: nobody's term rises before a majority has said that it would
vote. Voters that have not answered are asked again every heartbeat interval, so a lost message
costs that much and not a whole time-out. A voter grants its vote again to the same candidate.

A replica whose disk is short of room stands back: it lets one more time-out pass before it asks for
votes, so that those that have room go first. If none of them can be elected it is, since somebody
has to lead. It also tells its leader that it is short of room (following.py).
"""

from __future__ import annotations

from raftmq.dledger.messages import TERM_MAX, Role, TimeoutNow, VoteRequest, VoteResponse
from raftmq.dledger.quorum import Outcome, Tally
from raftmq.dledger.state import CoreState


class Election(CoreState):
    """The behaviour of a pre-candidate, a candidate and a voter."""

    __slots__ = ()

    def _become_leader(self) -> None:
        raise NotImplementedError  # leading.py

    # -- asking -----------------------------------------------------------------------------

    @property
    def _may_campaign(self) -> bool:
        """True for voters, and for a replica whose removal is not committed yet: it may be the only
        one that can get it committed (thesis 4.2.2), and does not count its own vote. False for a
        replica that receives the log from its beginning on an empty disk, because the
        configurations it meets there are long past; and false in the last term, TERM_MAX."""
        if self.term >= TERM_MAX:
            return False
        if not self.whole and self.configurations.index and not self._vouched:
            return False
        return self.is_voter or self.configurations.ever_voter(self.node_id)

    def _start_pre_vote(self, reason: str) -> None:
        """Ask whether an election would be won, before disturbing anybody with a higher term."""
        assert self.role is not Role.LEADER
        if self.role is Role.FOLLOWER:
            self._give_up(() if self.leader is None else (self.leader,))
        elif self.role is Role.CANDIDATE:
            self._missed_term = self.term
        if self.role is not Role.PRE_CANDIDATE:
            self.role = Role.PRE_CANDIDATE
            self.leader = None
            self._role_changed(reason)
        self._tally = Tally(self.voters)
        self._reset_election_timer()
        self._tally.record(self.node_id, True, self._recovering)
        self._ask_for_votes()
        self._count_votes()

    def _start_election(self, reason: str, transfer: bool = False) -> None:
        """Enter a new term, vote for this replica, and ask all other voters (Raft 5.2)."""
        assert self.role is not Role.LEADER
        self._enter_term(self.term + 1)
        self.role = Role.CANDIDATE
        self.leader = None
        self._transfer_campaign = transfer
        self._asked_ms = self._now_ms
        self._tally = Tally(self.voters)
        self._reset_election_timer()
        self._role_changed(reason)
        self._vote_for(self.node_id, self.incarnation)
        self._tally.record(self.node_id, True, self._recovering)
        self._ask_for_votes()
        self._count_votes()

    def _ask_for_votes(self) -> None:
        assert self._tally is not None
        pre_vote = self.role is Role.PRE_CANDIDATE
        term = self.term + 1 if pre_vote else self.term
        for peer in self.peers:
            if peer not in self.voters:
                continue
            # A refused PreVote may be granted a moment later, when the voter misses the leader
            # too. A refused vote is final for its term.
            if peer in self._tally.granted or (not pre_vote and peer in self._tally.refused):
                continue
            self._send(
                VoteRequest(
                    self.node_id,
                    peer,
                    term,
                    self._log.last_index,
                    self._log.last_term,
                    pre_vote,
                    self._transfer_campaign and not pre_vote,
                    self.incarnation,
                )
            )
        self._campaign_due_ms = self._now_ms + self.config.heartbeat_ms

    def _count_votes(self) -> None:
        assert self._tally is not None
        if self.role is Role.PRE_CANDIDATE:
            if self._tally.outcome() is Outcome.WON:
                self._start_election("a majority would vote for this replica")
            return
        outcome = self._tally.outcome(self._closed)
        if outcome is Outcome.WON:
            self._become_leader()
        elif outcome is Outcome.LOST:
            self._become_follower(self.term, None, "the election is lost")
            if self._closed:
                # A split vote with the third replica known to be gone. Waiting a whole time-out
                # would only be waiting for the dead.
                soon = self.config.close_jitter_ms / 2 + self._close_jitter()
                self._election_due_ms = self._now_ms + soon
            elif self._now_ms - self._asked_ms < self.config.election_ms_min:
                # The peers answer fast: undo the election back-off for this time-out.
                patient_ms = self._election_due_ms - self._now_ms
                self._election_due_ms = self._now_ms + patient_ms / self._patience.factor

    def _on_vote_response(self, response: VoteResponse) -> None:
        if not response.request_incarnation:
            self._on_no_room(response)
            return
        if response.pre_vote:
            current = self.role is Role.PRE_CANDIDATE and response.request_term == self.term + 1
        else:
            current = self.role is Role.CANDIDATE and response.request_term == self.term
            if 0 < self._missed_term == response.request_term and not current:
                self._missed_term = 0
                self._patience.mistaken()  # the vote was on its way
        if not current or response.request_incarnation != self.incarnation:
            return  # an answer to an earlier candidacy
        assert self._tally is not None
        self._tally.record(response.sender, response.granted, response.recovering)
        self._count_votes()

    def _on_no_room(self, response: VoteResponse) -> None:
        if self.role is Role.LEADER and response.request_term == self.term:
            progress = self._progress.get(response.sender)
            if progress is not None:
                progress.no_room_told = True

    def _on_timeout_now(self, order: TimeoutNow) -> None:
        """Start an election because the leader hands over (thesis 3.10); without PreVote, since
        the leader itself asks for it."""
        may_lead = self.unfit is None and self._may_campaign
        if order.term == self.term and self.role is not Role.LEADER and may_lead:
            self._start_election(f"{order.sender} hands leadership over", transfer=True)

    def _tick_election(self) -> None:
        if self._now_ms >= self._election_due_ms and not self._may_campaign:
            self._reset_election_timer()
            if self.leader is not None and not self._hears_leader():
                self._become_follower(self.term, None, "no leader is heard")
        elif self._now_ms >= self._election_due_ms and self.unfit is not None:
            self._reset_election_timer()
        elif self._now_ms >= self._election_due_ms and not self.has_room and not self._stood_back:
            self._stood_back = True
            self._election_due_ms = (
                self._now_ms + self.config.election_ms_max * self._patience.factor
            )
        elif self._now_ms >= self._election_due_ms:
            closed = self.leader is not None and self.leader in self._closed
            self._start_pre_vote(
                "the leader's connection closed" if closed else "no leader is heard"
            )
        elif self._tally is not None and self._now_ms >= self._campaign_due_ms:
            self._ask_for_votes()

    # -- voting -----------------------------------------------------------------------------

    def _on_vote_request(self, request: VoteRequest) -> None:
        if request.pre_vote:
            self._on_pre_vote_request(request)
            return
        if request.term > self.term:
            transfer = request.transfer and request.sender in self.peers
            if self._hears_leader() and not transfer:
                # Thesis 4.2.3: a live leader is not deposed by somebody who does not hear it, nor
                # by a stranger: leadership goes to no replica that its voters have not heard of.
                self._answer_vote(request, False)
                return
            if self.leader is not None and not transfer:
                self._give_up((self.leader,))
            self._become_follower(request.term, None, f"{request.sender} asks for votes")
        granted = (
            request.term == self.term
            and self.leader is None
            and self._may_vote_for(request)
            and self._is_up_to_date(request)
        )
        if granted:
            self._vote_for(request.sender, request.incarnation)
            self._become_follower(self.term, None, f"voted for {request.sender}")
        self._answer_vote(request, granted)

    def _may_vote_for(self, request: VoteRequest) -> bool:
        """Return whether the one vote of this term is free, or was given to this same candidacy.
        The same candidate in another incarnation does not get it: it has lost its memory, and may
        have led this term already."""
        return self.voted_for is None or (
            self.voted_for == request.sender and self._voted_incarnation == request.incarnation
        )

    def _on_pre_vote_request(self, request: VoteRequest) -> None:
        granted = (
            request.term > self.term and not self._hears_leader() and self._is_up_to_date(request)
        )
        if granted and self.role is Role.FOLLOWER and not self._yielded:
            # Whoever asked first goes first: wait long enough for its election to be decided, or
            # two that saw the same close would split the vote. Only once: our answer may not
            # reach it.
            self._yielded = True
            decided_ms = self.config.heartbeat_ms * self._patience.factor
            later = self._now_ms + decided_ms + self._close_jitter()
            self._election_due_ms = max(self._election_due_ms, later)
        self._answer_vote(request, granted)

    def _answer_vote(self, request: VoteRequest, granted: bool) -> None:
        self._send(
            VoteResponse(
                self.node_id,
                request.sender,
                self.term,
                request.term,
                request.pre_vote,
                granted,
                request.incarnation,
                self._recovering,
            )
        )
