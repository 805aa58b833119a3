"""The rules of each network fault, over the links of planned clusters. Pure."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState
from raftmq.chaos.cluster.linkmap import links_of
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.faults.base import Hit
from raftmq.chaos.faults.links import Links
from raftmq.chaos.faults.network import (
    around,
    around_peers,
    between_peers,
    cut,
    one_way,
    touching,
    two_sides,
)
from raftmq.chaos.faults.rules import Rule


def made(shape: Shape) -> tuple[ClusterState, Links]:
    shape_state = plan(shape, {}, "127.0.0.1", range(10_000, 10_000 + ports_needed(shape)))
    return shape_state, Links(links_of(shape_state), Path("nowhere"))


THREE, LINKS = made(Shape(links=True))
FIVE, LINKS_5 = made(Shape(replicas=5, links=True))
CLASSIC, LINKS_HA = made(Shape("sync", links=True))


def names(found: list) -> set[str]:
    return {item.link if isinstance(item, Rule) else item.name for item in found}


def test_links_around_a_node_are_all_its_incoming_and_outgoing_ones() -> None:
    assert names(around(LINKS, ["n1"])) == {
        *("n0>n1", "n2>n1", "n1>n0", "n1>n2"),
        *("clients>n1", "n1>namesrv"),
    }
    assert names(around_peers(LINKS, ["n1"])) == {"n0>n1", "n2>n1", "n1>n0", "n1>n2"}
    assert names(around_peers(LINKS, ["n0", "n1"])) == {"n0>n2", "n1>n2", "n2>n0", "n2>n1"}
    assert names(around(LINKS, ["namesrv"])) == {
        *("clients>namesrv", "n0>namesrv", "n1>namesrv", "n2>namesrv"),
    }
    assert all(rule == Rule(rule.link, cut=True) for rule in cut(around(LINKS, ["n1"])))


def test_one_way_cut_affects_links_of_one_direction() -> None:
    assert names(one_way(LINKS, ["n1"], inward=True)) == {"n0>n1", "n2>n1"}
    assert names(one_way(LINKS, ["n1"], inward=False)) == {"n1>n0", "n1>n2"}


def test_one_way_cut_of_a_shared_connection_names_its_direction() -> None:
    for node, inward, way in (
        ("m0", True, "forward"),
        ("m0", False, "back"),
        ("s0", True, "back"),
        ("s0", False, "forward"),
    ):
        assert one_way(LINKS_HA, [node], inward=inward) == [Rule("s0>m0", way, cut=True)]


@pytest.mark.parametrize("choice", [0.0, 0.3, 0.6, 0.99])
def test_halves_cut_every_link_between_two_sides(choice: float) -> None:
    first = FIVE.node("n1")
    result = names(two_sides(LINKS_5, first, FIVE.brokers, choice, bridge=False))
    side = {"n1"} | {n.name for n in FIVE.brokers if f"n1>{n.name}" not in result}
    rest = {n.name for n in FIVE.brokers} - side
    assert len(side) == 2
    assert result == {f"{a}>{b}" for a in side for b in rest} | {
        f"{b}>{a}" for a in side for b in rest
    }
    three = names(two_sides(LINKS, THREE.node("n1"), THREE.brokers, choice, bridge=False))
    assert three == names(around_peers(LINKS, ["n1"]))


@pytest.mark.parametrize("choice", [0.0, 0.3, 0.6, 0.99])
def test_bridge_leaves_one_node_connected_to_both_sides(choice: float) -> None:
    result = names(two_sides(LINKS, THREE.node("n1"), THREE.brokers, choice, bridge=True))
    assert result in ({"n0>n1", "n1>n0"}, {"n2>n1", "n1>n2"})
    five = names(two_sides(LINKS_5, FIVE.node("n0"), FIVE.brokers, choice, bridge=True))
    untouched = [n.name for n in FIVE.brokers if not any(n.name in ln.split(">") for ln in five)]
    assert len(untouched) == 1 and len(five) == 2 * 2 * 2 and untouched != ["n0"]


def test_groups_too_small_for_sides() -> None:
    _, links = made(Shape(replicas=1, links=True))
    alone = made(Shape(replicas=1, links=True))[0].brokers
    for bridge, members in ((False, alone), (True, alone), (True, THREE.brokers[:2])):
        with pytest.raises(ClusterError, match="too small"):
            two_sides(links, members[0], members, 0.0, bridge=bridge)


def test_clients_as_a_target_are_their_links_to_brokers() -> None:
    nobody, leader = Hit(()), Hit((THREE.node("n0"),))
    assert names(touching(LINKS, nobody, "clients")) == {"clients>n0", "clients>n1", "clients>n2"}
    assert names(between_peers(LINKS, nobody, "clients")) == {
        *("clients>n0", "clients>n1", "clients>n2"),
    }
    assert names(touching(LINKS, leader, "leader")) == names(around(LINKS, ["n0"]))
    assert names(between_peers(LINKS, leader, "leader")) == names(around_peers(LINKS, ["n0"]))
    everybody = Hit(THREE.brokers)
    assert len(between_peers(LINKS, everybody, "all")) == 6
