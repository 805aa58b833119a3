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
    counts,
    lag_problem,
    targets,
)
from raftmq.remoting.address import parse_address

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
        zone = leading.get("brokerZone", "")
        return Group(name, leader, {leader: Location(zone, _host(leader))}, problem=why)
    members = [row for row in await admin.broker.members(leader) if row["role"] == "voter"]
    answering = {i["raftSelfId"]: i for i in infos if i.get("raftRecovered") == "true"}
    zones = {node: info.get("brokerZone", "") for node, info in answering.items()}
    problems = [
        lag_problem(row["node_id"], recovered=row["recovered"], lag_frames=row["lag"])
        if row["node_id"] in answering
        else f"{row['node_id']} does not answer, or is recovering"
        for row in members
    ]
    return Group(
        name,
        leading["raftSelfId"],
        {
            row["node_id"]: Location(zones.get(row["node_id"], ""), _host(row["address"]))
            for row in members
        },
        next((row["node_id"] for row in members if row["preferred"]), ""),
        next(filter(None, problems), ""),
    )


def _leader(name: str, everybody: Sequence[Replica]) -> str:
    """Return the address of the group's leader, or ""."""
    return next(
        (r.address for r in everybody if (r.broker_name, r.broker_id) == (name, LEADER_ID)), ""
    )


def _host(address: str) -> str:
    return parse_address(address)[0]
