"""Groups that are added and removed during other faults, over doubles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from raftmq.chaos.cluster import groups
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, save_state
from raftmq.chaos.cluster.topology import without_group
from raftmq.chaos.faults.base import Context, Planned
from raftmq.chaos.faults.catalogue import make
from raftmq.chaos.history.files import HistoryWriter, read_history
from tests.chaos.doubles import ENDS, AgreeingProbe, Programs


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Programs:
    return Programs(**getattr(request, "param", {}))


@pytest.fixture
async def context(tmp_path: Path, programs: Programs) -> AsyncIterator[Context]:
    probe = AgreeingProbe()
    probe.silent = set(programs.programs)
    cluster = Cluster(tmp_path / "c", probe, programs)
    await cluster.up()
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        yield Context(cluster, history)
    await cluster.down()
    await cluster.close()


async def test_group_joins_and_leaves_despite_failing_commands(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, failures = context.cluster, ["no leader", "no leader", "[NOT_EMPTY]"]

    def attempt() -> None:
        if failures:
            raise ClusterError(failures.pop())

    async def drain(cluster: Cluster, group: str, options: Mapping[str, str]) -> dict[str, Any]:
        assert options == {"moveTimers": "true", "moveDeadLetters": "true"}
        attempt()
        return {}

    async def remove(cluster: Cluster, group: str, say: Callable[[str], None], **_: float) -> None:
        attempt()
        nodes = cluster.state().members(group)
        save_state(cluster.directory, without_group(cluster.state(), group))
        await cluster.end(nodes, 5)

    monkeypatch.setattr(groups, "drain", drain)
    monkeypatch.setattr(groups, "remove", remove)
    leaving = make(Planned(1, 0.0, 1.0, "remove-group", "group", 0.9), context)
    with pytest.raises(ClusterError, match="a single group"):
        await leaving.inject()
    joining = make(Planned(2, 0.0, 1.0, "add-group", "group", 0.5), context)
    await joining.inject()
    await joining.heal()
    assert joining.describe() == "broker-b joined"
    added = cluster.state().members("broker-b")
    assert len(added) == 3
    await leaving.inject()
    kill = make(Planned(3, 0.0, 1.0, "kill", added[0].name, 0.0), context)
    await kill.inject()
    await leaving.heal()
    await kill.heal()  # nodes of a removed group are not started
    assert cluster.state().groups == ("broker-a",)
    assert [node.name for node in context.left] == [node.name for node in added]
    assert not failures
    context.history.flush()
    faults = {fault.kind: fault for fault in read_history(context.history.path).faults}
    assert faults["remove-group"].healed_ns > faults["remove-group"].done_ns
    assert set(faults["remove-group"].nodes) == {node.name for node in added}


@pytest.mark.parametrize("programs", [{"n4": ENDS}], indirect=True)
async def test_killed_replica_of_a_joining_group_stays_in_the_cluster(context: Context) -> None:
    joining = make(Planned(1, 0.0, 1.0, "add-group", "group", 0.5), context)
    await joining.inject()
    await joining.heal()
    cluster = context.cluster
    (hit, *_) = [node for node in cluster.state().nodes if node.name == "n4"]
    assert hit.group == "broker-b"
    assert cluster.process_state(hit) == "dead"
