"""Events of this node in its HTTP API: roles, routes, the disk, members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.web.events import EventHub

from .config import BrokerConfig
from .replication.roles import RoleView


class NodeEvents:
    def __init__(self, config: BrokerConfig, roles: RoleView, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._roles = roles
        self._was: RoleEvent | None = None
        self.hub = EventHub(wall_ms)

    def publish(self, kind: str, detail: dict[str, Any], term: int | None = None) -> None:
        self.hub.publish(
            kind,
            node=self._config.node_name,
            group=self._config.group_name,
            term=self._roles.term if term is None else term,
            detail=detail,
        )

    def role_changed(self, event: RoleEvent) -> None:
        """Publish a role event; called for each, in order."""
        was, self._was = self._was, event
        same = was is not None and (was.role, was.term) == (event.role, event.term)
        if event.role is Role.CANDIDATE and not same:
            self.publish("electionStarted", {"reason": event.reason}, event.term)
        role: str = event.role.value
        if self._config.is_classic:
            role = "slave" if self._config.is_slave else "master"
        detail = {
            "role": role,
            "ready": event.leader_ready,
            "leader": event.leader,
            "reason": event.reason,
        }
        self.publish("roleChanged", detail, event.term)

    def route_changed(self, server: str, broker_id: int | None, why: str) -> None:
        """Publish this broker's id in the routes of a name server, or null."""
        self.publish("routeChanged", {"nameServer": server, "brokerId": broker_id, "reason": why})
