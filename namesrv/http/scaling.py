"""Drains of broker groups, and the balance of their leaders over zones and machines.

A request moves the leader of one group at most and returns when it leads, so that groups move in
turn. The caller repeats it until no group is left to move.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from raftmq.ops.leader_balance import Group, Location, Voter, counts, targets
from raftmq.remoting.address import host_of
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.problem import ApiProblem, conflict, not_found
from raftmq.web.resources.node import DrainBody, DrainView, RemoveBody
from raftmq.web.schema import Input

from .broker_fanout import Leaders, acting_for
from .cluster import ClusterView, Item
from .inputs import PREFERRED_PATH, OfGroup, OptionalName
from .views import GroupsListing, LeaderBalanceView

BALANCE = "/api/v1/leader-balance"
DRAIN = "/api/v1/drain"  # a broker's
COUNT_TIMEOUT_S = 8.0  # brokers count the content of all queues
MOVE_WAIT_S = 22.0  # shorter than the time limit of a change
POLL_S = 0.5


class OfCluster(Input, frozen=True):
    """`cluster` selects the broker groups of one cluster."""

    cluster: OptionalName = ""


class Scaling:
    """The handlers; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._moving = asyncio.Lock()
        self._counting = asyncio.Lock()
        self._counted: tuple[float, Item] = 0.0, {}  # the start of the last count, and its result

    def operations(self) -> list[Operation]:
        upstream = (404, 502, 503, 504)
        balance: dict[str, Any] = {"query": OfCluster, "answer": LeaderBalanceView}
        drain: dict[str, Any] = {"parameters": OfGroup, "answer": DrainView, "problems": upstream}
        path = "/api/v1/groups/{group}/drain"
        return [
            Operation("GET", BALANCE, "getLeaderBalance",
                      "Leaders by zone and machine, and the groups to move.", self.balance,
                      **balance, problems=(404,)),
            Operation("POST", BALANCE, "balanceLeaders",
                      "Move the leader of the next group, and wait until it leads.", self.move,
                      role=Role.OPERATOR, **balance, problems=(*upstream, 409)),
            Operation("GET", "/api/v1/drains", "listDrains", "The draining groups.", self.drains,
                      answer=GroupsListing[DrainView]),
            Operation("GET", path, "getDrain", "The remaining content of a group.", self.drain,
                      **drain),
            Operation("PUT", path, "putDrain", "Drain a group: clients send elsewhere.",
                      self.drain, role=Role.ADMIN, body=DrainBody,
                      **drain | {"problems": (*upstream, 409)}),
            Operation("DELETE", path, "deleteDrain", "Let a group take sends again.", self.drain,
                      role=Role.ADMIN, **drain),
            Operation("POST", f"{path}/remove", "removeGroup",
                      "Remove an empty group from its cluster.", self.remove, role=Role.ADMIN,
                      body=RemoveBody, **drain | {"problems": (*upstream, 409)}),
        ]  # fmt: skip

    # --- drains

    async def drains(self, _: Call) -> Item:
        """Count the content of all draining groups. Callers that wait for a count share the next,
        so a hundred open pages cost a leader no more than two."""
        called_s = time.monotonic()
        async with self._counting:
            start_s, result = self._counted
            if start_s < called_s:
                start_s = time.monotonic()
                result = await self._count()
                self._counted = start_s, result
        return result

    async def _count(self) -> Item:
        report = await self._cluster.refresh()
        names = [group["name"] for group in report["groups"] if is_draining(group)]
        items, errors = [], []
        results = await asyncio.gather(*(self._drain(name) for name in names))
        for name, result in zip(names, results, strict=True):
            if isinstance(result, ApiProblem):
                errors.append({"group": name, "error": result.detail})
            else:
                items.append(result)
        return {"items": items, "next": None, "errors": errors}

    async def _drain(self, group: str) -> Item | ApiProblem:
        try:
            value, _ = await self._leaders.relay(group, "GET", DRAIN, timeout_s=COUNT_TIMEOUT_S)
        except ApiProblem as problem:
            return problem
        return dict(value)

    async def drain(self, call: Call) -> Reply:
        method = call.request.method
        limit = {"timeout_s": COUNT_TIMEOUT_S} if method == "GET" else {}
        headers = {} if method == "GET" else acting_for(call)
        body = msgspec.to_builtins(call.body)
        value, _ = await self._leaders.relay(
            call.parameters.group, method, DRAIN, body=body, headers=headers, **limit
        )
        return Reply(value)

    async def remove(self, call: Call) -> Reply:
        value, _ = await self._leaders.relay(
            call.parameters.group, "POST", f"{DRAIN}/remove",
            body=msgspec.to_builtins(call.body), headers=acting_for(call),
        )  # fmt: skip
        return Reply(value)

    # --- leaders

    async def balance(self, call: Call) -> Item:
        return await self._shown(await self._groups(call.query.cluster))

    async def move(self, call: Call) -> Item:
        """Set the preferences of groups that stay, then move the next group."""
        if self._moving.locked():
            raise conflict("another request moves a leader at the moment")
        async with self._moving:
            end_s = time.monotonic() + MOVE_WAIT_S
            groups = await self._groups(call.query.cluster)
            after = await asyncio.to_thread(targets, groups)
            moved = None
            for group in groups:
                target = after[group.name]
                stays = target == group.leader
                if group.problem or (stays and target == group.preferred):
                    continue
                if not stays and moved:
                    continue
                await self._prefer(call, group, target)
                if not stays:
                    moved = group.name
            while moved and not await self._leads(moved, after[moved]):
                if time.monotonic() > end_s:
                    moved = None  # it follows when it can, and this request may be repeated
                    break
                await asyncio.sleep(POLL_S)
            return await self._shown(await self._groups(call.query.cluster), moved)

    async def _prefer(self, call: Call, group: Group, target: str) -> None:
        if len(group.locations) > 1 and group.preferred != target:
            headers = {"If-Match": "*", **acting_for(call)}
            await self._leaders.relay(
                group.name, "PUT", f"/api/v1{PREFERRED_PATH}",
                body={"name": target}, headers=headers,
            )  # fmt: skip

    async def _leads(self, name: str, target: str) -> bool:
        """Return whether a replica leads its group and serves, also in this name server's view."""
        for group in (await self._cluster.refresh())["groups"]:
            if group["name"] == name and group["leader"] == target:
                (leader,) = (b for b in group["brokers"] if b["name"] == target)
                ready = leader["node"].get("leaderReady") is True
                return ready and leader["address"] == group["leaderAddress"]
        return False

    async def _groups(self, cluster: str) -> list[Group]:
        report = await self._cluster.refresh()
        chosen = [
            group
            for group in report["groups"]
            if is_registered(group) and cluster in ("", group["cluster"])
        ]
        if cluster and not chosen:
            raise not_found(f"no cluster {cluster!r} is known to this name server")
        return [group_of(group) for group in chosen]

    async def _shown(self, groups: Sequence[Group], moved: str | None = None) -> Item:
        after = await asyncio.to_thread(targets, groups)
        items = [
            {
                "group": group.name,
                "leader": group.leader or None,
                "target": after[group.name] or None,
                "preferred": group.preferred or None,
                "moves": not group.problem and after[group.name] != group.leader,
                "reason": group.problem,
            }
            for group in groups
        ]
        machines = [
            {
                "zone": one.location.zone,
                "machine": one.location.machine,
                "groups": one.groups,
                "leaders": one.before,
                "leadersAfter": one.after,
            }
            for one in counts(groups, after)
        ]
        return {"items": items, "next": None, "machines": machines, "moved": moved}


def is_registered(group: Item) -> bool:
    """Return whether a broker of a group is registered. Others are only remembered."""
    return any(broker["registered"] for broker in group["brokers"])


def is_draining(group: Item) -> bool:
    """Return whether a group of a report is draining, by its leader's view."""
    leader = next((b["node"] for b in group["brokers"] if b["name"] == group["leader"]), None)
    return bool(leader and leader.get("drainingMs"))


def group_of(group: Item) -> Group:
    """Return a group of a report, with its voters' locations."""
    name, leader = group["name"], group["leader"]
    if leader is None:
        return Group(name, "", {}, problem=f"nobody leads {name} at the moment")
    views = {b["name"]: b["node"] for b in group["brokers"] if b["node"]}
    leading = views[leader]
    voters = [m for m in leading.get("members") or () if m.get("role") == "voter"]
    if not voters:
        location = _location(leading.get("address"), leading)
        return Group(name, leader, {leader: location}, problem="no Raft group")
    lags = {peer["id"]: peer.get("lagFrames") for peer in leading.get("peers") or ()}
    lags[leader] = 0
    return Group.of(
        name,
        leader,
        [_voter(m["id"], m["address"], views.get(m["id"]), lags.get(m["id"])) for m in voters],
        leading.get("preferredLeader") or "",
    )


def _voter(node: str, address: str, view: Item | None, lag_frames: int | None) -> Voter:
    recovered = view is not None and view.get("recovered") is not False
    return Voter(node, _location(address, view), view is not None, recovered, lag_frames)


def _location(address: str | None, view: Item | None) -> Location:
    return Location((view or {}).get("zone") or "", host_of(address or ""))
