"""mqcluster's machinery over real processes that do nothing, with a stand-in probe."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from raftmq.chaos.cluster import cluster as cluster_module
from raftmq.chaos.cluster import launch
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, SettingsError, load_state, locked
from raftmq.chaos.cluster.ports import HeldPorts, choose_ports, ephemeral_low, is_free
from raftmq.chaos.cluster.process import state
from raftmq.chaos.cluster.timeouts import FIND_TIMEOUT_S
from raftmq.chaos.cluster.topology import MODES, Shape, plan, ports_needed, standard_ports
from raftmq.remoting.registration_proof import load_registration_keys
from raftmq.store.disk import OsDisk
from raftmq.store.identity import StoreIdentity, record_identity
from tests.chaos.doubles import ENDS, STUBBORN, AgreeingProbe, Programs, StandInProbe
from tests.waiting import until

# A loopback address of its own, so that parallel tests never use the same ports.
QUIET_HOST = "127.83.0.5"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    yield made
    if (made.directory / "cluster.json").exists():
        await made.down()


async def test_cluster_up_status_kill_start_down_and_up_again(cluster: Cluster) -> None:
    made = await cluster.up(settings={"flushDiskType": "SYNC_FLUSH"})
    assert [node.name for node in made.nodes] == ["namesrv", "n0", "n1", "n2"]
    status = await cluster.status()
    assert [s.state for s in status] == ["running"] * 4
    assert [s.role for s in status] == ["name server", "leader", "follower", "follower"]

    leader = await cluster.find("leader")
    killed = cluster.signal(leader.name, signal.SIGKILL)
    await cluster.wait_dead(killed)
    assert [s.alive for s in await cluster.status()] == [True, False, True, True]
    with pytest.raises(ClusterError, match="n0 is not running"):
        cluster.signal("n0", signal.SIGTERM)
    started = cluster.start("n0")
    assert started != killed
    with pytest.raises(ClusterError, match="n0 runs already"):
        cluster.start("n0")

    assert set((await cluster.down()).values()) == {"stopped"}
    assert set((await cluster.down()).values()) == {"was not running"}
    again = await cluster.up(settings={"traceOn": "false"})
    assert again.settings == {"flushDiskType": "SYNC_FLUSH", "traceOn": "false"}
    assert [n.address for n in again.nodes] == [n.address for n in made.nodes]


async def test_cluster_is_not_created_in_a_directory_with_other_files(tmp_path: Path) -> None:
    for name in ("home", "node"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    (tmp_path / "node" / "n0" / "store").mkdir(parents=True)  # a disk of its own, mounted there
    (tmp_path / "node" / "n7").mkdir()
    for name, stranger in (("home", "thesis.tex"), ("node", "n7")):
        made = Cluster(tmp_path / name, AgreeingProbe(), Programs())
        before = sorted((tmp_path / name).rglob("*"))
        with pytest.raises(ClusterError, match=rf"holds no cluster \({stranger}\)"):
            await made.up()
        assert sorted((tmp_path / name).rglob("*")) == before
        await made.close()
    (tmp_path / "node" / "n7").rmdir()
    made = Cluster(tmp_path / "node", AgreeingProbe(), Programs())
    with pytest.raises(SettingsError, match="did you mean flushDiskType"):
        await made.up(settings={"flushDiskTyp": "SYNC_FLUSH"})
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["n0"]
    await made.close()
    made = Cluster(tmp_path / "node", AgreeingProbe(), Programs())
    await made.up()
    await made.down()
    await made.close()


async def test_broker_conf_describes_the_cluster(cluster: Cluster) -> None:
    made = await cluster.up(Shape(replicas=2), settings={"mappedFileSizeCommitLog": "8388608"})
    text = (cluster.directory / "n1" / "broker.conf").read_text()
    conf = dict(line.split("=", 1) for line in text.splitlines())
    n0, n1 = made.brokers
    assert conf["dLegerPeers"] == f"n0-127.0.0.1:{n0.peer_port};n1-127.0.0.1:{n1.peer_port}"
    assert conf["dLegerSelfId"] == "n1"
    assert conf["listenPort"] == str(n1.port)
    assert conf["namesrvAddr"] == made.namesrv
    assert conf["mappedFileSizeCommitLog"] == "8388608"
    assert Path(conf["storePathRootDir"]) == (cluster.directory / "n1" / "store").absolute()
    assert os.stat(conf["registrationKeyFile"]).st_mode & 0o777 == 0o600
    assert len(load_registration_keys(conf["registrationKeyFile"])) == 1


async def test_classic_cluster_has_masters_and_slaves_in_each_group(cluster: Cluster) -> None:
    made = await cluster.up(Shape("2m-2s-sync"))
    assert [node.name for node in made.nodes] == ["namesrv", "m0", "s0", "m1", "s1"]
    assert made.groups == ("broker-a", "broker-b")

    def conf(name: str) -> dict[str, str]:
        text = (cluster.directory / name / "broker.conf").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())

    master, slave = conf("m1"), conf("s1")
    assert "enableDLegerCommitLog" not in master | slave
    assert (master["brokerName"], slave["brokerName"]) == ("broker-b", "broker-b")
    assert (master["brokerRole"], slave["brokerRole"]) == ("SYNC_MASTER", "SLAVE")
    assert (master["brokerId"], slave["brokerId"]) == ("0", "1")
    assert master["haListenPort"] == str(int(master["listenPort"]) + 1)
    again = await Cluster(cluster.directory, AgreeingProbe(), Programs()).up()
    assert again.nodes == cluster.state().nodes


async def test_all_name_servers_are_in_the_broker_conf(cluster: Cluster) -> None:
    made = await cluster.up(Shape("pysyncobj", name_servers=2))
    assert [node.name for node in made.nodes] == ["namesrv", "namesrv-1", "n0", "n1", "n2"]
    conf = (cluster.directory / "n0" / "broker.conf").read_text()
    assert f"namesrvAddr={made.nodes[0].address};{made.nodes[1].address}\n" in conf
    assert "frameSizeMax=32768\n" in conf
    assert "raftmq.chaos.pysyncobj" in launch.command(cluster.directory, made.node("n0"))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_plans_distinct_nodes(mode: str) -> None:
    shape = Shape(mode, groups=3)
    needed = ports_needed(shape)
    state = plan(shape, {}, "127.0.0.1", range(20_000, 20_000 + 4 * needed, 4))
    assert len({node.name for node in state.nodes}) == len(state.nodes)
    assert len(state.groups) == 3
    assert all(len(state.members(group)) == MODES[mode].replicas for group in state.groups)
    each = ((node.port, node.peer_port, node.http_port) for node in state.nodes)
    ports = [port for node in each for port in node if port]
    assert len(set(ports)) == len(ports) == needed


@pytest.mark.parametrize("mode", MODES)
def test_standard_ports_are_the_usual_and_distinct(mode: str) -> None:
    shape = Shape(mode, groups=3, name_servers=4, standard_ports=True)
    ports = standard_ports(shape)
    assert len(ports) == len(set(ports)) == ports_needed(shape)
    nodes = plan(shape, {}, "127.0.0.1", ports).nodes
    assert [(n.port, n.http_port) for n in nodes[:2]] == [(9876, 9880), (9877, 9881)]
    brokers = [node for node in nodes if node.group == "broker-a"]
    assert (brokers[0].port, brokers[0].http_port) == (10911, 10915)
    assert [node.port for node in brokers] == [10911, 10921, 10931][: len(brokers)]
    used = {p for n in nodes for p in (n.port, n.peer_port, n.http_port) if p}
    assert used.isdisjoint(node.ha_port for node in nodes if node.kind == "broker")


@pytest.mark.parametrize(
    "shape", [Shape(links=True), Shape(netns=True), Shape(name_servers=5), Shape(replicas=10)]
)
def test_shape_without_standard_ports_is_rejected(shape: Shape) -> None:
    with pytest.raises(ClusterError):
        standard_ports(shape)


async def test_standard_ports_in_use_are_reported_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.chaos.cluster.cluster.is_free", lambda host, port: port != 10_921)
    cluster = Cluster(tmp_path, AgreeingProbe(), Programs())
    with pytest.raises(ClusterError, match="in use already: port 10921;"):
        await cluster.up(Shape(standard_ports=True))
    assert not (tmp_path / "cluster.json").exists()


async def test_existing_cluster_keeps_its_ports(cluster: Cluster) -> None:
    await cluster.up(Shape(replicas=1))
    with pytest.raises(ClusterError, match="ports of its own already"):
        await cluster.up(Shape(standard_ports=True))


async def test_foreign_name_server_is_used_and_not_started(cluster: Cluster) -> None:
    made = await cluster.up(Shape(replicas=1, namesrv="127.0.0.1:9876"))
    assert [node.name for node in made.nodes] == ["n0"]
    assert made.namesrv == "127.0.0.1:9876"


async def test_name_servers_change_only_while_no_process_runs(cluster: Cluster) -> None:
    made = await cluster.up(Shape(replicas=1, name_servers=2))
    with pytest.raises(ClusterError, match=r"namesrv, namesrv-1, n0 of .* still run"):
        await cluster.up(Shape(namesrv="127.0.0.1:9876"))
    assert cluster.state() == made
    await cluster.down()
    changed = await cluster.up(Shape(namesrv="127.0.0.1:9876"))
    assert [node.name for node in changed.nodes] == ["n0"]


async def test_number_of_name_servers_cannot_change(cluster: Cluster) -> None:
    await cluster.up(Shape(replicas=1, name_servers=2))
    await cluster.up(Shape(name_servers=2))
    with pytest.raises(ClusterError, match="has name servers 2, not 3"):
        await cluster.up(Shape(name_servers=3))


async def test_processes_with_former_settings_are_listed_until_restarted(
    cluster: Cluster,
) -> None:
    await cluster.up(Shape(replicas=2), {"flushDiskType": "SYNC_FLUSH"})
    assert cluster.outdated() == []
    await cluster.up(settings={"flushDiskType": "ASYNC_FLUSH"})
    assert cluster.outdated() == ["n0", "n1"]
    await cluster.wait_dead(cluster.signal("n0", signal.SIGKILL))
    assert cluster.outdated() == ["n1"]
    cluster.start("n0")
    assert cluster.outdated() == ["n1"]


async def test_segment_size_is_the_stores(cluster: Cluster) -> None:
    key = "mappedFileSizeCommitLog"
    made = await cluster.up(Shape(replicas=2), {key: "64MiB"})
    store = cluster.store_of(made.node("n1"))
    store.mkdir()
    record_identity(OsDisk(str(store)), StoreIdentity("raft", "broker-a", "n1", 64 << 20))
    await cluster.up(settings={key: str(64 << 20)})
    with pytest.raises(SettingsError, match=f"log of n1 was made with segments of {64 << 20} "):
        await cluster.up(settings={key: "32MiB"})
    assert cluster.state().settings == {key: str(64 << 20)}


async def test_number_of_replicas_cannot_change(cluster: Cluster) -> None:
    await cluster.up(Shape(replicas=1))
    with pytest.raises(ClusterError, match="has replicas 1, not 3"):
        await cluster.up(Shape(replicas=3))


@pytest.mark.parametrize("count", [0, 10])
async def test_replicas_out_of_range_are_rejected(tmp_path: Path, count: int) -> None:
    with pytest.raises(ClusterError, match="1 to 9"):
        await Cluster(tmp_path, AgreeingProbe(), Programs()).up(Shape(replicas=count))


async def test_node_that_ends_during_up_is_reported_with_its_log(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, StandInProbe(), Programs(n1=ENDS))
    with pytest.raises(ClusterError, match=r"ended by itself: n1(.|\n)*cannot open the store"):
        await cluster.up(timeout_s=120)
    await assert_no_orphans(cluster)


@pytest.mark.parametrize(
    ("leader", "ready", "registered", "why"),
    [
        (None, True, None, "no leader yet"),
        ("n0", False, None, "not ready yet"),
        ("n0", True, None, "names no leader"),
        ("n0", True, "127.0.0.1:1", "names 127.0.0.1:1"),
    ],
)
async def test_up_waits_until_a_send_can_succeed(
    tmp_path: Path, leader: str | None, ready: bool, registered: str | None, why: str
) -> None:
    probe = StandInProbe()
    probe.leader, probe.ready, probe.registered = leader, ready, registered
    cluster = Cluster(tmp_path, probe, Programs())
    with pytest.raises(ClusterError, match=why):
        await cluster.up(Shape(replicas=1), timeout_s=0.05)
    await assert_no_orphans(cluster)


async def test_up_waits_for_every_replica_but_serving_does_not_need_all(cluster: Cluster) -> None:
    await cluster.up()
    probe = AgreeingProbe()
    probe.silent = {"n2"}
    other = Cluster(cluster.directory, probe, Programs())
    await other.wait_serving(timeout_s=60)
    with pytest.raises(ClusterError, match="no answer from n2 yet"):
        await other.up(timeout_s=0.05)
    assert all(status.alive for status in await cluster.status())


async def test_leader_is_found_through_an_election(tmp_path: Path) -> None:
    probe = StandInProbe()
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    await cluster.up()
    try:
        looking = Cluster(cluster.directory, probe, Programs())
        probe.leader = None
        finding = asyncio.create_task(looking.find("leader"))
        await asyncio.sleep(0.1)
        assert not finding.done()
        probe.leader = "n1"
        assert (await finding).name == "n1"
    finally:
        await cluster.down()
    probe.leader = None
    async with asyncio.timeout(FIND_TIMEOUT_S / 2):  # of the dead it asks once
        with pytest.raises(ClusterError, match="no broker says that it leads"):
            await looking.find("leader")


async def test_find_leader_waits_a_bounded_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.up(Shape(replicas=1))
    monkeypatch.setattr(cluster_module, "FIND_TIMEOUT_S", 0.05)
    probe = StandInProbe()
    probe.leader = None
    with pytest.raises(ClusterError, match="no broker says that it leads"):
        await Cluster(cluster.directory, probe, Programs()).find("leader")


async def test_cancelled_up_leaves_no_orphan(tmp_path: Path) -> None:
    probe = StandInProbe()
    probe.leader = None
    cluster = Cluster(tmp_path, probe, Programs())
    task = asyncio.create_task(cluster.up(Shape(replicas=1)))
    await until(lambda: "n0" in started_nodes(tmp_path))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_no_orphans(cluster)


async def test_failed_up_leaves_earlier_processes_running(cluster: Cluster) -> None:
    await cluster.up()
    killed = cluster.signal("n1", signal.SIGKILL)
    await cluster.wait_dead(killed)
    probe = StandInProbe()
    probe.leader = None
    with pytest.raises(ClusterError, match="no leader yet"):
        await Cluster(cluster.directory, probe, Programs()).up(timeout_s=0.05)
    assert [s.alive for s in await cluster.status()] == [True, True, False, True]


async def test_down_kills_stubborn_processes_and_reports_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, AgreeingProbe(), Programs(n0=STUBBORN))
    await cluster.up(Shape(replicas=1))
    log = tmp_path / "n0" / "log.txt"
    await until(lambda: b"ready" in log.read_bytes())  # from here on it ignores SIGTERM
    ended = await cluster.down(timeout_s=0.3)
    assert ended["n0"].startswith("killed")
    await assert_no_orphans(cluster)


async def test_down_continues_stopped_processes_so_that_they_end(cluster: Cluster) -> None:
    await cluster.up(Shape(replicas=2))
    await cluster.wait_stopped(cluster.signal("n1", signal.SIGSTOP))
    assert set((await cluster.down(timeout_s=120)).values()) == {"stopped"}
    await assert_no_orphans(cluster)


async def test_concurrent_commands_on_one_cluster_are_rejected(cluster: Cluster) -> None:
    await cluster.up(Shape(replicas=1))
    with locked(cluster.directory), pytest.raises(ClusterError, match="another command"):
        await cluster.down()


async def test_missing_and_damaged_clusters_are_reported(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no cluster in"):
        await cluster.status()
    await cluster.up(Shape(replicas=1))
    with pytest.raises(ClusterError, match="there are namesrv, n0"):
        cluster.signal("n7", signal.SIGKILL)
    (cluster.directory / "cluster.json").rename(tmp_path / "kept.json")
    (cluster.directory / "cluster.json").write_bytes(b'{"version":1')
    with pytest.raises(ClusterError, match="damaged"):
        load_state(cluster.directory)
    (cluster.directory / "cluster.json").write_bytes(orjson.dumps({"version": 9}))
    with pytest.raises(ClusterError, match="version 9"):
        load_state(cluster.directory)
    (tmp_path / "kept.json").rename(cluster.directory / "cluster.json")


def test_ports_are_free_distinct_and_below_the_ephemeral_range() -> None:
    ports = choose_ports(7, QUIET_HOST, random.Random(5))
    assert len(set(ports)) == 7
    assert all(10_000 <= port < ephemeral_low() for port in ports)
    assert all(abs(a - b) >= 4 for a in ports for b in ports if a != b)
    with socket.create_server((QUIET_HOST, ports[0])):
        assert not is_free(QUIET_HOST, ports[0])
        assert ports[0] not in choose_ports(7, QUIET_HOST, random.Random(5))


def test_held_port_is_exclusive_before_it_listens_and_while_it_is_down() -> None:
    """A second cluster that starts then gets different ports, even in the same directory."""
    first, second = HeldPorts(QUIET_HOST), HeldPorts(QUIET_HOST)
    try:
        ports = first.choose(5, random.Random(5))
        with socket.create_server((QUIET_HOST, ports[0])) as owner:
            with socket.create_connection(owner.getsockname()), owner.accept()[0]:
                assert set(ports).isdisjoint(second.choose(5, random.Random(5)))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((QUIET_HOST, ports[0]))
        assert set(ports).isdisjoint(second.choose(5, random.Random(5)))
        with socket.create_server((QUIET_HOST, ports[0])):
            pass
        first.close()
        assert set(ports[1:]) <= set(choose_ports(5, QUIET_HOST, random.Random(5)))
    finally:
        first.close()
        second.close()


def started_nodes(directory: Path) -> list[str]:
    if not (directory / "cluster.json").exists():
        return []
    return [node.name for node in load_state(directory).nodes if node.process]


async def assert_no_orphans(cluster: Cluster) -> None:
    processes = [node.process for node in cluster.state().nodes if node.process]
    assert [state(process) for process in processes] == ["dead"] * len(processes)
