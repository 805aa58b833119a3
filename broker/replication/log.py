"""The replicated log for a broker's services, which propose, prove leadership and transfer it.

The engine applies frames through the services (`broker.state_machine`), and the services propose
through the engine. `ReplicatedLog` closes that circle. It is made first, every service gets it, and
the engine is attached before anything starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.errors import RaftError
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.registration import NO_GROUP_ID, NO_LEADER

from ..config import BrokerConfig
from ..error_isolation import Contained
from ..errors import Refused, not_leader
from ..registration import Identity
from .classic import ClassicEngine
from .engine import Engine, GroupMembership, group_membership
from .roles import RoleView


class ReplicatedLog:
    def __init__(self, config: BrokerConfig, roles: RoleView, contained: Contained) -> None:
        self._config = config
        self._roles = roles
        self._contained = contained
        self._engine: Engine | None = None
        self._handing_over = False  # on request or before a stop

    # ---- the engine -------------------------------------------------------------------------

    def attach(self, engine: Engine) -> None:
        assert self._engine is None
        self._engine = engine

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "no engine is attached yet"
        return self._engine

    @property
    def raft(self) -> RaftMember:
        """The replica of the group; not in classic mode."""
        assert not self._config.is_classic
        return cast(RaftMember, self._engine)

    @property
    def classic(self) -> ClassicEngine:
        assert self._config.is_classic
        return cast(ClassicEngine, self.engine)

    def request_cut(self, at_once: bool = False) -> None:
        self.engine.request_cut(at_once)

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        return self.engine.propose_command(payload)

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Report a failed read of the log; `again` repeats it."""
        self.engine.read_failed(error, again)

    def status(self) -> dict[str, object]:
        return self.engine.status()

    @property
    def membership(self) -> GroupMembership | None:
        """This replica's place in its Raft group; None if members do not change."""
        return None if self._config.is_classic else group_membership(self.raft)

    @property
    def identity(self) -> Identity:
        """The identity to register. A ready leader is brokerId 0 once its group has joined the
        cluster; all other replicas have the id from the group's configuration."""
        leading = self._roles.leading and not self._roles.joining
        if self._config.is_classic:
            return Identity(self._config.registration_id(leading), 0, "")
        own_id, membership, member = self._config.registration_id(False), self.membership, True
        role = "follower" if self._roles.leader else NO_LEADER
        group_id = self.raft.identity.group_id.hex() or NO_GROUP_ID
        if membership is not None:
            member = membership.broker_id is not None
            own_id = membership.broker_id or own_id
        member = member and not self._roles.is_removed
        if leading:
            return Identity(0, self._roles.term, "leader", member, group_id, own_id)
        return Identity(own_id, self._roles.term, role, member, group_id)

    # ---- what only the leader can do ----------------------------------------------------------

    async def propose(self, payload: bytes) -> int:
        """Propose a command; return its index once applied. Raises Refused, RaftError."""
        self._roles.require_leading()
        return await self.engine.propose_command(payload)

    def propose_then(self, payload: bytes, done: Callable[[Exception | None], None]) -> None:
        """Propose, then call `done` with the error, or None."""
        self._then("told_of_command", lambda: self.engine.propose_command(payload), done)

    async def barrier(self) -> None:
        """Return once this replica is proven to lead, if in a group. Raises Refused, RaftError."""
        await self._barrier()

    def barrier_then(self, done: Callable[[Exception | None], None]) -> None:
        """Call `done` with None once this replica is proven to lead, or with the error."""
        self._then("told_of_proof", self._barrier, done)

    def _barrier(self) -> asyncio.Future[int]:
        if not self._roles.takes_commits:
            raise not_leader()
        return self.engine.read_barrier()

    def _then(
        self,
        what: str,
        start: Callable[[], asyncio.Future[int]],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Start it, and later call `done` with the error or None, never before this returns."""
        try:
            future = start()
        except (RaftError, Refused) as error:
            callback = partial(done, error)
            asyncio.get_running_loop().call_soon(self._contained.run, what, callback)
            return

        def finished(result: asyncio.Future[int]) -> None:
            error = None if result.cancelled() else result.exception()
            callback = partial(done, error if isinstance(error, Exception) else None)
            self._contained.run(what, callback)

        future.add_done_callback(finished)

    # ---- handing over -------------------------------------------------------------------------

    def hand_over(self, target: str, *, force: bool = False) -> str:
        """Start a transfer of leadership to `target`, or by default to the follower with most of
        the log that could lead at once. `force` permits a target that would return leadership
        because of its disk.

        Returns the target. Raises Refused, RaftError."""
        self._roles.require_leading()
        chosen = target or self.engine.successor()
        if chosen is None:
            reason = "no follower is within reach that could lead at once"
            raise Refused(ResponseCode.SYSTEM_ERROR, reason, retriable=True)
        blocker = ""
        if not self._config.is_classic:
            blocker = self.raft.transfer_blocker(chosen, force=force or not target)
        if blocker:
            raise Refused(ResponseCode.SYSTEM_ERROR, blocker)
        self.engine.transfer(chosen)
        self._handing_over = True
        return chosen

    async def leave(self) -> str | None:
        """Transfer leadership before a planned stop. Returns the new leader, if any."""
        self._handing_over = True
        return await self.raft.hand_over()

    def leader_is_awaited(self, event: RoleEvent) -> bool:
        """Return whether this replica or its target is about to lead; called per role event."""
        if event.role is Role.LEADER:
            self._handing_over = False
            return not event.leader_ready
        self._handing_over = self._handing_over and event.leader is None
        return self._handing_over
