"""The core's settings, and its source of randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

NEVER_MS = float("-inf")  # a moment before any other


class Random(Protocol):
    """The source of randomness; `random.Random` fits."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The core's settings: time-outs in milliseconds, limits in bytes or pieces. The election
    back-off (election_timeout.py) multiplies election time-outs that prove too short."""

    heartbeat_ms: float = 75  # < election_ms_min / 4: three lost heartbeats depose no leader
    election_ms_min: float = 350
    election_ms_max: float = 700  # also the limit of a leader without a majority
    close_jitter_ms: float = 30  # a PreVote starts at most this long after the leader's link closed
    resend_ms: float = 300  # 4 heartbeats without progress: requests in flight are lost
    resend_ms_max: float = 4_800  # max. wait between resends without answers
    transfer_ms: float = 1_000  # max. duration of a leadership transfer
    append_bytes_max: int = 1 << 20  # frames per request; a larger frame is sent alone
    inflight_bytes_max: int = 8 << 20  # per follower; exceeded by at most a request
    inflight_messages_max: int = 256  # per follower
    catch_up_bytes_per_s: int = 64 << 20  # for all followers that are far behind; 0: no limit
    uncommitted_bytes_max: int = 64 << 20  # uncommitted bytes; Busy beyond
    reads_waiting_max: int = 16_384  # unconfirmed reads; Busy beyond
    learner_lag_bytes_max: int = 1 << 20  # max. lag of a learner that is promoted
    departure_ms: float = 5_000  # how long a removed replica is notified
    first_leader: str = ""  # campaigns at once in a new group, and the others yield to it

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ms < self.election_ms_min <= self.election_ms_max
        assert self.append_bytes_max > 0
        assert self.inflight_messages_max > 0
