"""The core of a replica, a state machine without I/O, clock or randomness.

A driver (`dledger/node/node.py`; tests/dledger/group.py is the specification by example) calls:

    core = RaftCore(node_id, configurations, CoreConfig(), log.index, hard_state, rng, now_ms)
    on a message from a peer      core.step(message, now_ms)
    at `core.next_deadline_ms`    core.tick(now_ms)
    a peer's connection           core.peer_closed(peer, now_ms), core.peer_opened(peer)
    frames are durable            core.durable(index)
    after each of these           while (ready := core.ready()) is not None: perform it

`perform` does the steps of `Ready` in their order. If no Ready is left and `core.wants_noop` is
true, the driver seals a no-op at `core.last_index + 1` with `core.term` and proposes it before
anything else. The no-op opens a leader's term (`leader_ready` is true once it is committed), or is
a recovering follower's barrier (recovery.py).

`incarnation` is positive and new for this node. A replica that has not recovered has `recovered`
false in its hard state, which must be durable before the first message. The core requests that if
the hard state was loaded so; otherwise the driver saves it. `segment_end(position)` returns the end
of the log's segment, which limits where a leader's frames may be. `crc_of(index)` returns the
checksum of a frame's header, or None; it detects peers with different frames of the same index and
term (follower.py).

The log index must describe durable frames only: `RaftLog.open` syncs recovered frames. The core
keeps its own copy. `commit_index` is the last frame that the driver has applied durably (the
checkpoint); frames that retention deleted also count as committed.

A failed assertion means that Raft's guarantees are broken, and the node must stop.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.store.frame import Frame

from .config import NEVER_MS, CoreConfig, Random
from .configuration import Change, Configuration, Configurations
from .election import Election
from .election_timeout import ElectionTimer
from .errors import NotLeader
from .follower import Following
from .leader import Leading
from .log_index import LogIndex
from .membership import Membership
from .messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    NodeId,
    PrevFrame,
    Ready,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from .progress import Progress
from .raft_log import CoreLog
from .ready import Outbox
from .term_and_vote import Ballot


class RaftCore:
    """A Raft replica. Times are milliseconds of a single clock that never goes back (clock.py)."""

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
        self._takes_frames = True
        self._now_ms = now_ms
        self._outbox = outbox = Outbox(log_index.last_index)
        self.ballot = ballot = Ballot(hard_state, incarnation, log_index.last_term, outbox)
        self._log = log = CoreLog(log_index, commit_index, outbox, crc_of)
        self.membership = Membership(node_id, configurations, log.commit_index, outbox)
        self.timer = timer = ElectionTimer(config, rng)
        timer.reset(now_ms)
        if config.first_leader == node_id and log_index.last_index == 0:
            timer.expect_no_leader(now_ms)
        self._following = Following(node_id, ballot, log, self.membership, outbox, segment_end)
        self.election = Election(
            node_id, config, ballot, log, self.membership, self._following, outbox, timer
        )

    # -- in ---------------------------------------------------------------------------------

    def step(self, message: Message, now_ms: float) -> None:
        """Handle a message from a peer. Messages to other nodes and strangers' answers are dropped.

        Strangers' requests are accepted, because a leader or candidate may be a new member (thesis
        4.1). PreVote, and live leaders, keep removed members from disturbing. A stranger cannot
        order an election (TimeoutNow).

        Raises MessageRefused for a message that breaks Raft's rules; only its term was acted on.
        Raises OtherHistory if the message shows that the sender's log is another group's."""
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
            # A request of a higher term is from that term's leader. (A vote request must prove
            # itself first.)
            leads = kind in (AppendRequest, PrevFrame, Heartbeat, TimeoutNow)
            if self._leading is not None and self._leading.transfer.target is None:
                timer.mistaken()  # the followers gave up a working leader
            leader = sender if leads else None
            self.election.become_follower(message.term, leader, f"{sender} is ahead", self._now_ms)
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
                self.election.accept_leader(sender, self._now_ms)
                if self.takes_frames:  # otherwise as if the message was lost
                    self._following.take_append(message)
        elif isinstance(message, Heartbeat):
            if message.term < self.ballot.term:
                self._following.answer_heartbeat(message)
            else:
                self.election.accept_leader(sender, self._now_ms)
                self._following.take_heartbeat(
                    message, self.election.is_willing, self._takes_frames
                )
        elif isinstance(message, PrevFrame):
            if message.term == self.ballot.term:
                self.election.accept_leader(sender, self._now_ms)
                self._following.handle_prev_frame(message)
        elif isinstance(message, VoteRequest):
            self.election.take_vote_request(message, self._now_ms)
        elif isinstance(message, VoteResponse):
            if message.request_incarnation:
                self.election.take_vote_response(message, self._now_ms)
            else:
                self._take_no_room(message)
        else:
            self.election.take_timeout_now(message, self._now_ms)

    def _take_no_room(self, response: VoteResponse) -> None:
        if response.request_term == self.ballot.term:
            progress = self.progress.get(response.sender)
            if progress is not None:
                progress.no_room_reported = True
                progress.full_reported = response.granted

    def _end_if(self, reason: str) -> None:
        """End the leadership if there is a reason."""
        if reason:
            self.election.become_follower(self.ballot.term, None, reason, self._now_ms)

    def tick(self, now_ms: float) -> None:
        """Do the work that is due at `now_ms`. Useful at `next_deadline_ms`, harmless otherwise."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if self._leading is not None:
            self._end_if(self._leading.tick(self._now_ms))
        else:
            self.election.tick(self._now_ms)

    def durable(self, index: int) -> None:
        """Note that frames up to `index` are durable here, under the flush policy in force. Frames
        that were not handed out for writing, or were truncated, do not count."""
        if not self._log.durable(index):
            return
        if self._leading is not None:
            self._end_if(self._leading.durable())
        else:
            self._following.durable(self.leader)

    def peer_closed(self, peer: NodeId, now_ms: float) -> None:
        """Note that the connection with `peer` closed. If `peer` leads, ask for PreVotes after a
        short random delay, because two followers that see the same close must not split the vote.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if peer not in self.membership.peers:
            return
        self.timer.peer_closed(peer)
        if self._leading is not None:
            self._leading.peer_closed(peer, self._now_ms)
        elif self.role is Role.FOLLOWER and peer == self.leader:
            self.timer.expect_no_leader(self._now_ms)
        elif self.role is Role.CANDIDATE:
            self.election.count_votes(self._now_ms)

    def peer_opened(self, peer: NodeId) -> None:
        """Note that the connection with `peer` is open."""
        self.timer.closed.discard(peer)
        if self._leading is not None:
            self._leading.peer_opened(peer)

    def step_down(self, reason: str) -> None:
        """Stop leading, because the disk fails or stalls, or because this replica was removed, and
        ask the follower with most acknowledged frames to campaign at once. No effect on other
        replicas."""
        if self._leading is not None:
            successor = self._leading.tracker.successor()
            self.election.stop_leading(reason, self._now_ms)
            self.timer.stepped_down()
            if successor is not None:
                self._outbox.send(TimeoutNow(self.node_id, successor, self.ballot.term))

    def lose_promises(self, incarnation: int, reason: str) -> None:
        """Recover from now on, because this replica's store is older than its promises
        (dledger/node/rollback_detection.py). Unsent messages are discarded. `incarnation` must be
        new for this node."""
        self._outbox.messages.clear()
        self._following.forget_held()
        if self._leading is not None:
            self.step_down(reason)
        else:
            self.election.stop_leading(reason, self._now_ms)
        self.ballot.lose(incarnation)

    def held(self) -> dict[NodeId, int]:
        """Return the notes of a leader (dledger/node/rollback_detection.py): by replica, the last
        committed frame that it holds. Empty on other replicas."""
        return {} if self._leading is None else self._leading.held()

    def note_held(self, index: int) -> None:
        """Note that this replica, which has recovered, holds the committed frames up to `index`, as
        leaders have noted. No leader of its group truncates them."""
        self._following.note_held(index)

    def disk_fails(self, reason: str, takes_frames: bool = True) -> None:
        """Neither lead nor campaign until `disk_works`, because the disk is slow or full.

        Without `takes_frames` new frames are also dropped. Heartbeats are still answered, and the
        leader sends the missing frames later."""
        self.election.unfit = reason
        self._takes_frames = takes_frames
        if self._leading is not None:
            self.step_down(reason)
        else:
            self.election.stop_leading(reason, self._now_ms)

    def disk_works(self) -> None:
        self.election.unfit = None
        self._takes_frames = True

    def trim(self, first_index: int) -> None:
        """Note that retention deleted the frames before `first_index` (≤ commit_index + 1)."""
        self._log.trim(first_index)

    # -- a leader's work --------------------------------------------------------------------

    def _lead(self) -> Leading:
        if self._leading is None:
            raise NotLeader(self.leader)
        return self._leading

    def propose(self, frame: Frame) -> None:
        """Append the leader's next frame (index `last_index + 1`, term `term`).

        Raises NotLeader, or Busy at the limit of uncommitted bytes (the last frame may exceed it)
        and during a leadership transfer. A term's no-op is not limited."""
        self._lead().propose(frame, self._now_ms)

    def read_index(self, token: int) -> None:
        """Request a confirmation that this replica still leads. `Ready.reads` gets (token, index),
        or `Ready.failed_reads` gets the token when leadership ends. Raises NotLeader, or Busy when
        too many reads wait."""
        self._lead().read_index(token)

    def transfer(self, target: NodeId, now_ms: float) -> None:
        """Transfer leadership to `target` once it has every frame; proposals wait until then.

        The transfer ends after `transfer_ms`, or when the target's connection closes; a RoleEvent
        reports that. Raises NotLeader, UnknownTarget, or Busy during another transfer."""
        self._now_ms = max(self._now_ms, now_ms)
        self._lead().hand_to(target, self._now_ms)

    def configuration_after(self, change: Change, there: bool = False) -> Configuration:
        """Return the configuration that makes this change; propose it at once in a CONFIGURATION
        frame. `there` is true if a moved member answers at its new address. Raises NotLeader, Busy,
        ChangeRefused."""
        return self._lead().configuration_after(change, self._now_ms, there)

    # -- out --------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """Return the driver's next actions, or None. Each is handed out once."""
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
        """The time of the next `tick` that has something to do."""
        if self._leading is not None:
            return self._leading.next_deadline_ms
        return self.election.next_deadline_ms

    @property
    def _leading(self) -> Leading | None:
        return self.election.leading

    @property
    def role(self) -> Role:
        return self.election.role

    @property
    def leader(self) -> NodeId | None:
        """The leader of the term, or None if unknown."""
        return self.election.leader

    @property
    def term(self) -> int:
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
        """The last durable frame, under the flush policy in force."""
        return self._log.durable_index

    @property
    def last_index(self) -> int:
        """The last accepted frame, written or not."""
        return self._log.index.last_index

    @property
    def last_term(self) -> int:
        return self._log.index.last_term

    @property
    def takes_frames(self) -> bool:
        """False while this replica drops new frames: a full disk, or it must not found a group."""
        return self._takes_frames and not self.election.must_not_bootstrap

    @property
    def leader_ready(self) -> bool:
        """True if this replica leads, and its term's no-op is committed."""
        return self._leading is not None and self._leading.ready

    @property
    def wants_noop(self) -> bool:
        """True if the driver has to propose a no-op before anything else."""
        return self._leading is not None and self._leading.wants_noop

    @property
    def can_propose(self) -> bool:
        """True if `propose` accepts a frame now, of any size."""
        return self._leading is not None and self._leading.can_propose

    @property
    def transfer_target(self) -> NodeId | None:
        """The target of a leadership transfer under way, or None."""
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
        """Return the size of the log behind a follower's match index."""
        return self._log.lag_bytes(progress.match_index)

    def full_voters(self, now_ms: float) -> list[NodeId]:
        """Return the followers with full disks that keep a leader from committing."""
        return [] if self._leading is None else self._leading.full_voters(now_ms)

    def silent_ms(self, peer: NodeId, now_ms: float | None = None) -> float | None:
        """Return the time since `peer` was last heard, in milliseconds. Return None for a peer that
        is not tracked. Leaders track followers, and followers track their leader. Without `now_ms`,
        use the core's last time."""
        now_ms = self._now_ms if now_ms is None else now_ms
        if peer in self.progress:
            return max(0.0, now_ms - self.progress[peer].heard_ms)
        contact_ms = self.timer.contact_ms
        known = peer == self.leader and contact_ms > NEVER_MS
        return max(0.0, now_ms - contact_ms) if known else None
