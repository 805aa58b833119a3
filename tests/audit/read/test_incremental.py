"""Incremental audits: they begin where the one before ended, and find what a whole one would."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.cli import main
from raftmq.audit.read import committed_range as limits
from raftmq.audit.read import incremental as since
from raftmq.audit.read.incremental import TAIL_BYTES, Ended, Kept, Range
from raftmq.audit.read.store_files import Store, StoreError
from raftmq.audit.report.report import Offender
from tests.audit.planted import Hit, group_at, write_beside
from tests.audit.run import NAMES, TOPIC, Run
from tests.audit.stores import Log, Message, queue_units, write_store

pytestmark = pytest.mark.timeout(900)


def until(log: Log, position: int) -> Log:
    """The log as it was when it ended there, where a frame begins."""
    early = log.copy()
    base = position - position % log.segment_size_bytes
    early.segments = {at: data for at, data in early.segments.items() if at <= base}
    early.segments[base][position - base :] = bytes(log.segment_size_bytes - (position - base))
    early.placed = [placed for placed in log.placed if placed.position < position]
    early.frames = [frame for frame in log.frames if frame[0] < position]
    early.end, early.index = position, len(early.frames)
    return early


def write(root: Path, log: Log) -> dict[str, str]:
    """Write the group's stores, in place of those there."""
    stores = {}
    for name in NAMES:
        store = root / name / "store"
        shutil.rmtree(store, ignore_errors=True)
        write_store(store, log, log.end, queue_units(log))
        write_beside(store, log)
        stores[name] = str(store)
    return stores


def wrong(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return group_at(tmp_path_factory.mktemp("group"))


@pytest.fixture(scope="module")
def begun(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an audit left of the first two thirds of the log."""
    root = tmp_path_factory.mktemp("begun")
    stores = write(root, until(run.log, middle(run)))
    report = run_audit(stores, results=root / "results")
    assert wrong(report) == set()
    assert Kept(root / "results", "").ended().position == middle(run)  # type: ignore[union-attr]
    return root / "results"


def middle(run: Run) -> int:
    """A frame's position in the second segment."""
    second = sorted(run.log.segments)[1]
    return [at for at, _ in run.log.frames if at > second][4]


def results_of(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "results"))


def test_incremental_audit_reads_only_the_added_part(run: Run, begun: Path, tmp_path: Path) -> None:
    results, stores = results_of(begun, tmp_path), write(tmp_path, run.log)
    report = run_audit(stores, results=results, incremental=True)
    assert wrong(report) == set()
    added = [placed for placed in run.log.placed if placed.position >= middle(run)]
    assert report.figures["stored"] == len(added)
    assert {store.start for store in report.stores} == {middle(run)}
    assert report.agreed_end == run.log.end
    assert report.not_judged[0].startswith(f"the log before {middle(run):,}: ")
    # Nothing has been added since.
    again = run_audit(stores, results=results, incremental=True)
    assert wrong(again) == set()
    assert again.figures["stored"] == 0
    assert again.agreed_end == run.log.end
    ranges = pq.read_table(results / "ranges.parquet").to_pylist()
    edges = [(row["start"], row["end"]) for row in ranges]
    assert edges == [(0, middle(run)), (middle(run), run.log.end)]


def test_incremental_audit_finds_damage_in_the_added_part(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    """Offsets and indexes go on where they were; so do tables and IndexFiles."""
    first = next(placed for placed in run.log.placed if placed.position > middle(run))
    stores = write(tmp_path, run.log)
    hit = Hit(run, [Path(stores["n1"])], tmp_path)
    hit.flip(first.position + 90)
    hit.table("consumerOffset.json", offsetTable={})
    hit.patch("index/20231114221320001", 40 + 512 * 4 + 20 * 2 * (len(run.log.placed) - 2), b"\x01")
    results = results_of(begun, tmp_path)
    report = run_audit(stores, results=results, incremental=True)
    assert wrong(report) == {"damage", "replicas", "tables", "index"}
    assert Kept(results, "").ended().position == middle(run)  # type: ignore[union-attr]
    assert report.count("offset_holes") == 0


@pytest.mark.long
def test_gap_between_two_audits_is_found(run: Run, begun: Path, tmp_path: Path) -> None:
    """The frame behind the first audit's end had been there, and others stand in its place."""
    log = until(run.log, middle(run))
    log.index += 1
    queue = next(iter(log.next_offsets))
    log.next_offsets[queue] = run.log.next_offsets[queue] + 5
    later = [p.message for p in run.log.placed if p.position >= middle(run)]
    log.frame(5, [message for message in later if (message.topic, message.queue) == queue][:1])
    stores = write(tmp_path, log)
    report = run_audit(stores, results=results_of(begun, tmp_path), incremental=True)
    assert {"frame_sequence", "offset_holes"} <= wrong(report)


class Killed(BaseException):
    """The audit's process ends."""


@pytest.mark.parametrize("replaced", range(5))
def test_killed_save_leaves_the_new_or_the_previous_end(
    replaced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth file that is replaced is the last one."""
    kept = Kept(tmp_path, "broker-a")
    old = Ended(1_000, 100, 5, 2, "old", {("T", 0): 7})
    new = Ended(2_000, 200, 9, 2, "new", {("T", 0): 9, ("T", 1): 1})
    first, second = Range(0, 100, "1", 1_000), Range(100, 200, "2", 2_000)
    kept.save(old, [first])
    others = Kept(tmp_path, "broker-b")
    others.save(old, [first])
    room = iter(range(replaced))

    def replace(source: Path, target: Path) -> None:
        if next(room, None) is None:
            raise Killed
        shutil.move(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        try:
            kept.save(new, [first, second])
            assert replaced == 4
        except Killed:
            assert replaced < 4
    is_new = replaced > 2
    assert kept.ended() == (new if is_new else old)
    assert kept.ranges() == ([first, second] if is_new else [first])
    assert others.ended() == old and others.ranges() == [first]
    kept.save(new, [first, second])
    assert kept.ended() == new
    assert pq.read_table(tmp_path / "queues.parquet").num_rows == 3


def test_store_that_ends_before_a_position_has_no_tail_digest(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(100))
    assert since.tail_of(Store("n0", str(tmp_path)), 100) == hashlib.sha256(bytes(100)).hexdigest()
    assert since.tail_of(Store("n0", str(tmp_path)), 101) is None


def test_audit_end_without_its_queues_is_not_continued(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "")
    kept.save(Ended(1_000, 100, 5, 2, "old", {("T", 0): 7}), [])
    ended = (tmp_path / "ended.parquet").read_bytes()
    kept.save(Ended(2_000, 200, 9, 2, "new", {("T", 0): 9}), [])
    (tmp_path / "ended.parquet").write_bytes(ended)
    assert kept.ended() is None


def test_incremental_audit_rejects_another_log(run: Run, begun: Path, tmp_path: Path) -> None:
    stores = write(tmp_path, run.log)
    Hit(run, [Path(stores["n2"])], tmp_path).flip(middle(run) - 40)
    results = results_of(begun, tmp_path)
    report = run_audit(stores, results=results, incremental=True)
    (row,) = report.check("earlier").offenders
    assert (row["store"], row["what"]) == ("n2", "other bytes than there were")


def test_incremental_audit_finds_a_log_that_lost_its_agreed_end(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    stores = write(tmp_path, until(run.log, run.log.frames[5][0]))
    report = run_audit(stores, results=results_of(begun, tmp_path), incremental=True)
    assert {row["store"] for row in report.check("earlier").offenders} == {*NAMES}


def test_full_audit_finds_changes_since_an_earlier_one(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    """All replicas have another store host in one message, with right checksums."""
    stores = write(tmp_path, run.log)
    hit = Hit(run, [Path(store) for store in stores.values()], tmp_path)
    placed = run.placed(3)
    start = hit.frame_of(placed.position)[0]
    hit.reseal(start, {placed.position + 64 - start: b"\x7f\x00\x00\x02"})  # its store host
    report = run_audit(stores, results=results_of(begun, tmp_path))
    (row,) = report.check("ranges").offenders
    assert (row["position"], row["end"]) == (0, middle(run))


@pytest.mark.long
def test_full_audit_finds_that_the_log_lost_its_end(run: Run, begun: Path, tmp_path: Path) -> None:
    end = run.log.frames[5][0]
    stores = write(tmp_path, until(run.log, end))
    report = run_audit(stores, results=results_of(begun, tmp_path))
    (row,) = report.check("ranges").offenders
    assert (row["position"], row["end"], row["held_by"]) == (end, middle(run), [])
    assert "store" not in row
    assert [each.end for each in Kept(tmp_path / "results", "").ranges()] == [middle(run)]
    # One replica still has it.
    complete = write(tmp_path / "whole", run.log)
    report = run_audit(stores | {"n2": complete["n2"]}, results=tmp_path / "results")
    (row,) = report.check("ranges").offenders
    assert (row["position"], row["end"], row["held_by"]) == (end, middle(run), ["n2"])


@pytest.mark.long
def test_full_audit_accepts_segments_removed_by_retention(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    stores = write(tmp_path, run.log)
    for store in stores.values():
        (Path(store) / "commitlog" / f"{0:020d}").unlink()
    report = run_audit(stores, results=results_of(begun, tmp_path))
    assert report.check("ranges").ok


def acks(root: Path, *places: tuple[str, str, int | None, int | None]) -> Path:
    """Write what producers were acknowledged: id, topic, queue and offset."""
    names = ("msg_id", "topic", "queue_id", "queue_offset")
    path = root / "acks.parquet"
    pq.write_table(
        pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in places]), path
    )
    return path


def ids(report: AuditReport, check: str) -> set[str]:
    return {row["id_text"] for row in report.check(check).offenders}


def test_message_acknowledged_after_last_audit_is_not_reported_removed(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    """Of these queues nothing stands in the part that is read."""
    stores = write(tmp_path, until(run.log, middle(run)))
    end = Kept(begun, "").ended().queues[TOPIC, 0]  # type: ignore[union-attr]
    reported = acks(
        tmp_path,
        ("lost", TOPIC, 0, end),
        ("lost-of-a-new-queue", TOPIC, 77, 0),
        ("before", TOPIC, 0, end - 1),
        ("somewhere", TOPIC, 0, None),
        ("in-some-queue", TOPIC, None, end),
    )
    results = results_of(begun, tmp_path)
    report = run_audit(stores, acknowledged=reported, results=results, incremental=True)
    assert ids(report, "missing") == {"lost", "lost-of-a-new-queue"}
    assert ids(report, "removed") == {"before", "somewhere", "in-some-queue"}


def test_end_of_an_earlier_queue_may_be_unknown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention had removed all of it before the first audit."""
    for module in (limits, since):
        monkeypatch.setattr(module, "TAIL_BYTES", 64)  # segments are small here
    stores = write(tmp_path, until(run.log, middle(run)))
    for store in stores.values():
        (Path(store) / "commitlog" / f"{0:020d}").unlink()
    results = tmp_path / "results"
    assert wrong(run_audit(stores, results=results, retention_hours=0)) == set()
    reported = acks(tmp_path, ("removed", "Idle", 0, 9))
    report = run_audit(stores, acknowledged=reported, results=results, incremental=True)
    assert ids(report, "removed") == {"removed"} and report.ok


def test_queue_that_was_empty_in_the_last_audit_continues(
    run: Run, begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention had removed all of its messages before the first audit."""
    for module in (limits, since):
        monkeypatch.setattr(module, "TAIL_BYTES", 64)  # segments are small here
    log = until(run.log, middle(run))
    stores = write(tmp_path, log)
    for store in stores.values():
        (Path(store) / "commitlog" / f"{0:020d}").unlink()
    results = tmp_path / "results"
    assert wrong(run_audit(stores, results=results, retention_hours=0)) == set()
    log.next_offsets["Idle", 0] = 9
    log.frame(5, [Message("idle", b"the tenth", topic="Idle")])
    for store in stores.values():
        shutil.rmtree(store)
        write_store(Path(store), log, log.end, queue_units(log))
    assert not wrong_offsets(run_audit(stores, results=results, incremental=True))
    # One that had read the whole log knows that there was no such queue.
    known = shutil.copytree(begun, tmp_path / "known")
    (hole,) = wrong_offsets(run_audit(stores, results=known, incremental=True))
    assert (hole["expected"], hole["queue_offset"]) == (0, 9)


def wrong_offsets(report: AuditReport) -> tuple[Offender, ...]:
    return report.check("offset_holes").offenders + report.check("offset_repeats").offenders


def test_log_that_starts_after_the_last_audit_is_rejected(
    run: Run, begun: Path, tmp_path: Path
) -> None:
    """Retention has removed what is between; here, segments are small."""
    stores = write(tmp_path, run.log)
    for store in stores.values():
        for base in sorted(run.log.segments)[:2]:
            (Path(store) / "commitlog" / f"{base:020d}").unlink()
    assert middle(run) < TAIL_BYTES
    with pytest.raises(StoreError, match="audit all of it"):
        run_audit(stores, results=results_of(begun, tmp_path), incremental=True)


def test_mqaudit_incremental(run: Run, begun: Path, tmp_path: Path) -> None:
    stores = write(tmp_path, run.log)
    text = [word for name, at in stores.items() for word in ("--store", f"{name}={at}")]
    results = ["--results", str(results_of(begun, tmp_path)), "--incremental"]
    done = CliRunner().invoke(main, [*text, *results])
    assert done.exit_code == 0, done.output
    assert "found nothing wrong with it" in done.output
    assert CliRunner().invoke(main, [*text, "--incremental"]).exit_code == 2
    (Path(results[1]) / "ended.parquet").write_bytes(b"no table")
    broken = CliRunner().invoke(main, [*text, *results])
    assert broken.exit_code == 2 and "cannot be read" in broken.output


@pytest.mark.parametrize(
    ("torn", "told"),
    [
        ("queues", "queues.parquet is not there"),
        ("ranges", "ranges.parquet is not there"),
        ("tables", r"ended.parquet: the end of the audit of broker-a cannot be read"),
    ],
)
def test_torn_results_of_the_last_audit_are_rejected(tmp_path: Path, torn: str, told: str) -> None:
    kept = Kept(tmp_path, "broker-a")
    kept.save(Ended(1, 9, 1, 1, "", {("T", 0): 3}, (1, b"x"), {"topics.json": {}}), [])
    assert kept.ended() is not None
    if torn == "tables":
        table = pq.read_table(tmp_path / "ended.parquet")
        column = table.schema.get_field_index(torn)
        cut = pa.array(['{"topics.json": {'], pa.string())
        pq.write_table(table.set_column(column, torn, cut), tmp_path / "ended.parquet")
    else:
        (tmp_path / f"{torn}.parquet").unlink()
    with pytest.raises(StoreError, match=told):
        kept.ended()
