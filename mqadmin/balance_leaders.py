"""balanceLeaders, which spreads the leaders of Raft groups evenly over zones and machines
(docs/scaling.md).

The command sets each group's preferred leader, and its brokers move leadership when the replica is
caught up. A group moves only after the group before it serves again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import LEADER_ID
from raftmq.ops.leader_balance import (
    LEFT,
    MOVED,
    THERE,
    Group,
    Location,
    Voter,
    counts,
    targets,
)
from raftmq.remoting.address import host_of

from .brokers import leads
from .command import Arguments, CommandError, Section, Table
from .targets import Replica, no_leader, replicas, runtime_infos

MOVE_WAIT_S = 60.0  # brokers wait for 5 s without lag, and move twice a minute at most


async def balance_leaders(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    cluster = arguments.text("cluster")
    everybody = replicas(await admin.cluster.info(), cluster)
    names = sorted({replica.broker_name for replica in everybody})
    groups = [await _group(admin, name, everybody) for name in names]
    after = targets(groups)
    carries_out = not (arguments.on("dryRun") or arguments.on("plan"))
    rows: list[dict[str, Any]] = []
    later = False
    for group in groups:
        problem, target = group.problem, after[group.name]
        if carries_out and not problem:
            problem = await _prefer(admin, group, target, cluster)
        if problem:
            after[group.name] = target = group.leader
            later = later or len(group.locations) != 1
        location = group.locations.get(target, Location("", ""))
        outcome = LEFT if problem else THERE if target == group.leader else MOVED
        row = {"broker": group.name, "leader": group.leader, "target": target}
        rows.append(row | {"machine": location.machine, "outcome": outcome, "why": problem})
    table = [
        {**one.location._asdict(), "groups": one.groups, "before": one.before, "after": one.after}
        for one in counts(groups, after)
    ]
    return [Table(rows, "groups", later=carries_out and later), Table(table, "machines")]


async def _prefer(admin: Admin, group: Group, target: str, cluster: str) -> str:
    """Make a node the preferred leader, and wait until it leads. Return the reason why the group is
    left, or "". Raises CommandError if it does not lead in time, so that no group follows."""
    if group.leader == target and (group.preferred == target or len(group.locations) == 1):
        return ""
    everybody = replicas(await admin.cluster.info(), cluster)
    now = await _group(admin, group.name, everybody)
    if now.problem or now.leader != group.leader:
        return now.problem or f"{now.leader} leads now"
    try:
        await admin.broker.change_members(_leader(group.name, everybody), "prefer", target)
    except BrokerRefused as error:
        if error.outcome_unknown:
            raise
        return str(error)
    if target != group.leader and not await leads(admin, group.name, target, MOVE_WAIT_S):
        raise CommandError(
            f"{target} is the preferred leader of {group.name}, but did not lead within"
            f" {MOVE_WAIT_S:.0f} s; it follows when it can, and later groups were left"
        )
    return ""


async def _group(admin: Admin, name: str, everybody: Sequence[Replica]) -> Group:
    own = [replica for replica in everybody if replica.broker_name == name]
    leader = _leader(name, own)
    if not leader:
        return Group(name, "", {}, problem=no_leader([name]))
    infos = await runtime_infos(admin, own, one_answers=False)
    leading = infos[[replica.address for replica in own].index(leader)]
    if "raftSelfId" not in leading:
        why = leading.get("error", "no Raft group")
        return Group(name, leader, {leader: _location(leader, leading)}, problem=why)
    members = [row for row in await admin.broker.members(leader) if row["role"] == "voter"]
    answers = {info["raftSelfId"]: info for info in infos if "raftSelfId" in info}
    return Group.of(
        name,
        leading["raftSelfId"],
        [_voter(row, answers.get(row["node_id"], {})) for row in members],
        next((row["node_id"] for row in members if row["preferred"]), ""),
    )


def _voter(row: dict[str, Any], info: dict[str, str]) -> Voter:
    """Return a voter of its leader's `row`; `info` is empty if the voter does not answer."""
    recovered = row["recovered"] and info.get("raftRecovered") == "true"
    location = _location(row["address"], info)
    return Voter(row["node_id"], location, bool(info), recovered, row["lag"])


def _location(address: str, info: dict[str, str]) -> Location:
    return Location(info.get("brokerZone", ""), host_of(address))


def _leader(name: str, everybody: Sequence[Replica]) -> str:
    """Return the address of the group's leader, or ""."""
    return next(
        (r.address for r in everybody if (r.broker_name, r.broker_id) == (name, LEADER_ID)), ""
    )
