"""Chooses the nodes that a fault hits, from a selector, the cluster's state and a number in [0, 1).
Pure.

    leader, master         the leader (of several groups one, picked by the number)
    follower, slave        a broker that does not lead, alive or frozen; never a dead broker
    most-behind            the living follower with the shortest log
    minority, majority     the largest minority, or the smallest majority, of a group's nodes
    group                  every broker of a group
    all                    every broker
    namesrv, namesrvs      one name server; all name servers
    clients                no node: the fault concerns the clients' side
    a node's name          that node in any state

In classic modes "leader" is the master. A leader that answers with a lower term than a second
leader of its group is a follower here, because it has not noticed yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, islice

from ..cluster.cluster import NodeStatus
from ..cluster.clusterfile import NAMESRV, ClusterError, Node


class NobodyNow(ClusterError):
    """No node has the target's role at this moment; that may change soon."""


LEADING = ("leader", "master")
SELECTORS = (
    "leader",
    "follower",
    "most-behind",
    "minority",
    "majority",
    "group",
    "all",
    "namesrv",
    "namesrvs",
    "clients",
    "master",
    "slave",
)


def select(whom: str, statuses: Sequence[NodeStatus], choice: float) -> list[Node]:
    """Return the current nodes of the selector. Raises ClusterError if there are none, NobodyNow if
    that may change by itself."""
    brokers = [s for s in statuses if s.node.kind == "broker"]
    servers = [s.node for s in statuses if s.node.kind == NAMESRV]
    if whom == "clients":
        return []
    if whom == "all":
        return [s.node for s in brokers]
    if whom in ("namesrv", "namesrvs"):
        if not servers:
            raise ClusterError("this cluster uses a foreign name server")
        return servers if whom == "namesrvs" else [pick(servers, choice)]
    named = [s.node for s in statuses if s.node.name == whom]
    if named:
        return named
    if whom in LEADING:
        leading = leaders(brokers)
        if not leading:
            raise NobodyNow("there is no leader now")
        return [pick(leading, choice)]
    if whom in ("minority", "majority", "group"):
        group = _group(brokers, choice)
        members = [s.node for s in brokers if s.node.group == group]
        if whom == "group":
            return members
        count = (len(members) - 1) // 2 if whom == "minority" else len(members) // 2 + 1
        if count == 0:
            raise ClusterError(f"a group of {len(members)} has no minority")
        return pick_some(members, count, choice)
    if whom in ("follower", "slave", "most-behind"):
        return [_follower(whom, brokers, choice)]
    names = ", ".join((*SELECTORS, *(s.node.name for s in statuses)))
    raise ClusterError(f"no target {whom!r}; there are {names}")


def leaders(statuses: Sequence[NodeStatus]) -> list[Node]:
    """Return the leaders, in each group the living leader of the highest term."""
    result: dict[str, NodeStatus] = {}
    for status in statuses:
        if not status.alive or status.view is None or status.role not in LEADING:
            continue
        other = result.get(status.node.group)
        if other is None or other.view is None or other.view.term < status.view.term:
            result[status.node.group] = status
    return [status.node for status in result.values()]


def pick(nodes: Sequence[Node], choice: float) -> Node:
    assert 0 <= choice < 1, choice
    return nodes[int(choice * len(nodes))]


def pick_some(nodes: Sequence[Node], count: int, choice: float) -> list[Node]:
    """Return `count` of them, in their order; all subsets are equally likely."""
    assert 0 <= choice < 1, choice
    ways = math.comb(len(nodes), count)
    return list(next(islice(combinations(nodes, count), int(choice * ways), None)))


def _follower(whom: str, brokers: Sequence[NodeStatus], choice: float) -> Node:
    leading = {node.name for node in leaders(brokers)}
    others = [s for s in brokers if s.alive and s.node.name not in leading]
    if not others:
        raise NobodyNow("there is no follower alive")
    if whom != "most-behind":
        return pick([s.node for s in others], choice)
    known = [s for s in others if s.view is not None]
    if not known:
        raise NobodyNow("no follower answers, so none is known to be the most behind")
    ends = [s.view.last_index for s in known if s.view is not None]
    return pick([s.node for s, end in zip(known, ends, strict=True) if end == min(ends)], choice)


def _group(brokers: Sequence[NodeStatus], choice: float) -> str:
    groups = list(dict.fromkeys(s.node.group for s in brokers))
    if not groups:
        raise ClusterError("there is no broker here")
    return groups[int(choice * len(groups))]
