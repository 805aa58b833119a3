"""Stores of Apache's DLedger: three replicas that Apache RocketMQ 5.3.3 left."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.read.log_scanner import walk_range
from raftmq.audit.report.report import AuditReport
from raftmq.spark.layout import DLEDGER_ENTRY
from tests.archives import unpack
from tests.audit.conftest import FIXTURES

ENTRIES = 178
END = 53_152


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, Path]]:
    with tarfile.open(FIXTURES / "apache-5.3.3-dledger-3-replicas.tar.xz") as archive:
        unpack(archive, tmp_path)
    yield {f"n{number}": tmp_path / f"dledger-{number}" for number in range(3)}


def log_of(stores: dict[str, Path], name: str) -> Path:
    return stores[name] / f"dledger-{name}" / "data" / f"{0:020d}"


def audited(stores: dict[str, Path]) -> AuditReport:
    return run_audit(stores)


def test_apache_dledger_stores_are_clean(stores: dict[str, Path]) -> None:
    report = audited(stores)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert (report.mode, report.figures["stored"], report.agreed_end) == ("raft", ENTRIES, END)
    assert {store.commit for store in report.stores} == {END}  # from committedIndex


@pytest.mark.long
def test_changed_byte_is_blamed_on_its_dledger_replica(stores: dict[str, Path]) -> None:
    path = log_of(stores, "n2")
    data = bytearray(path.read_bytes())
    at = walk_range(memoryview(data), 0, 0, len(data)).records[7] + 90  # in its body
    data[at] ^= 1
    path.write_bytes(data)
    report = audited(stores)
    assert report.count("damage") == 1
    (different,) = report.check("replicas").offenders
    assert (different["store"], different["first_difference"]) == ("n2", at)
    assert different["location"] == f"dledger-n2/data/{0:020d}:{at}"


def test_lost_entry_and_lost_queue_entry_are_found(stores: dict[str, Path]) -> None:
    path = log_of(stores, "n1")
    data = bytearray(path.read_bytes())
    entry = walk_range(memoryview(data), 0, 0, len(data)).frames[20]
    data[entry.at : entry.at + DLEDGER_ENTRY.size + entry.payload_length] = bytes(
        DLEDGER_ENTRY.size + entry.payload_length
    )
    path.write_bytes(data)
    unit = next((stores["n0"] / "consumequeue").glob("cmp_tags_*/0/*"))
    content = bytearray(unit.read_bytes())
    content[:20] = bytes(20)
    unit.write_bytes(content)
    report = audited(stores)
    assert {o["store"] for o in report.check("damage").offenders} == {"n1"}
    assert {o["store"] for o in report.check("frame_sequence").offenders} == {"n1"}
    assert "n0" in {o["store"] for o in report.check("not_indexed").offenders}


def test_absent_dledger_replica_is_counted(stores: dict[str, Path]) -> None:
    both = {name: path for name, path in stores.items() if name != "n2"}
    assert audited(both).figures["stored"] == ENTRIES


@pytest.mark.parametrize("split", [1, 4, 47, 48, 49, 52, 100, 294, 295, 296, 1_000, 30_001])
def test_dledger_ranges_from_any_byte_have_each_item_once(
    stores: dict[str, Path], split: int
) -> None:
    data = memoryview(log_of(stores, "n0").read_bytes())
    complete = walk_range(data, 0, 0, len(data))
    assert (len(complete.records), len(complete.frames)) == (ENTRIES, ENTRIES)
    low, high = walk_range(data, 0, 0, split), walk_range(data, 0, split, len(data))
    assert low.records + high.records == complete.records
    assert low.frames + high.frames == complete.frames
