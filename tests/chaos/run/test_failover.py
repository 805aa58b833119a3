"""A small real run with three broker processes and a killed leader, without loss."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cli import main
from raftmq.chaos.cluster import cli as cluster_cli
from raftmq.chaos.cluster.clusterfile import ClusterError, load_state
from raftmq.chaos.cluster.process import state
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.history.files import read_history
from raftmq.chaos.run.judge import WATCHED, RunResult
from raftmq.chaos.run.runner import RunConfig, run_scenario
from raftmq.chaos.workloads.base import Workload
from raftmq.chaos.workloads.catalogue import make_workloads
from raftmq.chaos.workloads.load import LOG
from tests.chaos.carried import at_a_load_it_carries


def assert_stopped(directory: Path) -> None:
    nodes = load_state(directory).nodes
    assert {state(node.process) for node in nodes if node.process} == {"dead"}


SMALL = {"mappedFileSizeCommitLog": str(8 * 1024 * 1024)}


# Room for due sends while a busy machine stalls, so that none is shed or given up.
PATIENT: dict[str, Any] = {"window": 512, "send_timeout_ms": 120_000}


def small_load(rate_per_s: int = 400) -> list[Workload]:
    return make_workloads(["log"], replace(LOG, rate_per_s=rate_per_s, keys=50, **PATIENT))


async def test_leader_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    async def run(rate_per_s: int, name: str) -> RunResult:
        load = partial(small_load, rate_per_s)
        config = RunConfig(
            *("failover", tmp_path / name, load),
            seed=5,
            minutes=4 / 60,
            repeats=1,
            settings=SMALL,
            watch=True,
        )
        return await run_scenario(config, "the command", said.append)

    result = await at_a_load_it_carries(run, 400)
    assert result.verdict is Verdict.PASS, result.checks
    assert result.load.ok == result.load.sent > 100
    (recovery,) = result.recoveries
    assert (recovery.kind, recovery.role) == ("kill", "leader")
    assert recovery.everybody_ms is not None
    assert recovery.worst_client_ms is not None
    assert "fault 1: kill:leader" in said
    (watched,) = [check for check in result.checks if check.name == WATCHED]
    judged = int(watched.detail.partition(" ")[0].replace(",", ""))
    assert judged >= result.load.ok  # some twice, after a repeated write into the audit topic

    history = read_history(result.history)
    (fault,) = history.faults
    assert fault.kind == "kill"
    assert fault.invoked_ns < fault.done_ns < fault.healed_ns
    assert len({leader.term for leader in history.leaders}) >= 2
    assert history.drains[0].complete
    assert history.commits
    (replicas,) = history.replicas
    assert len(replicas.parts) == 3
    verdict = orjson.loads(result.history.with_name("verdict.json").read_bytes())
    assert verdict["verdict"] == "pass"
    assert verdict["meta"]["mode"] == "raft"
    assert verdict["faults"] == {"kill": 1}
    assert verdict["lost"] == []
    assert verdict["recovery"]["kinds"]["kill:leader"]["recovered"] == 1
    assert "the command" in result.page.read_text(encoding="utf-8")
    assert_stopped(result.history.with_name("cluster"))


async def test_unavailable_scenario_is_rejected_with_its_reason(tmp_path: Path) -> None:
    config = RunConfig("transfer", tmp_path, small_load, shape=Shape("single"), settings=SMALL)
    with pytest.raises(ClusterError, match="nothing of this scenario can be done here: transfer"):
        await run_scenario(config, "", lambda words: None)
    assert_stopped(tmp_path / "cluster")


def test_commands_against_a_running_cluster(tmp_path: Path) -> None:
    home, out = tmp_path / "c", tmp_path / "run"

    def cluster(*words: str) -> str:
        result = CliRunner().invoke(cluster_cli.main, [words[0], "--dir", str(home), *words[1:]])
        assert result.exit_code == 0, result.output
        return result.output

    try:
        cluster("up", "--set", f"mappedFileSizeCommitLog={8 * 1024 * 1024}")
        text = ["run", "followers", "--dir", str(out), "--cluster", str(home), "--repeats", "1"]
        text += ["--minutes", "0.06", "--rate", "50", "--producers", "1", "--seed", "2"]
        result = CliRunner().invoke(main, text)
        assert result.exit_code == 0, result.output
        assert re.search(r"kill -9 of n\d, started again", result.output)
        again = CliRunner().invoke(main, text)
        assert again.exit_code == 2 and "holds a history already" in again.output
        deadline = time.monotonic() + 120
        while True:  # a busy broker may miss a request
            nodes = orjson.loads(cluster("status", "--json"))["nodes"]
            assert all(node["alive"] for node in nodes)  # it was not ours to stop
            brokers = [node for node in nodes if node["kind"] == "broker"]
            if sorted(node["role"] or "" for node in brokers) == ["follower", "follower", "leader"]:
                break
            assert time.monotonic() < deadline, nodes
        assert min(node["commit"] for node in brokers) > 1
        cluster("kill", "leader")
        cluster("down")
        assert "up: group broker-a" in cluster("up")  # with its data, as many replicas
        deadline = time.monotonic() + 120
        while "leader (ready)" not in (status := cluster("status")):
            assert time.monotonic() < deadline, status
    finally:
        CliRunner().invoke(cluster_cli.main, ["down", "--dir", str(home)])
    assert_stopped(home)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("flushDiskTyp=SYNC_FLUSH", "did you mean flushDiskType?"),
        ("flushDiskType=SOMETIMES", "expected one of SYNC_FLUSH, ASYNC_FLUSH"),
    ],
)
def test_wrong_setting_is_reported_before_anything_is_made(
    tmp_path: Path, setting: str, words: str
) -> None:
    home = tmp_path / "deep" / "c"
    up = ["up", "--dir", str(home), "--replicas", "1", "--set"]
    result = CliRunner().invoke(cluster_cli.main, [*up, setting])
    assert result.exit_code == 2
    assert (
        f"Error: --set {setting.split('=')[0]}" in result.output or "--set unknown" in result.output
    )
    assert words in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_settings_are_kept_through_a_failed_start(tmp_path: Path) -> None:
    """A cluster with accounts must never start without them."""
    home = tmp_path / "c"
    up = ["up", "--dir", str(home), "--replicas", "1"]
    accounts = tmp_path / "accounts.yml"
    requested = ["--set", "aclEnable=true", "--set", f"aclFile={accounts}"]
    try:
        for more in (requested, []):
            result = CliRunner().invoke(cluster_cli.main, [*up, *more])
            assert result.exit_code == 1
            assert str(accounts) in result.output
            assert_stopped(home)
        wrong = CliRunner().invoke(cluster_cli.main, [*up, "--set", "aclEnable=maybe"])
        assert wrong.exit_code == 2
        assert orjson.loads((home / "cluster.json").read_bytes())["settings"] == {
            "aclEnable": "true",
            "aclFile": str(accounts),
        }
        result = CliRunner().invoke(cluster_cli.main, [*up, "--set", "aclEnable=false"])
        assert result.exit_code == 0, result.output
        modes = {path: path.stat().st_mode & 0o777 for path in (home, *home.rglob("*"))}
        assert {path: oct(mode) for path, mode in modes.items() if mode & 0o007} == {}
        for name in ("cluster.json", "n0/broker.conf"):
            assert modes[home / name] == 0o600
    finally:
        CliRunner().invoke(cluster_cli.main, ["down", "--dir", str(home)])
    assert_stopped(home)
