"""Links, their dialling ends, and configurations with the proxies' ports."""

from __future__ import annotations

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterState, load_state, save_state
from raftmq.chaos.cluster.launch import broker_conf
from raftmq.chaos.cluster.linkmap import links_of
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed


def cluster(shape: Shape) -> ClusterState:
    ports = list(range(20_000, 20_000 + 4 * ports_needed(shape), 4))
    made = plan(shape, {}, "127.0.0.1", ports)
    each = ((node.port, node.peer_port, node.http_port) for node in made.nodes)
    used = [port for node in each for port in node if port]
    assert sorted(used + list(made.link_ports.values())) == ports  # as many as needed, each once
    return made


def conf_of(state: ClusterState, name: str, tmp_path) -> dict[str, str]:
    text = broker_conf(tmp_path, state, state.node(name))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_raft_group_has_a_port_for_every_link_direction(tmp_path) -> None:
    state = cluster(Shape(links=True))
    links = {link.name: link for link in links_of(state)}
    assert set(links) == {
        *("n0>n1", "n0>n2", "n1>n0", "n1>n2", "n2>n0", "n2>n1"),
        *("clients>n0", "clients>n1", "clients>n2", "clients>namesrv"),
        *("n0>namesrv", "n1>namesrv", "n2>namesrv"),
    }
    assert links["n0>n1"].target_port == state.node("n1").peer_port
    assert links["clients>n0"].target_port == state.node("n0").port
    conf = conf_of(state, "n1", tmp_path)
    own, port = state.node("n1"), {name: link.port for name, link in links.items()}
    assert conf["dLegerPeers"] == (
        f"n0-127.0.0.1:{port['n1>n0']};n1-127.0.0.1:{own.peer_port};n2-127.0.0.1:{port['n1>n2']}"
    )
    assert (conf["listenPort"], conf["advertisedPort"]) == (str(own.port), str(port["clients>n1"]))
    assert conf["namesrvAddr"] == f"127.0.0.1:{port['n1>namesrv']}"
    assert state.namesrv == f"127.0.0.1:{port['clients>namesrv']}"
    assert state.direct_namesrv == state.node("namesrv").address


def test_slaves_reach_their_master_through_a_link(tmp_path) -> None:
    state = cluster(Shape("2m-2s-sync", links=True))
    links = {link.name: link for link in links_of(state)}
    assert {name for name in links if "namesrv" not in name} == {
        *("s0>m0", "s1>m1"),
        *("clients>m0", "clients>m1", "clients>s0", "clients>s1"),
    }
    assert links["s0>m0"].target_port == state.node("m0").ha_port
    assert conf_of(state, "s0", tmp_path)["haMasterAddress"] == f"127.0.0.1:{links['s0>m0'].port}"
    assert "haMasterAddress" not in conf_of(state, "m0", tmp_path)


def test_several_groups_and_name_servers(tmp_path) -> None:
    state = cluster(Shape(groups=2, name_servers=2, links=True))
    links = [link.name for link in links_of(state)]
    assert len(links) == len(set(links)) == 2 * 6 + 6 + 2 + 2 * 6
    assert "n0>n3" not in links  # groups do not communicate
    assert len(state.namesrv.split(";")) == 2
    assert len(conf_of(state, "n4", tmp_path)["namesrvAddr"].split(";")) == 2
    preferred = [conf_of(state, f"n{n}", tmp_path)["preferredLeaderId"] for n in range(6)]
    assert preferred == ["n0"] * 3 + ["n4"] * 3


@pytest.mark.parametrize("mode", ["raft", "2m-2s-async"])
def test_cluster_without_links_connects_directly(mode: str, tmp_path) -> None:
    state = cluster(Shape(mode))
    assert links_of(state) == () and not state.link_ports
    assert all(node.kind != "proxy" for node in state.nodes)
    broker = state.brokers[1]
    conf = conf_of(state, broker.name, tmp_path)
    assert "advertisedPort" not in conf and "haMasterAddress" not in conf
    assert state.client_address(broker) == broker.address
    assert conf["namesrvAddr"] == state.namesrv == state.direct_namesrv


def test_foreign_name_server_is_reached_directly(tmp_path) -> None:
    state = cluster(Shape(namesrv="10.0.0.1:9876", links=True))
    assert state.namesrv == state.direct_namesrv == "10.0.0.1:9876"
    assert conf_of(state, "n0", tmp_path)["namesrvAddr"] == "10.0.0.1:9876"
    assert not any("namesrv" in link.name for link in links_of(state))


def test_link_ports_are_kept_in_the_file(tmp_path) -> None:
    state = cluster(Shape(links=True))
    save_state(tmp_path, state)
    assert links_of(load_state(tmp_path)) == links_of(state)


def test_link_names_do_not_depend_on_ports() -> None:
    shape = Shape(links=True)
    first, second = (plan(shape, {}, "127.0.0.1", [*range(b, b + 99)]) for b in (1_000, 5_000))
    assert list(first.link_ports) == list(second.link_ports)
