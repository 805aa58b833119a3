"""The follower's side of replication, which handles the leader's messages. Raft 5.3.

Invariants: the log is truncated only at a frame of another term than the request's frame of the
same index, and never at or below commit. Old, repeated or empty requests and heartbeats remove no
frame. An acknowledgement names min(durable, proven to match), no more.

Each message is checked before it has any effect (MessageRefused): a second leader of a term, a
different frame in the place of a frame that is committed or was sent by this term's leader, frames
that are not contiguous. A correct leader sends none of these.

In Raft index and term identify a frame, because a term has a single leader. That fails if two
groups share an id, because a backup was restored twice under an incarnation, or an entire group was
copied. So a leader sends the checksum of the frame before its frames (`PrevFrame`), and the last
frame of a request that is already here is also compared. Two logs that agree in a frame agree in
everything before it, since frames behind a difference have different positions, times and contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftmq.store.frame import Frame, FrameKind
from raftmq.store.record import BLANK_SIZE_BYTES

from .configuration import ConfigurationError, check_proposed
from .errors import MessageRefused, other_history
from .membership import Membership
from .messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    NodeId,
    PrevFrame,
    VoteResponse,
)
from .raft_log import CoreLog
from .ready import Outbox
from .term_and_vote import Ballot


@dataclass(slots=True, eq=False)
class Following:
    """The follower's half of replication. Its caller has checked that the sender leads the
    request's term, and calls `enter_term` before anything of a new term."""

    _node_id: NodeId
    _ballot: Ballot
    _log: CoreLog
    _membership: Membership
    _outbox: Outbox
    _segment_end: Callable[[int], int] | None
    _verified_index: int = 0  # the log equals this term's leader's up to here
    _ack_due: bool = False  # an acknowledgement waits for `durable`
    _held_index: int = 0  # frames up to here were committed before this process started

    def enter_term(self) -> None:
        """Start a new term, in which no frame is known to match the leader's."""
        self._verified_index = 0
        self._ack_due = False

    def note_held(self, index: int) -> None:
        """Never truncate frames up to `index`, which are here."""
        self._held_index = max(self._held_index, index)

    def forget_held(self) -> None:
        """Let a leader truncate everything that is not committed again, because the frames here may
        not be the promised frames."""
        self._held_index = 0

    def take_append(self, request: AppendRequest) -> None:
        """Append the frames of the current term's leader, or refuse them. Raises MessageRefused."""
        if not self._fits(request):
            self._refuse_append(request)
            return
        if request.frames:
            self._check_frames(request)
            self._take_frames(request)
        verified = request.prev_index + len(request.frames)
        if verified > self._verified_index:
            self._verified_index = verified
        self._commit(min(request.commit_index, self._verified_index))
        if self._log.durable_index >= verified:
            # Acknowledge at once, or a repeated request with a lost acknowledgement would never be
            # answered.
            self._acknowledge(request.sender, request.prev_index)
        else:
            self._ack_due = True

    def handle_prev_frame(self, prev_frame: PrevFrame) -> None:
        """Compare a leader's frame with the own frame of index and term. Raises OtherHistory."""
        log, index, term = self._log.index, prev_frame.index, prev_frame.index_term
        here = log.first_index <= index <= log.last_index
        if here and log.term_at(index) == term:
            self._compare(prev_frame.sender, index, term, prev_frame.header_crc)

    def _compare(self, sender: NodeId, index: int, term: int, header_crc: int) -> None:
        if index > self._verified_index:
            own = self._log.header_crc(index)
            if own is not None and own != header_crc:
                raise other_history(sender, self._node_id, index, term, term)

    def _commit(self, index: int) -> None:
        if index > self._log.commit_index:
            self._log.commit(index)
            if self._membership.commit(index):
                self._membership.speak_with_all()

    def _fits(self, request: AppendRequest) -> bool:
        """Return whether the frame before the request's first frame is here (Raft 5.3). Raises
        OtherHistory if it contradicts a committed frame."""
        log, prev_index = self._log.index, request.prev_index
        if prev_index <= self._log.commit_index:
            # Committed frames are the leader's, by leader completeness (Raft 5.4.3).
            if prev_index >= log.first_index - 1:
                own = log.term_at(prev_index)
                if own != request.prev_term:
                    theirs = request.prev_term
                    raise other_history(request.sender, self._node_id, prev_index, theirs, own)
            return True
        return prev_index <= log.last_index and log.term_at(prev_index) == request.prev_term

    def _check_frames(self, request: AppendRequest) -> None:
        """Check that these frames can follow each other and the rest of this log. Raises
        MessageRefused, OtherHistory, before any change."""
        log, index, term = self._log.index, request.prev_index, request.prev_term
        end = -1  # end of the previous frame, from the first new frame on
        known = None  # the last frame that is already here
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
                    known = frame
                    continue
                if index <= max(self._log.commit_index, self._held_index):
                    own = log.term_at(index)
                    raise other_history(request.sender, self._node_id, index, term, own)
                if index <= self._verified_index:
                    what = f"{frame!r} in the place of {index}@{log.term_at(index)}"
                    raise MessageRefused(request.sender, what)
                end = log.end_of(index - 1)
                if term < log.term_at(index - 1):
                    what = f"{frame!r} behind a frame of term {log.term_at(index - 1)}"
                    raise MessageRefused(request.sender, what)
            self._check_frame(request.sender, frame, end)
            end = frame.end
        if known is not None:
            self._compare(request.sender, known.index, known.term, known.header_crc)

    def _check_frame(self, sender: NodeId, frame: Frame, end: int) -> None:
        """Check a new frame's position behind a frame that ends at `end`, and the payload of a
        configuration. Raises MessageRefused."""
        segment_end = self._segment_end
        if segment_end is None:
            fits = frame.position >= end
        else:
            fits = frame.position in (end, segment_end(end))
            fits = fits and frame.end + BLANK_SIZE_BYTES <= segment_end(frame.position)
        if not fits:
            what = f"{frame!r} behind a frame that ends at {end}"
            if segment_end is not None:
                what += ": its mappedFileSizeCommitLog is another one, or this is no replica"
            raise MessageRefused(sender, what)
        if frame.kind == FrameKind.CONFIGURATION:
            try:
                check_proposed(frame.payload)
            except ConfigurationError as error:
                raise MessageRefused(sender, f"{frame!r}: {error}") from error

    def _take_frames(self, request: AppendRequest) -> None:
        """Skip the present frames, truncate at a conflict, append the new frames."""
        log, membership = self._log, self._membership
        known = log.index
        index = request.prev_index
        for frame in request.frames:
            index += 1
            if index < known.first_index:
                continue  # committed, and deleted by retention since
            if index <= known.last_index:
                if known.term_at(index) == frame.term:
                    continue
                assert index > self._verified_index, (index, self._verified_index)
                log.truncate(index)
                membership.truncate(index, log.commit_index)
            log.append(frame)
            if frame.kind == FrameKind.CONFIGURATION:
                membership.append(frame, log.commit_index)

    def _refuse_append(self, request: AppendRequest) -> None:
        log = self._log.index
        at = log.last_at_most(request.prev_index - 1, request.prev_term)
        at = max(at, self._log.commit_index)
        self.answer_append(request, at + 1, log.term_at(at))

    def answer_append(
        self, request: AppendRequest, conflict_index: int = 0, conflict_term: int = 0
    ) -> None:
        """Answer a request that does not fit, or is of an earlier term."""
        self._outbox.send(
            AppendResponse(
                self._node_id,
                request.sender,
                self._ballot.term,
                request.term,
                False,
                0,
                request.prev_index,
                conflict_index,
                conflict_term,
                self._log.index.last_index,
                not self._ballot.recovered,
            )
        )

    def _acknowledge(self, leader: NodeId, prev_index: int) -> None:
        """Acknowledge the frames that match and are durable; the rest stays due."""
        term, last_index = self._ballot.term, self._log.index.last_index
        match_index = min(self._log.durable_index, self._verified_index)
        assert match_index <= last_index, (match_index, self._log.index)
        self._ack_due = match_index < self._verified_index
        me, recovering = self._node_id, not self._ballot.recovered
        self._outbox.send(
            AppendResponse(
                me, leader, term, term, True, match_index, prev_index, 0, 0, last_index, recovering
            )
        )

    def durable(self, leader: NodeId | None) -> None:
        """Send the acknowledgement that waited for durable frames."""
        if self._ack_due and leader is not None:
            self._acknowledge(leader, self._verified_index)

    def take_heartbeat(self, heartbeat: Heartbeat, is_willing: bool, takes_frames: bool) -> None:
        """Follow the current term's leader. `is_willing` is false on an unwilling replica,
        `takes_frames` while its disk has no space for the next frame."""
        # The leader sends at most the known match. But a recovering replica may hold less, or other
        # frames, than it reported before.
        limit = self._log.index.last_index if self._ballot.recovered else self._verified_index
        self._commit(min(heartbeat.commit_index, limit))
        if not self._ballot.recovered and heartbeat.certified == self._ballot.incarnation:
            self._ballot.mark_recovered(heartbeat.sender)
            if self._verified_index:
                self._acknowledge(heartbeat.sender, self._verified_index)  # now it counts
        if not (is_willing and takes_frames):
            self._tell_no_room(heartbeat.sender, full=not takes_frames)
        self.answer_heartbeat(heartbeat, self._verified_index)

    def answer_heartbeat(self, heartbeat: Heartbeat, verified_index: int = 0) -> None:
        """Answer a heartbeat, without `verified_index` for an earlier term."""
        durable_index = self._log.durable_index
        self._outbox.send(
            HeartbeatResponse(
                self._node_id,
                heartbeat.sender,
                self._ballot.term,
                heartbeat.term,
                heartbeat.round,
                durable_index,
                verified_index,
                min(durable_index, verified_index),
                self._ballot.recovering,
            )
        )

    def _tell_no_room(self, leader: NodeId, *, full: bool) -> None:
        """Report, ahead of a heartbeat response, that this replica is unwilling to lead, or that
        its disk is `full`. The message is a PreVote response to no candidate, granted if the disk
        is full."""
        term = self._ballot.term
        self._outbox.send(VoteResponse(self._node_id, leader, term, term, True, full))
