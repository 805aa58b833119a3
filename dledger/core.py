"""RaftCore: one replica of a Raft group as a pure state machine: no I/O, clock or randomness.

How a shell drives it (`member.py`, and the simulator, which is the specification by example):

    core = RaftCore(node_id, configurations, CoreConfig(), log.index, hard_state, rng, now_ms)
    on a message from a peer      core.step(message, now_ms)
    at `core.next_deadline_ms`    core.tick(now_ms)
    a peer's connection           core.peer_closed(peer, now_ms), core.peer_opened(peer)
    frames are durable            core.durable(index)
    after each of these           while (ready := core.ready()) is not None: perform it

`perform` does the steps of `Ready` in their order. Whenever none is left and `core.wants_noop` is
true, the shell seals a no-op at `core.last_index + 1` with `core.term` and proposes it: nothing
else can be proposed before it. It opens a leader's term (`leader_ready` becomes true only when it
is committed), or is a recovering follower's barrier (standing.py).

`incarnation` is a number above 0 that no earlier process of this node has used. A replica that has
not recovered says so in its hard state (`whole` is false); that must be durable before the first
message (the core asks for it if the hard state was loaded so; the shell must save it if it decided
so). `segment_end(position)` returns the end of the log's segment that holds the position, and so
where a leader's frames may stand. Without it they may stand anywhere.

The log index handed in must describe frames that are all durable: `RaftLog.open` syncs what it
recovered. The core keeps its own copy. `commit_index` is what the shell has applied durably, if
anything (the checkpoint); the frames that retention deleted count as committed, too.

A failed assertion means that Raft's promises are broken: the node must stop.
"""

from __future__ import annotations

from raftmq.dledger.following import Following
from raftmq.dledger.leading import Leading
from raftmq.dledger.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    NodeId,
    Ready,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.progress import Progress
from raftmq.dledger.state import NEVER_MS


class RaftCore(Leading, Following):
    """One replica. Attributes for reading: `node_id`, `configurations`, `voters`, `is_voter`,
    `peers` (it sends to these), `config`, `role`, `term`, `voted_for`, `whole`, `incarnation`,
    `unfit`, `has_room` (the shell sets it), `leader`, `leader_ready`, `commit_index`,
    `durable_index`, `last_index`, `wants_noop`, `can_propose`, `transfer_target`, `patience`,
    `next_deadline_ms`. Times are milliseconds of one clock that never goes back (attention.py)."""

    __slots__ = ()

    # -- in ---------------------------------------------------------------------------------

    def step(self, message: Message, now_ms: float) -> None:
        """Take one message from a peer. Drop messages to other nodes and strangers' answers.

        Strangers' requests are taken: a leader or candidate may be a member that this replica has
        not heard of yet (thesis 4.1). Removed members are kept off by PreVote, and because nobody
        votes while it hears a leader. A stranger cannot order an election (TimeoutNow).

        Raises MessageRefused for a message that only a replica breaking Raft's rules can send: only
        its term was acted on."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if message.to != self.node_id or message.sender == self.node_id:
            return
        if self._closed:
            self._closed.discard(message.sender)  # a peer that sends is connected
        if self._given_up and message.sender in self._given_up:
            self._speaks_after_all()
        kind = type(message)
        if kind is TimeoutNow and message.sender not in self.peers:
            return
        if message.term > self.term and kind is not VoteRequest:
            # A request of a higher term comes from that term's leader. (A vote request must
            # prove itself first: election.py.)
            leads = kind is AppendRequest or kind is Heartbeat or kind is TimeoutNow
            if self.role is Role.LEADER and self.transfer_target is None:
                self._patience.mistaken()  # deposed, and lives
            self._become_follower(
                message.term, message.sender if leads else None, f"{message.sender} is ahead"
            )
        if isinstance(message, AppendResponse):
            self._on_append_response(message)
        elif isinstance(message, AppendRequest):
            self._on_append_request(message)
        elif isinstance(message, HeartbeatResponse):
            self._on_heartbeat_response(message)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        else:
            self._on_timeout_now(message)

    def tick(self, now_ms: float) -> None:
        """Do what is due at `now_ms`. Useful at `next_deadline_ms`, harmless at any time."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if self.role is Role.LEADER:
            self._tick_leader()
        else:
            self._tick_election()

    def durable(self, index: int) -> None:
        """Note that frames up to `index` are durable here, under the flush policy in force.

        Only frames that were handed out for writing and not truncated since count.
        """
        index = min(index, self._handed_index)
        if index <= self.durable_index:
            return
        self.durable_index = index
        if self.role is Role.LEADER:
            if index > self.commit_index:
                self._advance_commit()
            if self._provisional or not self.whole:
                self._certify()
        else:
            self._follower_durable()

    def peer_closed(self, peer: NodeId, now_ms: float) -> None:
        """Note that the connection with `peer` closed. If it was the leader, ask for PreVotes
        after a short random delay: two followers that see the same close must not split the
        vote."""
        self._now_ms = max(self._now_ms, now_ms)
        if peer not in self.peers:
            return
        self._closed.add(peer)
        self._given_up.discard(peer)
        if self.role is Role.LEADER:
            self._leader_peer_closed(peer)
        elif self.role is Role.FOLLOWER and peer == self.leader:
            soon = self._now_ms + self._close_jitter()
            self._election_due_ms = min(self._election_due_ms, soon)
        elif self.role is Role.CANDIDATE:
            self._count_votes()

    def peer_opened(self, peer: NodeId) -> None:
        """Note that the connection with `peer` is open (again)."""
        self._closed.discard(peer)
        if self.role is Role.LEADER and peer in self._progress:
            self._leader_peer_opened(peer)

    def step_down(self, reason: str) -> None:
        """Stop leading, because the shell cannot do a leader's work (its disk fails or stalls).

        The follower that has acknowledged most is asked to take over at once. Nothing happens
        on a replica that does not lead.
        """
        if self.role is Role.LEADER:
            self._step_down(reason)

    def disk_fails(self, reason: str, takes_frames: bool = True) -> None:
        """Neither lead nor try to until `disk_works`: the disk does not keep up, or is full.

        Without `takes_frames` no new frames are taken from a leader either: heartbeats are still
        answered, and the leader later sends again what is missing."""
        self.unfit = reason
        self._takes_frames = takes_frames
        if self.role is Role.LEADER:
            self._step_down(reason)
        elif self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None, reason)

    def disk_works(self) -> None:
        """Note that the disk works again."""
        self.unfit = None
        self._takes_frames = True

    def trim(self, first_index: int) -> None:
        """Note that retention deleted the log's beginning: `first_index` (at most commit_index + 1)
        is its first frame now."""
        assert first_index <= self.commit_index + 1, (first_index, self.commit_index)
        self._log.trim(first_index)

    # -- out --------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        """The last frame accepted, written or not."""
        return self._log.last_index

    @property
    def progress(self) -> dict[NodeId, Progress]:
        """The leader's view of each follower (read only); empty on other replicas."""
        return self._progress

    @property
    def patience(self) -> int:
        """The election back-off: the factor on the configured election time-outs (patience.py)."""
        return self._patience.factor

    def silent_ms(self, peer: NodeId, now_ms: float | None = None) -> float | None:
        """Return how many milliseconds ago `peer` was heard; None if this replica does not keep
        count: a leader does for its followers, a follower for its leader. Without `now_ms`: as of
        the time that the core was told last."""
        now_ms = self._now_ms if now_ms is None else now_ms
        if peer in self._progress:
            return max(0.0, now_ms - self._progress[peer].heard_ms)
        known = peer == self.leader and self._leader_contact_ms > NEVER_MS
        return max(0.0, now_ms - self._leader_contact_ms) if known else None

    @property
    def next_deadline_ms(self) -> float:
        """The time at which `tick` has something to do, if nothing happens before."""
        if self.role is not Role.LEADER:
            if self._tally is None:
                return self._election_due_ms
            return min(self._election_due_ms, self._campaign_due_ms)
        # The quorum is checked at each heartbeat.
        due_ms = min(self._heartbeat_due_ms, self._pace.due_ms)
        if self.transfer_target is not None:
            due_ms = min(due_ms, self._transfer_due_ms)
        return due_ms

    def ready(self) -> Ready | None:
        """Return what the shell must do now; None if nothing. Each is handed out once."""
        if not self._dirty:
            return None
        if self.role is Role.LEADER:
            if self._reads:
                self._start_read_round()
            if self._appends_due:
                self._order_appends()
            if not self.is_voter and not self._configuration_due:
                self._step_down("removed from the group")
        if not self._has_output():
            self._dirty = False
            return None
        ready = Ready(
            self._out_truncate,
            tuple(self._out_append),
            HardState(self.term, self.voted_for, self.whole) if self._out_hard_state else None,
            tuple(self._out_messages),
            self.commit_index if self._out_commit else None,
            tuple(self._out_reads),
            tuple(self._out_reads_failed),
            None if self._out_role_reason is None else self._role_event(self._out_role_reason),
            self._out_configuration,
        )
        self._handed_index = self._log.last_index
        self._clear_out()
        return ready

    def _has_output(self) -> bool:
        return bool(
            self._out_messages
            or self._out_append
            or self._out_commit
            or self._out_configuration
            or self._out_hard_state
            or self._out_truncate is not None
            or self._out_reads
            or self._out_reads_failed
            or self._out_role_reason is not None
        )
