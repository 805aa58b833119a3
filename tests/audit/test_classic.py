"""Classic groups: a master and its slave, and one group of a cluster of several."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.cli import main
from raftmq.audit.read.cluster_info import CLASSIC, RAFT, subject_of
from raftmq.audit.read.store_files import StoreError
from tests.audit.run import TOPIC, Run, message_id
from tests.audit.stores import Log, Message, queue_units, write_store

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def master_and_slave(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, AuditReport]:
    """m0 lost its log's end when it was killed, s0 has it; then there is what neither has.

    The history is of two groups: broker-b's messages are not in these stores.
    """
    root = tmp_path_factory.mktemp("classic")
    run = Run.plan(root, count=60)
    run.log = Log(framed=False)
    gone = run.messages.pop(5)  # acknowledged, in no store
    run.outcomes[message_id(7)] = ("ok", 1)
    run.acknowledged_as[message_id(7)] = {"status": "FLUSH_SLAVE_TIMEOUT"}
    weak_and_gone = next(m for m in run.messages if m.id == message_id(8))
    run.messages.remove(weak_and_gone)
    run.acknowledged_as[message_id(8)] = {"status": "FLUSH_DISK_TIMEOUT", "broker": "broker-a"}
    run.acknowledged_as[message_id(9)] = {"broker": "broker-a"}
    # Acknowledged by broker-b at the second attempt; the first one had been stored here.
    run.outcomes[message_id(10)] = ("ok", 2)
    run.acknowledged_as[message_id(10)] = {"broker": "broker-b", "queue": 0, "offset": 4}
    run.outcomes[message_id(11)] = ("unknown", 1)
    elsewhere = Message(message_id(200), b"of broker-b")
    run.sent.append(elsewhere)
    run.seqs[elsewhere.id] = 0
    run.acknowledged_as[elsewhere.id] = {"broker": "broker-b", "queue": 1, "offset": 77}
    run.store()
    placed = run.placed(40)
    master, slave = run.log.copy(), run.log
    base = placed.position - placed.position % run.log.segment_size_bytes
    for segment in [s for s in master.segments if s > base]:
        del master.segments[segment]
    master.patch(placed.position, bytes(base + run.log.segment_size_bytes - placed.position))
    master.placed = [p for p in run.log.placed if p.position < placed.position]
    write_store(root / "m0" / "store", master, 0, queue_units(master))
    (root / "m0" / "store" / "abort").touch()
    units = queue_units(slave)
    units[TOPIC, 1] = units[TOPIC, 1][:-20]  # the slave's index lacks the last one of queue 1
    write_store(root / "s0" / "store", slave, 0, units)
    nodes = [{"name": name, "group": "broker-a"} for name in ("m0", "s0")]
    nodes.append({"name": "m1", "group": "broker-b"})
    described = {"version": 2, "mode": "2m-2s-async", "nodes": nodes}
    (root / "cluster.json").write_text(json.dumps(described))
    run.history.consume(0, [10_000], ["x" * 32], TOPIC)
    run.history.events[-1]["broker"] = "broker-b"
    run.write()
    assert gone.id == message_id(5)
    stores = {name: root / name / "store" for name in ("m0", "s0")}
    return run, run_audit(stores, run.history_path, TOPIC)


def test_mode_and_group_are_read_from_the_cluster(
    master_and_slave: tuple[Run, AuditReport],
) -> None:
    report = master_and_slave[1]
    assert (report.mode, report.group) == (CLASSIC, "broker-a")


def test_only_messages_in_no_store_are_missing(master_and_slave: tuple[Run, AuditReport]) -> None:
    report = master_and_slave[1]
    assert {check.name for check in report.checks if not check.ok} == {"missing", "not_indexed"}
    assert [row["id_text"] for row in report.check("missing").offenders] == [message_id(5)]
    assert report.figures["acknowledged"] == 60 - 4  # 7, 8: less; 10: elsewhere; 11: unknown


def test_messages_with_a_warning_status_are_counted_separately(
    master_and_slave: tuple[Run, AuditReport],
) -> None:
    report = master_and_slave[1]
    assert [row["id_text"] for row in report.check("weak_missing").offenders] == [message_id(8)]
    assert report.figures["weakly_acknowledged"] == 2
    assert [r["id_text"] for r in report.check("unknown_stored").offenders] == [message_id(11)]


def test_index_must_be_complete_in_a_closed_store(
    master_and_slave: tuple[Run, AuditReport],
) -> None:
    run, report = master_and_slave
    (row,) = report.check("not_indexed").offenders
    last = [p for p in run.log.placed if p.message.topic == TOPIC and p.message.queue == 1][-1]
    assert (row["store"], row["position"]) == ("s0", last.position)


@pytest.mark.long
def test_differing_copy_and_a_phantom_are_found(tmp_path: Path) -> None:
    run = Run.plan(tmp_path, count=30)
    run.log = Log(framed=False)
    run.messages.insert(9, Message("F" * 32, b"never sent"))
    run.store()
    run.logs["n1"].flip(run.placed(20).position + 89)
    run.write()
    stores = {name: run.stores[name] for name in ("n0", "n1")}
    report = run_audit(stores, run.history_path, TOPIC, mode=CLASSIC)
    assert {check.name for check in report.checks if not check.ok} == {
        "phantom",
        "damage",
        "replicas",
    }
    (row,) = report.check("replicas").offenders
    assert row["first_difference"] == run.placed(20).position + 89
    assert [row["id_text"] for row in report.check("phantom").offenders] == ["F" * 32]


# ---- what is audited, without Spark


def described(root: Path, mode: str, groups: dict[str, str]) -> dict[str, str]:
    """A cluster's directory; returns its stores."""
    nodes = [{"name": name, "group": group} for name, group in groups.items()]
    (root / "cluster.json").write_text(json.dumps({"mode": mode, "nodes": nodes}))
    return {name: str(root / name / "store") for name in groups}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("raft", RAFT), ("pysyncobj", RAFT), ("sync", CLASSIC), ("2m-noslave", CLASSIC)],
)
def test_mode_of_a_cluster(tmp_path: Path, mode: str, expected: str) -> None:
    stores = described(tmp_path, mode, {"n0": "broker-a", "n1": "broker-a"})
    result = subject_of(stores)
    assert (result.mode, result.group) == (expected, "broker-a")
    assert result.founders == {"n0", "n1"}
    result = subject_of(stores, mode=RAFT, group="other")
    assert (result.mode, result.group, result.founders) == (RAFT, "other", frozenset())


def test_stores_of_several_groups_are_rejected(tmp_path: Path) -> None:
    stores = described(tmp_path, "2m-noslave", {"m0": "broker-a", "m1": "broker-b"})
    with pytest.raises(StoreError, match="several broker groups"):
        subject_of(stores)
    assert subject_of({"m1": stores["m1"]}).group == "broker-b"


def test_stores_without_a_cluster_have_no_mode(tmp_path: Path) -> None:
    result = subject_of({"n0": str(tmp_path / "n0" / "store")})
    assert (result.mode, result.group, result.founders) == (None, None, frozenset())
    assert subject_of({"n0": str(tmp_path / "n0" / "store")}, CLASSIC).mode == CLASSIC


@pytest.mark.parametrize("content", ["[]", "{"])
def test_damaged_cluster_file_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(StoreError, match=r"cluster\.json"):
        subject_of({"n0": str(tmp_path / "n0" / "store")})


def test_unknown_mode_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "n0" / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "h").write_text("{}\n")
    text = ["--history", str(tmp_path / "h"), "--topic", "T", "--mode", "sync"]
    result = CliRunner().invoke(main, [*text, "--store", f"n0={tmp_path / 'n0' / 'store'}"])
    assert result.exit_code == 2
    assert "'sync' is not one of 'raft', 'classic'" in result.output
