"""Jepsen's five schedules on real processes: ours keeps every promise, and the same judge finds
what JetStream loses by its own choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.faults import power
from raftmq.chaos.report.sidebyside import Outcome
from raftmq.chaos.run.jepsen import Contestant, JepsenConfig, run_jepsen
from raftmq.chaos.run.scenario import JEPSEN, JEPSEN_POWER
from raftmq.chaos.workloads.base import Workload
from raftmq.chaos.workloads.catalogue import make_workloads
from raftmq.chaos.workloads.load import LOG

LOAD = replace(LOG, rate_per_s=300, keys=100, send_timeout_ms=30_000)
SETTINGS = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(16 << 20)}


def our_load(directory: Path) -> Sequence[Workload]:
    return make_workloads(["log"], LOAD)


OURS_FIVE = Contestant("ours", "ours", Shape("raft", replicas=5), our_load, settings=SETTINGS)


async def one(directory: Path, schedule: str, contestant: Contestant) -> Outcome:
    config = JepsenConfig(directory, [schedule], [contestant], 1, 1)
    found = await run_jepsen(config, "", lambda words: None)
    ((outcome,),) = (each.outcomes for each in found.schedules)
    return outcome


async def test_what_cannot_be_had_is_a_row_with_its_reason(tmp_path: Path) -> None:
    absent = replace(OURS_FIVE, why_not="it is not here")
    outcome = await one(tmp_path, JEPSEN_POWER, absent)
    assert outcome == Outcome("ours", why_not="it is not here")
    assert "it is not here" in (tmp_path / "jepsen.html").read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", JEPSEN)
async def test_ours_keeps_every_promise(tmp_path: Path, schedule: str) -> None:
    outcome = await one(tmp_path, schedule, OURS_FIVE)
    if schedule == JEPSEN_POWER and (reason := power.unavailable()) is not None:
        assert reason in outcome.why_not
        return
    assert outcome.verdict is not None, outcome.why_not
    wrong = [check for check in outcome.verdict["checks"] if check["verdict"] != "pass"]
    assert outcome.verdict["verdict"] == "pass", wrong
    assert outcome.verdict["skipped"] == []
    assert outcome.verdict["after_last_heal"]["ok"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_jetstream_without_fsync_is_caught_losing_messages_in_a_power_cut(
    tmp_path: Path,
) -> None:
    """Needs nats-py and Go's package registry; where one is missing, that is the test's reason."""
    pytest.importorskip("nats", reason="needs bench/peers/requirements.txt")
    from bench.peers.gomodule import build
    from bench.peers.jetstream import PACKAGE
    from bench.peers.system import Missing
    from raftmq.chaos.nats.system import jetstream
    from raftmq.chaos.nats.workload import StreamWorkload

    if (reason := power.unavailable()) is not None:
        pytest.skip(reason)
    try:
        program = build("nats-server", PACKAGE)
    except Missing as error:
        pytest.skip(str(error))

    def load(directory: Path) -> Sequence[Workload]:
        return [StreamWorkload(directory, LOAD)]

    system = jetstream(program, "JetStream")
    shape = Shape(replicas=5, namesrv="none")
    lazy = Contestant("nats", "JetStream", shape, load, system)
    outcome = await one(tmp_path, JEPSEN_POWER, lazy)
    assert outcome.verdict is not None, outcome.why_not
    assert outcome.verdict["verdict"] == "fail"
    assert outcome.verdict["counts"]["lost"] > 0
