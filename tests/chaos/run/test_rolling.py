"""Planned changes under load, on three real brokers, without any trouble for clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.run.judge import RunResult
from raftmq.chaos.run.runner import RunConfig, run_scenario
from raftmq.chaos.workloads.base import Workload
from raftmq.chaos.workloads.catalogue import make_workloads
from raftmq.chaos.workloads.load import LOG
from tests.chaos.carried import at_a_load_it_carries

SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "flushDiskType": "SYNC_FLUSH",
    # Planned changes transfer leadership; a leader deposed on a busy machine does not.
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "6000",
}
# Room for due sends while a busy machine stalls, so that none is shed or given up.
LOAD = replace(LOG, keys=50, window=512, send_timeout_ms=120_000)


async def test_rolling_restart_and_transfer_fail_no_send(tmp_path: Path) -> None:
    async def run(rate_per_s: int, name: str) -> RunResult:
        def small_load() -> list[Workload]:
            return make_workloads(["log"], replace(LOAD, rate_per_s=rate_per_s))

        config = RunConfig(
            "rolling-restart transfer",
            tmp_path / name,
            small_load,
            seed=3,
            minutes=4 / 60,
            repeats=1,
            settings=SETTINGS,
        )
        return await run_scenario(config, "", lambda words: None)

    result = await at_a_load_it_carries(run, 300)
    assert result.verdict is Verdict.PASS, result.checks
    assert result.load.ok == result.load.sent > 100
    assert (result.load.fail, result.load.unknown) == (0, 0)
    data = orjson.loads(result.history.with_name("verdict.json").read_bytes())
    assert data["faults"] == {"rolling-restart": 1, "transfer": 1}
    # A send repeated because its answer was lost would be stored twice.
    assert data["counts"]["lost"] == data["counts"]["duplicates"] == 0
