"""The id of this broker's Raft group: proposed by a leader that finds none, and passed to the links
(dledger.transport.group_id), which use it to refuse replicas of other groups.

The id is put into the log by a command. A leader whose links have another id than its log proposes
theirs: a rescue gave its group a new one, in files alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.errors import RaftError
from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES

from ..context import Context
from ..tables.group_id import group_id

log = logging.getLogger("raftmq.broker.members")

RETRY_MS = 1_000  # between attempts to propose one


class GroupId:
    """Proposes and passes on the group id. broker.replication.members owns it and calls `look`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told = b""  # what the links were told
        self._proposed: asyncio.Future[int] | None = None
        self._due_ms = 0

    @property
    def is_open(self) -> bool:
        """True while the group has no id yet, or the links do not know it."""
        applied = self._context.state.group.value
        return not applied or applied != self._told

    def look(self) -> None:
        """Pass a new id on to the links, propose one if needed; some times a second."""
        engine = self._context.log.raft
        applied = self._context.state.group.value
        if applied != self._told:
            log.info("group_id_applied id=%s", applied.hex() or "none")
            before, self._told = self._told, applied
            engine.identity.applied(before, applied)
        rescued = applied != engine.identity.group_id != b""  # broker/rescue/keep.py
        if (not applied or rescued) and self._context.roles.leading:
            self._propose(engine)

    def _propose(self, engine: RaftMember) -> None:
        now_ms = self._context.clock_ms()
        if self._proposed is not None or now_ms < self._due_ms:
            return
        self._due_ms = now_ms + RETRY_MS
        # Founders that met one of a group took its id: then the group has one already.
        wanted = engine.identity.group_id or secrets.token_bytes(GROUP_ID_SIZE_BYTES)
        try:
            command = group_id(wanted, if_absent=not self._context.state.group.value)
            self._proposed = engine.propose_command(command)
        except RaftError as error:
            log.info("group_id_not_proposed: %s", error)
            return
        self._proposed.add_done_callback(self._done)

    def _done(self, done: asyncio.Future[int]) -> None:
        self._proposed = None
        error = None if done.cancelled() else done.exception()
        if error is not None:  # the current leader looks again
            log.info("group_id_not_proposed: %s", error)
