"""The leader's behaviour: Raft 5.3 and 5.4.2, ReadIndex (thesis 6.4), transfer (3.10). Pure.

The leader writes and sends at the same time; its own copy counts, like every other, only once
it is durable. Frames of an earlier term are committed by committing one of its own term (Raft
5.4.2, figure 8): the no-op that opens the term. Limits: bytes and messages in flight per peer,
bytes uncommitted, reads waiting, bytes a second for followers that are far behind (pace.py).
"""

from __future__ import annotations

from raftmq.dledger.configuration import decode_configuration
from raftmq.dledger.election import Election
from raftmq.dledger.errors import Busy, MessageRefused, NotLeader, UnknownTarget
from raftmq.dledger.membership import Membership
from raftmq.dledger.messages import (
    AppendOrder,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    NodeId,
    Role,
    TimeoutNow,
)
from raftmq.dledger.pace import NEVER_DUE_MS
from raftmq.dledger.progress import PROBE, STRANDED, Progress
from raftmq.dledger.quorum import reached_by_majority
from raftmq.dledger.state import ReadBatch
from raftmq.store.frame import Frame, FrameKind


class Leading(Election, Membership):
    """The leader's half of replication, reads and transfer."""

    __slots__ = ()

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE, self.role
        assert self._tally is not None
        self._provisional = not self._tally.by_majority
        self._electors = self._tally.granted
        self.role = Role.LEADER
        self.leader = self.node_id
        self.leader_ready = False
        self._tally = None
        self._own_first_index = self._log.last_index + 1
        self.wants_noop = True
        self._round = 0
        self._configure_leader()
        self._role_changed("elected")
        self._send_heartbeats()

    # -- proposals --------------------------------------------------------------------------

    @property
    def can_propose(self) -> bool:
        """True if `propose` would take a frame of ordinary size now."""
        return (
            self.role is Role.LEADER
            and self.transfer_target is None
            and not self.wants_noop
            and self.is_voter
            and self._log.end_position - self._commit_end < self.config.uncommitted_bytes_max
        )

    def propose(self, frame: Frame) -> None:
        """Append the leader's next frame (index `last_index + 1`, term `term`).

        Raises NotLeader, or Busy at the limit of uncommitted bytes and while leadership is
        being handed over; nothing has happened then. The first frame of a term is its no-op,
        which no limit stops.
        """
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        log = self._log
        if self.wants_noop:
            assert frame.kind == FrameKind.NOOP, frame
        else:
            if self.transfer_target is not None:
                raise Busy(f"leadership is being handed to {self.transfer_target}")
            if not self.is_voter:
                raise Busy("this leader is leaving the group")
            # One frame may always be in flight, or a frame above the limit could never be sent.
            waiting_bytes = log.end_position - self._commit_end
            if (
                waiting_bytes + len(frame.data) > self.config.uncommitted_bytes_max
                and log.last_index > self.commit_index
            ):
                raise Busy(f"{waiting_bytes} bytes are not committed yet")
        assert frame.term == self.term, (frame, self.term)
        log.append(frame)
        self.wants_noop = False
        self._out_append.append(frame)
        self._appends_due = True
        self._dirty = True
        if frame.kind == FrameKind.CONFIGURATION:
            self._adopt(frame.index, decode_configuration(frame.payload))

    def _order_appends(self) -> None:
        """Fill every follower's append window with frames of the log."""
        self._appends_due = False
        for progress in self._progress.values():
            while progress.next_index <= self._log.last_index and progress.may_send():
                if not self._order_append(progress):
                    break

    def _order_append(self, progress: Progress) -> bool:
        log = self._log
        first = progress.next_index
        if first < log.first_index:
            progress.strand()
            return False
        config = self.config
        bytes_max = config.append_bytes_max
        if progress.inflight:
            bytes_max = min(bytes_max, progress.window_bytes())
        position = log.position_of(first)
        last, end_position = log.last_index, log.end_position
        if end_position - position > bytes_max:
            far = end_position - position > config.inflight_bytes_max
            last = log.last_within(first, bytes_max)
            end_position = log.end_of(last)
            if far and last <= self.commit_index:  # pace.py
                if not self._pace.may_send(self._now_ms):
                    return False
                self._pace.sent(end_position - position)
        prev_index = first - 1
        own = prev_index >= self._own_first_index  # nearly always: spares a search
        prev_term = self.term if own else log.term_at(prev_index)
        self._out_messages.append(
            AppendOrder(
                progress.peer, self.term, prev_index, prev_term, first, last, self.commit_index
            )
        )
        progress.sent(last, end_position - position, self._now_ms)
        return True

    def _on_append_response(self, response: AppendResponse) -> None:
        if self.role is not Role.LEADER or response.request_term != self.term:
            return  # an answer to an earlier leadership
        progress = self._progress.get(response.sender)
        if progress is None:
            return  # no member of this group
        if response.success:
            self._check_match(progress, response.match_index)
        elif response.conflict_index > response.prev_index:
            what = f"refuses frames behind {response.prev_index} for {response.conflict_index}"
            raise MessageRefused(response.sender, what)
        progress.heard_ms = self._now_ms
        if response.success:
            if progress.believes(response.recovering):
                self._take_match(progress, response.match_index)
                if not response.recovering:
                    if progress.recovering:
                        self._speaks_as_whole(progress)
                    self._count_whole(progress, response.match_index)
                if response.recovering or self._provisional:
                    self._hurry(progress, response.match_index)
        elif progress.rejected(response.prev_index):
            self._back_off(progress, response)

    def _check_match(self, progress: Progress, match_index: int) -> None:
        """Check that the follower acknowledges only frames that this log has. Raises
        MessageRefused."""
        if match_index > self._log.last_index:
            what = f"acknowledges frame {match_index} of a log that ends at {self._log.last_index}"
            raise MessageRefused(progress.peer, what)

    def _take_match(self, progress: Progress, match_index: int) -> None:
        log = self._log
        assert match_index <= log.last_index, (progress, match_index, log)
        news = progress.acknowledged(match_index, self._now_ms)
        if news:
            progress.match_round = self._round
            if self.transfer_target == progress.peer:
                self._hand_over_if_caught_up()
        if progress.next_index <= log.last_index:
            self._appends_due = True
            self._dirty = True

    def _back_off(self, progress: Progress, response: AppendResponse) -> None:
        """Probe from the last frame here that may equal the follower's: Raft 5.3, faster, because
        both sides skip whole terms."""
        assert response.conflict_index <= response.prev_index, response
        at = self._log.last_at_most(response.conflict_index - 1, response.conflict_term)
        progress.probe_from(max(progress.match_index, at) + 1)
        self._appends_due = True
        self._dirty = True

    def _advance_commit(self) -> None:
        """Commit what a majority has made durable, by frames of the leader's own term only (Raft
        5.4.2). A copy counts only if its replica is whole."""
        reached = [progress.whole_index for progress in self._voting]
        if self.is_voter:
            reached.append(self.durable_index if self.whole else 0)
        candidate = reached_by_majority(reached)
        if candidate > self.commit_index and candidate >= self._own_first_index:
            self._set_commit(candidate)
            if not self.leader_ready:
                self.leader_ready = True
                self._role_changed("the term's no-op is committed")
                self._release_unready_reads()

    # -- heartbeats, quorum check -----------------------------------------------------------

    def _send_heartbeats(self) -> None:
        """Send a heartbeat round to everybody: it asserts leadership, carries commit progress, and
        confirms reads."""
        self._round += 1
        self._heartbeat_due_ms = self._now_ms + self.config.heartbeat_ms
        for progress in self._progress.values():
            self._send_heartbeat(progress)

    def _send_heartbeat(self, progress: Progress) -> None:
        commit_index = min(self.commit_index, progress.match_index)
        self._send(
            Heartbeat(
                self.node_id,
                progress.peer,
                self.term,
                commit_index,
                self._round,
                progress.certified,
            )
        )

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        if self.role is not Role.LEADER or response.request_term != self.term:
            return
        progress = self._progress.get(response.sender)
        if progress is None:
            return
        self._check_match(progress, response.match_index)
        if response.round > self._round:
            raise MessageRefused(response.sender, f"answers round {response.round}, not begun yet")
        progress.heard_ms = self._now_ms
        progress.no_room, progress.no_room_told = progress.no_room_told, False
        if response.round >= progress.round:
            self._note_standing(progress, response)
            if self.role is not Role.LEADER:
                return
        if not progress.believes(bool(response.recovering)):
            return  # from before it lost its memory
        if response.match_index > progress.match_index or (
            progress.paused and response.match_index >= progress.probe_last
        ):
            self._take_match(progress, response.match_index)  # its acknowledgement got lost
        if response.round > progress.round:
            progress.round = response.round
            if not response.recovering:
                progress.whole_round = response.round
            if self._reads:
                self._confirm_reads()
            has = response.match_index if response.recovering else response.last_index
            if response.round > progress.match_round and has < progress.match_index:
                # This round was sent after it had acknowledged more: its disk lost frames (a
                # reordered answer of an earlier round proves nothing).
                progress.regressed(min(response.last_index, self._log.last_index))
        if progress.state is STRANDED and response.last_index >= self._log.first_index - 1:
            self._try_stranded(progress, response.last_index)
        if progress.stalled(self._now_ms, response.verified_index):
            progress.back_off_resend(self.config.resend_ms_max)
            known = min(response.verified_index, self._log.last_index)
            progress.probe_from(max(progress.match_index, known) + 1)
        if self.transfer_target == progress.peer:
            self._hand_over_if_caught_up()  # again: the first TimeoutNow may be lost
        if progress.next_index <= self._log.last_index:
            self._appends_due = True
            self._dirty = True

    def _try_stranded(self, progress: Progress, last_index: int) -> None:
        """Probe a stranded follower whose log is now long enough to meet ours. If its frames are
        other ones the probe strands it again, and it is not tried before its log has changed
        (install.py)."""
        if progress.tried_last == last_index:
            return
        progress.tried_last = last_index
        log = self._log  # with a frame to send, so that there is an answer
        start = max(min(last_index + 1, log.last_index), log.first_index)
        progress.probe_from(max(progress.match_index + 1, start))

    def _tick_leader(self) -> None:
        now_ms = self._now_ms
        if self.transfer_target is not None and now_ms >= self._transfer_due_ms:
            self._abort_transfer("time-out")
        quorum_due_ms = self._quorum_due_ms()
        if now_ms >= quorum_due_ms:
            self._give_up([progress.peer for progress in self._voting])
            self._become_follower(self.term, None, "no majority answers")
            return
        if now_ms >= self._pace.due_ms:
            self._pace.due_ms = NEVER_DUE_MS
            self._appends_due = True
            self._dirty = True
        if now_ms >= self._heartbeat_due_ms:
            if self._cannot_go_on():
                self._become_follower(self.term, None, "too few replicas are whole")
                return
            if self._patience.tried:
                self._patience.heard(now_ms, now_ms - quorum_due_ms + self._patience_ms)
            self._send_heartbeats()
            self._let_go()

    def _quorum_due_ms(self) -> float:
        """Return when this leader must step down because no majority has been heard for a whole
        election time-out (CheckQuorum), with the same election back-off as elections."""
        heard = [progress.heard_ms for progress in self._voting]
        if self.is_voter:
            heard.append(self._now_ms)
        return reached_by_majority(heard) + self._patience_ms

    @property
    def _patience_ms(self) -> float:
        return self.config.election_ms_max * self._patience.factor

    # -- reads ------------------------------------------------------------------------------

    def read_index(self, token: int) -> None:
        """Ask to confirm that this replica still leads. The answer comes in `Ready.reads` as
        (token, index), or in `Ready.failed_reads` when leadership goes first.

        Raises NotLeader, or Busy when too many reads wait.
        """
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        if self._reads_count >= self.config.reads_waiting_max:
            raise Busy(f"{self._reads_count} reads wait for confirmation")
        self._reads_count += 1
        self._dirty = True
        if self.leader_ready:
            self._queue_read(token)
        else:
            self._reads_unready.append(token)  # the commit index may be behind (thesis 6.4)

    def _queue_read(self, token: int) -> None:
        """Queue a read for the next round: only a round that starts from now on proves leadership
        for it."""
        round_needed = self._round + 1
        last = self._reads[-1] if self._reads else None
        if last is not None and last.round == round_needed and last.index == self.commit_index:
            last.tokens.append(token)
        else:
            self._reads.append(ReadBatch(round_needed, self.commit_index, [token]))

    def _release_unready_reads(self) -> None:
        waiting, self._reads_unready = self._reads_unready, []
        for token in waiting:
            self._queue_read(token)

    def _start_read_round(self) -> None:
        """Send a heartbeat round for new reads, unless one is in flight: then they share the
        next."""
        if not self._reads or self._reads[-1].round <= self._round:
            return
        if not self._voting:
            self._round += 1  # a group of one needs nobody's confirmation
            self._confirm_reads()
        elif self._reads[0].round > self._round:
            self._send_heartbeats()

    def _confirm_reads(self) -> None:
        rounds = [progress.whole_round for progress in self._voting]
        if self.is_voter:
            rounds.append(self._round if self.whole else 0)
        confirmed = reached_by_majority(rounds)
        reads = self._reads
        while reads and reads[0].round <= confirmed:
            batch = reads.popleft()
            self._reads_count -= len(batch.tokens)
            self._out_reads.extend([(token, batch.index) for token in batch.tokens])
            self._dirty = True
        if reads:
            self._dirty = True  # the next round may start

    # -- transfer ---------------------------------------------------------------------------

    def transfer(self, target: NodeId, now_ms: float) -> None:
        """Hand leadership to `target` once it has every frame; proposals wait meanwhile.

        Given up after `transfer_ms`, or when the target's connection closes: a RoleEvent says
        so and proposals are taken again. Raises NotLeader, UnknownTarget, or Busy while
        another transfer is under way.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        if target not in self._progress or target not in self.voters:
            raise UnknownTarget(f"{target} is no other voter of this group")
        if self._progress[target].recovering:
            raise Busy(f"{target} is recovering")
        if self.transfer_target is not None and self.transfer_target != target:
            raise Busy(f"leadership is being handed to {self.transfer_target}")
        self.transfer_target = target
        self._transfer_due_ms = self._now_ms + self.config.transfer_ms
        self._hand_over_if_caught_up()

    def _hand_over_if_caught_up(self) -> None:
        target = self.transfer_target
        assert target is not None
        if self._progress[target].match_index == self._log.last_index and not self.wants_noop:
            self._send(TimeoutNow(self.node_id, target, self.term))

    def _abort_transfer(self, reason: str) -> None:
        target, self.transfer_target = self.transfer_target, None
        self._role_changed(f"transfer to {target} given up: {reason}")

    def _step_down(self, reason: str) -> None:
        """Give up leadership and ask a follower to take over: one with room on its disk if there is
        one, and of those the one that has most of the log."""
        best = max(
            self._voting,
            key=lambda p: (not p.recovering, not p.no_room, p.match_index),
            default=None,
        )
        self._become_follower(self.term, None, reason)
        self._election_due_ms += self.config.election_ms_max  # everybody else goes first
        if best is not None:
            self._send(TimeoutNow(self.node_id, best.peer, self.term))

    # -- connections ------------------------------------------------------------------------

    def _leader_peer_closed(self, peer: NodeId) -> None:
        """Treat what was in flight to `peer` as lost; send no more until it is heard again."""
        progress = self._progress[peer]
        if progress.state is not STRANDED:
            progress.probe_from(progress.match_index + 1)
            progress.paused = True
            progress.probe_last = self._log.last_index
            progress.moved_ms = self._now_ms - progress.resend_after_ms
        if self.transfer_target == peer:
            self._abort_transfer("its connection closed")

    def _leader_peer_opened(self, peer: NodeId) -> None:
        progress = self._progress[peer]
        progress.tried_last = -1
        if progress.state is PROBE:
            progress.paused = False
        self._send_heartbeat(progress)
        if progress.next_index <= self._log.last_index:
            self._appends_due = True
