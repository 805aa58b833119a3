"""A member's view of its group, as data for the admin API and the runtime info."""

from __future__ import annotations

from ..raft.messages import NodeId
from ..raft.pace import Paces
from ..settings import MemberConfig
from ..storage.log_storage import RaftLog
from ..transport.transport import PeerLinks
from .peer_addresses import members_of, membership_of
from .peer_info import PeerInfoExchange
from .ready_loop import Pump


def status_of(
    config: MemberConfig,
    pump: Pump,
    peer_info: PeerInfoExchange,
    paces: Paces,
    healing: dict[str, object],
) -> dict[str, object]:
    """Return the view of a member with a running core, by key:

    - `durable_index` is proven by fdatasync, also in ASYNC_FLUSH.
    - `recovered` is False while this replica may have lost promises, with the reason in
      `recovering` (dledger/raft/recovery.py). `set_back` is true if this process has detected an
      older store (rollback_detection.py), recovered since or not.
    - Each peer has `match`, `next`, `state`, `recovered`, `room` (whether its disk has space) and
      `behind_bytes` (of the part of the log that is still here), all None on a node that does not
      lead, and until the peer has answered. `inflight` is the number of requests, `contact_ms` the
      time since it was last heard (a follower has it for its leader). `ahead_ms`, `first_position`
      and `settings_differ` are the peer's reports (peer_info.py).
    - `healing` has `repairing`, `damaged`, `damaged_count`, `repaired`, `scrub`
      (dledger/repair/repairer.py) and `installing`, `behind_bytes` (dledger/snapshot/transfer.py).
    - `preferred` is the preferred leader, if any.
    - `election_backoff` is the factor on the configured election time-outs, `election_halved` is
      true while they are halved (dledger/raft/election_timeout.py)."""
    core, log = pump.core, pump.log
    state, reason = pump.disk.reported(paces.reason if paces.disk_is_slow else "")
    configurations = core.membership.configurations
    return {
        "node_id": core.node_id,
        "group": config.group,
        "role": core.role.value,
        "term": core.term,
        "leader": core.leader,
        "leader_ready": pump.roles.serving,
        "commit_index": core.commit_index,
        "applied_index": pump.applier.applied_index,
        "first_index": log.index.first_index,
        "last_index": core.last_index,
        "durable_index": log.durable_index,
        "voted_for": core.ballot.voted_for,
        "election_backoff": core.timer.back_off.factor,
        "election_halved": core.timer.halving.holds,
        "flush": config.flush.value,
        "failure": pump.life.failure,
        "recovered": core.recovered,
        "recovering": pump.promises.recovering,
        "set_back": pump.promises.set_back,
        "disk_state": state.value,
        "disk_reason": reason,
        **healing,
        "commands_waiting": pump.proposer.waiting,
        "membership": membership_of(core),
        "configuration_index": configurations.index,
        "configuration_committed": configurations.index <= core.commit_index,
        "members": members_of(core),
        "preferred": configurations.current.preferred or None,
        "peers": {
            peer: _peer_status(pump, peer) | peer_info.status(peer)
            for peer in core.membership.peers
        },
    }


def _peer_status(pump: Pump, peer: NodeId) -> dict[str, object]:
    core, links = pump.core, pump.links
    progress = core.progress.get(peer)
    match = progress.known_match if progress else None
    return {
        "connected": links.is_open(peer),
        "error": links.last_error(peer),
        "dropped": links.dropped(peer),
        "match": match,
        "next": progress.next_index if progress else None,
        "state": progress.state.value if progress else None,
        "recovered": progress.known_recovered if progress else None,
        "room": None if match is None else not (progress and progress.no_room),
        "inflight": len(progress.inflight) if progress else 0,
        "inflight_bytes": progress.inflight_bytes if progress else 0,
        "contact_ms": core.silent_ms(peer, pump.core_ms()),
        "behind_bytes": None if match is None else _behind_bytes(pump.log, match),
    }


def _behind_bytes(log: RaftLog, match_index: int) -> int:
    index = log.index
    if match_index >= index.last_index:
        return 0
    return index.end_position - index.end_of(max(match_index, index.first_index - 1))


def repairing_status(
    config: MemberConfig,
    log: RaftLog,
    links: PeerLinks,
    failure: str | None,
    healing: dict[str, object],
) -> dict[str, object]:
    """Return the view of a member during the recovery of its log."""
    return {
        "node_id": config.node_id,
        "group": config.group,
        "role": "repairing" if healing["repairing"] else "starting",
        "leader": None,
        "leader_ready": False,
        "first_index": log.index.first_index,
        "last_index": log.index.last_index,
        "flush": config.flush.value,
        "failure": failure,
        **healing,
        "peers": {
            peer: {"connected": links.is_open(peer), "error": links.last_error(peer)}
            for peer in config.peers
            if peer != config.node_id
        },
    }
