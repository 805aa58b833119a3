"""Knows the replicas to which consumers of cold data may be sent (broker.consume.read_routing)."""

from __future__ import annotations

from typing import Any

from ..context import Context
from .read_routing import ClassicReads, RaftReads, ReadPolicy

LOOKED_MS = 1_000  # for so long a look at the followers is valid


def read_policy(context: Context) -> ReadPolicy:
    config, roles, log = context.config, context.roles, context.log
    if config.is_classic:
        return ClassicReads(
            config.slave_read_enable, lambda: config.is_slave and log.classic.slave.connected
        )
    return RaftReads(
        config.slave_read_enable,
        leader_known=lambda: roles.leader is not None and not roles.leading,
        own_id=lambda: log.identity.broker_id,
        followers=Followers(context).within_reach,
    )


class Followers:
    """The connected followers as this leader sees them, looked at once a second at most."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: list[int] = []
        self._seen_ms = -LOOKED_MS

    def within_reach(self) -> list[int]:
        """Return the brokerIds of connected members; one without the data sends back."""
        now_ms = self._context.clock_ms()
        if now_ms - self._seen_ms >= LOOKED_MS:
            self._seen_ms, self._seen = now_ms, self._look()
        return self._seen

    def _look(self) -> list[int]:
        status: dict[str, Any] = self._context.log.status()
        peers = status.get("peers") or {}
        connected = {name for name, peer in peers.items() if peer.get("connected")}
        # pysyncobj's groups have no configuration: their consumers are not sent anywhere else.
        members = status.get("members") or []
        return sorted(m["broker_id"] for m in members if m["node_id"] in connected)
