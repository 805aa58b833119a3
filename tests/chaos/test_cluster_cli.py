"""The mqcluster command as typed, over processes that do nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from raftmq.chaos.cluster import cli as cluster_cli
from raftmq.chaos.cluster import commands as work
from raftmq.chaos.cluster import groups
from raftmq.chaos.cluster.cluster import Cluster
from tests.brokenpipe import unread
from tests.chaos.doubles import ENDS, AgreeingProbe, Programs

PROGRAMS = Programs()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    def make(directory: Path) -> Cluster:
        probe = AgreeingProbe()
        probe.silent = {name for name, text in PROGRAMS.programs.items() if text == ENDS}
        return Cluster(directory, probe, PROGRAMS)

    monkeypatch.setattr(work, "Cluster", make)
    PROGRAMS.programs.clear()

    def call(command: str, *arguments: str) -> Result:
        text = [command, "--dir", str(tmp_path / "c"), *arguments]
        return CliRunner().invoke(cluster_cli.main, text)

    yield call
    call("down", "--timeout", "5")


def test_mqcluster_session_from_up_to_down(run) -> None:
    up = run("up", "--set", "flushDiskType=SYNC_FLUSH")
    assert up.exit_code == 0, up.output
    assert "up: group broker-a, name server 127.0.0.1:" in up.output

    data = orjson.loads(run("status", "--json").output)
    assert [node["name"] for node in data["nodes"]] == ["namesrv", "n0", "n1", "n2"]
    leader = data["nodes"][1]
    assert leader["alive"] and leader["role"] == "leader" and leader["leaderReady"]
    assert (leader["term"], leader["commit"], leader["applied"]) == (1, 10, 10)
    assert leader["pid"] and leader["address"].startswith("127.0.0.1:")

    killed = run("kill", "leader")
    assert killed.exit_code == 0 and f"SIGKILL to n0 (pid {leader['pid']}" in killed.output
    dead = orjson.loads(run("status", "--json").output)["nodes"][1]
    assert (dead["pid"], dead["alive"], dead["role"]) == (None, False, None)
    assert "dead" in run("status").output

    assert run("kill", "n1", "--signal", "STOP").exit_code == 0
    assert "stopped" in run("status").output
    assert run("kill", "n1", "--signal", "cont").exit_code == 0
    assert "started n0" in run("start", "n0").output
    assert run("down").output.splitlines() == [
        f"{name}: stopped" for name in ("namesrv", "n0", "n1", "n2")
    ]


def test_rolling_restart_gives_every_process_a_new_pid_leader_last(run) -> None:
    assert run("up").exit_code == 0
    before = orjson.loads(run("status", "--json").output)["nodes"]
    result = run("restart", "--rolling")
    assert result.exit_code == 0, result.output
    order = ["n1", "n2", "n0", "namesrv"]
    assert result.output.splitlines()[:4] == [f"restarted {name}" for name in order]
    after = orjson.loads(run("status", "--json").output)["nodes"]
    pids = {node["name"]: node["pid"] for node in before}
    assert all(node["alive"] and node["pid"] != pids[node["name"]] for node in after)


def test_restart_of_all_processes_at_once(run) -> None:
    assert run("up").exit_code == 0
    before = {n["pid"] for n in orjson.loads(run("status", "--json").output)["nodes"]}
    assert run("restart").exit_code == 0
    assert not before & {n["pid"] for n in orjson.loads(run("status", "--json").output)["nodes"]}


def test_added_group_is_handled_like_the_others(run) -> None:
    assert run("up", "--replicas", "1").exit_code == 0
    added = run("add-group", "--replicas", "2")
    assert added.exit_code == 0, added.output
    assert "broker-b takes sends: n1, n2" in added.output
    data = orjson.loads(run("status", "--json").output)
    assert data["groups"] == ["broker-a", "broker-b"]
    assert "SIGKILL to n1" in run("kill", "leader:broker-b").output
    assert "started n1" in run("start", "n1").output
    refused = run("up", "--groups", "1")
    assert refused.exit_code == 1 and "use add-group or remove-group" in refused.output
    assert "n2: stopped" in run("down").output


def test_cluster_with_grpc_proxies(run) -> None:
    up = run("up", "--proxies", "2")
    assert up.exit_code == 0, up.output
    nodes = orjson.loads(run("status", "--json").output)["nodes"]
    proxies = [node for node in nodes if node["kind"] == "mqproxy"]
    assert (
        [node["name"] for node in proxies]
        == ["mqproxy-0", "mqproxy-1"]
        == [node["name"] for node in nodes[-2:]]
    )
    assert f"gRPC: {proxies[0]['address']};{proxies[1]['address']}" in up.output
    assert "gRPC proxy" in run("status").output
    assert "SIGKILL to mqproxy-1" in run("kill", "mqproxy-1").output
    assert "started mqproxy-1" in run("start", "mqproxy-1").output
    rolled = run("restart", "--rolling").output.splitlines()
    assert rolled[3:6] == [f"restarted {name}" for name in ("namesrv", "mqproxy-0", "mqproxy-1")]
    assert "mqproxy-1: stopped" in run("down").output


def test_failed_up_prints_the_log_and_exits_with_1(run) -> None:
    PROGRAMS.programs["n2"] = ENDS
    failed = run("up")
    assert failed.exit_code == 1
    assert "ended by itself: n2" in failed.output and "cannot open the store" in failed.output


@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (("up", "--set", "novalue"), 2, "expected KEY=VALUE"),
        (
            ("up", "--set", "brokerName=d"),
            2,
            "--set brokerName: each broker of a cluster has its own",
        ),
        (("up", "--replicas", "0"), 2, "1<=x<=9"),
        (("up", "--set-proxy", "idempotentSends"), 2, "expected KEY=VALUE"),
        (("up", "--proxies", "1", "--set-proxy", "idempotent=1"), 2, "--set-proxy"),
        (("up", "--set-proxy", "idempotentSends=true"), 2, "no gRPC proxy; add --proxies 1"),
        (("up", "--proxies", "1", "--set-proxy", "tlsServerMode=enforcing"), 2, "needs tlsServer"),
        *(
            (("up", "--proxies", "1", option, f"{key}=/no/such/file"), 2, "/no/such/file: No such")
            for option in ("--set", "--set-proxy")
            for key in ("tlsServerCertPath", "httpTlsCertPath")
        ),
        (("up", "--set", "raftTlsCertPath=/no/such/file"), 2, "/no/such/file: No such"),
        (("status",), 1, "no cluster in"),
        (("kill", "leader"), 1, "no cluster in"),
        (("kill", "leader", "--signal", "HUP"), 2, "'HUP'"),
        (("add",), 1, "no cluster in"),
        (("remove", "n1"), 1, "no cluster in"),
        (("add-group",), 1, "no cluster in"),
        (("drain-group", "--name", "broker-a"), 1, "no cluster in"),
        (("drain-group", "--name", "b", "--cancel", "--move-timers"), 2, "no other options"),
        (("remove-group", "--name", "broker-a"), 1, "no cluster in"),
    ],
)
def test_wrong_use_is_explained(run, words: tuple[str, ...], status: int, output: str) -> None:
    result = run(*words)
    assert result.exit_code == status
    assert output in result.output


def test_drain_options_equal_those_of_mqadmin(run, monkeypatch) -> None:
    seen: list[Mapping[str, str]] = []

    async def drain(_: Cluster, name: str, options: Mapping[str, str], *, cancel: bool) -> object:
        seen.append(options)
        return {"remainder": f"content of {name}"}

    monkeypatch.setattr(groups, "drain", drain)
    options = ("--move-timers", "--move-dead-letters", "--to", "broker-a")
    given_up = ("--given-up", "billing", "--given-up", "audit")
    drained = run("drain-group", "--name", "broker-b", *options, *given_up)
    assert drained.exit_code == 0 and "broker-b is draining: content of" in drained.output
    moves = {"moveTimers": "true", "moveDeadLetters": "true", "to": "broker-a"}
    assert seen == [moves | {"givenUp": "billing,audit"}]


@pytest.mark.parametrize("name", ["RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY"])
def test_mqcluster_with_half_an_account_exits_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "alone")
    result = CliRunner().invoke(cluster_cli.main, ["status", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY: credentials need" in result.output
    assert "alone" not in result.output


def test_broker_that_fails_to_start_is_not_added(run) -> None:
    assert run("up").exit_code == 0
    before = orjson.loads(run("status", "--json").output)["nodes"]
    PROGRAMS.programs["n3"] = ENDS
    failed = run("add")
    assert failed.exit_code == 1
    assert "n3 does not come up" in failed.output and "cannot open the store" in failed.output
    assert orjson.loads(run("status", "--json").output)["nodes"] == before
    refused = run("remove", "namesrv")
    assert refused.exit_code == 1 and "namesrv is no broker" in refused.output


def test_mqcluster_succeeds_with_closed_output(
    run, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        cluster_cli.main(["up", "--dir", str(tmp_path / "c")])
    assert ended.value.code == 0
    for text in (["status"], ["status", "--json"], ["kill", "n0"], ["down"]):
        with unread(monkeypatch), pytest.raises(SystemExit) as ended:
            cluster_cli.main([*text, "--dir", str(tmp_path / "c")])
        assert ended.value.code == 0


def test_up_names_processes_with_former_settings(run) -> None:
    assert "former settings" not in run("up", "--replicas", "1").output
    again = run("up", "--set", "flushDiskType=ASYNC_FLUSH")
    assert again.output.endswith("with former settings until a restart (mqcluster restart): n0\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_mqcluster_reports_it(
    run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    monkeypatch.setattr(Cluster, "up", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        result = run("up")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.stderr) == (130, "Error: interrupted\n")


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(cluster_cli.main, ["--help"]).output
    for name in cluster_cli.main.commands.keys() - {"modes", "transfer"}:
        assert f"mqcluster {name}" in text


def test_mqcluster_prints_its_progress(run, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(work, "progress", reported.append)
    assert run("up").exit_code == 0
    assert reported[:4] == ["namesrv starts", "n0 starts", "n1 starts", "n2 starts"]
