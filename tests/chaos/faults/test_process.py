"""Faults of processes on a cluster of processes that do nothing, with records and healing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.faults import base, process
from raftmq.chaos.faults.base import Context, Fault, Planned
from raftmq.chaos.faults.catalogue import make
from raftmq.chaos.history.files import HistoryWriter
from tests.chaos.doubles import SLOW_TO_END, STUBBORN, AgreeingProbe, Programs


class Scene:
    """A cluster, a history and a way to make faults."""

    def __init__(self, cluster: Cluster, history: HistoryWriter) -> None:
        self.cluster = cluster
        self.history = history
        self.numbers = 0

    def fault(self, kind: str, whom: str, choice: float = 0.0) -> Fault:
        self.numbers += 1
        planned = Planned(self.numbers, 0.0, 1.0, kind, whom, choice)
        return make(planned, Context(self.cluster, self.history))

    async def states(self) -> dict[str, str]:
        status = await self.cluster.status()
        return {s.node.name: s.state for s in status if s.node.kind == "broker"}

    async def down(self) -> list[str]:
        return [name for name, state in (await self.states()).items() if state == "dead"]

    def pids(self) -> dict[str, int]:
        nodes = self.cluster.state().brokers
        return {node.name: node.process.pid for node in nodes if node.process}

    def records(self) -> list[dict[str, Any]]:
        self.history.flush()
        lines = self.history.path.read_bytes().splitlines()
        return [orjson.loads(line) for line in lines][1:]


@pytest.fixture
def probe() -> AgreeingProbe:
    return AgreeingProbe()


@pytest.fixture
async def scene(tmp_path: Path, probe: AgreeingProbe) -> AsyncIterator[Scene]:
    cluster = Cluster(tmp_path / "c", probe, Programs())
    await cluster.up()
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        yield Scene(cluster, history)
    await cluster.down()


@pytest.mark.parametrize(
    ("kind", "whom", "choice", "hit", "role"),
    [
        ("kill", "leader", 0.0, ["n0"], "leader"),
        ("kill", "follower", 0.99, ["n2"], "follower"),
        ("kill", "majority", 0.0, ["n0", "n1"], "leader"),
        ("term", "n1", 0.0, ["n1"], "follower"),
        ("restart-all", "all", 0.0, ["n0", "n1", "n2"], "leader"),
        ("stop-all", "all", 0.0, ["n0", "n1", "n2"], "leader"),
        ("namesrv-down", "namesrv", 0.0, ["namesrv"], ""),
    ],
)
async def test_killed_node_is_started_again_by_the_heal(
    scene: Scene, kind: str, whom: str, choice: float, hit: list[str], role: str
) -> None:
    before = scene.pids()
    fault = scene.fault(kind, whom, choice)
    await fault.inject()
    assert all(name in fault.describe() for name in hit)
    alive = {s.node.name: s.alive for s in await scene.cluster.status()}
    assert [name for name in alive if not alive[name]] == hit
    await fault.heal()
    assert await scene.down() == []
    await fault.heal()  # nothing left to undo
    started, done, healing, healed = scene.records()
    assert [r["type"] for r in (started, done, healing, healed)] == ["invoke", "ok"] * 2
    assert [r["f"] for r in (started, done, healing, healed)] == ["inject"] * 2 + ["heal"] * 2
    for record in (started, done, healing, healed):
        assert (record["p"], record["fault"], record["kind"]) == ("nemesis", 1, kind)
        assert (record["whom"], record["nodes"], record["role"]) == (whom, hit, role)
    assert started["op"] == done["op"] != healing["op"] == healed["op"]
    if len(hit) == 1 and hit[0] in before:
        assert started["pid"] == before[hit[0]] != healed["pid"] == scene.pids()[hit[0]]
    else:
        assert len(hit) == 1 or started["pid"] == 0


async def test_paused_node_continues_after_the_heal(scene: Scene) -> None:
    before = scene.pids()
    fault = scene.fault("pause", "minority", 0.99)
    await fault.inject()
    assert await scene.states() == {"n0": "running", "n1": "running", "n2": "stopped"}
    await fault.heal()
    assert set((await scene.states()).values()) == {"running"}
    assert scene.pids() == before


async def test_dead_node_is_not_paused_and_a_paused_one_may_die(scene: Scene) -> None:
    kill, pause = scene.fault("kill", "n1"), scene.fault("pause", "n1")
    await pause.inject()
    await kill.inject()
    await pause.heal()  # the dead cannot continue
    assert await scene.down() == ["n1"]
    with pytest.raises(ClusterError, match="n1 is not running"):
        await scene.fault("pause", "n1").inject()
    await kill.heal()
    assert await scene.down() == []


async def test_heal_leaves_nodes_of_another_fault_down(scene: Scene) -> None:
    first, everybody = scene.fault("kill", "n1"), scene.fault("restart-all", "all")
    await first.inject()
    await everybody.inject()
    assert await scene.down() == ["n0", "n1", "n2"]
    await everybody.heal()
    assert await scene.down() == ["n1"]
    await first.heal()
    assert await scene.down() == []


async def test_failed_injection_leaves_nothing_to_heal(scene: Scene) -> None:
    first, second = scene.fault("kill", "n1"), scene.fault("kill", "n1")
    await first.inject()
    with pytest.raises(ClusterError, match="kill: n1 is not running"):
        await second.inject()
    await second.heal()
    assert await scene.down() == ["n1"]
    record = scene.records()[-1]
    assert (record["type"], record["f"]) == ("fail", "inject")
    assert "n1 is not running" in record["error"]
    await first.heal()


async def test_injection_waits_for_a_leader_for_a_bounded_time(
    scene: Scene, probe: AgreeingProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe.silent = {"n0"}
    fault = scene.fault("kill", "leader")
    injecting = asyncio.create_task(fault.inject())
    await asyncio.sleep(0.1)
    assert not injecting.done()
    probe.silent = set()
    await injecting
    assert await scene.down() == ["n0"]
    await fault.heal()
    probe.silent = {"n0"}
    monkeypatch.setattr(base, "CHOOSE_TIMEOUT_S", 0.05)
    with pytest.raises(ClusterError, match="no leader now"):
        await scene.fault("kill", "leader").inject()
    with pytest.raises(ClusterError, match="no target 'n7'"):
        await scene.fault("kill", "n7").inject()


async def test_heal_leaves_a_node_that_was_started_meanwhile(scene: Scene) -> None:
    fault = scene.fault("kill", "n1")
    await fault.inject()
    started = scene.cluster.start("n1")
    await fault.heal()
    assert scene.pids()["n1"] == started.pid


async def test_node_that_ignores_sigterm_is_reported_and_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ORDERLY_S", 0.2)
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs(n1=STUBBORN))
    await cluster.up()
    log = tmp_path / "c" / "n1" / "log.txt"
    while b"ready" not in log.read_bytes():  # from here on it ignores SIGTERM
        await cluster.status()
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        fault = Scene(cluster, history).fault("term", "n1")
        with pytest.raises(ClusterError, match="is still there after"):
            await fault.inject()
        assert all(status.alive for status in await cluster.status())
    await cluster.down(timeout_s=0.5)


async def test_node_that_ends_late_is_waited_for_and_started(tmp_path: Path) -> None:
    """The injection is cancelled while the node shuts down in order."""
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs(n1=SLOW_TO_END))
    await cluster.up()
    log = tmp_path / "c" / "n1" / "log.txt"
    while b"ready" not in log.read_bytes():
        await cluster.status()
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        scene = Scene(cluster, history)
        before, fault = scene.pids(), scene.fault("term", "n1")
        injecting = asyncio.create_task(fault.inject())
        while b"ends" not in log.read_bytes():
            await cluster.status()
        injecting.cancel()
        await asyncio.wait([injecting])
        await fault.heal()
        assert await scene.down() == []
        assert scene.pids()["n1"] != before["n1"]
    await cluster.down()


async def test_rolling_restart_takes_the_leader_last(scene: Scene) -> None:
    before = scene.pids()
    fault = scene.fault("rolling-restart", "all")
    await fault.inject()
    await fault.heal()
    after = scene.pids()
    assert all(before[name] != after[name] for name in before)
    assert await scene.down() == []
    assert scene.records()[0]["nodes"] == ["n1", "n2", "n0"]


async def test_failed_heal_can_be_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = scene.fault("kill", "n1")
    await fault.inject()

    def refuse(name: str) -> None:
        raise ClusterError("another command is changing the cluster")

    with monkeypatch.context() as patch:
        patch.setattr(scene.cluster, "start", refuse)
        with pytest.raises(ClusterError, match="cannot be healed: another command"):
            await fault.heal()
    assert [r["type"] for r in scene.records()[-2:]] == ["invoke", "fail"]
    await fault.heal()
    assert await scene.down() == []


async def test_cancelled_injection_can_be_healed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = scene.fault("kill", "majority")

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(scene.cluster, "wait_dead", never)
        task = asyncio.create_task(fault.inject())
        while len(await scene.down()) < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await fault.heal()
    assert await scene.down() == []
    assert [r["f"] for r in scene.records()] == ["inject", "heal", "heal"]


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("term", signal.SIGTERM)])
def test_signal_faults_describe_their_signal(scene: Scene, kind: str, number: int) -> None:
    assert scene.fault(kind, "leader").describe().startswith(f"kill -{number} of leader")
