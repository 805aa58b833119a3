"""The leader's replication (Raft 5.3, 5.4.2), reads (thesis 6.4) and transfer (3.10).

A `Leading` exists for a single leadership, with its state of followers, reads and a transfer. The
leader writes and sends in parallel; its own copy counts only once it is durable. Frames of an
earlier term are committed through a frame of its own term (Raft 5.4.2, figure 8): the no-op that
opens the term. Limits: bytes and messages in flight per peer, uncommitted bytes, waiting reads,
bytes per second for followers that are far behind (append_throttle.py).

A method that returns a non-empty string asks its caller to step down for that reason.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from raftmq.store.frame import Frame, FrameKind

from .append_throttle import NEVER_DUE_MS, AppendThrottle
from .config import CoreConfig
from .configuration import Change, ChangeKind, Configuration
from .election_timeout import ElectionTimer
from .errors import Busy, ChangeRefused, MessageRefused, UnknownTarget
from .membership import Membership
from .messages import (
    AppendOrder,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    NodeId,
    Role,
    RoleEvent,
    TimeoutNow,
)
from .progress import PROBE, STRANDED, Progress
from .quorum import Tally, majority
from .raft_log import CoreLog
from .read_index import ReadIndex
from .ready import Outbox
from .recovery import Recovery
from .term_and_vote import Ballot
from .tracker import Tracker


@dataclass(slots=True, eq=False)
class Leading:
    """A leadership. `ready` is true once its no-op is committed, `wants_noop` while a no-op must be
    proposed next. `round` is the last heartbeat round."""

    _node_id: NodeId
    _config: CoreConfig
    _ballot: Ballot
    _log: CoreLog
    _membership: Membership
    _timer: ElectionTimer
    _outbox: Outbox
    tally: InitVar[Tally]  # the votes that elected it
    ready: bool = False
    wants_noop: bool = True
    round: int = 0
    _appends_due: bool = False
    _heartbeat_due_ms: float = 0.0
    _first_index: int = field(init=False)  # acknowledgements commit from here on
    tracker: Tracker = field(init=False)
    progress: dict[NodeId, Progress] = field(init=False)  # the tracker's
    _recovery: Recovery = field(init=False)
    _throttle: AppendThrottle = field(init=False)
    _reads: ReadIndex = field(init=False)
    transfer: Transfer = field(init=False)

    def __post_init__(self, tally: Tally) -> None:
        config = self._config
        self._first_index = self._log.index.last_index + 1
        self.tracker = Tracker(self._node_id, config)
        self.progress = self.tracker.progress
        self._recovery = Recovery(
            self._node_id,
            self._ballot,
            self._log,
            self._membership,
            self.tracker,
            self._first_index,
            tally.granted,
            provisional=not tally.by_majority,
        )
        self._throttle = AppendThrottle(config.catch_up_bytes_per_s)
        self._reads = ReadIndex(config.reads_waiting_max)
        self.transfer = Transfer(config.transfer_ms)

    def start(self, now_ms: float) -> None:
        self.configure(now_ms)
        self._tell_role("elected")
        self._send_heartbeats(now_ms)

    def end(self) -> None:
        self._outbox.failed_reads.extend(self._reads.fail())

    def held(self) -> dict[NodeId, int]:
        """Return by replica the last committed frame that it holds, durably and recovered. Includes
        only replicas with a frame of this term, so the value never falls below an earlier leader's.
        """
        log = self._log
        own = log.durable_index if self._ballot.recovered else 0
        reached = {self._node_id: own}
        reached |= {peer: one.recovered_index for peer, one in self.progress.items()}
        held = {peer: min(index, log.commit_index) for peer, index in reached.items()}
        return {peer: index for peer, index in held.items() if index >= self._first_index}

    def _tell_role(self, reason: str) -> None:
        term, leader = self._ballot.term, self._node_id
        self._outbox.tell_role(RoleEvent(Role.LEADER, term, leader, self.ready, reason))

    def configure(self, now_ms: float) -> None:
        membership, last_index = self._membership, self._log.index.last_index
        new = self.tracker.configure(
            membership.configurations.current, max(self._first_index, last_index), now_ms
        )
        if self._first_index <= last_index:  # otherwise `start` sends it
            for progress in new:
                self._send_heartbeat(progress)
        membership.speak_with(self.progress)
        target = self.transfer.target
        assert target is None or target in membership.voters, target

    # -- proposals --------------------------------------------------------------------------

    @property
    def can_propose(self) -> bool:
        """True if `propose` accepts a frame now, of any size."""
        return (
            self.transfer.target is None
            and not self.wants_noop
            and self._membership.is_voter
            and self._log.uncommitted_bytes < self._config.uncommitted_bytes_max
        )

    def propose(self, frame: Frame, now_ms: float) -> None:
        """Append the leader's next frame. Raises Busy."""
        log = self._log
        if self.wants_noop:
            assert frame.kind == FrameKind.NOOP, frame
        else:
            self.transfer.check_none()
            if not self._membership.is_voter:
                raise Busy("this leader is leaving the group")
            if log.uncommitted_bytes >= self._config.uncommitted_bytes_max:
                raise Busy(f"{log.uncommitted_bytes} bytes are not committed yet")
        assert frame.term == self._ballot.term, (frame, self._ballot.term)
        log.append(frame)
        self.wants_noop = False
        self._appends_due = True
        if frame.kind == FrameKind.CONFIGURATION:
            if self._membership.append(frame, log.commit_index):
                self.configure(now_ms)

    def configuration_after(self, change: Change, now_ms: float, there: bool) -> Configuration:
        """Return the configuration to propose for `change`. `there` is true if a moved member
        answers at its new address (membership.py). Raises Busy, ChangeRefused."""
        self.transfer.check_none()
        if not self.ready or self.wants_noop:
            raise ChangeRefused(f"no frame of term {self._ballot.term} is committed yet")
        after = self._membership.after(change)
        if change.kind is ChangeKind.PROMOTE:
            self._check_learner(self.progress[change.node_id], now_ms)
        voters = counted = after.voters
        if change.kind is ChangeKind.MOVE and not there and len(voters) > 1:
            counted = voters - {change.node_id}
        good = int(self._node_id in counted and self._ballot.recovered)
        good += self.tracker.good(counted, now_ms)
        count, needed = len(voters), majority(len(voters))
        if good < needed:
            why = f"{good} of {count} voters would be recovered and answer, {needed} are needed"
            if counted != voters:
                why += f" without {change.node_id}, which was not found at {change.address}"
            raise ChangeRefused(why)
        return after

    def _check_learner(self, progress: Progress, now_ms: float) -> None:
        if not self.tracker.answers(progress, now_ms):
            raise ChangeRefused(f"{progress.peer} does not answer")
        if progress.recovering or progress.recovering is None:
            raise ChangeRefused(f"{progress.peer} is recovering")
        lag_bytes = self._log.lag_bytes(progress.match_index)
        if lag_bytes > self._config.learner_lag_bytes_max:
            raise ChangeRefused(f"{progress.peer} lacks {lag_bytes} bytes of the log still")

    # -- appends ----------------------------------------------------------------------------

    def send_due(self, now_ms: float) -> None:
        """Start a read round and send frames if due; called once per Ready."""
        if self._reads:
            self._start_read_round(now_ms)
        if self._appends_due:
            self._appends_due = False
            last_index = self._log.index.last_index
            for progress in self.progress.values():
                while progress.next_index <= last_index and progress.may_send():
                    if not self._order_append(progress, now_ms):
                        break

    def _order_append(self, progress: Progress, now_ms: float) -> bool:
        """Send frames into a follower's append window. Return False if none may be sent now."""
        config, commit_index, log = self._config, self._log.commit_index, self._log.index
        first = progress.next_index
        if first < log.first_index:
            progress.strand()
            return False
        bytes_max = config.append_bytes_max
        if progress.inflight:
            bytes_max = min(bytes_max, progress.window_bytes())
        position = log.position_of(first)
        last, end_position = log.last_index, log.end_position
        if end_position - position > bytes_max:
            far = end_position - position > config.inflight_bytes_max
            last = log.last_within(first, bytes_max)
            end_position = log.end_of(last)
            if far and last <= commit_index:  # append_throttle.py
                if not self._throttle.may_send(now_ms):
                    return False
                self._throttle.sent(end_position - position)
        prev_index, term = first - 1, self._ballot.term
        own = prev_index >= self._first_index  # nearly always; avoids a search
        prev_term = term if own else log.term_at(prev_index)
        self._outbox.messages.append(
            AppendOrder(progress.peer, term, prev_index, prev_term, first, last, commit_index)
        )
        progress.sent(last, end_position - position, now_ms)
        return True

    def _want_appends(self, progress: Progress) -> None:
        """Send the missing frames to a follower with the next Ready."""
        if progress.next_index <= self._log.index.last_index:
            self._appends_due = self._outbox.dirty = True

    def take_append_response(self, response: AppendResponse, now_ms: float) -> None:
        """Handle a follower's answer of this term. Raises MessageRefused."""
        progress = self.progress.get(response.sender)
        if progress is None:
            return  # no member of this group
        if response.success:
            self._check_match(progress, response.match_index)
        elif response.conflict_index > response.prev_index:
            what = f"refuses frames behind {response.prev_index} for {response.conflict_index}"
            raise MessageRefused(response.sender, what)
        progress.heard_ms = now_ms
        if response.success:
            if progress.believes(response.recovering):
                self._take_match(progress, response.match_index, now_ms)
                if not response.recovering:
                    if progress.recovering:  # the follower accepted its certificate
                        progress.recovering = progress.certified = 0
                    self._count_recovered(progress, response.match_index)
                if response.recovering or self._recovery.provisional:
                    if self._recovery.is_pressing(progress, response.match_index):
                        self._send_heartbeat(progress)
        elif progress.rejected(response.prev_index):
            self._back_off(progress, response)

    def _check_match(self, progress: Progress, match_index: int) -> None:
        """Check that the follower acknowledges only frames of this log. Raises MessageRefused."""
        last_index = self._log.index.last_index
        if match_index > last_index:
            what = f"acknowledges frame {match_index} of a log that ends at {last_index}"
            raise MessageRefused(progress.peer, what)

    def _take_match(self, progress: Progress, match_index: int, now_ms: float) -> None:
        last_index = self._log.index.last_index
        assert match_index <= last_index, (progress, match_index, self._log.index)
        if progress.acknowledged(match_index, now_ms):
            progress.match_round = self.round
            if self.transfer.target == progress.peer:
                self._hand_over_if_caught_up()
        if progress.next_index <= last_index:
            self._appends_due = self._outbox.dirty = True

    def _back_off(self, progress: Progress, response: AppendResponse) -> None:
        """Probe from the last frame that may equal the follower's, by terms (Raft 5.3)."""
        assert response.conflict_index <= response.prev_index, response
        log = self._log.index
        at = log.last_at_most(response.conflict_index - 1, response.conflict_term)
        progress.probe_from(max(progress.match_index, at) + 1)
        self._appends_due = self._outbox.dirty = True

    # -- commit -----------------------------------------------------------------------------

    def durable(self) -> str:
        """Count this replica's newly durable frames. Return a reason to step down, or ""."""
        if self._log.durable_index > self._log.commit_index:
            self._advance_commit()
        return self._certify() if self._recovery.provisional or not self._ballot.recovered else ""

    def _count_recovered(self, progress: Progress, match_index: int) -> None:
        """Count a recovered follower's acknowledgement up to `match_index` for commit."""
        if match_index > progress.recovered_index:
            progress.recovered_index = match_index
            if match_index > self._log.commit_index:
                self._advance_commit()

    def _advance_commit(self) -> None:
        """Commit what is durable on a majority, by frames of the own term (Raft 5.4.2)."""
        log, membership = self._log, self._membership
        own = log.durable_index if self._ballot.recovered else 0
        candidate = self.tracker.committed(own if membership.is_voter else None)
        if candidate > log.commit_index and candidate >= self._first_index:
            log.commit(candidate)
            membership.commit(candidate)
            if not self.ready:
                self.ready = True
                self._tell_role("the term's no-op is committed")
                self._reads.release(self.round + 1, candidate)

    def _certify(self) -> str:
        """Advance recovery (recovery.py). Return a reason to step down, or ""."""
        forgetful = self._recovery.forgetful()
        if forgetful is not None:
            return f"{forgetful} may not know its vote"
        counts, followers = self._recovery.certify()
        for progress in followers:
            self._send_heartbeat(progress)
        if counts:
            self._advance_commit()
        return ""

    # -- heartbeats, quorum check -----------------------------------------------------------

    def _send_heartbeats(self, now_ms: float) -> None:
        """Send a heartbeat round, which asserts leadership, reports commits, and confirms reads."""
        self.round += 1
        self._heartbeat_due_ms = now_ms + self._config.heartbeat_ms
        for progress in self.progress.values():
            self._send_heartbeat(progress)

    def _send_heartbeat(self, progress: Progress) -> None:
        self._outbox.send(
            Heartbeat(
                self._node_id,
                progress.peer,
                self._ballot.term,
                min(self._log.commit_index, progress.match_index),
                self.round,
                progress.certified,
            )
        )

    def take_heartbeat_response(self, response: HeartbeatResponse, now_ms: float) -> str:
        """Handle an answer. Return a reason to step down, or "". Raises MessageRefused."""
        progress = self.progress.get(response.sender)
        if progress is None:
            return ""
        self._check_match(progress, response.match_index)
        if response.round > self.round:
            raise MessageRefused(response.sender, f"answers round {response.round}, not begun yet")
        progress.heard_ms = now_ms
        progress.no_room, progress.no_room_reported = progress.no_room_reported, False
        progress.full, progress.full_reported = progress.full_reported, False
        if response.round >= progress.round:
            reason = self._update_recovery_state(progress, response)
            if reason:
                return reason
        if not progress.believes(bool(response.recovering)):
            return ""  # from before it lost its memory
        if response.match_index > progress.match_index or (
            progress.paused and response.match_index >= progress.probe_last
        ):
            self._take_match(progress, response.match_index, now_ms)  # the answer was lost
        if response.round > progress.round:
            self._note_round(progress, response)
        log = self._log.index
        if progress.state is STRANDED and response.last_index >= log.first_index - 1:
            self._try_stranded(progress, response.last_index)
        if progress.stalled(now_ms, response.verified_index):
            progress.back_off_resend(self._config.resend_ms_max)
            known = min(response.verified_index, log.last_index)
            progress.probe_from(max(progress.match_index, known) + 1)
        if self.transfer.target == progress.peer:
            self._hand_over_if_caught_up()  # again, because the first TimeoutNow may be lost
        self._want_appends(progress)
        return ""

    def _update_recovery_state(self, progress: Progress, response: HeartbeatResponse) -> str:
        """Update a follower's state of recovery from its newest heartbeat response. Return a reason
        to step down, or ""."""
        recovering = response.recovering
        if recovering and recovering != progress.recovering:
            if self._recovery.meet(progress, recovering, response.last_index):
                self.wants_noop = True
            self._want_appends(progress)
        if not recovering:
            progress.recovering = progress.certified = 0
            self._count_recovered(progress, response.match_index)
        progress.reported_index = response.match_index
        if recovering or self._recovery.provisional or not self._ballot.recovered:
            return self._certify()
        return ""

    def _note_round(self, progress: Progress, response: HeartbeatResponse) -> None:
        progress.round = response.round
        if not response.recovering:
            progress.recovered_round = response.round
        if self._reads:
            self._confirm_reads()
        has = response.match_index if response.recovering else response.last_index
        if response.round > progress.match_round and has < progress.match_index:
            # This round was sent after it had acknowledged more, so its disk lost frames. (A
            # reordered answer of an earlier round proves nothing.)
            progress.regressed(min(response.last_index, self._log.index.last_index))

    def _try_stranded(self, progress: Progress, last_index: int) -> None:
        """Probe a stranded follower once its log is long enough to meet ours. If its frames
        conflict, the probe marks it stranded again, and there is no retry before its log changes
        (snapshot_install.py)."""
        if progress.tried_last == last_index:
            return
        progress.tried_last = last_index
        log = self._log.index  # include a frame so that the follower answers
        start = max(min(last_index + 1, log.last_index), log.first_index)
        progress.probe_from(max(progress.match_index + 1, start))

    @property
    def next_deadline_ms(self) -> float:
        """The time of the next `tick`."""
        # The quorum is checked at each heartbeat.
        return min(self._heartbeat_due_ms, self._throttle.due_ms, self.transfer.due_ms)

    def tick(self, now_ms: float) -> str:
        """Do the work that is due. Return a reason to step down, or ""."""
        if now_ms >= self.transfer.due_ms:
            self._abort_transfer("time-out")
        # CheckQuorum, after an election time-out without a majority.
        own = now_ms if self._membership.is_voter else None
        longest_ms = self._timer.longest_ms
        quorum_due_ms = self.tracker.heard_ms(own) + longest_ms
        if now_ms >= quorum_due_ms:
            self._timer.give_up([progress.peer for progress in self.tracker.voting], now_ms)
            return "no majority answers"
        if now_ms >= self._throttle.due_ms:
            self._throttle.due_ms = NEVER_DUE_MS
            self._appends_due = self._outbox.dirty = True
        if now_ms >= self._heartbeat_due_ms:
            if self._recovery.is_stuck(now_ms - self._config.election_ms_max):
                return "too few replicas have recovered"
            if self._timer.back_off.tried:
                self._timer.back_off.heard(now_ms, now_ms - quorum_due_ms + longest_ms)
            self._send_heartbeats(now_ms)
            self._let_go(now_ms)
        return ""

    def _let_go(self, now_ms: float) -> None:
        """Stop sending to removed members after this round's heartbeat."""
        configurations = self._membership.configurations
        if self.tracker.let_go(self._log.commit_index, configurations.index, now_ms):
            self.configure(now_ms)
            self._outbox.configuration_changed = self._outbox.dirty = True

    # -- reads ------------------------------------------------------------------------------

    def read_index(self, token: int) -> None:
        """Request a confirmation that this replica still leads. Raises Busy."""
        self._reads.check_room()
        self._outbox.dirty = True
        if self.ready:  # only a later round proves leadership for the read
            self._reads.ask(token, self.round + 1, self._log.commit_index)
        else:
            self._reads.hold(token)

    def _start_read_round(self, now_ms: float) -> None:
        """Send a heartbeat round for new reads, or let them share the next round."""
        if self._reads.newest_round > self.round:
            if not self.tracker.voting:
                self.round += 1  # a group of one confirms itself
                self._confirm_reads()
            elif self._reads.oldest_round > self.round:
                self._send_heartbeats(now_ms)

    def _confirm_reads(self) -> None:
        own = self.round if self._ballot.recovered else 0
        confirmed = self.tracker.confirmed_round(own if self._membership.is_voter else None)
        self._outbox.reads.extend(self._reads.confirm(confirmed))
        self._outbox.dirty = True  # the next round may start

    # -- transfer ---------------------------------------------------------------------------

    def full_voters(self, now_ms: float) -> list[NodeId]:
        """Return the followers with full disks if nothing can be committed because of them."""
        return self.tracker.full(self._membership.is_voter, now_ms)

    def hand_to(self, target: NodeId, now_ms: float) -> None:
        """Transfer leadership to `target` once it has every frame. Raises UnknownTarget, Busy."""
        if target == self._node_id:
            raise UnknownTarget(f"{target} leads already")
        progress = self.progress.get(target)
        if progress is None or target not in self._membership.voters:
            raise UnknownTarget(f"{target} is no other voter of this group")
        if progress.recovering:
            raise Busy(f"{target} is recovering")
        self.transfer.start(target, now_ms)
        self._hand_over_if_caught_up()

    def _hand_over_if_caught_up(self) -> None:
        target = self.transfer.target
        assert target is not None
        caught_up = self.progress[target].match_index == self._log.index.last_index
        if caught_up and not self.wants_noop:
            self._outbox.send(TimeoutNow(self._node_id, target, self._ballot.term))

    def _abort_transfer(self, reason: str) -> None:
        target = self.transfer.target
        self.transfer.give_up()
        self._tell_role(f"transfer to {target} given up: {reason}")

    # -- connections ------------------------------------------------------------------------

    def peer_closed(self, peer: NodeId, now_ms: float) -> None:
        """Treat messages in flight to `peer` as lost; send nothing until it is heard again."""
        progress = self.progress[peer]
        progress.link_round = self.round
        if progress.state is not STRANDED:
            progress.probe_from(progress.match_index + 1)
            progress.paused = True
            progress.probe_last = self._log.index.last_index
            progress.moved_ms = now_ms - progress.resend_after_ms
        if self.transfer.target == peer:
            self._abort_transfer("its connection closed")

    def peer_opened(self, peer: NodeId) -> None:
        """Note that messages to `peer` are sent again; send the missing frames."""
        progress = self.progress.get(peer)
        if progress is None:
            return
        progress.link_round = self.round
        progress.tried_last = -1
        if progress.state is PROBE:
            progress.paused = False
        self._send_heartbeat(progress)
        self._want_appends(progress)


@dataclass(slots=True, eq=False)
class Transfer:
    """A leader's transfer of leadership (thesis 3.10), one at a time. Without a transfer `target`
    is None, and `due_ms` is never reached."""

    _timeout_ms: float
    target: NodeId | None = None
    due_ms: float = NEVER_DUE_MS  # the transfer is given up then

    def start(self, target: NodeId, now_ms: float) -> None:
        """Start a transfer, or extend the current transfer to the same target. Raises Busy."""
        if target != self.target:
            self.check_none()
        self.target = target
        self.due_ms = now_ms + self._timeout_ms

    def give_up(self) -> None:
        self.target, self.due_ms = None, NEVER_DUE_MS

    def check_none(self) -> None:
        """Raises Busy during a transfer."""
        if self.target is not None:
            raise Busy(f"leadership is being handed to {self.target}")
