"""The living nodes at each moment of a majority swap, over processes that do nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.faults import power_cut_minority as swap
from raftmq.chaos.faults.base import Context, Injection, Planned
from raftmq.chaos.faults.power_cut_minority import MajoritySwap
from raftmq.chaos.history.files import HistoryWriter
from tests.chaos.doubles import AgreeingProbe, Programs


@pytest.mark.parametrize("choice", [0.0, 0.5, 0.99])
async def test_only_the_node_without_power_is_up_in_both_majorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: float
) -> None:
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    await cluster.up(Shape(replicas=5))

    def up() -> set[str]:
        brokers = cluster.state().brokers
        return {n.name for n in brokers if cluster.process_state(n) == "running"}

    before: list[set[str]] = []
    disk = SimpleNamespace(cut=lambda: before.append(up()))
    monkeypatch.setattr(swap, "LoopDisk", SimpleNamespace(of_store=lambda store: disk))
    monkeypatch.setattr(swap, "ALONE_S", 0.0)
    everybody = up()
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        context = Context(cluster, history)
        planned = Planned(1, 0.0, 1.0, "majority-swap", "n3", choice)
        fault = Injection(planned, context, MajoritySwap(planned, context))
        try:
            await fault.inject()
            (first,) = before
            second = up()
            assert "n0" in first  # it leads, so messages acknowledged now are in the first majority
            assert len(first | {"n3"}) == len(second) == 3
            assert (first | {"n3"}) & second == {"n3"}
            await fault.heal()
            assert up() == everybody
        finally:
            await fault.heal()
            await cluster.down()
            await cluster.close()
