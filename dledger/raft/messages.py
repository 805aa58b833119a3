"""The messages between replicas, and what the core hands to its shell. Pure data, no behaviour.

Every message names sender, receiver and the sender's term. Every reply also carries
`request_term`, the term of the request it answers: a reply left over from an earlier leadership
or candidacy is recognised and dropped.

`incarnation` is a number, never 0, that every start of a process draws anew: it tells this
process's messages from those of an earlier process of the same node, before it lost its memory.
Messages of voters and followers carry `recovering`: 0, or, from a replica that may have lost
promises, its incarnation (recovery.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raftmq.store.frame import Frame

NodeId = str

# No replica enters, sends or takes a higher term. At a thousand elections a second it is reached
# after nine thousand years; so a message with a higher one is wrong, and believing it would leave
# the group without a term to elect a leader in.
TERM_MAX = (1 << 48) - 1
# Of indexes, offsets, rounds and request numbers: sums computed with them fit 64 bits.
NUMBER_MAX = (1 << 62) - 1


class Role(Enum):
    """The role of a replica in its term (Raft 5.1; PRE_CANDIDATE: thesis 9.6)."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that must be durable before any message of the same Ready leaves (Raft figure
    2)."""

    term: int
    voted_for: NodeId | None
    recovered: bool = True  # False: this replica may have lost promises (recovery.py)


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """RequestVote; with `pre_vote` the thesis' PreVote (9.6), and `term` is then the term the
    sender would start. `transfer` marks an election asked for by TimeoutNow (3.10)."""

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
    """The answer to a VoteRequest. One that answers no request (`request_incarnation` 0, which no
    candidate has) tells the leader that the follower's disk is short of room; if `granted`, that
    it takes no frames at all (follower.py)."""

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
    """The core's order to its shell: send frames first_index..last_index to `to`.

    The core knows frames by number and size only; the shell fetches the bytes (cache or file)
    and sends an AppendRequest. first_index > last_index means no frames (a probe).
    """

    to: NodeId
    term: int
    prev_index: int
    prev_term: int
    first_index: int
    last_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class Landmark:
    """Says which frame the leader has at `index`, of `index_term`: the one behind which the frames
    of its next AppendRequest stand. Comes before the first one on a link, and wherever one does not
    go on where the last one ended."""

    sender: NodeId
    to: NodeId
    term: int
    index: int
    index_term: int
    header_crc: int  # of the frame


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """AppendEntries (Raft 5.3): store `frames`, which follow the frame `prev_index` of `prev_term`.
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
    """The answer to an AppendRequest. `success`: every frame up to `match_index` equals the
    leader's and is durable here.

    Otherwise the frame before the request's first one is not here. Then no frame behind
    `conflict_index - 1` can match: that is this replica's last frame at or before `prev_index`
    whose term is not above the request's prev_term, and `conflict_term` is its term. From there the
    leader goes back to its own last frame of at most that term (so both sides skip whole terms,
    Raft 5.3). `last_index` is the last frame accepted here, durable or not.
    """

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
    """Asserts leadership, carries commit progress and a read round; never carries or truncates
    frames.

    `commit_index` is at most what the receiver is known to match. `certified` tells the receiver
    of that incarnation that it has recovered what it may have lost."""

    sender: NodeId
    to: NodeId
    term: int
    commit_index: int
    round: int
    certified: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The answer to a heartbeat: which round it answers, and how far this follower's log is."""

    sender: NodeId
    to: NodeId
    term: int
    request_term: int
    round: int
    last_index: int  # the last durable frame here; tells a leader that a follower fell behind
    # Both are 0 when the request's term is not the current one:
    verified_index: int = 0  # equals the leader's up to here, durable or not: no need to resend
    match_index: int = 0  # equal and durable up to here; replaces an acknowledgement that was lost
    recovering: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader's request to start an election at once, because it hands over (thesis 3.10)."""

    sender: NodeId
    to: NodeId
    term: int


Message = (
    VoteRequest
    | VoteResponse
    | Landmark
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
)
Outgoing = Message | AppendOrder  # AppendOrder stands in for AppendRequest on the way out


@dataclass(frozen=True, slots=True)
class RoleEvent:
    """A change of role. Emitted when role, term or known leader changed, when a leader becomes
    ready (its no-op is committed: only then may it answer anything), and when a transfer of
    leadership was given up (role, term and leader as before)."""

    role: Role
    term: int
    leader: NodeId | None
    leader_ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The actions that the shell must do, in this order; an empty field means no such action.

    1. `truncate_from`: drop frames of that index and above (never at or below commit).
    2. `append`: write these frames (page cache). Report durability later with `core.durable`.
    3. `hard_state`: make durable.
    4. `messages`: send. They promise only what 1-3 made true; acknowledgements of frames are
       emitted only after `core.durable` said so.
    5. `commit_index`: apply up to it. 6. `reads`: confirmed. 7. `role`.
    """

    truncate_from: int | None
    append: tuple[Frame, ...]
    hard_state: HardState | None
    messages: tuple[Outgoing, ...]
    commit_index: int | None
    reads: tuple[tuple[int, int], ...]  # (token, index): serve the read once applied >= index
    failed_reads: tuple[int, ...]  # tokens that will never be confirmed: leadership was lost
    role: RoleEvent | None
    configuration_changed: bool = False  # another one is in force, or it is now committed
