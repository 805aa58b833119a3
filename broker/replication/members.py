"""Members of this broker's Raft group: CHANGE_MEMBERS (30002, ours).

dledger.raft.configuration and dledger.raft.membership define changes and their rejection. A removed
replica also unregisters (broker.registration).
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.configuration import Change, ChangeKind, Configuration
from raftmq.dledger.raft.errors import ChangeRefused
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.fields import boolean_or

from ..component import Service
from ..context import Context
from ..errors import Refused
from ..registration import Registrar
from ..scheduler import IDLE_MS, Chore
from .engine import GroupMembership, preferred_of
from .identity import GroupId
from .preferred import PreferredLeader

log = logging.getLogger("raftmq.broker.members")

LIST = "list"  # the op without a change
OPS = (LIST, *(kind.value for kind in ChangeKind))
WITH_ADDRESS = (ChangeKind.ADD_LEARNER, ChangeKind.MOVE)
CHECK_PERIOD_MS = 100  # maximum delay of a route after a change
ID = re.compile("[A-Za-z0-9_]{1,64}")  # the form of dLegerSelfId


class Members:
    """The request handler, and a chore (`poll`)."""

    def __init__(self, context: Context, registrar: Registrar) -> None:
        self._context = context
        self._log = context.log
        self._registrar = registrar
        self.preferred = PreferredLeader(context)
        self.group_id = GroupId(context)
        self._reported: GroupMembership | None = None  # the place logged last
        self._settled: tuple[int, Configuration] | None = None  # committed and published

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.CHANGE_MEMBERS): self.change},
            chores=[Chore("members", CHECK_PERIOD_MS, self.poll, self._rest_ms)],
        )

    async def change(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change or list members. Ext fields are `op` (add-learner, promote, remove, move, list),
        `memberId`, and with add-learner and move `memberAddress` (host:port of the Raft listener).
        Op `prefer` selects the preferred leader, or none without `memberId`. `force` is as for
        `make`.

        A change is answered once it is committed, with ext `index` (of its frame). The body of
        every answer is {"index", "members", "preferred"} in this replica's view. Only the leader
        changes members; every replica lists them. Raises Refused, RaftError."""
        ext = request.ext or {}
        op = ext.get("op", "")
        if op not in OPS:
            raise _refused(f"op={op!r}: expected one of {', '.join(OPS)}")
        engine = self.engine()
        if op == LIST:
            return RemotingCommand.response_to(request, body=dumps(self._body(engine)))
        change = change_of(ChangeKind(op), ext.get("memberId", ""), ext.get("memberAddress", ""))
        index = await self.make(change, force=boolean_or(ext, "force", False))
        body = dumps(self._body(engine))
        return RemotingCommand.response_to(request, ext={"index": str(index)}, body=body)

    async def make(self, change: Change, *, force: bool = False) -> int:
        """Make a change; return the committed frame's index. A member's new address must answer
        with the group's proof. `force` skips that check, except for the leader's own address.
        Raises Refused, RaftError."""
        engine = self.engine()
        self._context.roles.require_leading()
        if change.kind in WITH_ADDRESS:
            engine.core.membership.after(change)  # validates member and address
            is_leader = change.node_id == engine.config.node_id
            if is_leader or not force:
                await self._find(change, is_leader)
        index = await engine.change_members(change)
        kind = change.kind.value
        log.info("members_changed op=%s member=%s index=%d", kind, change.node_id, index)
        return index

    async def _find(self, change: Change, is_leader: bool) -> None:
        """Dial a member's new address. Raises ChangeRefused."""
        why = await self.engine().links.why_not_at(change.node_id, change.address)
        if not why:
            return
        anyway = (
            "a leader moves only to where it is reached: hand leadership over first"
            if is_leader
            else "with force (--force of mqadmin) the change is made all the same"
        )
        text = f"{change.node_id} was not found at {change.address}: {why}; {anyway}"
        raise ChangeRefused(text)

    def rows(self) -> list[dict[str, Any]]:
        """Return every member (peer_addresses.members_of); none if members do not change."""
        return [] if self._context.config.is_classic else self._log.raft.members

    def poll(self) -> None:
        """Check for a changed configuration, and for a preferred leader; a chore."""
        if self._context.config.is_classic:
            return
        self.group_id.poll()
        self.preferred.poll()
        engine, membership = self._log.raft, self._log.membership
        if membership is None:
            return
        if membership != self._reported:
            was, self._reported = self._reported, membership
            if was is not None or membership.role == "none":
                self._say(membership)
            if not self._context.life.stopping:  # also at the first check, after the registration
                self._registrar.trigger()
        settled = engine.core.membership.configurations.settled
        if self._settled is not None and settled[0] != self._settled[0]:
            self._publish(self._settled[1], *settled)
        self._settled = settled

    def _rest_ms(self) -> float:
        membership = self._log.membership
        if membership is None:
            return IDLE_MS
        settled = self._log.raft.core.membership.configurations.settled
        changed = (
            membership != self._reported or self._settled is None or settled[0] != self._settled[0]
        )
        return 0 if changed or self.group_id.is_open or self.preferred.is_waited_for else IDLE_MS

    @property
    def watches(self) -> bool:
        """True once changes are published."""
        return self._settled is not None

    def _say(self, membership: GroupMembership) -> None:
        if membership.broker_id is not None:
            log.info("member role=%s broker_id=%d", membership.role, membership.broker_id)
        elif membership.members:
            log.warning(
                "no_member: this replica was removed from its group, is not added yet, or has"
                " another history than its peers (other_history)"
            )
        else:
            log.info("no_member: this replica waits to be added to its group")

    def _publish(self, was: Configuration, index: int, now: Configuration) -> None:
        if was.preferred != now.preferred:
            chosen = {"index": index, "name": now.preferred or None, "was": was.preferred or None}
            self._context.events.publish("preferredLeaderChanged", chosen)
        if replace(was, preferred=now.preferred) == now:
            return  # nothing else changed
        members = [
            {
                "id": member.node_id,
                "role": member.role.name.lower(),
                "brokerId": member.broker_id,
                "address": member.address,
            }
            for member in now.members
        ]
        detail = {"index": index, "members": members, "removed": sorted(was.ids - now.ids)}
        self._context.events.publish("memberChanged", detail)

    def engine(self) -> RaftMember:
        """Return the Raft engine. Raises Refused if members do not change."""
        if self._context.config.is_classic:
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "this broker's members do not change: it is no replica of a Raft group",
            )
        return self._log.raft

    def _body(self, engine: RaftMember) -> dict[str, Any]:
        return {
            "index": engine.core.membership.configurations.index,
            "members": list(engine.members),
            "preferred": preferred_of(engine),
        }


def change_of(kind: ChangeKind, node_id: str, address: str = "") -> Change:
    """Check and build a change. Raises Refused."""
    if not ID.fullmatch(node_id) and (kind is not ChangeKind.PREFER or node_id):
        raise _refused(f"memberId={node_id!r} is no id: letters, digits and _, as dLegerSelfId")
    if (kind in WITH_ADDRESS) != bool(address):
        needed = "needs" if kind in WITH_ADDRESS else "takes no"
        raise _refused(f"{kind.value} {needed} memberAddress, host:port of its Raft listener")
    return Change(kind, node_id, address)


def _refused(why: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, why)
