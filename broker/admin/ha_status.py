"""GET_BROKER_HA_STATUS (907) of a Raft replica, in the shape of Apache's HARuntimeInfo.

Apache's tools ask it of whoever is a master. In a Raft group the leader is one, and its peers are
shown as HA connections are: by their addresses, with how much of the log they have.
"""

from __future__ import annotations

from typing import Any

from ..context import Context

BEHIND_BYTES_MAX = 256 * 1024 * 1024  # Apache's haMaxGapNotInSync: what counts as in sync


def raft_ha_status(context: Context) -> dict[str, Any]:
    """Return the leader's view of its peers; of another replica, its own place in the log."""
    status, end = context.log.status(), context.store.commitlog.max_offset
    peers: Any = status.get("peers") or {}
    if not context.roles.leading:
        return {
            "master": False,
            "masterCommitLogMaxOffset": 0,  # a follower does not know it
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": context.roles.leader_address,
                "maxOffset": end,
                "masterFlushOffset": 0,
                "isActivated": status.get("leader") is not None,
            },
        }
    members: Any = status.get("members") or ()
    addresses = {str(member["node_id"]): str(member["address"]) for member in members}
    links = [_link(addresses.get(name, name), peer, end) for name, peer in sorted(peers.items())]
    return {
        "master": True,
        "masterCommitLogMaxOffset": end,
        "inSyncSlaveNums": sum(link["inSync"] for link in links),
        "haConnectionInfo": links,
    }


def _link(address: str, peer: dict[str, Any], end: int) -> dict[str, Any]:
    behind = peer.get("behind_bytes")
    known = isinstance(behind, int)
    has = end - behind if known and behind is not None else 0
    return {
        "addr": address,
        "slaveAckOffset": has,
        "diff": end - has,
        "inSync": bool(known and peer.get("connected") and end - has <= BEHIND_BYTES_MAX),
        "transferFromWhere": has,
    }
