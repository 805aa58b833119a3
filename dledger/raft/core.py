"""RaftCore: one replica of a Raft group as a state machine. Pure: no I/O, clock or randomness.

How a shell drives it (`dledger/node/node.py`; tests/dledger/group.py is the specification by
example):

    core = RaftCore(node_id, configurations, CoreConfig(), log.index, hard_state, rng, now_ms)
    on a message from a peer      core.step(message, now_ms)
    at `core.next_deadline_ms`    core.tick(now_ms)
    a peer's connection           core.peer_closed(peer, now_ms), core.peer_opened(peer)
    frames are durable            core.durable(index)
    after each of these           while (ready := core.ready()) is not None: perform it

`perform` does the steps of `Ready` in their order. Whenever none is left and `core.wants_noop` is
true, the shell seals a no-op at `core.last_index + 1` with `core.term` and proposes it: nothing
else can be proposed before it. It opens a leader's term (`leader_ready` becomes true only when it
is committed), or is a recovering follower's barrier (recovery.py).

`incarnation` is a number above 0 that no earlier process of this node has used. A replica that has
not recovered says so in its hard state (`recovered` is false); that must be durable before the
first message (the core asks for it if the hard state was loaded so; the shell must save it if it
decided so). `segment_end(position)` returns the end of the log's segment that holds the position,
and so where a leader's frames may stand. Without it they may stand anywhere. `crc_of(index)`
returns the checksum of a frame's header in the log, None if it is not known: without it nobody
notices a peer that has other frames of the same index and term (follower.py).

The log index handed in must describe frames that are all durable: `RaftLog.open` syncs what it
recovered. The core keeps its own copy. `commit_index` is what the shell has applied durably, if
anything (the checkpoint); the frames that retention deleted count as committed, too.

A failed assertion means that Raft's promises are broken: the node must stop.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.store.frame import Frame

from .config import NEVER_MS, CoreConfig, Random
from .configuration import Change, Configuration, Configurations
from .election import Candidacy
from .election_backoff import ElectionBackOff
from .election_halving import ElectionHalving
from .election_timer import ElectionTimer
from .errors import MessageRefused, NotLeader
from .follower import Following
from .leader import Leading
from .log_index import LogIndex
from .membership import Membership
from .messages import (
    TERM_MAX,
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Landmark,
    Message,
    NodeId,
    Ready,
    Role,
    RoleEvent,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from .progress import Progress
from .quorum import Outcome, Tally
from .raft_log import CoreLog
from .ready import Outbox
from .term_and_vote import Ballot


class RaftCore:
    """One replica: its role, and the parts that hold all else. `unfit`: why it must not lead (its
    disk); `is_willing`: to lead, set by the shell; if not, it does only if nobody else can.
    `founders_differ`, set by the shell: a peer would found another group
    (dledger/node/founders.py). Times are milliseconds of one clock that never goes back (clock.py).

    Invariants: there is one leader a term; `_leading` is there exactly in the role LEADER, and
    `_candidacy` exactly in the roles PRE_CANDIDATE and CANDIDATE."""

    def __init__(
        self,
        node_id: NodeId,
        configurations: Configurations,
        config: CoreConfig,
        log_index: LogIndex,
        hard_state: HardState,
        rng: Random,
        now_ms: float,
        commit_index: int = 0,
        *,
        incarnation: int,
        segment_end: Callable[[int], int] | None = None,
        crc_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.unfit: str | None = None
        self.is_willing = True
        self.founders_differ = False
        self._takes_frames = True
        self._now_ms = now_ms
        self._outbox = outbox = Outbox(log_index.last_index)
        self.ballot = ballot = Ballot(hard_state, incarnation, log_index.last_term, outbox)
        self._log = log = CoreLog(log_index, commit_index, outbox, crc_of)
        self.membership = Membership(node_id, configurations, log.commit_index, outbox)
        back_off = ElectionBackOff(config.election_ms_min, config.election_ms_max)
        halving = ElectionHalving(config.election_ms_min, config.election_ms_max)
        self.timer = ElectionTimer(config, rng, back_off, halving)
        self.timer.reset(now_ms)
        self._following = Following(node_id, ballot, log, self.membership, outbox, segment_end)
        self._candidacy: Candidacy | None = None
        self._missed_term = 0  # of the own candidacy that ended without its votes; 0: none
        self._leading: Leading | None = None

    # -- in ---------------------------------------------------------------------------------

    def step(self, message: Message, now_ms: float) -> None:
        """Take one message from a peer. Drop messages to other nodes and strangers' answers.

        Strangers' requests are taken: a leader or candidate may be a member that this replica has
        not heard of yet (thesis 4.1). Removed members are kept off by PreVote, and because nobody
        votes while it hears a leader. A stranger cannot order an election (TimeoutNow).

        Raises MessageRefused for a message that only a replica breaking Raft's rules can send: only
        its term was acted on. If it shows that the sender's log is another group's, OtherHistory.
        """
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        sender = message.sender
        if message.to != self.node_id or sender == self.node_id:
            return
        timer = self.timer
        if timer.closed or timer.given_up:
            timer.heard(sender, self._now_ms)
        kind = type(message)
        if kind is TimeoutNow and sender not in self.membership.peers:
            return
        if message.term > self.ballot.term and kind is not VoteRequest:
            # A request of a higher term comes from that term's leader. (A vote request must
            # prove itself first.)
            leads = kind in (AppendRequest, Landmark, Heartbeat, TimeoutNow)
            if self._leading is not None and self._leading.transfer.target is None:
                timer.mistaken()  # this leader was given up although it works
            self._become_follower(message.term, sender if leads else None, f"{sender} is ahead")
        if isinstance(message, AppendResponse):
            if self._leading is not None and message.request_term == self.ballot.term:
                self._leading.take_append_response(message, self._now_ms)
        elif isinstance(message, HeartbeatResponse):
            if self._leading is not None and message.request_term == self.ballot.term:
                self._end_if(self._leading.take_heartbeat_response(message, self._now_ms))
        elif isinstance(message, AppendRequest):
            if message.term < self.ballot.term:
                self._following.answer_append(message)
            else:
                self._accept_leader(sender)
                if self.takes_frames:  # else as if it had been lost
                    self._following.take_append(message)
        elif isinstance(message, Heartbeat):
            if message.term < self.ballot.term:
                self._following.answer_heartbeat(message)
            else:
                self._accept_leader(sender)
                self._following.take_heartbeat(message, self.is_willing, self._takes_frames)
        elif isinstance(message, Landmark):
            if message.term == self.ballot.term:
                self._accept_leader(sender)
                self._following.take_landmark(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        else:
            self._on_timeout_now(message)

    def _end_if(self, reason: str) -> None:
        """End the leadership, if there is a reason to."""
        if reason:
            self._become_follower(self.ballot.term, None, reason)

    def tick(self, now_ms: float) -> None:
        """Do what is due at `now_ms`. Useful at `next_deadline_ms`, harmless at any time."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if self._leading is not None:
            self._end_if(self._leading.tick(self._now_ms))
        else:
            self._tick_election()

    def durable(self, index: int) -> None:
        """Note that frames up to `index` are durable here, under the flush policy in force.

        Only frames that were handed out for writing and not truncated since count.
        """
        if not self._log.durable(index):
            return
        if self._leading is not None:
            self._end_if(self._leading.durable())
        else:
            self._following.durable(self.leader)

    def peer_closed(self, peer: NodeId, now_ms: float) -> None:
        """Note that the connection with `peer` closed. If it was the leader, ask for PreVotes
        after a short random delay: two followers that see the same close must not split the
        vote."""
        self._now_ms = max(self._now_ms, now_ms)
        if peer not in self.membership.peers:
            return
        self.timer.peer_closed(peer)
        if self._leading is not None:
            self._leading.peer_closed(peer, self._now_ms)
        elif self.role is Role.FOLLOWER and peer == self.leader:
            self.timer.leader_closed(self._now_ms)
        elif self.role is Role.CANDIDATE:
            self._count_votes()

    def peer_opened(self, peer: NodeId) -> None:
        """Note that the connection with `peer` is open (again)."""
        self.timer.closed.discard(peer)
        if self._leading is not None:
            self._leading.peer_opened(peer)

    def step_down(self, reason: str) -> None:
        """Stop leading, because the shell cannot do a leader's work (its disk fails or stalls), or
        because this replica was removed.

        The follower that has acknowledged most is asked to take over at once. Nothing happens
        on a replica that does not lead.
        """
        if self._leading is not None:
            successor = self._leading.tracker.successor()
            self._become_follower(self.ballot.term, None, reason)
            self.timer.stepped_down()
            if successor is not None:
                self._outbox.send(TimeoutNow(self.node_id, successor, self.ballot.term))

    def lose_promises(self, incarnation: int, reason: str) -> None:
        """Recover from now on: this replica's store is older than what it has promised
        (recollection.py). What it had said and not sent yet is not sent. `incarnation` is one that
        no process of this node has used."""
        self._outbox.messages.clear()
        self._following.forget_held()
        if self._leading is not None:
            self.step_down(reason)
        elif self.role is not Role.FOLLOWER:
            self._become_follower(self.ballot.term, None, reason)
        self.ballot.lose(incarnation)

    def held(self) -> dict[NodeId, int]:
        """Return the notes that a leader can make (recollection.py): by replica, up to where it
        holds the committed frames. Empty on other replicas."""
        return {} if self._leading is None else self._leading.held()

    def note_held(self, index: int) -> None:
        """Note that this replica, which has recovered, holds the committed frames up to `index`:
        leaders said so (recollection.py). No leader of its group takes them away."""
        self._following.note_held(index)

    def disk_fails(self, reason: str, takes_frames: bool = True) -> None:
        """Neither lead nor try to until `disk_works`: the disk does not keep up, or is full.

        Without `takes_frames` no new frames are taken from a leader either: heartbeats are still
        answered, and the leader later sends again what is missing."""
        self.unfit = reason
        self._takes_frames = takes_frames
        if self._leading is not None:
            self.step_down(reason)
        elif self.role is not Role.FOLLOWER:
            self._become_follower(self.ballot.term, None, reason)

    def disk_works(self) -> None:
        """Note that the disk works again."""
        self.unfit = None
        self._takes_frames = True

    def trim(self, first_index: int) -> None:
        """Note that retention deleted the log's beginning: `first_index` (at most commit_index + 1)
        is its first frame now."""
        self._log.trim(first_index)

    # -- a leader's work --------------------------------------------------------------------

    def _lead(self) -> Leading:
        if self._leading is None:
            raise NotLeader(self.leader)
        return self._leading

    def propose(self, frame: Frame) -> None:
        """Append the leader's next frame (index `last_index + 1`, term `term`).

        Raises NotLeader, or Busy at the limit of uncommitted bytes (the frame that reaches it may
        exceed it) and while leadership is being handed over; nothing has happened then. The first
        frame of a term is its no-op, which no limit stops.
        """
        self._lead().propose(frame, self._now_ms)

    def read_index(self, token: int) -> None:
        """Ask to confirm that this replica still leads. The answer comes in `Ready.reads` as
        (token, index), or in `Ready.failed_reads` when leadership goes first.

        Raises NotLeader, or Busy when too many reads wait.
        """
        self._lead().read_index(token)

    def transfer(self, target: NodeId, now_ms: float) -> None:
        """Hand leadership to `target` once it has every frame; proposals wait meanwhile.

        Given up after `transfer_ms`, or when the target's connection closes: a RoleEvent says
        so and proposals are taken again. Raises NotLeader, UnknownTarget, or Busy while
        another transfer is under way.
        """
        self._now_ms = max(self._now_ms, now_ms)
        self._lead().hand_to(target, self._now_ms)

    def configuration_after(self, change: Change, there: bool = False) -> Configuration:
        """Return the configuration to put into a CONFIGURATION frame to make this change; it must
        be proposed at once. `there`: the member to be moved is reached at its new address now.
        Raises NotLeader, Busy, ChangeRefused."""
        return self._lead().configuration_after(change, self._now_ms, there)

    # -- changes of role --------------------------------------------------------------------

    def _tell_role(self, reason: str) -> None:
        """Report the role, which is not the leader's: a leadership reports its own."""
        self._outbox.tell_role(RoleEvent(self.role, self.ballot.term, self.leader, False, reason))

    def _enter_term(self, term: int) -> None:
        self.ballot.enter(term)
        self.timer.halving.interrupted()
        self._following.enter_term()

    def _become_follower(self, term: int, leader: NodeId | None, reason: str) -> None:
        """Follow `leader`, or nobody yet, in `term`. Leaves whatever role was held."""
        current = self.ballot.term
        assert term >= current, (term, current)
        changed = (self.role, current, self.leader) != (Role.FOLLOWER, term, leader)
        if self._leading is not None:
            self._leading.end()
            self._leading = None
        if term > current:
            self._enter_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self._candidacy = None
        self.timer.reset(self._now_ms)
        if changed:
            self._tell_role(reason)

    def _accept_leader(self, sender: NodeId) -> None:
        """Follow `sender`, which leads the current term. Raises MessageRefused if another replica
        leads it (Raft 5.2: there is only one)."""
        term = self.ballot.term
        if self.leader not in (None, sender):
            raise MessageRefused(sender, f"leads term {term}, as {self.leader} does")
        assert self._leading is None, (self.node_id, sender, term)
        self.timer.leader_heard(self._now_ms)
        if self.leader == sender and self.role is Role.FOLLOWER:
            self.timer.reset(self._now_ms)
        else:
            self._become_follower(term, sender, f"{sender} leads")

    def _start_pre_vote(self, reason: str) -> None:
        """Ask whether an election would be won, before disturbing anybody with a higher term."""
        assert self._leading is None
        if self.role is Role.FOLLOWER:
            self.timer.give_up(() if self.leader is None else (self.leader,), self._now_ms)
        elif self.role is Role.CANDIDATE:
            self._missed_term = self.ballot.term
        if self.role is not Role.PRE_CANDIDATE:
            self.role = Role.PRE_CANDIDATE
            self.leader = None
            self._tell_role(reason)
        self._campaign(pre_vote=True)

    def _start_election(self, reason: str, transfer: bool = False) -> None:
        """Enter a new term, vote for this replica, and ask all other voters (Raft 5.2)."""
        assert self._leading is None
        self._enter_term(self.ballot.term + 1)
        self.role = Role.CANDIDATE
        self.leader = None
        self._tell_role(reason)
        self.ballot.vote_for(self.node_id, self.ballot.incarnation)
        self._campaign(pre_vote=False, transfer=transfer)

    def _campaign(self, pre_vote: bool, transfer: bool = False) -> None:
        ballot, tally = self.ballot, Tally(self.membership.voters)
        tally.record(self.node_id, True, ballot.recovering)
        term = ballot.term + 1 if pre_vote else ballot.term
        self._candidacy = Candidacy(
            self.node_id, ballot.incarnation, term, pre_vote, transfer, tally, self._now_ms
        )
        self.timer.reset(self._now_ms)
        self._ask_for_votes(self._candidacy)
        self._count_votes()

    def _ask_for_votes(self, candidacy: Candidacy) -> None:
        for request in candidacy.requests(self.membership.peers, self._log.index):
            self._outbox.send(request)
        candidacy.due_ms = self._now_ms + self.config.heartbeat_ms

    def _count_votes(self) -> None:
        candidacy = self._candidacy
        assert candidacy is not None
        if candidacy.pre_vote:
            if candidacy.tally.outcome() is Outcome.WON:
                self._start_election("a majority would vote for this replica")
            return
        outcome = candidacy.tally.outcome(self.timer.closed)
        if outcome is Outcome.WON:
            self._become_leader(candidacy)
        elif outcome is Outcome.LOST:
            self._become_follower(self.ballot.term, None, "the election is lost")
            self.timer.lost_election(candidacy.began_ms, self._now_ms)

    def _become_leader(self, candidacy: Candidacy) -> None:
        assert self.role is Role.CANDIDATE, self.role
        self.role = Role.LEADER
        self.leader = self.node_id
        self._candidacy = None
        self._leading = Leading(
            self.node_id,
            self.config,
            self.ballot,
            self._log,
            self.membership,
            self.timer,
            self._outbox,
            candidacy.tally,
        )
        self._leading.begin(self._now_ms)

    # -- elections --------------------------------------------------------------------------

    @property
    def _waits(self) -> bool:
        """True if this replica must not begin: neither found a group, nor be of one."""
        return self.founders_differ and self.last_index == 0

    @property
    def _may_campaign(self) -> bool:
        return (
            self.ballot.term < TERM_MAX
            and not self._waits
            and self.membership.may_campaign(self.ballot.recovered)
        )

    def _hears_leader(self) -> bool:
        return self._leading is not None or self.timer.hears(self.leader, self._now_ms)

    def _tick_election(self) -> None:
        now_ms, timer, candidacy = self._now_ms, self.timer, self._candidacy
        if now_ms < timer.due_ms:
            if candidacy is not None and now_ms >= candidacy.due_ms:
                self._ask_for_votes(candidacy)
        elif not self._may_campaign:
            timer.reset(now_ms)
            if self.leader is not None and not self._hears_leader():
                self._become_follower(self.ballot.term, None, "no leader is heard")
        elif self.unfit is not None:
            timer.reset(now_ms)
        elif self.is_willing or not timer.stands_back(now_ms):
            closed = self.leader is not None and self.leader in timer.closed
            self._start_pre_vote(
                "the leader's connection closed" if closed else "no leader is heard"
            )

    def _on_vote_response(self, response: VoteResponse) -> None:
        if not response.request_incarnation:
            self._on_no_room(response)
            return
        candidacy = self._candidacy
        if candidacy is None or not candidacy.is_answered_by(response):
            if not response.pre_vote and 0 < self._missed_term == response.request_term:
                self._missed_term = 0
                self.timer.mistaken()  # this vote was in flight when the election ended
        elif response.request_incarnation == self.ballot.incarnation:
            candidacy.tally.record(response.sender, response.granted, response.recovering)
            self._count_votes()

    def _on_no_room(self, response: VoteResponse) -> None:
        if response.request_term == self.ballot.term:
            progress = self.progress.get(response.sender)
            if progress is not None:
                progress.no_room_told = True
                progress.full_told = response.granted

    def _on_timeout_now(self, order: TimeoutNow) -> None:
        """Start an election because the leader hands over (thesis 3.10); without PreVote, since
        the leader itself asks for it."""
        may_lead = self._leading is None and self.unfit is None and self._may_campaign
        if order.term == self.ballot.term and may_lead:
            self._start_election(f"{order.sender} hands leadership over", transfer=True)

    def _on_vote_request(self, request: VoteRequest) -> None:
        if request.pre_vote:
            self._on_pre_vote_request(request)
            return
        ballot, sender = self.ballot, request.sender
        if request.term > ballot.term:
            transfer = request.transfer and sender in self.membership.peers
            if self._hears_leader() and not transfer:
                # Thesis 4.2.3: a live leader is not deposed by somebody who does not hear it, nor
                # by a stranger: leadership goes to no replica that its voters have not heard of.
                self._answer_vote(request, False)
                return
            if self.leader is not None and not transfer:
                self.timer.give_up((self.leader,), self._now_ms)
            self._become_follower(request.term, None, f"{sender} asks for votes")
        granted = (
            request.term == ballot.term
            and self.leader is None
            and not self._waits
            and ballot.is_free_for(sender, request.incarnation)
            and self._log.is_matched_by(request.last_term, request.last_index)
        )
        if granted:
            ballot.vote_for(sender, request.incarnation)
            self._become_follower(ballot.term, None, f"voted for {sender}")
        self._answer_vote(request, granted)

    def _on_pre_vote_request(self, request: VoteRequest) -> None:
        granted = (
            request.term > self.ballot.term
            and not self._waits
            and not self._hears_leader()
            and self._log.is_matched_by(request.last_term, request.last_index)
        )
        if granted and self.role is Role.FOLLOWER:
            self.timer.yield_once(self._now_ms)
        self._answer_vote(request, granted)

    def _answer_vote(self, request: VoteRequest, granted: bool) -> None:
        self._outbox.send(
            VoteResponse(
                self.node_id,
                request.sender,
                self.ballot.term,
                request.term,
                request.pre_vote,
                granted,
                request.incarnation,
                self.ballot.recovering,
            )
        )

    # -- out --------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """Return what the shell must do now; None if nothing. Each is handed out once."""
        outbox = self._outbox
        if not outbox.dirty:
            return None
        if self._leading is not None:
            self._leading.send_due(self._now_ms)
            if not self.membership.is_voter and not self.membership.pending_index:
                self.step_down("removed from the group")
        return outbox.take()

    @property
    def next_deadline_ms(self) -> float:
        """The time at which `tick` has something to do, if nothing happens before."""
        if self._leading is not None:
            return self._leading.next_deadline_ms
        if self._candidacy is None:
            return self.timer.due_ms
        return min(self.timer.due_ms, self._candidacy.due_ms)

    @property
    def term(self) -> int:
        """The current term."""
        return self.ballot.term

    @property
    def recovered(self) -> bool:
        """False while this replica may have forgotten promises (recovery.py)."""
        return self.ballot.recovered

    @property
    def commit_index(self) -> int:
        """The last frame known to be committed."""
        return self._log.commit_index

    @property
    def durable_index(self) -> int:
        """The last frame durable here, under the flush policy in force."""
        return self._log.durable_index

    @property
    def last_index(self) -> int:
        """The last frame accepted, written or not."""
        return self._log.index.last_index

    @property
    def last_term(self) -> int:
        """The term of that frame."""
        return self._log.index.last_term

    @property
    def takes_frames(self) -> bool:
        """False while this replica drops the frames of any leader: its disk is full, or it must not
        begin."""
        return self._takes_frames and not self._waits

    @property
    def leader_ready(self) -> bool:
        """True if this replica leads, and its term's no-op is committed."""
        return self._leading is not None and self._leading.ready

    @property
    def wants_noop(self) -> bool:
        """True if the shell has to propose a no-op before anything else."""
        return self._leading is not None and self._leading.wants_noop

    @property
    def can_propose(self) -> bool:
        """True if `propose` takes a frame now, whatever its size."""
        return self._leading is not None and self._leading.can_propose

    @property
    def transfer_target(self) -> NodeId | None:
        """The replica to which this leader is handing leadership; None if it is not."""
        return None if self._leading is None else self._leading.transfer.target

    @property
    def progress(self) -> dict[NodeId, Progress]:
        """The leader's view of each follower (read only); empty on other replicas."""
        return {} if self._leading is None else self._leading.progress

    @property
    def round(self) -> int:
        """The leader's last heartbeat round; 0 on other replicas."""
        return 0 if self._leading is None else self._leading.round

    def lag_bytes(self, progress: Progress) -> int:
        """Return how many bytes of the log a follower lacks."""
        return self._log.lag_bytes(progress.match_index)

    def full_voters(self, now_ms: float) -> list[NodeId]:
        """Return the followers whose disks are full if a leader can commit nothing because of them
        (tracker.py); [] otherwise."""
        return [] if self._leading is None else self._leading.full_voters(now_ms)

    def silent_ms(self, peer: NodeId, now_ms: float | None = None) -> float | None:
        """Return how many milliseconds ago `peer` was heard; None if this replica does not keep
        count: a leader does for its followers, a follower for its leader. Without `now_ms`: as of
        the time that the core was told last."""
        now_ms = self._now_ms if now_ms is None else now_ms
        if peer in self.progress:
            return max(0.0, now_ms - self.progress[peer].heard_ms)
        contact_ms = self.timer.contact_ms
        known = peer == self.leader and contact_ms > NEVER_MS
        return max(0.0, now_ms - contact_ms) if known else None
