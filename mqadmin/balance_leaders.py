"""balanceLeaders, which spreads the leaders of Raft groups evenly over machines (docs/scaling.md).

A machine is the host of a replica's address. The numbers of leaders differ by at most one where the
replicas permit it, with as few moves as possible. The command sets each group's preferred leader,
and its brokers move leadership when the replica is caught up. A group moves only after the group
before it serves again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.errors import BrokerRefused
from raftmq.client.route import LEADER_ID
from raftmq.remoting.address import parse_address

from .brokers import leads
from .command import Arguments, CommandError, Section, Table
from .definitions import THERE
from .targets import Replica, no_leader, replicas, runtime_infos

LAG_FRAMES_MAX = 100  # as before a planned stop in the Helm chart
MOVE_WAIT_S = 60.0  # brokers wait for 5 s without lag, and move twice a minute at most
MOVED, LEFT = "moved", "left"  # outcomes, beside THERE

Path = tuple[tuple[str, str], ...]  # broker groups with their new machines


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group. `machines` has its voters by node id. A group with a `problem` is left."""

    name: str
    leader: str
    machines: Mapping[str, str]
    preferred: str = ""
    problem: str = ""

    @property
    def machine(self) -> str:
        """Return the leader's machine, "" without a leader."""
        return self.machines.get(self.leader, "")

    @property
    def choices(self) -> list[str]:
        """Return the machines that may lead the group."""
        return [self.machine] if self.problem else sorted(set(self.machines.values()))

    def price(self, machine: str, move: int) -> int:
        """Return the price of leading on a machine. A move costs `move`, a changed preference 1."""
        stays = self.machines.get(self.preferred) == machine
        return move * (machine != self.machine) + (not stays)

    def node(self, machine: str) -> str:
        """Return the voter that should lead on a machine."""
        there = sorted(node for node, its in self.machines.items() if its == machine)
        return next((node for node in (self.leader, self.preferred) if node in there), there[0])


async def balance_leaders(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    cluster = arguments.text("cluster")
    everybody = replicas(await admin.cluster.info(), cluster)
    names = sorted({replica.broker_name for replica in everybody})
    groups = [await _group(admin, name, everybody) for name in names]
    machines = balanced(groups)
    carries_out = not (arguments.on("dryRun") or arguments.on("plan"))
    rows: list[dict[str, Any]] = []
    after = Counter[str]()
    later = False
    for group in groups:
        problem, machine = group.problem, machines[group.name]
        target = group.leader if problem else group.node(machine)
        if carries_out and not problem:
            problem = await _prefer(admin, group, target, cluster)
        if problem:
            target, machine = group.leader, group.machine
            later = later or len(group.machines) != 1
        outcome = LEFT if problem else THERE if target == group.leader else MOVED
        row = {"broker": group.name, "leader": group.leader, "target": target, "machine": machine}
        rows.append(row | {"outcome": outcome, "why": problem})
        after[machine] += 1
    before = Counter(group.machine for group in groups)
    voters = Counter(machine for group in groups for machine in set(group.machines.values()))
    table = [
        {"machine": name, "groups": voters[name], "before": before[name], "after": after[name]}
        for name in sorted(voters)
    ]
    return [Table(rows, "groups", later=carries_out and later), Table(table, "machines")]


def balanced(groups: Sequence[Group]) -> dict[str, str]:
    """Return each group's machine. The sum of the squares of the machines' leaders is as small as
    possible, then the number of moves, then the number of changed preferences.

    Groups are placed in turn, each by the cheapest path on which groups placed before make room
    (successive shortest paths of a minimum-cost flow)."""
    move = len(groups) + 1
    lead = move * move  # more than the prices of all groups
    placed: dict[str, str] = {}
    leaders = Counter[str]()
    for group in groups:
        paths: dict[str, tuple[int, Path]] = {
            machine: (group.price(machine, move), ((group.name, machine),))
            for machine in group.choices
        }
        shorter = True
        while shorter:
            shorter = False
            for other in groups:
                source = placed.get(other.name)
                if source is None or source not in paths:
                    continue
                for machine in other.choices:
                    price, path = paths[source]
                    price += other.price(machine, move) - other.price(source, move)
                    if machine not in paths or price < paths[machine][0]:
                        paths[machine] = price, (*path, (other.name, machine))
                        shorter = True
        end = min(paths, key=lambda m: (paths[m][0] + lead * (2 * leaders[m] + 1), m))
        placed.update(paths[end][1])
        leaders[end] += 1
    return placed


async def _prefer(admin: Admin, group: Group, target: str, cluster: str) -> str:
    """Make a node the preferred leader, and wait until it leads. Return the reason why the group is
    left, or "". Raises CommandError if it does not lead in time, so that no group follows."""
    if group.leader == target and (group.preferred == target or len(group.machines) == 1):
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
        return Group(name, leader, {leader: _host(leader)}, problem=why)
    members = [row for row in await admin.broker.members(leader) if row["role"] == "voter"]
    answering = {info["raftSelfId"] for info in infos if info.get("raftRecovered") == "true"}
    problems = [_problem(row, answering) for row in members]
    return Group(
        name,
        leading["raftSelfId"],
        {row["node_id"]: _host(row["address"]) for row in members},
        next((row["node_id"] for row in members if row["preferred"]), ""),
        next(filter(None, problems), ""),
    )


def _problem(row: Mapping[str, Any], answering: set[str]) -> str:
    """Return the reason why a group with this voter is left, or ""."""
    node, lag = row["node_id"], row["lag"]
    if node not in answering:
        return f"{node} does not answer, or is recovering"
    if not row["recovered"] or lag is None:
        return f"{node} is recovering"
    return f"{node} is {lag} frames behind" if lag > LAG_FRAMES_MAX else ""


def _leader(name: str, everybody: Sequence[Replica]) -> str:
    """Return the address of the group's leader, or ""."""
    return next(
        (r.address for r in everybody if (r.broker_name, r.broker_id) == (name, LEADER_ID)), ""
    )


def _host(address: str) -> str:
    return parse_address(address)[0]
