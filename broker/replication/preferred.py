"""The preferred leader of this broker's Raft group, and transfers to it.

The group's configuration names it (dledger.raft.configuration), and dledger.raft decides when
leadership moves. The leader then starts a planned transfer. A group without a preference adopts
`preferredLeaderId` from the broker.conf of its first leader.
"""

from __future__ import annotations

import asyncio
import logging

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import RaftError

from ..context import Context
from ..errors import Refused
from .engine import preferred_of

log = logging.getLogger("raftmq.broker.members")

RETRY_MS = 5_000  # between two attempts to set broker.conf's preference
BY = "preferred leader"  # the initiator named in the transfer's event


class PreferredLeader:
    """Moves leadership to the preferred leader. broker.replication.members calls `poll`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._log = context.log
        self._founding: asyncio.Future[int] | None = None
        self._founding_due_ms = 0

    @property
    def name(self) -> str | None:
        """The preferred leader in this replica's view, or None."""
        return None if self._config.is_classic else preferred_of(self._log.raft)

    @property
    def is_waited_for(self) -> bool:
        """True while this replica leads and a different replica is preferred."""
        if not self._context.roles.leading:
            return False
        engine = self._log.raft
        return preferred_of(engine) not in (None, "", engine.core.node_id)

    def poll(self) -> None:
        """Transfer leadership if due, or record broker.conf's preference. A chore."""
        engine = self._log.raft
        target = engine.preferred_successor()
        if target is not None:
            self._hand_over(target)
        if self._config.preferred_leader_id and self._context.roles.leading:
            self._choose_first(engine)

    def _hand_over(self, target: str) -> None:
        try:
            self._log.hand_over(target)
        except (Refused, RaftError) as error:  # the state just changed; retried
            log.info("preferred_leader_waits name=%s: %s", target, error)
            return
        log.info("preferred_leader_takes_over name=%s", target)
        self._context.events.publish("transfer", {"to": target, "by": BY})

    def _choose_first(self, engine: RaftMember) -> None:
        """Set broker.conf's preferred leader in a group that never had a preference."""
        now_ms = self._context.clock_ms()
        if (
            engine.core.membership.configurations.current.preferred is not None
            or self._founding is not None
        ):
            return
        if now_ms < self._founding_due_ms:
            return
        self._founding_due_ms = now_ms + RETRY_MS
        name = self._config.preferred_leader_id
        try:
            self._founding = engine.change_members(
                Change(ChangeKind.PREFER, name, instead_of=(None,))
            )
        except RaftError as error:
            log.info("preferred_leader_not_set name=%s: %s", name, error)
            return
        self._founding.add_done_callback(self._founded)

    def _founded(self, done: asyncio.Future[int]) -> None:
        self._founding = None
        name = self._config.preferred_leader_id
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("preferred_leader_not_set preferredLeaderId=%s: %s", name, error)
        else:
            log.info("preferred_leader_set preferredLeaderId=%s", name)
