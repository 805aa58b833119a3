"""Audits against a table of what producers were acknowledged, without a history."""

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from raftmq.audit.api import run_audit
from raftmq.audit.cli import main
from raftmq.audit.read.history import HistoryUnfit
from raftmq.audit.read.system_topics import HALF_TOPIC, SCHEDULE_TOPIC
from raftmq.audit.report.report import AuditReport
from tests.audit.run import NAMES, TOPIC, Run, message_id
from tests.audit.stores import Message

COUNT = 60


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.plan(tmp_path, COUNT)


def rows_of(run: Run) -> list[dict[str, Any]]:
    """What an application would have noted of the messages that are stored."""
    return [
        {
            "msg_id": placed.message.id,
            "topic": placed.message.topic,
            "broker": None,
            "queue_id": placed.message.queue,
            "queue_offset": placed.queue_offset,
            "body_crc": zlib.crc32(placed.message.body),
        }
        for placed in run.log.placed
        if placed.message.topic == TOPIC
    ]


def write(run: Run, rows: list[dict[str, Any]]) -> Path:
    path = run.root / "acks.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def audit(run: Run, path: Path) -> AuditReport:
    return run_audit(run.stores, acknowledged=path)


def ids(report: AuditReport, check: str) -> list[str]:
    return sorted(row["id_text"] for row in report.check(check).offenders)


def test_acknowledged_messages_that_are_all_stored_pass(run: Run) -> None:
    run.store().write()
    report = audit(run, write(run, rows_of(run)))
    assert report.ok, [check for check in report.checks if not check.ok]
    assert report.figures["acknowledged"] == COUNT
    assert any("messages never sent" in each for each in report.not_judged)


def test_acknowledged_audit_finds_each_planted_fault(run: Run) -> None:
    run.messages.insert(14, run.messages[10])  # stored twice
    run.store().write()
    rows = {row["msg_id"]: row for row in rows_of(run)}
    rows[message_id(20)]["queue_offset"] += 1
    rows[message_id(21)]["body_crc"] ^= 1
    rows["gone"] = rows[message_id(0)] | {"msg_id": "gone"}
    rows["elsewhere"] = rows[message_id(0)] | {"msg_id": "elsewhere", "topic": "NoSuchTopic"}
    report = audit(run, write(run, list(rows.values())))
    assert ids(report, "missing") == ["elsewhere", "gone"]
    assert ids(report, "misplaced") == [message_id(20)]
    assert ids(report, "altered") == [message_id(21)]
    assert ids(report, "twice") == [message_id(10)]
    assert {check.name for check in report.checks if not check.ok} == {
        "missing",
        "misplaced",
        "altered",
    }


def test_acknowledged_delayed_and_half_messages_are_where_they_waited(run: Run) -> None:
    waiting, came, committed, rolled_back = (message_id(n) for n in range(900, 904))
    run.messages += [
        Message(waiting, b"later", SCHEDULE_TOPIC, queue=2),
        Message(came, b"soon", SCHEDULE_TOPIC, queue=2),
        Message(came, b"soon", TOPIC, queue=1),
        Message(committed, b"perhaps", HALF_TOPIC),
        Message(committed, b"perhaps", TOPIC, sys_flag=8),
        Message(rolled_back, b"no", HALF_TOPIC),
    ]
    run.store().write()
    rows = rows_of(run)
    for id, offset in ((waiting, 0), (came, 1), (committed, 0), (rolled_back, 1)):
        rows.append(rows[0] | {"msg_id": id, "queue_offset": offset, "body_crc": None})
    report = audit(run, write(run, rows))
    assert report.count("missing") == report.count("misplaced") == 0
    assert ids(report, "waiting") == [waiting, rolled_back]
    assert report.check("waiting").ok


@pytest.mark.long
def test_message_on_a_single_replica_is_missing_and_located_there(run: Run) -> None:
    """Two replicas end before the last messages: the third alone has them."""
    run.store()
    last = run.placed(COUNT - 1)
    kept = run.placed(COUNT - 8)
    run.write()
    rows = rows_of(run)
    for name in NAMES[:2]:
        segments = sorted((run.root / name / "store" / "commitlog").iterdir())
        for path in segments:
            base = int(path.name)
            data = bytearray(path.read_bytes())
            cut = max(0, kept.position - base)
            data[cut:] = bytes(len(data) - cut)
            path.write_bytes(data)
    report = audit(run, write(run, rows))
    held_by = {row["id_text"]: row["held_by"] for row in report.check("missing").offenders}
    (position,) = held_by[last.message.id]
    assert position.startswith("n2/commitlog/")
    # Of the frame that was cut all but the first records are there, and vouched for by nobody.
    assert all(
        any(position.startswith("n2/") for position in positions) for positions in held_by.values()
    )


def test_message_removed_by_retention_is_not_lost(run: Run) -> None:
    run.store().write()
    rows = rows_of(run)
    for name in NAMES:
        first, *_ = sorted((run.root / name / "store" / "commitlog").iterdir())
        end = first.stat().st_size
        first.unlink()
    removed = {
        p.message.id for p in run.log.placed if p.position < end and p.message.topic == TOPIC
    }
    assert 0 < len(removed) < COUNT
    report = audit(run, write(run, rows))
    assert report.count("missing") == 0
    assert report.count("removed") == len(removed)


@pytest.mark.long
@pytest.mark.parametrize("name", ["acks.jsonl", "acks"])
def test_acknowledged_table_may_have_only_ids_and_topics(run: Run, name: str) -> None:
    run.store().write()
    rows = [{"msg_id": row["msg_id"], "topic": row["topic"]} for row in rows_of(run)]
    rows.append({"msg_id": "gone", "topic": TOPIC})
    path = run.root / name
    if name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:  # a directory of files, as Spark writes it
        path.mkdir()
        (path / "_SUCCESS").touch()
        for number, part in enumerate((rows[:20], rows[20:])):
            pq.write_table(pa.Table.from_pylist(part), path / f"part-{number}.parquet")
            (path / f".part-{number}.parquet.crc").write_bytes(b"crc\0")
    report = audit(run, path)
    assert ids(report, "missing") == ["gone"]
    assert report.count("misplaced") == report.count("altered") == 0


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "acks.jsonl",
            b'{"msg_id": "a", "topic": "T"}\n{"msg_id": "b", "topic": "T", "que',
            ":2: '{",
        ),
        (
            "acks.jsonl",
            b'{"msg_id": "b", "topic": "T", "queue_id": "one"}\n',
            "no acknowledged mess",
        ),
        ("acks.jsonl", b'{"msg_id": "b", "topic": "T", "body_crc": 4294967296}\n', "than 32 bits"),
        ("acks.jsonl", b"", "a list of nothing proves nothing"),
        ("acks.jsonl", b'{"topic": "T"}\n', "1 rows without msg_id or topic"),
        ("acks.parquet", b"PAR1 it is not", "cannot be read"),
    ],
)
def test_malformed_acknowledged_table_is_rejected(
    run: Run, name: str, content: bytes, told: str
) -> None:
    run.store().write()
    path = run.root / name
    path.write_bytes(content)
    with pytest.raises(HistoryUnfit, match=told):
        audit(run, path)


def test_rows_of_other_broker_groups_are_not_counted_as_judged(run: Run) -> None:
    run.store().write()
    rows = rows_of(run)
    others = [
        row | {"msg_id": f"other-{n}", "broker": "broker-b"} for n, row in enumerate(rows[:5])
    ]
    report = run_audit(run.stores, group="broker-a", acknowledged=write(run, rows + others))
    assert report.ok and report.figures["acknowledged"] == COUNT
    assert "5 messages that other broker groups acknowledged" in report.not_judged
    with pytest.raises(
        HistoryUnfit, match="5 rows of broker groups that are not audited: broker-b"
    ):
        run_audit(run.stores, group="broker-a", acknowledged=write(run, others))


def test_mqaudit_with_an_acknowledged_table(run: Run) -> None:
    run.store().write()
    path = write(run, [*rows_of(run), rows_of(run)[0] | {"msg_id": "gone"}])
    stores = [word for name, at in run.stores.items() for word in ("--store", f"{name}={at}")]
    done = CliRunner().invoke(main, [*stores, "--acknowledged", str(path)])
    assert done.exit_code == 1, done.output
    assert "id_text=gone" in done.output
    both = ["--acknowledged", str(path), "--history", str(path), "--topic", TOPIC]
    assert CliRunner().invoke(main, [*stores, *both]).exit_code == 2
