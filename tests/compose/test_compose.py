"""`docker compose up`, for real: it comes up, takes messages from outside, survives its leader, and
Spark finds nothing wrong in its volumes; a classic pair beside it replicates. Faults and audit are
inflicted and made by the profiles' own containers. The tests build on each other, in this order.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from tests.compose.stage import HEALTHY_TIMEOUT_S, Stage, health_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1100)

SERVICES = {
    "nameserver-0",
    "nameserver-1",
    *(f"broker-{group}{number}" for group in "ab" for number in range(3)),
}
PROFILES = ("broker-c", "classic", "grpc", "chaos", "audit", "watch", "monitoring")
OF_PROFILES = {"master-a", "slave-a", "master-b", "slave-b", "proxy-0", "proxy-1"}
OF_PROFILES |= {"chaos", "audit", "watch", "broker-c0", "broker-c1", "broker-c2"}
OF_PROFILES |= {"prometheus", "grafana"}
FAULTS = "kill:leader cut-node:leader term:leader"
MASTER, SLAVE = "127.0.0.1:11111", "127.0.0.1:11121"


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


def wait_answer(stage: Stage, wanted: str, *words: str) -> None:
    """Ask until the answer has `wanted` in it."""

    def done() -> subprocess.CompletedProcess[str]:
        return stage.mqadmin(*words)

    wait_until(lambda: wanted in done().stdout, done, patience_s=HEALTHY_TIMEOUT_S, pause_s=0.5)


def test_all_compose_profiles_are_valid(stage):
    chosen = [word for profile in PROFILES for word in ("--profile", profile)]
    services = stage.compose(*chosen, "config", "--services").split()
    assert set(services) == SERVICES | OF_PROFILES


def test_all_compose_services_become_healthy(stage):
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    while True:
        result = stage.containers()
        health = health_of(result)
        if set(health) == SERVICES and set(health.values()) == {"healthy"}:
            break
        assert time.monotonic() < deadline, (health, stage.compose("logs", "--tail", "20"))
        time.sleep(1)
    for container in result:
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0 and host["NanoCpus"] > 0
        assert host["RestartPolicy"]["Name"] == "unless-stopped"


def test_containers_run_without_root_and_own_their_tokens(stage):
    look = "id -u; stat -c '%a %u' /run/raftmq/tokens.json; touch /x 2>&1 || true"
    uid, tokens, refused = stage.compose("exec", "-T", "broker-a0", "sh", "-c", look).split("\n")
    assert uid == "10001" and tokens == "600 10001"
    assert "Read-only file system" in refused


def test_messages_from_outside_survive_the_leader(stage):
    print(stage.tools())
    done = stage.run_service(
        *("chaos", "mqchaos", "run", FAULTS, "--on", "compose", "--dir", "/runs/run"),
        *("--minutes", "0.2", "--repeats", "1", "--rate", "40", "--producers", "2", "--seed", "4"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((stage.volume("runs") / "run" / "verdict.json").read_bytes())
    assert verdict["verdict"] == "pass"
    assert verdict["faults"] == {"kill": 1, "cut-node": 1, "term": 1}
    assert verdict["skipped"] == [] and verdict["counts"]["lost"] == 0
    recovered = verdict["recovery"]["kinds"]["kill:leader"]["recovered"]
    assert recovered == 1, "no send was acknowledged behind the kill"


def test_proxies_reach_the_brokers_inside(stage):
    """Brokers tell an address of the host, at which a container finds nothing."""
    stage.compose("--profile", "grpc", "up", "-d", "--no-build", "proxy-0", "proxy-1")
    stage.said_by("updateTopic", "-c", "DefaultCluster", "-t", "Rpc", "-r", "2", "-w", "2")
    wait_answer(stage, "broker-b", "topicRoute", "-t", "Rpc")

    def healthy() -> bool:
        said = stage.compose("ps", "proxy-0", "proxy-1")
        return said.count("(healthy)") == 2

    wait_until(healthy, lambda: stage.compose("ps"), patience_s=HEALTHY_TIMEOUT_S, pause_s=0.5)
    text = ("-m", "tests.compose.throughproxies", "Rpc", "8081", "8082")
    done = stage.within(sys.executable, *text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "received 8 of 8 from 2 broker groups" in done.stdout


def test_classic_slave_has_the_masters_messages(stage):
    stage.compose("--profile", "classic", "up", "-d", "--no-build", "master-a", "slave-a")
    for address in (MASTER, SLAVE):
        wait_answer(stage, "brokerRole", "brokerStatus", "-b", address)
    stage.said_by("updateTopic", "-b", MASTER, "-t", "Pair", "-r", "1", "-w", "1")
    wait_answer(stage, "pair-a", "topicRoute", "-t", "Pair")
    pair = ("-b", "pair-a", "-i", "0")  # the topic soon exists in the other groups as well
    said = stage.said_by("sendMessage", "-t", "Pair", *pair, "-p", "for the slave, too")
    assert re.search(r"offset \d of queue 0 of pair-a", said), said
    slave = stage.volume("slave-a") / "store" / "commitlog" / f"{0:020}"
    deadline = time.monotonic() + HEALTHY_TIMEOUT_S
    while b"for the slave, too" not in slave.read_bytes()[:4096]:
        assert time.monotonic() < deadline, stage.compose("logs", "--tail", "20", "slave-a")
        time.sleep(0.2)


@pytest.mark.long
def test_audit_of_the_volumes_finds_nothing_wrong(stage):
    stage.compose("stop")
    done = stage.run_service("audit", "raftmq-audit", "broker-a")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is wrong" in done.stdout


@pytest.mark.long
def test_audit_without_a_history_exits_with_2(stage):
    done = stage.run_service("audit", "raftmq-audit", "--run", "nothing")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no /runs/nothing/history.jsonl" in done.stderr
