"""Reports a member's role to its application at the right moment.

The core's RoleEvents are passed on at once. Only `leader_ready` waits until the frames that were
committed at the event are applied. A lost leadership first fails the waiting requests.
"""

from __future__ import annotations

import logging

from ..raft.messages import NodeId, Role, RoleEvent
from .applier import Application
from .proposer import Proposer

log = logging.getLogger("raftmq.dledger.node.node")


class Roles:
    """The role of a member, as last reported to its application."""

    def __init__(self, node_id: NodeId, application: Application, proposer: Proposer) -> None:
        self.serving = False  # the application was informed that it leads
        self.reported_leader: NodeId | None = None  # the leader, as last reported
        self._node_id = node_id
        self._application = application
        self._proposer = proposer
        self._was_leader = False
        self._due: tuple[RoleEvent, int] | None = None  # to deliver once this frame is applied

    def changed(self, event: RoleEvent, commit_index: int, applied_index: int) -> None:
        """Note the new role; report it now, or once applied frames have caught up."""
        log.info(
            "role_changed node=%s role=%s term=%s leader=%s ready=%s reason=%s",
            self._node_id,
            event.role.value,
            event.term,
            event.leader,
            event.leader_ready,
            event.reason,
        )
        leads = event.role is Role.LEADER
        if self._was_leader and not leads:
            self.serving = False
            self._proposer.leadership_lost(event.leader)
        self._was_leader = leads
        self._due = None
        if event.leader_ready and applied_index < commit_index:
            self._due = event, commit_index
        else:
            self._deliver(event)

    def applied(self, applied_index: int) -> None:
        """Report the role that waited for this frame."""
        if self._due is not None and applied_index >= self._due[1]:
            (event, _), self._due = self._due, None
            self._deliver(event)

    def end(self, term: int, reason: str) -> None:
        """Report that this member does not lead any more."""
        self._application.role_changed(RoleEvent(Role.FOLLOWER, term, None, False, reason))

    def _deliver(self, event: RoleEvent) -> None:
        if event.leader_ready and not self.serving:
            self.serving = True
            self._proposer.frame_due = True  # sends may have arrived before
        self.reported_leader = event.leader
        self._application.role_changed(event)
