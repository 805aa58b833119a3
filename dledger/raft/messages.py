"""The messages between replicas, and the core's output for its driver. Data only.

Every message names sender, receiver and the sender's term. Every reply has `request_term`, the term
of its request, so replies from an earlier leadership or candidacy are recognized and dropped.

`incarnation` is a positive random number per process, which separates the messages of a node's
processes before and after a loss of memory. Messages of voters and followers carry `recovering`: 0,
or the incarnation of a replica that may have lost promises (recovery.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raftmq.store.frame import Frame

NodeId = str

# No replica enters, sends or accepts a higher term. Nine thousand years of a thousand elections per
# second reach it, so a message with a higher term is wrong, and following it would leave no term
# for an election.
TERM_MAX = (1 << 48) - 1
# Limit of indexes, offsets, rounds and request numbers, so that sums fit 64 bits.
NUMBER_MAX = (1 << 62) - 1


class Role(Enum):
    """The role of a replica in its term (Raft 5.1; PRE_CANDIDATE: thesis 9.6)."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that must be durable before a message of the same Ready (Raft figure 2)."""

    term: int
    voted_for: NodeId | None
    recovered: bool = True  # False: this replica may have lost promises (recovery.py)


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """RequestVote. With `pre_vote` it is the thesis' PreVote (9.6), and `term` is the term that the
    sender would start. `transfer` marks an election after TimeoutNow (3.10)."""

    sender: NodeId
    to: NodeId
    term: int
    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool = False
    incarnation: int = 0  # the candidate's


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """The answer to a VoteRequest. With `request_incarnation` 0, which no candidate has, it reports
    to the leader that the follower is unwilling to lead; `granted` then reports that it accepts no
    frames (follower.py)."""

    sender: NodeId
    to: NodeId
    term: int  # the voter's own current term
    request_term: int
    pre_vote: bool
    granted: bool
    request_incarnation: int = 0  # of the candidate that asked
    recovering: int = 0


@dataclass(frozen=True, slots=True)
class AppendOrder:
    """The core's order to send frames first_index..last_index to `to`. Without frames (first_index
    > last_index) it is a probe.

    The core has only indexes and sizes of frames; the driver gets the bytes (cache or file) and
    sends an AppendRequest."""

    to: NodeId
    term: int
    prev_index: int
    prev_term: int
    first_index: int
    last_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class PrevFrame:
    """Names the leader's frame at `index`, of `index_term`, which precedes the frames of its next
    AppendRequest. It is sent before the first request of a link, and wherever requests are not
    contiguous."""

    sender: NodeId
    to: NodeId
    term: int
    index: int
    index_term: int
    header_crc: int  # of the frame


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """AppendEntries (Raft 5.3): store `frames`, which follow frame `prev_index` of `prev_term`.
    Without frames it is a probe. `commit_index` is the leader's."""

    sender: NodeId
    to: NodeId
    term: int
    prev_index: int
    prev_term: int
    commit_index: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """The answer to an AppendRequest. With `success` every frame up to `match_index` equals the
    leader's and is durable here.

    Otherwise the frame before the request's first frame is not here, and no frame behind
    `conflict_index - 1` can match. That is this replica's last frame up to `prev_index` whose term,
    `conflict_term`, is not above the request's prev_term. The leader continues from its own last
    frame of at most that term, so both sides skip entire terms (Raft 5.3). `last_index` is the last
    accepted frame, durable or not."""

    sender: NodeId
    to: NodeId
    term: int
    request_term: int
    success: bool
    match_index: int
    prev_index: int
    conflict_index: int
    conflict_term: int
    last_index: int
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Asserts leadership, and carries commit progress and a read round; never frames.

    `commit_index` is at most the receiver's known match. `certified` is the incarnation of a
    receiver that has recovered its promises."""

    sender: NodeId
    to: NodeId
    term: int
    commit_index: int
    round: int
    certified: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The answer to a heartbeat round, with the state of this follower's log."""

    sender: NodeId
    to: NodeId
    term: int
    request_term: int
    round: int
    last_index: int  # the last durable frame here
    # Both are 0 when the request's term is not the current one:
    verified_index: int = 0  # equals the leader's up to here, durable or not
    match_index: int = 0  # equal and durable up to here; replaces a lost acknowledgement
    recovering: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader's request to campaign at once, for a transfer (thesis 3.10)."""

    sender: NodeId
    to: NodeId
    term: int


Message = (
    VoteRequest
    | VoteResponse
    | PrevFrame
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
)
Outgoing = Message | AppendOrder  # AppendOrder stands in for AppendRequest on the way out


@dataclass(frozen=True, slots=True)
class RoleEvent:
    """A change of role, term or known leader; a leader that is ready to answer (its no-op is
    committed); or the end of a failed leadership transfer (role, term and leader as before)."""

    role: Role
    term: int
    leader: NodeId | None
    leader_ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The actions for the driver, in this order; an empty field means no such action.

    1. `truncate_from`: drop frames of that index and above (never at or below commit).
    2. `append`: write these frames (page cache). Report durability later with `core.durable`.
    3. `hard_state`: make durable.
    4. `messages`: send. They promise only the results of 1-3; acknowledgements of frames are
       emitted only after `core.durable`.
    5. `commit_index`: apply up to it.
    6. `reads`: confirmed.
    7. `role`."""

    truncate_from: int | None
    append: tuple[Frame, ...]
    hard_state: HardState | None
    messages: tuple[Outgoing, ...]
    commit_index: int | None
    reads: tuple[tuple[int, int], ...]  # (token, index); serve the read once applied >= index
    failed_reads: tuple[int, ...]  # tokens of reads that fail because leadership was lost
    role: RoleEvent | None
    configuration_changed: bool = False  # changed, or committed now
