"""Jepsen's five schedules on real processes keep every promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.faults import power
from raftmq.chaos.run.runner import RunConfig, run_scenario
from raftmq.chaos.run.scenario import SCENARIOS
from raftmq.chaos.workloads.catalogue import make_workloads
from raftmq.chaos.workloads.load import LOG

LOAD = replace(LOG, rate_per_s=300, keys=100, send_timeout_ms=30_000)
SETTINGS = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(16 << 20)}
SLOTS, SLOT_S = 4, 30.0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", [name for name in SCENARIOS if name.startswith("jepsen-")])
async def test_jepsen_schedules_keep_every_guarantee(tmp_path: Path, schedule: str) -> None:
    if schedule == "jepsen-power" and (reason := power.unavailable()) is not None:
        pytest.skip(reason)
    faults = len(SCENARIOS[schedule].wishes)
    repeats = max(1, SLOTS // faults)
    config = RunConfig(
        schedule,
        tmp_path / "run",
        lambda: make_workloads(["log"], LOAD),
        minutes=repeats * faults * SLOT_S / 60,
        repeats=repeats,
        shape=Shape("raft", replicas=5),
        settings=SETTINGS,
        recovery_timeout_s=60.0,
    )
    result = await run_scenario(config, "", lambda words: None)
    wrong = [check for check in result.data["checks"] if check["verdict"] != "pass"]
    assert result.data["verdict"] == "pass", wrong
    assert result.data["skipped"] == []
    assert result.data["after_last_heal"]["ok"] > 0
