"""Negative controls, because a harness that never fails proves nothing.

Each schedule runs on real processes twice, with a system that cannot keep its promise under it, and
with Raft and SYNC_FLUSH, which may not lose a message. tests/chaos/faults/test_disk_cluster.py has
short forms of the long schedules.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from raftmq.chaos.checks.suite import LOST
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.run.judge import RunResult
from raftmq.chaos.run.runner import RunConfig, run_scenario
from raftmq.chaos.workloads.base import Workload
from raftmq.chaos.workloads.catalogue import make_workloads
from raftmq.chaos.workloads.load import LOG
from tests.chaos.carried import at_a_load_it_carries

# A cluster that is never whole again is waited for, its sends time out, and its drain is given up.
pytestmark = pytest.mark.timeout(900)

SETTINGS = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "flushDiskType": "SYNC_FLUSH",
}
# A slave that has the topics at once, so that only messages can be missing.
CLASSIC = {"slaveSyncMetadataIntervalMs": "100"}

# The master is torn from its slave, acknowledges alone, and then its disk is gone.
MASTER_LOST = "cut-peers:leader,for=3.2+disk-loss:leader"
POWER_CUT = "power-cut:all"
POWER_CUT_UNSYNCED = "lying-fsync:all,for=3.2+power-cut:all"
# The first part needs time to happen, 1.3 s with this seed.
SEEDS = {MASTER_LOST: 15}
ATTEMPTS = 3
RATE_PER_S = 800


def load(rate_per_s: int) -> list[Workload]:
    return make_workloads(["log"], replace(LOG, rate_per_s=rate_per_s, keys=200))


async def inflict(
    directory: Path,
    mode: str,
    scenario: str,
    settings: dict[str, str],
    repeats: int = 1,
    later: int = 0,
    rate_per_s: int = RATE_PER_S,
) -> RunResult:
    config = RunConfig(
        scenario,
        directory,
        partial(load, rate_per_s),
        seed=SEEDS.get(scenario, 3) + later,
        minutes=8 * repeats / 60,
        repeats=repeats,
        shape=Shape(mode),
        settings=SETTINGS | settings,
        recovery_timeout_s=60.0,  # a leader of pysyncobj that loses its log may never recover
    )
    result = await run_scenario(config, "", lambda words: None)
    assert len(result.recoveries) >= repeats, result.skipped
    return result


def lost_check(result: RunResult) -> Verdict:
    return next(check.verdict for check in result.checks if check.name == LOST)


@pytest.mark.parametrize("scenario", [MASTER_LOST, pytest.param(POWER_CUT, marks=pytest.mark.long)])
async def test_raft_control_loses_nothing(tmp_path: Path, scenario: str) -> None:
    async def run(rate_per_s: int, name: str) -> RunResult:
        return await inflict(tmp_path / name, "raft", scenario, {}, rate_per_s=rate_per_s)

    result = await at_a_load_it_carries(run, RATE_PER_S)
    assert result.lost == ()
    assert result.verdict is Verdict.PASS, [c for c in result.checks if c.verdict.value != "pass"]
    assert result.load.ok > 300


@pytest.mark.parametrize(
    ("mode", "scenario", "settings"),
    [
        pytest.param("async", MASTER_LOST, CLASSIC, id="ASYNC_MASTER loses its disk"),
        pytest.param("pysyncobj", POWER_CUT, {}, id="pysyncobj in a power cut"),
        # a lying fsync
        pytest.param(
            "raft", POWER_CUT_UNSYNCED, {}, id="raft without fsync", marks=pytest.mark.long
        ),
    ],
)
async def test_negative_control_that_must_lose_messages_is_detected(
    tmp_path: Path, mode: str, scenario: str, settings: dict[str, str]
) -> None:
    """One of a few power cuts loses messages, but on a starved machine all acknowledged messages
    may have reached the disk before."""
    for attempt in range(ATTEMPTS):
        result = await inflict(
            tmp_path / str(attempt), mode, scenario, settings, later=100 * attempt
        )
        if result.lost:
            break
    assert lost_check(result) is Verdict.FAIL, result.checks
    assert result.verdict is Verdict.FAIL
    assert result.lost
    page = result.page.read_text(encoding="utf-8")
    assert all(message.id in page for message in result.lost[:20])
