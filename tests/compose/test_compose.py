"""`docker compose up`, for real: it comes up, takes messages from outside, survives its leader, and
Spark finds nothing wrong in its volumes. The tests build on each other, in this order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from tests.compose.stage import ROOT, Stage

pytestmark = pytest.mark.timeout(900)

SERVICES = {
    "nameserver-0",
    "nameserver-1",
    *(f"broker-{group}{number}" for group in "ab" for number in range(3)),
}
HEALTHY_TIMEOUT_S = 240.0
FAULTS = "kill:leader cut-node:leader term:leader"


@pytest.fixture(scope="module")
def stage():
    stage = Stage()
    try:
        print(stage.up())
        yield stage
    finally:
        stage.down()
    left = subprocess.run(["pgrep", "-f", str(stage.socket)], capture_output=True, text=True)
    assert left.stdout == "", "the engine, or something in it, still runs"


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("compose") / "run"


def test_everything_comes_up_and_says_that_it_is_healthy(stage):
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    while True:
        ids = stage.compose("ps", "-q").split()
        found = json.loads(stage.docker("inspect", *ids))
        health = {
            c["Config"]["Labels"]["com.docker.compose.service"]: c["State"]["Health"]["Status"]
            for c in found
        }
        if set(health) == SERVICES and set(health.values()) == {"healthy"}:
            break
        assert time.monotonic() < deadline, (health, stage.compose("logs", "--tail", "20"))
        time.sleep(1)
    for container in found:
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0 and host["NanoCpus"] > 0
        assert host["RestartPolicy"]["Name"] == "unless-stopped"


def test_nobody_is_root_and_the_tokens_are_the_brokers_own(stage):
    look = "id -u; stat -c '%a %u' /run/raftmq/tokens.json; touch /x 2>&1 || true"
    uid, tokens, refused = stage.compose("exec", "-T", "broker-a0", "sh", "-c", look).split("\n")
    assert uid == "10001" and tokens == "600 10001"
    assert "Read-only file system" in refused


def test_messages_from_outside_survive_the_leader(stage, run_directory: Path):
    done = stage.within(
        *(sys.executable, "-m", "chaos.cli", "run", FAULTS, "--on", "compose"),
        *("--dir", str(run_directory), "--minutes", "0.2", "--repeats", "1"),
        *("--rate", "200", "--producers", "2", "--seed", "4"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = orjson.loads((run_directory / "verdict.json").read_bytes())
    assert verdict["verdict"] == "pass"
    assert verdict["faults"] == {"kill": 1, "cut-node": 1, "term": 1}
    assert verdict["skipped"] == [] and verdict["counts"]["lost"] == 0
    recovered = verdict["recovery"]["kinds"]["kill:leader"]["recovered"]
    assert recovered == 1, "no send was acknowledged behind the kill"


def test_spark_finds_nothing_wrong_in_the_volumes(stage, run_directory: Path):
    stage.compose("stop")
    stores = [f"n{n}={stage.volume(f'broker-a{n}') / 'store'}" for n in range(3)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "audit.cli", "--topic", "Chaos", "--group", "broker-a"),
            *("--history", str(run_directory / "history.jsonl")),
            *(word for store in stores for word in ("--store", store)),
        ],
        cwd=ROOT,
        env=stage.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is wrong" in done.stdout
