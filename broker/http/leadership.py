"""HTTP operations on the preferred leader of this broker's group.

The resource always exists; its `name` may be null. Its version is a hash of the name. A change
requires the expected preferred leader; the leader compares at the append, so a version is changed
at most once.
"""

from __future__ import annotations

import logging

from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import PreferredChanged
from raftmq.ops.versions import ANY, Condition, version_of
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import invalid
from raftmq.web.resources.node import PreferredBody, PreferredView
from raftmq.web.versions import unmet

from ..context import Context
from ..replication.members import Members

PATH = "/api/v1/preferred-leader"

log = logging.getLogger("raftmq.broker.http")


class LeadershipOperations:
    def __init__(self, context: Context, members: Members) -> None:
        self._context = context
        self._members = members

    def operations(self) -> list[Operation]:
        write = (409, 503, 504)
        return [
            Operation("GET", PATH, "getPreferredLeader", "Who should lead when it can.", self.get,
                      answer=PreferredView),
            Operation("PUT", PATH, "putPreferredLeader",
                      "Have this voter lead whenever it can.", self.put, role=Role.OPERATOR,
                      body=PreferredBody, answer=PreferredView, conditional=True, problems=write),
            Operation("DELETE", PATH, "deletePreferredLeader",
                      "Leave leadership where elections put it.", self.delete, role=Role.OPERATOR,
                      status=204, conditional=True, problems=write),
        ]  # fmt: skip

    async def get(self, _: Call) -> Reply:
        return self._shown()

    async def put(self, call: Call) -> Reply:
        name: str = call.body.name
        members = self._members
        if self._context.roles.leading:
            voters = {row["node_id"] for row in members.rows() if row["role"] == "voter"}
            if voters and name not in voters:
                raise invalid([("name", f"the group has the voters {', '.join(sorted(voters))}")])
        await self._make(call, name)
        return self._shown()

    async def delete(self, call: Call) -> None:
        await self._make(call, "")

    async def _make(self, call: Call, name: str) -> None:
        """Change the preferred leader. Raises ApiProblem, Refused, RaftError."""
        instead_of = _expected(call.condition, self._members.preferred.name)
        try:
            await self._members.make(Change(ChangeKind.PREFER, name, instead_of=instead_of))
        except PreferredChanged as error:
            raise unmet(_version(error.preferred or None)) from error
        log.info("preferred_leader_changed caller=%s name=%s", call.caller.name, name or "nobody")

    def _shown(self) -> Reply:
        name = self._members.preferred.name
        view = PreferredView(
            name=name,
            leader=self._context.roles.leader,
            reason=str(self._context.log.status().get("preferred_reason") or ""),
        )
        return Reply(view, version=_version(name))


def _version(name: str | None) -> str:
    return version_of({"preferredLeader": name})


def _expected(condition: Condition, name: str | None) -> tuple[str | None, ...] | None:
    """Return the names that a change may replace, None for any. Raises ApiProblem (412)."""
    if ANY in condition.versions:
        return None
    version = _version(name)
    if not (name is None if condition.absent else condition.met_by(version)):
        raise unmet(version)
    return (None, "") if name is None else (name,)
