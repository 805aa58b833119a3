"""The configuration of a member, with its id, its peers, and all its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .raft.config import CoreConfig
from .raft.leader_placement import PreferenceLimits
from .raft.messages import NodeId
from .raft.repair import RepairTiming
from .raft.snapshot_install import InstallTiming
from .storage.log_flusher import FlushMode
from .storage.log_storage import CACHE_BYTES_MAX
from .transport.transport import LinkConfig, PeerAddress

SCRUB_BYTES_PER_S = 8 << 20  # in a first round; later rounds need six days for a terabyte


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """A member's configuration, in ms, bytes or pieces. `peers` includes this node."""

    node_id: NodeId
    group: str
    peers: Mapping[NodeId, PeerAddress]
    flush: FlushMode = FlushMode.SYNC
    flush_interval_ms: int = 500  # ASYNC_FLUSH: a power cut of all replicas loses at most this
    frames_in_flight_max: int = 4
    commands_waiting_max: int = 10_000
    commands_waiting_bytes_max: int = 16 << 20
    command_timeout_ms: int = 5_000
    sync_stall_ms: int = 3_000  # a leader with a longer fdatasync steps down
    transfer_on_stop_ms: int = 3_000  # for a follower that catches up; less than the process waits
    log_cache_bytes_max: int = CACHE_BYTES_MAX
    directory: str = "raft"  # term, vote and the log's beginning; below the disk's root
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S  # rate of reads to find rot; 0: off
    scrub_pause_ms: int = 60_000  # between rounds, so that a short log is read once per minute
    repair: RepairTiming = field(default_factory=RepairTiming)
    install: InstallTiming = field(default_factory=InstallTiming)
    core: CoreConfig = field(default_factory=CoreConfig)
    links: LinkConfig = field(default_factory=LinkConfig)
    preference: PreferenceLimits = field(default_factory=PreferenceLimits)
    join: bool = False  # waits until the peers' group adds it, instead of founding
