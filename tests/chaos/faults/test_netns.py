"""Cuts below TCP, as pairs of hosts, and on a real cluster in namespaces if possible."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from raftmq.chaos.cluster import namespaces
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState, Node
from raftmq.chaos.cluster.topology import Shape, on_hosts, plan, ports_needed
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.chaos.faults.base import Context, Hit, Injection, Planned
from raftmq.chaos.faults.catalogue import find, make, unavailable
from raftmq.chaos.faults.netns import KINDS, WireCut
from raftmq.chaos.history.files import HistoryWriter
from raftmq.client import Admin, Message, Producer

PATIENCE_S = 120.0
KIND_NAMES = ("wire-cut-node", "wire-halves", "wire-one-way-in", "wire-one-way-out")


def hosts() -> ClusterState:
    shape = Shape(netns=True)
    ports = range(10_000, 10_000 + ports_needed(shape))
    return on_hosts(plan(shape, {}, "127.0.0.1", ports), "rmq-1", namespaces.address_of)


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        (
            "wire-cut-node",
            "n0>hub n0>namesrv n0>n1 n0>n2 hub>n0 namesrv>n0 n1>n0 n2>n0",
        ),
        ("wire-halves", "n0>n1 n0>n2 n1>n0 n2>n0"),
        ("wire-one-way-in", "n1>n0 n2>n0"),
        ("wire-one-way-out", "n0>n1 n0>n2"),
    ],
)
def test_wire_cut_pairs_for_each_kind(kind: str, pairs: str, tmp_path: Path) -> None:
    state = hosts()
    planned = Planned(1, 0, 1, kind, "leader", 0.0)
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        fault = KINDS[kind][1](planned, Context(Cluster(tmp_path), history))
        assert isinstance(fault, Injection) and isinstance(fault.deed, WireCut)
        result = fault.deed.pairs_of(Hit((state.node("n0"),)), planned, state)
    assert sorted(f"{a}>{b}" for a, b in result) == sorted(pairs.split())


def test_wire_cut_reports_missing_network_namespaces() -> None:
    direct = plan(Shape(), {}, "127.0.0.1", range(10_000, 10_020))
    reason = namespaces.why_not()
    for name in KIND_NAMES:
        assert unavailable(find(name)) == unavailable(find(name), hosts()) == reason
        here = unavailable(find(name), direct) or ""
        assert (reason or "have no network namespaces") in here


async def test_cluster_of_hosts_survives_a_wire_cut(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c")
    reason = namespaces.why_not()
    if reason is not None:  # then it is the reported reason
        with pytest.raises(ClusterError, match=reason):
            await cluster.up(Shape(netns=True))
        return
    network = os.stat("/proc/thread-self/ns/net").st_ino
    try:
        settings = {
            "mappedFileSizeCommitLog": str(8 << 20),
            "electionTimeoutMinMs": "2000",  # a machine that is busy elects nobody for that
            "electionTimeoutMaxMs": "3000",
        }
        state = await cluster.up(Shape(netns=True), settings, PATIENCE_S)
        with HistoryWriter(tmp_path / "h.jsonl") as history:
            await torment(cluster, state, Context(cluster, history))
    finally:
        await cluster.down()
        await cluster.close()
    assert os.stat("/proc/thread-self/ns/net").st_ino == network
    assert left_over(state.netns) == []


def left_over(name: str) -> list[str]:
    return [result for result in os.listdir("/run/netns") if result.startswith(name)]


async def torment(cluster: Cluster, state: ClusterState, context: Context) -> None:
    async with Admin(state.namesrv) as admin, Producer("wires", state.namesrv) as producer:
        await admin.topic.create("T", 8)
        await producer.send(Message("T", b"before"), timeout_ms=120_000)
        for number, kind in enumerate(("wire-cut-node", "wire-one-way-out", "wire-halves")):
            fault = make(Planned(number, 0, 1, kind, "leader", 0.0), context)
            await fault.inject()
            assert isinstance(fault, Injection) and fault.hit is not None
            await led_by_another(cluster, fault.hit.nodes[0])
            await producer.send(Message("T", kind.encode()), timeout_ms=120_000)
            await fault.heal()
            await fault.heal()
            await wait_recovered(cluster, PATIENCE_S)
        one = make(Planned(9, 0, 1, "wire-one-way-in", "follower", 0.0), context)
        await one.inject()
        await one.heal()
        await wait_recovered(cluster, PATIENCE_S)


async def led_by_another(cluster: Cluster, old: Node) -> None:
    """By the rest of the group, because the isolated leader may still lead a lower term."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            new = await cluster.leader()
            if new is not None and new.name != old.name:
                return
            await asyncio.sleep(0.02)
