"""Network namespaces with names and addresses, and reports of missing features."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raftmq.chaos.cluster import namespaces
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, load_state, save_state
from raftmq.chaos.cluster.topology import Shape, check_unchanged, on_hosts, plan, ports_needed
from tests.chaos.doubles import AgreeingProbe, Programs

ROOT, NOBODY = "CapEff:\t000001ffffffffff\n", "Name:\tx\nCapEff:\t0000000000000000\n"


def test_missing_capabilities_are_listed() -> None:
    assert namespaces.missing_capabilities(ROOT) == []
    assert namespaces.missing_capabilities(NOBODY) == ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]
    assert namespaces.missing_capabilities("CapEff:\t1000\n") == ["CAP_SYS_ADMIN"]
    assert len(namespaces.missing_capabilities("")) == 2


def test_namespace_names_and_addresses() -> None:
    one, other = namespaces.name_for(Path("/a/b")), namespaces.name_for(Path("/a/c"))
    assert one == namespaces.name_for(Path("/a/b")) != other
    assert len(one) + len("-namesrv-7") < 64
    addresses = {namespaces.address_of(i) for i in range(namespaces.NODES_MAX)}
    assert len(addresses) == namespaces.NODES_MAX and namespaces.HUB_ADDRESS not in addresses
    with pytest.raises(AssertionError):
        namespaces.address_of(namespaces.NODES_MAX)


def test_every_node_has_a_host_of_its_own(tmp_path: Path) -> None:
    shape = Shape(name_servers=2, netns=True)
    ports = range(10_000, 10_000 + ports_needed(shape))
    state = on_hosts(plan(shape, {}, "127.0.0.1", ports), "rmq-1", namespaces.address_of)
    assert len({node.host for node in state.nodes}) == len(state.nodes) == 5
    assert state.namesrv == ";".join(node.address for node in state.name_servers)
    save_state(tmp_path, state)
    assert load_state(tmp_path).netns == "rmq-1"
    check_unchanged(shape, state, tmp_path)
    with pytest.raises(ClusterError, match="has netns True, not False"):
        check_unchanged(Shape(netns=False), state, tmp_path)
    shape = Shape(links=True, netns=True)
    linked = plan(shape, {}, "127.0.0.1", range(10_000, 10_000 + ports_needed(shape)))
    with pytest.raises(ClusterError, match="either links or network namespaces"):
        on_hosts(linked, "rmq-1", namespaces.address_of)


async def test_missing_machine_features_are_reported_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text(NOBODY)
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(namespaces, "_STATUS", status)
    with pytest.raises(ClusterError, match="no CAP_NET_ADMIN, CAP_SYS_ADMIN: run as root"):
        await cluster.up(Shape(netns=True))
    status.write_text(ROOT)
    assert namespaces.why_not() is None
    monkeypatch.setattr(namespaces, "_OWN", tmp_path / "nothing")
    with pytest.raises(ClusterError, match="kernel has no network namespaces"):
        await cluster.up(Shape(netns=True))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ClusterError, match="no `ip` tool"):
        await cluster.up(Shape(netns=True))
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_too_many_hosts_are_rejected() -> None:
    reason = namespaces.why_not()
    addresses = {f"n{i}": "10.77.0.9" for i in range(namespaces.NODES_MAX + 1)}
    text = "at most 200 nodes, not 201" if reason is None else reason
    with pytest.raises(ClusterError, match=text):
        namespaces.create("rmq-test", addresses)


def test_missing_network_is_rejected() -> None:
    with pytest.raises(ClusterError, match="the cluster's network rmq-none is not there"):
        namespaces.enter("rmq-none")
    namespaces.delete("rmq-none")  # nothing to remove
