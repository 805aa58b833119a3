"""An audit's files: the tables say what the report says, and Prometheus can read the text."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from raftmq.audit.report.report import AuditReport, CheckResult, StoreReport
from raftmq.audit.report.results import write_results

MS = 1_700_000_000_123
LOST = CheckResult.of_faults(
    "missing",
    "acknowledged and lost",
    [
        {"id_text": "A1", "position": 77, "store": "n0", "location": "n0/commitlog/0:77"},
        {"id_text": "A2", "held_by": ["n2"]},
    ],
)
STORE = StoreReport("n0", 0, 900, 800, 700, 12, 3)


def report(group: str = "broker-a", *checks: CheckResult) -> AuditReport:
    return AuditReport("T", (STORE,), {"stored": 12}, checks, 1.5, group=group)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    retried = CheckResult("duplicate_retry", "stored twice by retries", False, 4)
    for _ in range(2):  # the second replaces the first
        write_results(tmp_path, [report("broker-a", LOST, retried), report('odd"\\name')], MS)
    return tmp_path


def test_result_tables_equal_the_reports(written: Path) -> None:
    tables = {p.stem: pq.read_table(p).to_pylist() for p in written.glob("*.parquet")}
    assert set(tables) == {"stores", "figures", "checks", "findings"}
    assert {row["audited_at"].timestamp() for row in tables["stores"]} == {MS / 1000}
    assert [(row["group"], row["agreed"]) for row in tables["stores"]] == [
        ("broker-a", 700),
        ('odd"\\name', 700),
    ]
    assert tables["figures"][0]["figure"] == "stored" and tables["figures"][0]["count"] == 12
    assert [(row["check"], row["count"], row["ok"]) for row in tables["checks"]] == [
        ("missing", 2, False),
        ("duplicate_retry", 4, True),
    ]
    first, second = tables["findings"]
    assert (first["store"], first["position"], first["location"]) == ("n0", 77, "n0/commitlog/0:77")
    assert second["store"] is None and json.loads(second["details"])["held_by"] == ["n2"]
    assert not [path for path in written.iterdir() if path.name.endswith(".tmp")]


def test_result_page_shows_place_and_time(tmp_path: Path) -> None:
    odd = CheckResult.of_faults(
        "phantom", "<never> sent", [{"id_text": "</script>", "position": 9}]
    )
    shown = replace(report("broker-a", LOST, odd), timeline=((MS, 5, 0), (MS + 1000, 7, 50)))
    write_results(tmp_path, [shown], MS)
    text = (tmp_path / "audit.html").read_text()
    assert "Something is wrong." in text and "2023-11-14 22:13:20 UTC" in text
    assert "&lt;never&gt; sent" in text and "id_text=</script>" not in text
    assert "position=77" in text and "stored about 2023-11-14 22:13:21 UTC" in text
    assert "&lt;/script&gt;" in text and "<script" not in text
    assert "n0/commitlog/0:77" in text
    write_results(tmp_path, [], MS)
    assert "Nothing is wrong." in (tmp_path / "audit.html").read_text()


def test_prometheus_reads_the_result_text(written: Path) -> None:
    families = text_string_to_metric_families((written / "mqaudit.prom").read_text())
    result = {
        (sample.name.removeprefix("raftmq_audit_"), *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    assert result["ok", "broker-a"] == 0 and result["ok", 'odd"\\name'] == 1
    assert result["findings", "broker-a", "lost", "missing", "true"] == 2
    assert result["findings", "broker-a", "duplicate_retry", "false", "lost"] == 4
    assert result["time_seconds", "broker-a"] == MS / 1000
    assert result["store_records", "broker-a", "n0"] == 12
    assert result["agreed_end_bytes", "broker-a"] == 700
