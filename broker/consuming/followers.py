"""The replicas to which consumers of cold data may be sent (broker.consuming.reads)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.broker.consuming.reads import ClassicReads, RaftReads, ReadPolicy

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

LOOKED_MS = 1_000  # for so long a look at the followers is valid


def read_policy(broker: Broker) -> ReadPolicy:
    config, roles = broker.config, broker.roles
    if config.is_classic:
        return ClassicReads(
            config.slave_read_enable,
            lambda: config.is_slave and broker.classic.slave.connected,
        )
    return RaftReads(
        config.slave_read_enable,
        leader_known=lambda: roles.leader is not None and not roles.leading,
        own_id=lambda: roles.identity.broker_id,
        followers=Followers(broker).within_reach,
    )


class Followers:
    """The connected followers as this leader sees them, looked at once a second at most."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen: list[int] = []
        self._seen_ms = -LOOKED_MS

    def within_reach(self) -> list[int]:
        """Return the brokerIds of connected members; one without the data sends back."""
        now_ms = self._broker.clock_ms()
        if now_ms - self._seen_ms >= LOOKED_MS:
            self._seen_ms, self._seen = now_ms, self._look()
        return self._seen

    def _look(self) -> list[int]:
        status: dict[str, Any] = self._broker.engine.status()
        peers = status.get("peers") or {}
        connected = {name for name, peer in peers.items() if peer.get("connected")}
        # pysyncobj's groups have no configuration: their consumers are not sent anywhere else.
        members = status.get("members") or []
        return sorted(m["broker_id"] for m in members if m["node_id"] in connected)
