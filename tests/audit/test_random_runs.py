"""An audit of what random runs of the harness left finds nothing wrong: three of every workload,
each with another scenario and seed, and one in which broker groups join and leave. `make test-long`
runs them, in a quarter of an hour."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftmq.audit.cli import main

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
WORKLOADS = (
    *("log", "ordered", "group", "metadata", "idempotent"),
    *("transactions", "delayed", "retries", "pop", "locks"),
)
SCENARIOS = ("anybody", "freeze", "planned", "restarts", "partitions", "power", "mixed")


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_random_run_of_each_workload_passes_the_audit(
    tmp_path: Path, workload: str, turn: int
) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    scenario = random.Random(seed).choice(SCENARIOS)
    options = ["--workload", workload, "--seed", str(seed), "--minutes", "0.2", "--rate", "1000"]
    run_and_audit(tmp_path / "run", scenario, options, [])


def test_scale_run_passes_the_audit_of_each_group(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    options = ["--seed", str(seed), "--minutes", "0.2"]
    run_and_audit(tmp_path / "run", "scale", options, ["broker-a", "broker-b", "broker-c"])


def run_and_audit(run: Path, scenario: str, options: list[str], groups: list[str]) -> None:
    command = [sys.executable, "-m", "raftmq.chaos", "run", scenario, *options, "--dir", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    print(*command, done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    assert done.returncode in (0, 3)  # 3: not decided
    for group in [["--group", group] for group in groups] or [[]]:
        audited = CliRunner().invoke(main, ["--run", str(run), *group])
        assert audited.exit_code == 0, audited.output
