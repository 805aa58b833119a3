"""The core's settings, and the source of randomness it needs. Pure."""

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

    heartbeat_ms: float = 75  # < election_ms_min / 4: three lost ones depose nobody
    election_ms_min: float = 350
    election_ms_max: float = 700  # also: a leader that hears no majority for so long steps down
    close_jitter_ms: float = 30  # a PreVote starts at most this long after the leader's link closed
    resend_ms: float = 300  # 4 heartbeats without progress: what is in flight counts as lost
    resend_ms_max: float = 4_800  # resends back off to this while nothing comes back
    transfer_ms: float = 1_000  # a transfer of leadership not done by then is given up
    append_bytes_max: int = 1 << 20  # frames of one request; a larger single frame goes alone
    inflight_bytes_max: int = 8 << 20  # per follower; exceeded by at most one request
    inflight_messages_max: int = 256  # per follower
    catch_up_bytes_per_s: int = 64 << 20  # to all that are far behind together; 0: no limit
    uncommitted_bytes_max: int = 64 << 20  # once there are so many a leader takes no more: Busy
    reads_waiting_max: int = 16_384  # unconfirmed reads; beyond: Busy
    learner_lag_bytes_max: int = 1 << 20  # of the log; one that lacks more is not promoted
    departure_ms: float = 5_000  # how long a removed replica is told of its removal

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ms < self.election_ms_min <= self.election_ms_max
        assert self.append_bytes_max > 0
        assert self.inflight_messages_max > 0
