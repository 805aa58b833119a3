"""Replacement of a member during other faults, over doubles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.chaos.cluster import members
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, Node, save_state
from raftmq.chaos.faults.base import Context, Injection, Planned
from raftmq.chaos.faults.catalogue import make
from raftmq.chaos.faults.members import Replacement
from raftmq.chaos.history.files import HistoryWriter, read_history
from tests.chaos.doubles import AgreeingProbe, Programs


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[Context]:
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    await cluster.up()
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        yield Context(cluster, history)
    await cluster.down()
    await cluster.close()


class Change:
    """Adds and removes like the real change, but without a leader; removes when allowed."""

    def __init__(self) -> None:
        self.may_remove = asyncio.Event()
        self.error: ClusterError | None = None

    async def add(self, cluster: Cluster, group: str, say: Callable[[str], None]) -> Node:
        node, _ = members.start_new(cluster, group)
        return node

    async def remove(self, cluster: Cluster, name: str) -> None:
        await self.may_remove.wait()
        if self.error is not None:
            raise self.error
        await members.end_for_good(cluster, name)


def injection(context: Context, change: Change) -> Injection:
    planned = Planned(1, 0.0, 1.0, "replace-member", "n1", 0.0)
    return Injection(planned, context, Replacement(planned, context, change.add, change.remove))


async def test_fault_during_a_member_change_is_healed_after_the_change(
    context: Context,
) -> None:
    change = Change()
    fault = injection(context, change)
    await fault.inject()
    kill = make(Planned(2, 0.0, 1.0, "kill", "n1", 0.0), context)
    await kill.inject()
    healing = asyncio.create_task(fault.heal())
    await asyncio.sleep(0.05)
    assert not healing.done()
    change.may_remove.set()
    await healing
    await kill.heal()  # a node that has left for good is not started
    names = [node.name for node in context.cluster.state().brokers]
    assert names == ["n0", "n2", "n3"]
    assert fault.describe() == "n1 replaced by n3"
    context.history.flush()
    first, second = read_history(context.history.path).faults
    assert first.healed_ns > first.done_ns
    assert second.nodes == ("n1",)
    assert second.healed_ns > second.done_ns


async def test_failed_member_change_is_reported_at_the_heal(context: Context) -> None:
    change = Change()
    change.error = ClusterError("no leader")
    change.may_remove.set()
    fault = injection(context, change)
    await fault.inject()
    for _ in range(2):
        with pytest.raises(ClusterError, match="no leader"):
            await fault.heal()


async def test_cluster_with_links_keeps_its_members(context: Context) -> None:
    save_state(context.cluster.directory, replace(context.cluster.state(), links=True))
    with pytest.raises(ClusterError, match="members do not change in a cluster with links"):
        make(Planned(1, 0.0, 1.0, "replace-member", "n1", 0.0), context)
    save_state(context.cluster.directory, replace(context.cluster.state(), links=False))
