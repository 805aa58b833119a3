"""A cluster's gRPC proxies, their addresses, configuration, and whether they can run."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, SettingsError
from raftmq.chaos.cluster.proxies import proxy_conf
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed, standard_ports
from raftmq.packages import PROXY_PACKAGES
from tests.chaos.doubles import AgreeingProbe, Programs


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    yield made
    if (made.directory / "cluster.json").exists():
        await made.down()
    await made.close()


def conf(cluster: Cluster, name: str) -> dict[str, str]:
    text = (cluster.directory / name / "proxy.conf").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


async def test_proxies_get_broker_settings_and_their_own_overrides(
    cluster: Cluster,
) -> None:
    settings = {"maxMessageSize": "1048576", "traceOn": "false", "tlsEnable": "false"}
    own = {"tlsEnable": "true", "idempotentSends": "true"}
    made = await cluster.up(Shape(replicas=1, proxies=2), settings, proxy_settings=own)
    first, second = made.grpc_proxies
    reported = conf(cluster, "mqproxy-1")
    assert reported["namesrvAddr"] == made.namesrv
    assert (reported["bindAddress"], reported["grpcServerPort"]) == (second.host, str(second.port))
    assert reported["httpPort"] == str(second.http_port) != conf(cluster, "mqproxy-0")["httpPort"]
    assert (reported["maxMessageSize"], reported["tlsEnable"]) == ("1048576", "true")
    assert reported["idempotentSends"] == "true" and "traceOn" not in reported
    assert first.port != second.port

    await cluster.down()
    again = await cluster.up()
    assert again.proxy_settings == own and len(again.grpc_proxies) == 2


async def test_cluster_gets_further_proxies_and_keeps_existing_ones(cluster: Cluster) -> None:
    before = await cluster.up(Shape(replicas=1))
    assert not before.grpc_proxies
    after = await cluster.up(Shape(proxies=2))
    assert after.nodes[: len(before.nodes)] == before.nodes
    assert [node.name for node in after.grpc_proxies] == ["mqproxy-0", "mqproxy-1"]
    assert len({node.port for node in after.nodes} | {n.http_port for n in after.nodes}) == 8
    with pytest.raises(ClusterError, match="does not take any away"):
        await cluster.up(Shape(proxies=1))


async def test_up_waits_until_its_proxies_accept_connections(cluster: Cluster) -> None:
    probe = AgreeingProbe()
    probe.silent = {"mqproxy-0"}
    late = Cluster(cluster.directory, probe, Programs())
    with pytest.raises(ClusterError, match="no answer from mqproxy-0 yet"):
        await late.up(Shape(replicas=1, proxies=1), timeout_s=0.3)
    await late.close()


@pytest.mark.parametrize("missing", PROXY_PACKAGES)
async def test_missing_proxy_extra_is_reported_before_anything_is_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(SettingsError, match=r"pip install 'raftmq\[proxy\]'"):
        await cluster.up(Shape(proxies=1))
    assert not cluster.directory.exists()


def test_standard_proxy_ports_are_8081_and_the_next() -> None:
    shape = Shape(groups=2, proxies=3, standard_ports=True)
    ports = standard_ports(shape)
    assert len(ports) == len(set(ports)) == ports_needed(shape)
    result = plan(shape, {}, "127.0.0.1", ports).grpc_proxies
    assert [(n.port, n.http_port) for n in result] == [(8081, 8085), (8082, 8086), (8083, 8087)]
    with pytest.raises(ClusterError, match="4 proxies, not 5"):
        standard_ports(Shape(proxies=5))


def test_proxy_in_network_namespaces_has_no_http_api() -> None:
    shape = Shape(replicas=1, proxies=1)
    made = plan(shape, {}, "127.0.0.1", range(20_000, 20_000 + 4 * ports_needed(shape), 4))
    assert "httpEnable" not in proxy_conf(made, made.grpc_proxies[0])
    apart = replace(made, netns="x")
    assert "httpEnable=false\n" in proxy_conf(apart, apart.grpc_proxies[0])
