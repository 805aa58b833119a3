"""Elections, votes, and the changes of a replica's role. Raft 5.2, 5.4.1.

An election starts with PreVote (thesis 9.6): nobody's term rises before a majority has promised its
votes. Voters that have not answered are asked again every heartbeat interval, so a lost message
costs one interval instead of a time-out. A voter repeats its vote for the same candidacy.

A replica that is not willing to lead, such as one with a full disk, waits for a second time-out, so
that willing replicas campaign first. It campaigns if none of them is elected.

Invariants: a term has one leader; `leading` is set exactly in the role LEADER, and `candidacy`
exactly in the roles PRE_CANDIDATE and CANDIDATE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .config import CoreConfig
from .election_timeout import ElectionTimer
from .errors import MessageRefused
from .follower import Following
from .leader import Leading
from .log_index import LogIndex
from .membership import Membership
from .messages import (
    TERM_MAX,
    NodeId,
    Role,
    RoleEvent,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from .quorum import Outcome, Tally
from .raft_log import CoreLog
from .ready import Outbox
from .term_and_vote import Ballot


@dataclass(slots=True, eq=False)
class Election:
    """The role of a replica, and its votes.

    `unfit` is the reason this replica must not lead, such as a failed disk, or None. The driver
    sets `is_willing` to False if another replica should lead, and `founders_differ` if a peer is
    configured with different founding members (dledger/node/peer_info.py)."""

    _node_id: NodeId
    _config: CoreConfig
    _ballot: Ballot
    _log: CoreLog
    _membership: Membership
    _following: Following
    _outbox: Outbox
    timer: ElectionTimer
    role: Role = Role.FOLLOWER
    leader: NodeId | None = None
    leading: Leading | None = None
    candidacy: Candidacy | None = None
    unfit: str | None = None
    is_willing: bool = True
    founders_differ: bool = False
    _missed_term: int = 0  # the term of the last candidacy that ended without votes; 0: none

    def _report_role(self, reason: str) -> None:
        """Report a role other than the leader's, which a leadership reports itself."""
        self._outbox.tell_role(RoleEvent(self.role, self._ballot.term, self.leader, False, reason))

    def _enter_term(self, term: int) -> None:
        self._ballot.enter(term)
        self.timer.halving.interrupted()
        self._following.enter_term()

    def become_follower(self, term: int, leader: NodeId | None, reason: str, now_ms: float) -> None:
        """Leave the present role and follow `leader`, or nobody yet, in `term`."""
        current = self._ballot.term
        assert term >= current, (term, current)
        changed = (self.role, current, self.leader) != (Role.FOLLOWER, term, leader)
        if self.leading is not None:
            self.leading.end()
            self.leading = None
        if term > current:
            self._enter_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.candidacy = None
        self.timer.reset(now_ms)
        if changed:
            self._report_role(reason)

    def stop_leading(self, reason: str, now_ms: float) -> None:
        if self.role is not Role.FOLLOWER:
            self.become_follower(self._ballot.term, None, reason, now_ms)

    def accept_leader(self, sender: NodeId, now_ms: float) -> None:
        """Follow `sender`, which leads the current term. Raises MessageRefused for a second leader
        of the term (Raft 5.2)."""
        term = self._ballot.term
        if self.leader not in (None, sender):
            raise MessageRefused(sender, f"leads term {term}, as {self.leader} does")
        assert self.leading is None, (self._node_id, sender, term)
        self.timer.leader_heard(now_ms)
        if self.leader == sender and self.role is Role.FOLLOWER:
            self.timer.reset(now_ms)
        else:
            self.become_follower(term, sender, f"{sender} leads", now_ms)

    def _become_leader(self, candidacy: Candidacy, now_ms: float) -> None:
        assert self.role is Role.CANDIDATE, self.role
        self.role = Role.LEADER
        self.leader = self._node_id
        self.candidacy = None
        self.leading = Leading(
            self._node_id,
            self._config,
            self._ballot,
            self._log,
            self._membership,
            self.timer,
            self._outbox,
            candidacy.tally,
        )
        self.leading.start(now_ms)

    @property
    def must_not_bootstrap(self) -> bool:
        """True while this replica may not found or join a group."""
        return self.founders_differ and self._log.index.last_index == 0

    @property
    def _may_campaign(self) -> bool:
        return (
            self._ballot.term < TERM_MAX
            and not self.must_not_bootstrap
            and self._membership.may_campaign(self._ballot.recovered)
        )

    def _hears_leader(self, now_ms: float) -> bool:
        return self.leading is not None or self.timer.hears(self.leader, now_ms)

    def tick(self, now_ms: float) -> None:
        """Campaign, or repeat vote requests, if that is due. Only for replicas that do not lead."""
        timer, candidacy = self.timer, self.candidacy
        if now_ms < timer.due_ms:
            if candidacy is not None and now_ms >= candidacy.due_ms:
                self._request_votes(candidacy, now_ms)
        elif not self._may_campaign:
            timer.reset(now_ms)
            if self.leader is not None and not self._hears_leader(now_ms):
                self.become_follower(self._ballot.term, None, "no leader is heard", now_ms)
        elif self.unfit is not None:
            timer.reset(now_ms)
        elif self.is_willing or not timer.stands_back(now_ms):
            closed = self.leader is not None and self.leader in timer.closed
            reason = "the leader's connection closed" if closed else "no leader is heard"
            self._start_pre_vote(reason, now_ms)

    @property
    def next_deadline_ms(self) -> float:
        """The time of the next `tick` that has something to do."""
        if self.candidacy is None:
            return self.timer.due_ms
        return min(self.timer.due_ms, self.candidacy.due_ms)

    def _start_pre_vote(self, reason: str, now_ms: float) -> None:
        """Ask whether an election would be won, before the term rises (thesis 9.6)."""
        assert self.leading is None
        if self.role is Role.FOLLOWER:
            self.timer.give_up(() if self.leader is None else (self.leader,), now_ms)
        elif self.role is Role.CANDIDATE:
            self._missed_term = self._ballot.term
        if self.role is not Role.PRE_CANDIDATE:
            self.role = Role.PRE_CANDIDATE
            self.leader = None
            self._report_role(reason)
        self._campaign(now_ms, pre_vote=True)

    def _start_election(self, reason: str, now_ms: float, transfer: bool = False) -> None:
        """Enter a new term, vote for this replica, and ask all other voters (Raft 5.2)."""
        assert self.leading is None
        self._enter_term(self._ballot.term + 1)
        self.role = Role.CANDIDATE
        self.leader = None
        self._report_role(reason)
        self._ballot.vote_for(self._node_id, self._ballot.incarnation)
        self._campaign(now_ms, pre_vote=False, transfer=transfer)

    def _campaign(self, now_ms: float, pre_vote: bool, transfer: bool = False) -> None:
        ballot, tally = self._ballot, Tally(self._membership.voters)
        tally.record(self._node_id, True, ballot.recovering)
        term = ballot.term + 1 if pre_vote else ballot.term
        self.candidacy = Candidacy(
            self._node_id, ballot.incarnation, term, pre_vote, transfer, tally, now_ms
        )
        self.timer.reset(now_ms)
        self._request_votes(self.candidacy, now_ms)
        self.count_votes(now_ms)

    def _request_votes(self, candidacy: Candidacy, now_ms: float) -> None:
        for request in candidacy.requests(self._membership.peers, self._log.index):
            self._outbox.send(request)
        candidacy.due_ms = now_ms + self._config.heartbeat_ms

    def count_votes(self, now_ms: float) -> None:
        candidacy = self.candidacy
        assert candidacy is not None
        if candidacy.pre_vote:
            if candidacy.tally.outcome() is Outcome.WON:
                self._start_election("a majority would vote for this replica", now_ms)
            return
        outcome = candidacy.tally.outcome(self.timer.closed)
        if outcome is Outcome.WON:
            self._become_leader(candidacy, now_ms)
        elif outcome is Outcome.LOST:
            self.become_follower(self._ballot.term, None, "the election is lost", now_ms)
            self.timer.lost_election(candidacy.began_ms, now_ms)

    def take_vote_response(self, response: VoteResponse, now_ms: float) -> None:
        candidacy = self.candidacy
        if candidacy is None or not candidacy.is_answered_by(response):
            if not response.pre_vote and 0 < self._missed_term == response.request_term:
                self._missed_term = 0
                self.timer.mistaken()  # this vote was in flight when the election ended
        elif response.request_incarnation == self._ballot.incarnation:
            candidacy.tally.record(response.sender, response.granted, response.recovering)
            self.count_votes(now_ms)

    def take_timeout_now(self, order: TimeoutNow, now_ms: float) -> None:
        """Start an election for a leadership transfer (thesis 3.10). The leader itself asks for it,
        so there is no PreVote."""
        may_lead = self.leading is None and self.unfit is None and self._may_campaign
        if order.term == self._ballot.term and may_lead:
            self._start_election(f"{order.sender} hands leadership over", now_ms, transfer=True)

    def take_vote_request(self, request: VoteRequest, now_ms: float) -> None:
        """Vote, if this replica may, and answer (Raft 5.2, 5.4.1)."""
        if request.pre_vote:
            self._take_pre_vote_request(request, now_ms)
            return
        ballot, sender = self._ballot, request.sender
        if request.term > ballot.term:
            transfer = request.transfer and sender in self._membership.peers
            if self._hears_leader(now_ms) and not transfer:
                # Thesis 4.2.3: a candidate without contact to the leader does not depose it. Nor
                # does a stranger, because a leader's voters have its address.
                self._answer(request, False)
                return
            if self.leader is not None and not transfer:
                self.timer.give_up((self.leader,), now_ms)
            self.become_follower(request.term, None, f"{sender} asks for votes", now_ms)
        granted = (
            request.term == ballot.term
            and self.leader is None
            and not self.must_not_bootstrap
            and ballot.is_free_for(sender, request.incarnation)
            and self._log.is_matched_by(request.last_term, request.last_index)
        )
        if granted:
            ballot.vote_for(sender, request.incarnation)
            self.become_follower(ballot.term, None, f"voted for {sender}", now_ms)
        self._answer(request, granted)

    def _take_pre_vote_request(self, request: VoteRequest, now_ms: float) -> None:
        granted = (
            request.term > self._ballot.term
            and not self.must_not_bootstrap
            and not self._hears_leader(now_ms)
            and self._log.is_matched_by(request.last_term, request.last_index)
        )
        is_new = self._log.index.last_index == 0
        if granted and is_new and request.sender == self._config.first_leader:
            # A new group needs all votes, so its replicas campaign until the last of them starts.
            self.become_follower(self._ballot.term, None, f"{request.sender} founds", now_ms)
        if granted and self.role is Role.FOLLOWER:
            self.timer.yield_once(now_ms)
        self._answer(request, granted)

    def _answer(self, request: VoteRequest, granted: bool) -> None:
        self._outbox.send(
            VoteResponse(
                self._node_id,
                request.sender,
                self._ballot.term,
                request.term,
                request.pre_vote,
                granted,
                request.incarnation,
                self._ballot.recovering,
            )
        )


@dataclass(slots=True, eq=False)
class Candidacy:
    """A round of votes, or of PreVotes, for `term`. `transfer` marks a leadership transfer."""

    _node_id: NodeId
    _incarnation: int
    term: int
    pre_vote: bool
    transfer: bool
    tally: Tally
    began_ms: float
    due_ms: float = 0.0  # when unanswered requests are sent again

    def requests(self, peers: Iterable[NodeId], log: LogIndex) -> Iterator[VoteRequest]:
        """Yield a request to each voter that may still change the outcome."""
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
        """Return whether the response is for this round of votes."""
        return (response.pre_vote, response.request_term) == (self.pre_vote, self.term)
