"""mqaudit: what it prints, what it writes, and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from raftmq.audit import api
from raftmq.audit import find_java as java
from raftmq.audit.cli import main
from raftmq.audit.engine import columns as F
from raftmq.audit.engine.frames import Frame
from raftmq.audit.find_java import JavaNotFound, find_java_home, java_version
from raftmq.audit.read import tables
from raftmq.audit.read.cluster_info import stores_of_run
from raftmq.audit.read.store_files import StoreError
from raftmq.store.store_lock import lock_store
from tests.audit.run import TOPIC, Run, message_id
from tests.brokenpipe import unread


def arguments_of(run: Run, topic: str = TOPIC) -> list[str]:
    stores = [word for name, at in run.stores.items() for word in ("--store", f"{name}={at}")]
    return ["--history", str(run.history_path), "--topic", topic, *stores]


def mqaudit(run: Run, *more: str, topic: str = TOPIC) -> Result:
    return CliRunner().invoke(main, [*arguments_of(run, topic), *more])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.plan(tmp_path, count=12)


def test_clean_run_exits_with_0(run: Run) -> None:
    run.store().write()
    report = run.root / "report.json"
    result = mqaudit(run, "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "nothing is wrong (engine local, " in result.output
    content = json.loads(report.read_bytes())
    assert content["ok"] is True
    assert content["figures"]["acknowledged"] == 12
    assert {check["name"] for check in content["checks"]} >= {"missing", "phantom", "replicas"}


def test_closed_output_changes_neither_the_verdict_nor_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.store().write()
    report, results = run.root / "report.json", run.root / "results"
    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        main([*arguments_of(run), "--json", str(report), "--results", str(results)])
    assert ended.value.code == 0
    assert json.loads(report.read_bytes())["ok"] is True
    assert (results / "mqaudit.prom").exists()


@pytest.mark.parametrize("wrong", [False, pytest.param(True, marks=pytest.mark.long)])
def test_unwritable_report_is_one_line_and_the_others_are_written(run: Run, wrong: bool) -> None:
    if wrong:
        run.messages.pop(4)
    run.store().write()
    results = run.root / "results"
    (results / "audit.html").mkdir(parents=True)
    result = mqaudit(run, "--json", "/dev/full", "--results", str(results))
    assert result.exit_code == (1 if wrong else 2), result.output
    full, taken = result.stderr.splitlines()
    assert full == "mqaudit: /dev/full: No space left on device"
    assert taken.startswith("mqaudit: ") and taken.endswith("audit.html.tmp: Is a directory")
    assert (results / "checks.parquet").exists()
    assert f"{'something' if wrong else 'nothing'} is wrong" in result.stdout


@pytest.mark.long
def test_results_are_written_as_tables(run: Run) -> None:
    run.messages.pop(4)
    run.store().write()
    results = run.root / "results"
    assert mqaudit(run, "--results", str(results)).exit_code == 1
    (finding,) = [
        row for row in pq.read_table(results / "findings.parquet").to_pylist() if row["fault"]
    ]
    assert finding["check"] == "missing" and message_id(4) in finding["details"]
    assert 'raftmq_audit_ok{group=""} 0' in (results / "mqaudit.prom").read_text()
    taken = run.root / "file"
    taken.write_text("")
    assert mqaudit(run, "--results", str(taken / "below")).exit_code == 2


def test_stores_of_running_brokers_are_rejected_before_the_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.store().write()
    monkeypatch.setattr(api, "session", lambda: pytest.fail("Spark was started"))
    lock = lock_store(run.stores["n1"], "mqbroker n1")
    try:
        result = mqaudit(run)
        assert result.exit_code == 2
        assert "the store n1" in result.output and "mqbroker n1" in result.output
        assert "--namesrv" in result.output and "starting" not in result.output
        with pytest.raises(StoreError, match="in use by mqbroker n1"):
            api.run_audit(run.stores)
    finally:
        lock.release()


def test_spark_settings_are_passed(run: Run) -> None:
    run.store().write()
    for wrong in ("spark.driver.memory", "driver.memory=1g"):
        result = mqaudit(run, "--conf", wrong)
        assert result.exit_code == 2 and "spark.KEY=VALUE" in result.output
    for option in (("--master", "local[1]"), ("--conf", "spark.a=b"), ("--staging", "s3://b")):
        result = mqaudit(run, "--engine", "local", *option)
        assert result.exit_code == 2
        assert result.output.endswith("needs Spark: leave --engine local out\n")


@pytest.mark.long
def test_executors_of_a_cluster_do_the_work(run: Run) -> None:
    """Two executors, processes of their own."""
    run.store().write()
    cluster = ["--master", "local-cluster[2,1,700]", "--conf", "spark.executor.memory=600m"]
    done = subprocess.run(
        [sys.executable, "-m", "raftmq.audit", *arguments_of(run), *cluster],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout


def test_lost_message_exits_with_1(run: Run) -> None:
    run.messages.pop(4)
    run.store().write()
    result = mqaudit(run)
    assert result.exit_code == 1, result.output
    assert "something is wrong: lost" in result.output
    assert message_id(4) in result.output


def test_damaged_replica_exits_with_3(run: Run) -> None:
    run.store()
    run.logs["n1"].flip(run.placed(4).position + 90)
    run.write()
    results = run.root / "results"
    result = mqaudit(run, "--results", str(results))
    assert result.exit_code == 3, result.output
    assert "something is wrong: damaged" in result.output
    damage = 'raftmq_audit_findings{group="",check="damage",verdict="damaged",fault="true"} 2'
    assert damage in (results / "mqaudit.prom").read_text()


def test_topic_without_sends_exits_with_2(run: Run) -> None:
    run.store().write()
    result = mqaudit(run, topic="Trains")
    assert result.exit_code == 2
    assert "no sends to topic Trains" in result.output


def test_failed_query_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.store().write()

    def fails(items: Frame, *_: object) -> None:
        items.select(F.lit("many").cast("long").alias("count")).collect()

    monkeypatch.setattr(tables, "find_limits", fails)
    result = mqaudit(run)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("mqaudit: a query failed: Conversion Error: Could not convert string")


@pytest.mark.parametrize(("share", "told"), [(0, "is empty"), (0.6, "no event `end` after line")])
def test_torn_history_exits_with_2_and_blames_no_store(run: Run, share: float, told: str) -> None:
    run.store().write()
    content = run.history_path.read_bytes()
    run.history_path.write_bytes(content[: int(len(content) * share)])
    result = mqaudit(run)
    assert result.exit_code == 2
    assert result.output.startswith("mqaudit: the history ") and told in result.output
    assert len(result.output.splitlines()) == 1


def test_mqchaos_run_directory_is_audited(tmp_path: Path) -> None:
    run = Run.plan(tmp_path, count=12)
    run.store().write()
    nodes = []
    for name, directory in run.stores.items():
        (tmp_path / "cluster" / name).mkdir(parents=True)
        (tmp_path / "cluster" / name / "store").symlink_to(Path(directory).absolute())
        nodes.append({"name": name, "group": "broker-a"})
    left = {"mode": "raft", "nodes": [{"name": "namesrv", "group": ""}, *nodes]}
    (tmp_path / "cluster" / "cluster.json").write_text(json.dumps(left))
    run.history_path.rename(tmp_path / "history.jsonl")
    result = CliRunner().invoke(main, ["--run", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert all(f" {name} " in result.output for name in run.stores)
    assert "n0" in stores_of_run(tmp_path, "broker-a")
    (tmp_path / "cluster" / "n0" / "broker.conf").write_text("brokerName=broker-b\nbrokerId=0\n")
    assert list(stores_of_run(tmp_path, "broker-b")) == ["n0"]  # a group that was removed
    other = CliRunner().invoke(main, ["--run", str(tmp_path), "--group", "broker-z"])
    assert other.exit_code == 2
    assert "no stores of broker-z" in other.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Name running brokers"),
        (["--store", "n0"], "not NAME=DIR"),
        (["--store", "n0=nowhere"], "has no commitlog"),
        (["--store", "n0={dir}", "--store", "n0={dir}"], "given twice"),
        (["--store", "n0={dir}", "--namesrv", "h:1"], "Name running brokers"),
        (["--store", "n0={dir}", "--cores", "0"], "0 is not in the range"),
    ],
)
def test_bad_usage_exits_with_2(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    history = tmp_path / "h.jsonl"
    history.write_text("{}\n")
    filled = [argument.format(dir=tmp_path / "store") for argument in arguments]
    result = CliRunner().invoke(main, ["--history", str(history), "--topic", "T", *filled])
    assert result.exit_code == 2
    assert complaint in result.output


def test_help_does_not_wait_for_spark() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from raftmq.audit.cli import main;"
        "r = CliRunner().invoke(main, ['--help']); assert r.exit_code == 0;"
        "assert 'NAME=DIR' in r.output; assert 'pyspark' not in sys.modules"
    )
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=300)


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "status", "expected"),
    [("17.0.15", 0, 17), ("1.8.0_402", 0, 8), ("21", 0, 21), ("26-ea", 0, 26), ("17.0.1", 1, 0)],
)
def test_java_version(tmp_path: Path, version: str, status: int, expected: int) -> None:
    assert java_version(fake_java(tmp_path / "java", version, status)) == expected


def test_java_version_without_a_java_is_zero(tmp_path: Path) -> None:
    assert java_version(tmp_path) == 0
    home = fake_java(tmp_path / "java", "17")
    (home / "bin" / "java").write_text("not a program")
    assert java_version(home) == 0


def test_java_is_searched_in_the_usual_places(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "new", "17.0.2")
    positions = {
        version: fake_java(tmp_path / "jvm" / version, version) for version in ("21", "25")
    }
    usual = (str(tmp_path / "jvm" / "*"),)

    def found(java_home: Path | None, path: Path | None, usual: tuple[str, ...]) -> str:
        environment = {"PATH": str(path / "bin") if path else str(tmp_path / "nowhere")}
        if java_home is not None:
            environment["JAVA_HOME"] = str(java_home)
        return find_java_home(environment, usual)

    assert found(new, None, ()) == str(new)
    assert found(old, new, ()) == str(new)
    assert found(old, old, usual) == str(positions["21"])
    with pytest.raises(JavaNotFound, match="Java 17 or newer") as caught:
        found(old, None, ())
    assert "\n" not in str(caught.value)


def test_missing_java_exits_with_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.store().write()
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr(java, "java_version", lambda home: 0)
    monkeypatch.setitem(os.environ, "JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    result = mqaudit(run, "--engine", "spark")
    assert result.exit_code == 2
    assert result.output.startswith("mqaudit: Java 17 or newer is needed")
    assert len(result.output.splitlines()) == 1
    assert mqaudit(run).exit_code == 0
