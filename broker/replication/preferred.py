"""The preferred leader of this broker's Raft group: asked for, set, and seen to.

Who is preferred stands in the group's configuration (dledger.configuration); when leadership goes
there is dledger.preference's to say. Here a leader that is told so begins the same planned transfer
that operators ask for, and a group that was never told anything takes `preferredLeaderId` of the
broker.conf of whoever leads first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raftmq.broker.errors import Refused
from raftmq.broker.replication.engine import RaftEngine
from raftmq.dledger.configuration import Change, ChangeKind
from raftmq.dledger.errors import RaftError

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

log = logging.getLogger("raftmq.broker.members")

RETRY_MS = 5_000  # between attempts to set what broker.conf says
BY = "preferred leader"  # who asked for such a transfer, in its event


class PreferredLeader:
    """`look` is part of the chore of broker.replication.members, which owns this."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._founding: asyncio.Future[int] | None = None
        self._founding_due_ms = 0

    @property
    def name(self) -> str | None:
        """As this replica has it; None: nobody is preferred."""
        engine = self._broker.engine
        return engine.preferred if isinstance(engine, RaftEngine) else None

    def look(self) -> None:
        """Some times a second: is there something to be done?"""
        engine = self._broker.engine
        if not isinstance(engine, RaftEngine):
            return
        target = engine.preferred_successor()
        if target is not None:
            self._hand_over(target)
        if self._broker.config.preferred_leader_id and self._broker.roles.leading:
            self._found(engine)

    def _hand_over(self, target: str) -> None:
        try:
            self._broker.hand_over(target)
        except (Refused, RaftError) as error:  # something changed just now: it looks again
            log.info("preferred_leader_waits name=%s: %s", target, error)
            return
        log.info("preferred_leader_takes_over name=%s", target)
        self._broker.http.tell("transfer", {"to": target, "by": BY})

    def _found(self, engine: RaftEngine) -> None:
        """Nobody ever said who should lead, but broker.conf does: from now on the group does."""
        now_ms = self._broker.clock_ms()
        if engine.core.configurations.current.preferred is not None or self._founding is not None:
            return
        if now_ms < self._founding_due_ms:
            return
        self._founding_due_ms = now_ms + RETRY_MS
        name = self._broker.config.preferred_leader_id
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
        name = self._broker.config.preferred_leader_id
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("preferred_leader_not_set preferredLeaderId=%s: %s", name, error)
        else:
            log.info("preferred_leader_set preferredLeaderId=%s", name)
