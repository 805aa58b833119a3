"""The current role of this replica.

Each broker has a `RoleView`, changed only by the engine's role events. Every part reads it.
"""

from __future__ import annotations

from raftmq.dledger.raft.messages import Role, RoleEvent

from ..config import BrokerConfig
from ..errors import not_leader
from ..tables.state import BrokerState


class RoleView:
    """The latest role event, and its meaning for clients and name servers."""

    def __init__(self, config: BrokerConfig, state: BrokerState) -> None:
        self._config = config
        self._state = state
        self._master_hint = ""  # the leader's address according to a name server
        self.master_ha_address = ""  # the master's address for slaves
        self.term = 0
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.leading = False  # the ready leader
        self.joining = False  # it does not register before its definitions (broker.cluster)

    def change(self, event: RoleEvent) -> None:
        if event.leader != self.leader:
            self._master_hint = ""
        self.term = event.term
        self.role = event.role
        self.leader = event.leader
        self.leading = event.role is Role.LEADER and event.leader_ready

    @property
    def is_removed(self) -> bool:
        """True if this broker group left its cluster."""
        return self._state.group.removed

    def hint_master(self, address: str, ha_address: str) -> None:
        self._master_hint = address
        self.master_ha_address = ha_address

    def require_leading(self) -> None:
        """Raise Refused if this replica does not lead."""
        if not self.leading:
            raise not_leader()

    @property
    def takes_commits(self) -> bool:
        """True if consumers may commit and query offsets here. A classic slave gets such requests
        only from consumers that cannot reach its master."""
        return self.leading or self._config.is_classic

    @property
    def leader_address(self) -> str:
        if self._config.is_classic:
            return self._master_hint
        if self.leader is None:
            return ""
        return self._state.addresses.get(self.leader, self._master_hint)

    @property
    def address_elsewhere(self) -> str:
        """The leader's client address for rejected clients, or "", perhaps just deposed."""
        return "" if self.leading else self.leader_address

    @property
    def misses_address(self) -> bool:
        """True if a leader's address is missing: its announcement precedes the snapshot."""
        return not self._config.is_classic and self.leader is not None and not self.leader_address
