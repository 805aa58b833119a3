"""The `Engine` interface between a broker and the replication of its log.

Raft (dledger.RaftMember) and classic master/slave (broker.replication.classic, whose log has no
frames) implement it. `Replication` lets a test harness replace Raft by a different library.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raftmq.dledger.node.applier import Application
from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.leader_placement import PreferenceLimits
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.dledger.transport.network import Network
from raftmq.dledger.transport.peer_auth import Gate, GuardedNetwork
from raftmq.dledger.transport.transport import LinkConfig, PeerAddress
from raftmq.store.disk import Disk
from raftmq.store.message_store import MessageStore

from ..config import BrokerConfig
from ..tables.state import BrokerState

FRAMES_IN_FLIGHT_MAX = 8  # uncommitted group commits
PREFERRED_STEADY_MS = 5_000  # without a break, before it leads
TLS_CONNECT_TIMEOUT_MS = 3_000  # of a dial; TLS needs two round trips more


class Engine(Protocol):
    """The replication engine. Errors are dledger's."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def request_cut(self, at_once: bool = False) -> None: ...

    def propose_command(self, payload: bytes) -> asyncio.Future[int]: ...

    def read_barrier(self) -> asyncio.Future[int]: ...

    def transfer(self, target: str) -> None: ...

    def successor(self) -> str | None:
        """Return the follower that could lead at once and has most of the log, or None."""
        ...

    async def delete_before(self, position: int) -> int: ...

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Report a consumer's failed read; `again` repeats it."""
        ...

    def abandon(self, reason: str) -> None: ...

    def status(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """This replica's position in the group's configuration; `broker_id` None: unassigned."""

    role: str  # voter, learner, or none after a removal or before the addition
    broker_id: int | None
    members: int  # size of the group, or 0 if the group is unknown


def preferred_of(member: RaftMember) -> str | None:
    """Return the preferred leader in this replica's view, or None."""
    if not member.has_core:
        return None
    return member.core.membership.configurations.current.preferred or None


def group_membership(member: RaftMember) -> GroupMembership | None:
    """Return this replica's place; None while the log is being recovered. A removal counts once it
    is committed, or once peers report it to a replica that was away. A replica without a leader
    whose history differs from a peer's has no place either."""
    if not member.has_core:
        return None
    configurations, node_id = member.core.membership.configurations, member.config.node_id
    current = configurations.current
    links = member.links
    if member.core.leader is None and (links.refused_as_removed or links.parted):
        return GroupMembership("none", None, len(current.members))
    member_ = current.get(node_id) or configurations.settled[1].get(node_id)
    if member_ is None:
        return GroupMembership("none", None, len(current.members))
    return GroupMembership(member_.role.name.lower(), member_.broker_id, len(current.members))


def raft_member(
    config: MemberConfig,
    disk: Disk,
    store: MessageStore,
    state: BrokerState,
    application: Application,
    **given: Any,
) -> RaftMember:
    """Make the replica that replicates the log of a group. `given` are the further parameters of
    RaftMember."""
    return RaftMember(config, disk, store.commitlog, application, rng=random.Random(), **given)


@dataclass(frozen=True, slots=True)
class Replication:
    """The way in which a group's log is replicated: Raft, but for negative controls.

    `keeps_log` is False if a log may lose frames that snapshots of the tables reflect: then no
    snapshot is loaded, and a start replays the whole log."""

    make: Callable[..., Engine] = raft_member
    keeps_log: bool = True


RAFT = Replication()


def member_config(
    config: BrokerConfig, network: Network | None = None, gate: Gate | None = None
) -> MemberConfig:
    """Return a replica's configuration. `network` None: links are plain; `gate` None: peers prove
    nothing."""
    assert not config.is_classic
    return MemberConfig(
        node_id=config.dleger_self_id,
        group=config.group_name,
        peers={p.node_id: PeerAddress(p.node_id, p.host, p.port) for p in config.peers},
        flush=FlushMode(config.flush_disk_type),
        flush_interval_ms=config.flush_interval_commit_log,
        frames_in_flight_max=FRAMES_IN_FLIGHT_MAX,
        core=CoreConfig(
            heartbeat_ms=config.heartbeat_interval_ms,
            election_ms_min=config.election_timeout_min_ms,
            election_ms_max=config.election_timeout_max_ms,
            catch_up_bytes_per_s=config.raft_catch_up_bytes_per_s,
            first_leader=config.preferred_leader_id,
        ),
        links=_links(config, network, gate),
        preference=PreferenceLimits(steady_ms=PREFERRED_STEADY_MS),
        join=config.raft_join,
    )


def _links(config: BrokerConfig, network: Network | None, gate: Gate | None) -> LinkConfig:
    base = LinkConfig(listen_host=config.dleger_bind_address or None, gate=gate)
    if network is not None:
        base = replace(base, connect_timeout_ms=TLS_CONNECT_TIMEOUT_MS, network=network)
    return base if gate is None else replace(base, network=GuardedNetwork(base.network, gate))
