"""The id of this broker's Raft group, proposed by its leader.

Links use it to reject replicas of different groups (dledger.transport.group_id). A command puts the
id into the log. If the links of a leader have a different id than its log, it proposes theirs,
because a rescue changed the id in files only.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.errors import RaftError
from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES

from ..context import Context
from ..tables.broker_group import group_id

log = logging.getLogger("raftmq.broker.members")

RETRY_MS = 1_000  # between two proposals


class GroupId:
    """Proposes the group id, and passes it to the links. broker.replication.members calls
    `poll`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported = b""  # the links' id
        self._proposed: asyncio.Future[int] | None = None
        self._due_ms = 0

    @property
    def is_open(self) -> bool:
        """True while the group has no id, or the links do not have it."""
        applied = self._context.state.group.value
        return not applied or applied != self._reported

    def poll(self) -> None:
        """Pass a new id to the links, and propose one if needed; a chore."""
        engine = self._context.log.raft
        applied = self._context.state.group.value
        if applied != self._reported:
            log.info("group_id_applied id=%s", applied.hex() or "none")
            before, self._reported = self._reported, applied
            engine.identity.applied(before, applied)
        rescued = applied != engine.identity.group_id != b""  # broker/rescue/keep.py
        if (not applied or rescued) and self._context.roles.leading:
            self._propose(engine)

    def _propose(self, engine: RaftMember) -> None:
        now_ms = self._context.clock_ms()
        if self._proposed is not None or now_ms < self._due_ms:
            return
        self._due_ms = now_ms + RETRY_MS
        # Founders that met a replica of a group adopted its id, so the group already has it.
        new_id = engine.identity.group_id or secrets.token_bytes(GROUP_ID_SIZE_BYTES)
        try:
            command = group_id(new_id, if_absent=not self._context.state.group.value)
            self._proposed = engine.propose_command(command)
        except RaftError as error:
            log.info("group_id_not_proposed: %s", error)
            return
        self._proposed.add_done_callback(self._done)

    def _done(self, done: asyncio.Future[int]) -> None:
        self._proposed = None
        error = None if done.cancelled() else done.exception()
        if error is not None:  # the current leader retries
            log.info("group_id_not_proposed: %s", error)
