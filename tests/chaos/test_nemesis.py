"""Schedules repeat with their seed; kills are done, written down and undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.cluster.cluster import Cluster
from chaos.cluster.clusterfile import ClusterError
from chaos.faults.nemesis import KILLS_MAX, Kill, plan_kills
from chaos.history.files import HistoryWriter, read_history
from tests.chaos.doubles import AgreeingProbe, Programs


def test_plan_repeats_with_its_seed_and_spreads_over_the_time() -> None:
    plan = plan_kills(7, 30, 180.0, ("leader", "follower"))
    assert plan == plan_kills(7, 30, 180.0, ("leader", "follower"))
    assert plan != plan_kills(8, 30, 180.0, ("leader", "follower"))
    assert {kill.target for kill in plan} == {"leader", "follower"}
    for number, kill in enumerate(plan):
        assert number * 6 < kill.at_s < kill.at_s + kill.down_s < (number + 1) * 6
    assert plan_kills(1, 0, 10.0) == ()


@pytest.mark.parametrize(("kills", "seconds"), [(-1, 10), (KILLS_MAX + 1, 10), (1, 0)])
def test_plan_out_of_range(kills: int, seconds: float) -> None:
    with pytest.raises(ValueError):
        plan_kills(1, kills, seconds)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    await made.up()
    yield made
    await made.down(timeout_s=5)


@pytest.mark.parametrize(
    ("target", "choice", "node", "role"),
    [
        ("leader", 0.0, "n0", "leader"),
        ("follower", 0.0, "n1", "follower"),
        ("follower", 0.99, "n2", "follower"),
        ("n2", 0.0, "n2", "follower"),
        ("namesrv", 0.0, "namesrv", ""),
    ],
)
async def test_kill_and_start_are_done_and_written(
    cluster: Cluster, tmp_path: Path, target: str, choice: float, node: str, role: str
) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        pid = cluster.state().node(node).process.pid
        kill = Kill(cluster, writer, target, choice)
        await kill.inject()
        assert [s.node.name for s in await cluster.status() if not s.alive] == [node]
        await kill.heal()
        assert all(s.alive for s in await cluster.status())
        await kill.heal()  # nothing left to undo
    down, up = read_history(tmp_path / "h.jsonl").faults
    assert (down.kind, down.node, down.pid, down.role) == ("kill", node, pid, role)
    assert (up.kind, up.node) == ("start", node)
    assert up.pid == cluster.state().node(node).process.pid != pid
    assert down.invoked_ns <= down.done_ns <= up.invoked_ns


async def test_kill_that_cannot_be_done_leaves_nothing_to_heal(
    cluster: Cluster, tmp_path: Path
) -> None:
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        first, second = Kill(cluster, writer, "n1"), Kill(cluster, writer, "n1")
        await first.inject()
        with pytest.raises(ClusterError, match="n1 is not running"):
            await second.inject()
        assert second.node is None
        await second.heal()
        await first.heal()
    assert [f.kind for f in read_history(tmp_path / "h.jsonl").faults] == ["kill", "start"]
