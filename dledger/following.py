"""The follower's side of replication: how a replica handles its leader's messages. Raft 5.3. Pure.

Invariants: the log is truncated only at a frame whose term differs from the request's frame of the
same index, and never at or below commit; nothing else removes a frame: not an old, repeated or
empty request, not a heartbeat. An acknowledgement names min(durable, proven to match), no more.

A leader's message is checked before any of it is acted on (MessageRefused): a second leader of one
term, a frame in the place of one that is committed or that this term's leader has sent, frames
that are not contiguous. An honest leader sends none of these.
"""

from __future__ import annotations

from raftmq.dledger.configuration import ConfigurationError, check_proposed, decode_configuration
from raftmq.dledger.errors import MessageRefused
from raftmq.dledger.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    NodeId,
    Role,
    VoteResponse,
)
from raftmq.dledger.standing import Standing
from raftmq.store.frame import Frame, FrameKind
from raftmq.store.record import BLANK_SIZE_BYTES


class Following(Standing):
    """The follower's half of replication."""

    __slots__ = ()

    def _accept_leader(self, sender: NodeId) -> None:
        """Follow `sender`, which leads the current term. Raises MessageRefused if another replica
        leads it (Raft 5.2: there is only one)."""
        if self.leader not in (None, sender):
            raise MessageRefused(sender, f"leads term {self.term}, as {self.leader} does")
        assert self.role is not Role.LEADER, (self.node_id, sender, self.term)
        if self._patience.tried:
            self._patience.heard(self._now_ms, self._now_ms - self._leader_contact_ms)
        if self.leader == sender and self.role is Role.FOLLOWER:
            self._reset_election_timer()
        else:
            self._become_follower(self.term, sender, f"{sender} leads")
        self._leader_contact_ms = self._now_ms

    # -- appends ----------------------------------------------------------------------------

    def _on_append_request(self, request: AppendRequest) -> None:
        if request.term < self.term:
            self._answer_append(request, False, 0, 0, 0)
            return
        self._accept_leader(request.sender)
        if not self._takes_frames:
            return  # as if it had been lost
        if not self._fits(request):
            self._refuse_append(request)
            return
        if request.frames:
            self._check_frames(request)
            self._take_frames(request)
        verified = request.prev_index + len(request.frames)
        if verified > self._verified_index:
            self._verified_index = verified
        commit_index = min(request.commit_index, self._verified_index)
        if commit_index > self.commit_index:
            self._set_commit(commit_index)
        if self.durable_index >= verified:
            # Nothing to wait for: say at once what is proven, or a repeated request whose
            # acknowledgement was lost would never be answered.
            self._acknowledge(request.prev_index)
        else:
            self._durable_ack_due = True

    def _fits(self, request: AppendRequest) -> bool:
        """Return whether the frame before the request's first one is here (Raft 5.3). Raises
        MessageRefused if it contradicts a committed one."""
        prev_index = request.prev_index
        if prev_index <= self.commit_index:
            # Committed frames are the leader's, by leader completeness (Raft 5.4.3).
            if prev_index >= self._log.first_index - 1:
                own = self._log.term_at(prev_index)
                if own != request.prev_term:
                    what = f"frame {prev_index} of term {request.prev_term}, committed with {own}"
                    raise MessageRefused(request.sender, what)
            return True
        if prev_index > self._log.last_index:
            return False
        return self._log.term_at(prev_index) == request.prev_term

    def _check_frames(self, request: AppendRequest) -> None:
        """Check that these frames can follow each other and the part of this log that they leave in
        place. Raises MessageRefused; nothing has changed then."""
        log, index, term = self._log, request.prev_index, request.prev_term
        end = -1  # where the frame before the next one ends, from the first new one on
        for frame in request.frames:
            index += 1
            if frame.index != index or not term <= frame.term <= request.term:
                what = f"{frame!r} behind {index - 1}@{term}, in term {request.term}"
                raise MessageRefused(request.sender, what)
            term = frame.term
            if index < log.first_index:
                continue
            if end < 0:
                if index <= log.last_index and log.term_at(index) == term:
                    continue
                if index <= max(self.commit_index, self._verified_index):
                    what = f"{frame!r} in the place of {index}@{log.term_at(index)}"
                    raise MessageRefused(request.sender, what)
                end = log.end_of(index - 1)
                if term < log.term_at(index - 1):
                    what = f"{frame!r} behind a frame of term {log.term_at(index - 1)}"
                    raise MessageRefused(request.sender, what)
            self._check_frame(request.sender, frame, end)
            end = frame.end

    def _check_frame(self, sender: NodeId, frame: Frame, end: int) -> None:
        """Check a new frame's position behind one that ends at `end`, and its payload if it is a
        configuration. Raises MessageRefused."""
        segment_end = self._segment_end
        if segment_end is None:
            fits = frame.position >= end
        else:
            fits = frame.position in (end, segment_end(end))
            fits = fits and frame.end + BLANK_SIZE_BYTES <= segment_end(frame.position)
        if not fits:
            raise MessageRefused(sender, f"{frame!r} behind a frame that ends at {end}")
        if frame.kind == FrameKind.CONFIGURATION:
            try:
                check_proposed(frame.payload)
            except ConfigurationError as error:
                raise MessageRefused(sender, f"{frame!r}: {error}") from error

    def _take_frames(self, request: AppendRequest) -> None:
        """Skip the frames already here, truncate at a conflict, append the new ones."""
        log = self._log
        index = request.prev_index
        for frame in request.frames:
            index += 1
            if index < log.first_index:
                continue  # committed, and taken by retention since
            if index <= log.last_index:
                if log.term_at(index) == frame.term:
                    continue
                self._truncate(index)
            log.append(frame)
            self._out_append.append(frame)
            self._dirty = True
            if frame.kind == FrameKind.CONFIGURATION:
                self._adopt(index, decode_configuration(frame.payload))

    def _refuse_append(self, request: AppendRequest) -> None:
        log = self._log
        at = log.last_at_most(request.prev_index - 1, request.prev_term)
        at = max(at, self.commit_index)
        self._answer_append(request, False, 0, at + 1, log.term_at(at))

    def _answer_append(
        self,
        request: AppendRequest,
        success: bool,
        match_index: int,
        conflict_index: int,
        conflict_term: int,
    ) -> None:
        self._send(
            AppendResponse(
                self.node_id,
                request.sender,
                self.term,
                request.term,
                success,
                match_index,
                request.prev_index,
                conflict_index,
                conflict_term,
                self._log.last_index,
                not self.whole,
            )
        )

    def _acknowledge(self, prev_index: int) -> None:
        """Tell the leader what is proven to match and durable; the rest stays due."""
        assert self.leader is not None
        match_index = min(self.durable_index, self._verified_index)
        assert match_index <= self._log.last_index, (match_index, self._log)
        self._durable_ack_due = match_index < self._verified_index
        self._send(
            AppendResponse(
                self.node_id,
                self.leader,
                self.term,
                self.term,
                True,
                match_index,
                prev_index,
                0,
                0,
                self._log.last_index,
                not self.whole,
            )
        )

    def _follower_durable(self) -> None:
        """Send the acknowledgement that waited for more frames to be durable."""
        if self._durable_ack_due and self.leader is not None:
            self._acknowledge(self._verified_index)

    # -- heartbeats -------------------------------------------------------------------------

    def _tell_no_room(self, leader: NodeId) -> None:
        """Tell the leader, ahead of a heartbeat response, that this replica's disk is short of
        room. The message is a refused PreVote that answers no candidate: every version can read
        it, and a version that gives it no meaning drops it."""
        self._send(VoteResponse(self.node_id, leader, self.term, self.term, True, False))

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        current = heartbeat.term == self.term
        if current:
            self._accept_leader(heartbeat.sender)
            # The leader sends at most what it knows to match here. But one that recovers may
            # hold less, or other frames, than what the leader was told before.
            limit = self._log.last_index if self.whole else self._verified_index
            commit_index = min(heartbeat.commit_index, limit)
            if commit_index > self.commit_index:
                self._set_commit(commit_index)
            if self._take_certificate(heartbeat.certified) and self._verified_index:
                self._acknowledge(self._verified_index)  # now it counts
        verified_index = self._verified_index if current else 0
        if current and not self.has_room:
            self._tell_no_room(heartbeat.sender)
        self._send(
            HeartbeatResponse(
                self.node_id,
                heartbeat.sender,
                self.term,
                heartbeat.term,
                heartbeat.round,
                self.durable_index,
                verified_index,
                min(self.durable_index, verified_index),
                self._recovering,
            )
        )
