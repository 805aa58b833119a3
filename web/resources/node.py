"""A node's view of itself and its group, and operators' requests to it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..schema import Input, View
from .basics import NodeName


class LiveView(View, frozen=True, kw_only=True):
    status: Literal["live"] = "live"


class ReadyView(View, frozen=True, kw_only=True):
    """A server that serves, with `warnings` for operators."""

    status: Literal["ready"] = "ready"
    role: str
    warnings: tuple[str, ...] = ()


class LogView(View, frozen=True, kw_only=True):
    """CommitLog offsets in bytes; a value that cannot be read is -1."""

    min_offset: int
    max_offset: int
    durable_offset: int


class DiskView(View, frozen=True, kw_only=True):
    state: str
    reason: str
    total_bytes: int
    free_bytes: int
    used_ratio: float
    full_in_ms: int | None  # at the rate of the last half hour; null if it does not fill


class DifferenceView(View, frozen=True, kw_only=True):
    """A setting's value on a different replica and on this replica; long values are truncated."""

    key: str
    there: str
    here: str


class PeerView(View, frozen=True, kw_only=True):
    """A replica as seen by this replica. Only a leader has the figures `framesInFlight` (requests
    in flight to it) and `bytesInFlight`. `lastContactMs` is the time since its last message; a
    follower has it for its leader. The replica itself reports `clockAheadMs` (its clock minus
    ours), `minOffset` (the start of its log) and `settingsDiffer` (settings that should be alike
    and differ)."""

    id: str
    address: str
    voter: bool
    connected: bool
    match_index: int | None
    lag_frames: int | None
    lag_bytes: int | None
    frames_in_flight: int
    bytes_in_flight: int
    last_contact_ms: int | None
    state: str | None
    error: str | None
    clock_ahead_ms: int | None
    min_offset: int | None
    settings_differ: list[DifferenceView]


class MemberView(View, frozen=True, kw_only=True):
    """`role` is voter, or learner, which receives the log and does not count for majorities."""

    id: str
    address: str
    role: str
    broker_id: int


class MemberProgressView(View, frozen=True, kw_only=True):
    """`matchIndex` (last frame it has), `lagFrames` (missing) and `recovered` of others are null
    on a replica that does not lead."""

    id: str
    address: str
    role: str
    broker_id: int
    match_index: int | None
    lag_frames: int | None
    recovered: bool | None


class MemberBody(Input, frozen=True, kw_only=True):
    """`address` is its Raft listener's host:port. `force` skips the check that it answers there."""

    id: NodeName
    address: Annotated[str, Meta(pattern="^[A-Za-z0-9.-]+:[1-9][0-9]{0,4}$", max_length=255)]
    force: bool = False


class MemberPath(Input, frozen=True, kw_only=True):
    id: NodeName


class PreferredBody(Input, frozen=True, kw_only=True):
    name: NodeName


class PreferredView(View, frozen=True, kw_only=True):
    """`name` is null if no replica is preferred. `reason` is the leader's reason for the present
    leader."""

    name: str | None
    leader: str | None
    reason: str


class DrainBody(Input, frozen=True, kw_only=True):
    """`move_timers` and `move_dead_letters` move them to the broker group `to`, by default to the
    group with the fewest timer messages. `given_up` has consumer groups whose messages may be
    lost."""

    move_timers: bool = False
    move_dead_letters: bool = False
    to: str = ""
    given_up: list[str] | None = None


class RemoveBody(Input, frozen=True, kw_only=True):
    """`lose` removes a group that is not empty."""

    lose: bool = False


class Unconsumed(View, frozen=True, kw_only=True):
    """Messages of a topic that a consumer group has not consumed; `group` is empty without any.
    `since_ms` is the store time of the oldest, for a group without connected members."""

    topic: str
    group: str
    messages: int
    members: int
    since_ms: int | None
    given_up: bool


class MoveView(View, frozen=True, kw_only=True):
    """The move of waiting messages to the broker group `to`, which is empty without a move."""

    to: str
    timers: bool
    dead_letters: bool
    moved_timers: int
    moved_dead_letters: int
    problem: str


class DrainView(View, frozen=True, kw_only=True):
    """The remaining content of a broker group. `draining_ms` is the time since when it is drained,
    or 0. `is_empty` is true once its removal loses nothing. `empty_at_ms` is an estimate, or null.
    `remainder` is the content as a sentence, empty once the group is empty."""

    broker_name: str
    draining_ms: int
    removed: bool
    takes_sends: bool
    is_empty: bool
    unconsumed: list[Unconsumed]
    delayed: int
    timers: int
    latest_due_ms: int | None
    transactions: int
    popped: int
    in_move: int
    remaining: int
    move: MoveView
    writers: int
    idempotent: int
    dead_letters: int
    empty_at_ms: int | None
    remainder: str


class RatesView(View, frozen=True, kw_only=True):
    """Messages per second, over the last 10 s."""

    sends_per_s: float
    pulls_per_s: float


class NodeView(View, frozen=True, kw_only=True):
    """One replica's own view. Raft's values are null in classic mode. `zone`: its brokerZone, or
    empty. `draining_ms`: the time since when the group is drained, or 0. `membership`: voter,
    learner; none: removed from its group, or not added yet. `election_backoff`: the factor by which
    the configured election time-outs are multiplied at present; 1 unless the group is starved;
    `election_halved`: they are halved, as the leader has been heard without a pause for a while.
    `group_id`: null while the group has none. `foreign`: replicas of other groups that were refused
    in the last half minute, or that name other founders, in words. `peers_prove_themselves`: no
    replica is accepted as a peer without a proof that it has the group's secret. `recovered`: false
    while this replica may have lost promises; `recovering` then says why."""

    name: str
    group: str
    cluster: str
    zone: str
    broker_id: int
    mode: str
    engine: str
    version: str
    address: str
    http_address: str
    boot_time_ms: int
    pid: int
    role: str
    membership: str | None
    term: int
    leader: str | None
    leader_address: str
    leader_http_address: str
    leader_ready: bool
    preferred_leader: str | None
    draining_ms: int
    group_id: str | None
    foreign: list[str]
    peers_prove_themselves: bool
    voted_for: str | None
    election_backoff: int | None
    election_halved: bool
    recovered: bool
    recovering: str | None
    commit_index: int | None
    applied_index: int | None
    last_index: int | None
    durable_index: int | None
    first_index: int | None
    commit_log: LogView
    disk: DiskView
    clock_contradiction: str
    log_start: str  # the older part of the master's log that a slave does not have
    peers: list[PeerView]
    rates: RatesView
    members: list[MemberView]


class TransferBody(Input, frozen=True, kw_only=True):
    """`force` transfers even to a replica with disk problems, which would hand leadership back."""

    target: NodeName | None = None
    force: bool = False


class TransferView(View, frozen=True, kw_only=True):
    target: str


class StopBody(Input, frozen=True, kw_only=True):
    hand_over: bool = True


class StopView(View, frozen=True, kw_only=True):
    stopping: bool = True
