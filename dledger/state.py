"""The state of one replica, its configuration, and the state changes that all parts share. Pure.

`CoreState` holds all fields; `election.py`, `following.py` and `leading.py` are its behaviour in
one role each, without fields of their own; `core.py` joins them behind the public methods. The
actions for the shell are collected in the `_out_*` fields until it asks for them (`ready`).

Invariants, asserted in production: commit_index <= last index and never falls; durable_index <=
last frame handed out <= last index; one leader a term; no truncation at or below commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from raftmq.dledger.configuration import Configuration, Configurations
from raftmq.dledger.index import LogIndex
from raftmq.dledger.messages import (
    HardState,
    NodeId,
    Outgoing,
    Role,
    RoleEvent,
    VoteRequest,
)
from raftmq.dledger.pace import NEVER_DUE_MS, CatchUpPace
from raftmq.dledger.patience import FACTOR_MAX, Patience
from raftmq.dledger.progress import Progress
from raftmq.dledger.quorum import Tally
from raftmq.store.frame import Frame

NEVER_MS = float("-inf")  # a moment before any other


class Random(Protocol):
    """The source of randomness; `random.Random` fits."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The core's settings: time-outs in milliseconds, limits in bytes or pieces. The election
    back-off (patience.py) multiplies election time-outs that prove too short."""

    heartbeat_ms: float = 75  # < election_ms_min / 4: three lost ones depose nobody
    election_ms_min: float = 350
    election_ms_max: float = 700  # also: a leader that hears no majority for so long steps down
    close_jitter_ms: float = 30  # PreVote starts 0..this after the leader's connection closed
    resend_ms: float = 300  # 4 heartbeats without progress: what is in flight counts as lost
    resend_ms_max: float = 4_800  # resends back off to this while nothing comes back
    transfer_ms: float = 1_000  # a transfer of leadership not done by then is given up
    append_bytes_max: int = 1 << 20  # frames of one request; a larger single frame goes alone
    inflight_bytes_max: int = 8 << 20  # per follower; passed by at most one request
    inflight_messages_max: int = 256  # per follower
    catch_up_bytes_per_s: int = 64 << 20  # to all that are far behind (pace.py); 0: no limit
    uncommitted_bytes_max: int = 64 << 20  # accepted by the leader; beyond: Busy
    reads_waiting_max: int = 16_384  # unconfirmed reads; beyond: Busy
    learner_lag_bytes_max: int = 1 << 20  # of the log; one that lacks more is not promoted
    departure_ms: float = 5_000  # for so long a removed replica is told of its removal

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ms < self.election_ms_min <= self.election_ms_max
        assert self.append_bytes_max > 0
        assert self.inflight_messages_max > 0


@dataclass(slots=True)
class ReadBatch:
    """Reads that one heartbeat round confirms: those requested before it was sent."""

    round: int
    index: int
    tokens: list[int]


class CoreState:
    """All state of one replica. `RaftCore` documents the public fields."""

    __slots__ = (
        "_appends_due",
        "_asked_ms",
        "_campaign_due_ms",
        "_closed",
        "_commit_end",
        "_configuration_due",
        "_dirty",
        "_durable_ack_due",
        "_election_due_ms",
        "_electors",
        "_given_up",
        "_given_up_ms",
        "_handed_index",
        "_heartbeat_due_ms",
        "_leader_contact_ms",
        "_log",
        "_missed_term",
        "_now_ms",
        "_out_append",
        "_out_commit",
        "_out_configuration",
        "_out_hard_state",
        "_out_messages",
        "_out_reads",
        "_out_reads_failed",
        "_out_role_reason",
        "_out_truncate",
        "_own_first_index",
        "_pace",
        "_patience",
        "_progress",
        "_provisional",
        "_reads",
        "_reads_count",
        "_reads_unready",
        "_rng",
        "_round",
        "_segment_end",
        "_stood_back",
        "_takes_frames",
        "_tally",
        "_transfer_campaign",
        "_transfer_due_ms",
        "_verified_index",
        "_voted_incarnation",
        "_voting",
        "_vouched",
        "_yielded",
        "commit_index",
        "config",
        "configurations",
        "durable_index",
        "has_room",
        "incarnation",
        "is_voter",
        "leader",
        "leader_ready",
        "node_id",
        "peers",
        "role",
        "term",
        "transfer_target",
        "unfit",
        "voted_for",
        "voters",
        "wants_noop",
        "whole",
    )

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
    ) -> None:
        assert incarnation > 0, incarnation
        self._segment_end = segment_end
        self.node_id = node_id
        self.incarnation = incarnation
        self.whole = hard_state.whole
        self.unfit: str | None = None  # why this replica must not lead: its disk
        self._takes_frames = True
        self.has_room = True  # on its disk; if not, it leads only if nobody else can
        self.config = config
        self._rng = rng
        self._now_ms = now_ms
        self._log = log_index.copy()
        self._load_hard_state(hard_state)

        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.leader_ready = False
        # The frames that retention deleted were committed; those the shell has applied, too.
        last_index = self._log.last_index
        self.commit_index = min(last_index, max(commit_index, self._log.first_index - 1))
        self._commit_end = self._log.end_of(self.commit_index)
        self.durable_index = last_index
        self._handed_index = last_index  # last frame given to the shell for writing
        self.configurations = configurations.copy()
        self._vouched = configurations.settled[0] > 0  # noted by this replica while it was whole
        self.configurations.settle(self.commit_index)

        # Following
        self._verified_index = 0  # equals this term's leader up to here
        self._durable_ack_due = False  # verified frames wait for `durable` to be acknowledged
        self._leader_contact_ms = NEVER_MS
        self._closed: set[NodeId] = set()  # peers whose connection is known to be closed
        # Electing
        self._patience = Patience(config.election_ms_min, config.election_ms_max)
        self._given_up: set[NodeId] = set()  # peers given up for silence, though connected
        self._given_up_ms = 0.0  # when
        self._asked_ms = 0.0  # when the own candidacy began
        self._missed_term = 0  # of the own candidacy that ended without its votes; 0: none
        self._tally: Tally | None = None
        self._transfer_campaign = False
        self._campaign_due_ms = 0.0  # when unanswered vote requests are asked again
        self._election_due_ms = 0.0
        self._yielded = False  # to another's PreVote, once per election time-out
        self._stood_back = False  # for lack of disk room, once per election time-out
        self._voted_incarnation = 0  # of the candidate voted for in this term; 0: not known
        self._reset_election_timer()
        # Leading
        self._progress: dict[NodeId, Progress] = {}
        self._voting: tuple[Progress, ...] = ()  # those of them that count
        self._own_first_index = 0  # first frame of the own term: only from there on acks commit
        self.wants_noop = False
        self._pace = CatchUpPace(config.catch_up_bytes_per_s)
        self._provisional = False  # elected by all, fewer than a majority whole (standing.py)
        self._electors: dict[NodeId, int] = {}  # who voted for it: 0 whole, or incarnation
        self._appends_due = False
        self._heartbeat_due_ms = self._transfer_due_ms = 0.0
        self._round = 0
        self._reads: deque[ReadBatch] = deque()
        self._reads_count = 0
        self._reads_unready: list[int] = []  # asked for before the no-op was committed
        self.transfer_target: NodeId | None = None
        self._clear_out()
        self._configure()
        self._out_configuration = False
        if self.term != hard_state.term:
            self._out_hard_state = self._dirty = True

    def _configure(self) -> None:
        """Apply the configuration in force: the one place that sets who votes."""
        configuration = self.configurations.current
        index = self.configurations.index
        self._configuration_due = index if index > self.commit_index else 0
        self.voters = configuration.voters
        self.is_voter = self.node_id in self.voters
        self._set_peers()
        if self.role is Role.LEADER:
            self._configure_leader()
        self._out_configuration = True

    def _set_peers(self) -> None:
        """Set the peers, including those of a configuration that may come back: a leader that is
        being removed must still be answered."""
        self.peers = tuple(sorted(self.configurations.ids - {self.node_id}))

    def _configure_leader(self) -> None:
        raise NotImplementedError  # membership.py

    def _adopt(self, index: int, configuration: Configuration) -> None:
        """Put the configuration of frame `index`, just appended, in force."""
        if self.configurations.append(index, configuration):
            self._configure()

    def _load_hard_state(self, hard_state: HardState) -> None:
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        if self._log.last_term > hard_state.term:
            # A crash between writing the first frames of a new term and its hard state. No
            # message of that term has left this replica, so it has not voted in it.
            self.term = self._log.last_term
            self.voted_for = None

    def _clear_out(self) -> None:
        self._dirty = False
        self._out_truncate: int | None = None
        self._out_append: list[Frame] = []
        self._out_hard_state = False
        self._out_messages: list[Outgoing] = []
        self._out_commit = False
        self._out_configuration = False
        self._out_reads: list[tuple[int, int]] = []
        self._out_reads_failed: list[int] = []
        self._out_role_reason: str | None = None

    @property
    def _recovering(self) -> int:
        """The `recovering` field of this replica's messages: 0 if whole, else its incarnation."""
        return 0 if self.whole else self.incarnation

    # -- shared changes ---------------------------------------------------------------------

    def _send(self, message: Outgoing) -> None:
        self._out_messages.append(message)
        self._dirty = True

    def _role_changed(self, reason: str) -> None:
        self._out_role_reason = reason
        self._dirty = True

    def _role_event(self, reason: str) -> RoleEvent:
        return RoleEvent(self.role, self.term, self.leader, self.leader_ready, reason)

    def _enter_term(self, term: int) -> None:
        """Enter a higher term, with no vote and nothing known to match its leader."""
        assert term > self.term, (term, self.term)
        self.term = term
        self.voted_for = None
        self._voted_incarnation = 0
        self._verified_index = 0
        self._durable_ack_due = False
        self._out_hard_state = True
        self._dirty = True

    def _vote_for(self, candidate: NodeId, incarnation: int) -> None:
        assert self.voted_for in (None, candidate), (self.voted_for, candidate)
        self._voted_incarnation = incarnation
        if self.voted_for is None:
            self.voted_for = candidate
            self._out_hard_state = True
            self._dirty = True

    def _become_follower(self, term: int, leader: NodeId | None, reason: str) -> None:
        """Follow `leader`, or nobody yet, in `term`. Leaves whatever role was held."""
        assert term >= self.term, (term, self.term)
        changed = (self.role, self.term, self.leader) != (Role.FOLLOWER, term, leader)
        if self.role is Role.LEADER:
            self._drop_leadership()
        if term > self.term:
            self._enter_term(term)
        self.role = Role.FOLLOWER
        self.leader = leader
        self._tally = None
        self._reset_election_timer()
        if changed:
            self._role_changed(reason)

    def _drop_leadership(self) -> None:
        self.leader_ready = False
        self.wants_noop = False
        self._provisional = False
        self.transfer_target = None
        self._progress = {}
        self._voting = ()
        self._appends_due = False
        self._pace.due_ms = NEVER_DUE_MS
        self._fail_reads()

    def _fail_reads(self) -> None:
        for batch in self._reads:
            self._out_reads_failed.extend(batch.tokens)
        self._out_reads_failed.extend(self._reads_unready)
        self._reads.clear()
        self._reads_unready = []
        self._reads_count = 0
        self._dirty = True

    def _set_commit(self, index: int) -> None:
        assert self.commit_index < index, (index, self.commit_index)
        assert index <= self._log.last_index, (index, self._log)
        self.commit_index = index
        self._commit_end = self._log.end_of(index)
        self._out_commit = True
        self._dirty = True
        if 0 < self._configuration_due <= index:
            self._configuration_due = 0
            self.configurations.settle(index)
            self._out_configuration = True
            if self.role is not Role.LEADER:
                self._set_peers()

    def _truncate(self, from_index: int) -> None:
        """Truncate the log at a proven conflict: its frames from there on are another leader's."""
        assert from_index > self.commit_index, (from_index, self.commit_index)
        assert from_index > self._verified_index, (from_index, self._verified_index)
        self._log.truncate(from_index)
        kept = max(0, from_index - 1 - self._handed_index)
        del self._out_append[kept:]
        if from_index <= self._handed_index:
            self._out_truncate = from_index
            self._handed_index = from_index - 1
        self.durable_index = min(self.durable_index, from_index - 1)
        self._dirty = True
        if self.configurations.truncate(from_index):
            self._configure()

    def _reset_election_timer(self) -> None:
        low, high = self.config.election_ms_min, self.config.election_ms_max
        drawn_ms = low + self._rng.random() * (high - low)
        self._election_due_ms = self._now_ms + drawn_ms * self._patience.factor
        self._yielded = self._stood_back = False

    def _give_up(self, peers: Iterable[NodeId]) -> None:
        """Note that `peers` are given up as silent for too long. If one whose connection never
        closed is heard within the longest possible time-out after all, that was a mistake."""
        self._patience.interrupted()
        self._given_up = set(peers) - self._closed
        self._given_up_ms = self._now_ms

    def _speaks_after_all(self) -> None:
        self._given_up.clear()
        if self._now_ms - self._given_up_ms < FACTOR_MAX * self.config.election_ms_max:
            self._patience.mistaken()

    def _close_jitter(self) -> float:
        return self._rng.random() * self.config.close_jitter_ms

    def _hears_leader(self) -> bool:
        """Return whether this replica has reason to believe that the group has a leader. Uses the
        configured time-out without its own election back-off: it must not keep others from
        replacing a leader that is gone."""
        if self.role is Role.LEADER:
            return True
        return (
            self.leader is not None
            and self.leader not in self._closed
            and self._now_ms - self._leader_contact_ms < self.config.election_ms_min
        )

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Return whether the candidate's log is at least as up to date as this one (Raft 5.4.1):
        the later last term wins, then the longer log."""
        return (request.last_term, request.last_index) >= (
            self._log.last_term,
            self._log.last_index,
        )
