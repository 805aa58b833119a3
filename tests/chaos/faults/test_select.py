"""Selectors and their nodes, given a view of the cluster and a number."""

from __future__ import annotations

import pytest

from raftmq.chaos.cluster.cluster import NodeStatus
from raftmq.chaos.cluster.clusterfile import ClusterError, Node
from raftmq.chaos.cluster.probe import ReplicaView
from raftmq.chaos.faults.base import role_of
from raftmq.chaos.faults.select import leaders, pick_some, select


def broker(
    name: str, role: str = "", *, term: int = 1, last: int = 10, state: str = "running", group="g"
) -> NodeStatus:
    """`role` "": it does not answer."""
    node = Node(name, "broker", "127.0.0.1", 1, 2, group)
    view = ReplicaView(name, group, role, term, "", True, last, last, last, last)
    return NodeStatus(node, state, view if role else None)


def other(name: str, kind: str) -> NodeStatus:
    return NodeStatus(Node(name, kind, "127.0.0.1", 1, 0), "running", None)


THREE = [
    other("proxy", "proxy"),
    other("namesrv", "namesrv"),
    other("namesrv-1", "namesrv"),
    broker("n0", "follower", last=7),
    broker("n1", "leader", term=3),
    broker("n2", "follower", last=9),
]


@pytest.mark.parametrize(
    ("whom", "choice", "names"),
    [
        ("leader", 0.0, "n1"),
        ("leader", 0.99, "n1"),
        ("master", 0.0, "n1"),
        ("follower", 0.0, "n0"),
        ("follower", 0.5, "n2"),
        ("slave", 0.99, "n2"),
        ("most-behind", 0.99, "n0"),
        ("minority", 0.0, "n0"),
        ("minority", 0.99, "n2"),
        ("majority", 0.0, "n0 n1"),
        ("majority", 0.99, "n1 n2"),
        ("group", 0.5, "n0 n1 n2"),
        ("all", 0.5, "n0 n1 n2"),
        ("namesrv", 0.0, "namesrv"),
        ("namesrv", 0.5, "namesrv-1"),
        ("namesrvs", 0.5, "namesrv namesrv-1"),
        ("namesrv-1", 0.0, "namesrv-1"),
        ("clients", 0.5, ""),
        ("n2", 0.0, "n2"),
        ("proxy", 0.0, "proxy"),
    ],
)
def test_selector_returns_its_nodes(whom: str, choice: float, names: str) -> None:
    assert [node.name for node in select(whom, THREE, choice)] == names.split()


def test_deposed_leader_that_has_not_noticed_is_a_follower() -> None:
    result = [broker("n0", "leader", term=3), broker("n1", "leader", term=4), broker("n2", "")]
    assert [node.name for node in leaders(result)] == ["n1"]
    assert [node.name for node in select("follower", result, 0.0)] == ["n0"]
    assert [role_of(status.node, result) for status in result] == ["follower", "leader", "follower"]
    assert role_of(other("namesrv", "namesrv").node, result) == ""


def test_dead_nodes_are_neither_leader_nor_followers() -> None:
    result = [broker("n0", "leader", state="dead"), broker("n1", "follower"), broker("n2", "")]
    with pytest.raises(ClusterError, match="no leader now"):
        select("leader", result, 0.0)
    assert [node.name for node in select("follower", result, 0.99)] == ["n2"]
    assert [node.name for node in select("most-behind", result, 0.99)] == ["n1"]
    assert [node.name for node in select("n0", result, 0.0)] == ["n0"]


def test_selector_picks_one_group_and_never_mixes_groups() -> None:
    result = [broker(f"a{i}", "master" if i == 0 else "slave", group="a") for i in range(3)]
    result += [broker(f"b{i}", "master" if i == 0 else "slave", group="b") for i in range(3)]
    assert [node.name for node in select("leader", result, 0.6)] == ["b0"]
    for number in range(100):
        names = [node.name for node in select("majority", result, number / 100)]
        assert len({name[0] for name in names}) == 1 and len(names) == 2


@pytest.mark.parametrize(
    ("whom", "statuses", "words"),
    [
        ("nobody", THREE, "no target 'nobody'; there are leader"),
        ("minority", THREE[:4], "a group of 1 has no minority"),
        ("minority", THREE[:2], "no broker here"),
        ("follower", [THREE[4]], "no follower alive"),
        ("most-behind", [broker("n0")], "no follower answers"),
        ("namesrv", THREE[3:], "foreign name server"),
    ],
)
def test_selector_without_a_matching_node_is_rejected(
    whom: str, statuses: list[NodeStatus], words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        select(whom, statuses, 0.0)


def test_selected_sets_are_equally_likely() -> None:
    nodes = [broker(f"n{i}").node for i in range(5)]
    seen = [tuple(n.name for n in pick_some(nodes, 2, i / 1000)) for i in range(1000)]
    assert {seen.count(pair) for pair in set(seen)} == {100}
