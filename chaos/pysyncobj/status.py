"""A PySyncMember's view of its group: the keys of dledger.node.status, as far as SyncObj knows
them."""

from __future__ import annotations

from raftmq.dledger.raft.messages import RoleEvent
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.transport.transport import PeerLinks

from .replica import Replica


def status_of(
    config: MemberConfig,
    sync: Replica,
    links: PeerLinks,
    told: RoleEvent,
    applied_index: int,
    commands_waiting: int,
    failure: str | None,
) -> dict[str, object]:
    """Return the view of a member. `match` and `next` of a peer are None on a node that does not
    lead; SyncObj has no append window, so `inflight` counts the entries it has sent without knowing
    that they arrived."""
    said = sync.getStatus()
    index = sync.journal.log.index
    leads = sync._isLeader()
    peers: dict[str, dict[str, object]] = {}
    for peer in config.peers:
        if peer == config.node_id:
            continue
        match = said.get(f"match_idx_server_{peer}") if leads else None
        following = said.get(f"next_node_idx_server_{peer}") if leads else None
        ahead = 0 if match is None or following is None else max(0, following - 1 - match)
        peers[peer] = {
            "connected": links.is_open(peer),
            "error": links.last_error(peer),
            "dropped": links.dropped(peer),
            "match": match,
            "next": following,
            "state": "replicate" if leads else None,
            "inflight": ahead,
        }
    return {
        "node_id": config.node_id,
        "group": config.group,
        "role": told.role.value,
        "term": told.term,
        "leader": told.leader,
        "leader_ready": told.leader_ready,
        "commit_index": sync.raftCommitIndex,
        "applied_index": applied_index,
        "first_index": index.first_index,
        "last_index": index.last_index,
        "durable_index": sync.journal.log.durable_index,
        "voted_for": sync.journal.voted_for,
        "flush": "NEVER_FLUSHED",
        "failure": failure,
        "commands_waiting": commands_waiting,
        "peers": peers,
    }
