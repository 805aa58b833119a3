"""Comparison of replicas' files and search of logs, with equal stores and planted differences."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from raftmq.chaos.checks import logs as logs_module
from raftmq.chaos.checks.logs import FINDINGS_MAX, search, write_findings
from raftmq.chaos.checks.stores import StoreUnreadable, compare_replicas, shape_of, write_replicas
from raftmq.chaos.checks.suite import suite_of
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.files import HistoryWriter, read_history
from raftmq.store.frame import FrameKind
from tests.audit.stores import Log, Message, write_store

NODES = ("n0", "n1", "n2")


def some_log(framed: bool = True, count: int = 60) -> Log:
    """A log of three segments."""
    log = Log(framed=framed)
    if framed:
        log.other(1, FrameKind.NOOP)
    for number in range(count):
        log.frame(1 + number // 20, [Message(f"{number:032X}", b"x" * 500)])
    assert len(log.segments) >= 3
    return log


def written(root: Path, logs: dict[str, Log], commits: dict[str, int] | None = None) -> dict:
    return {
        node: write_store(root / node / "store", log, (commits or {}).get(node))
        for node, log in logs.items()
    }


def verdict(root: Path, stores: dict, commit_index: int | None = None) -> tuple[Verdict, str]:
    """Return the check's verdict on the record that is written for these stores."""
    path = root / "history.jsonl"
    with HistoryWriter(path) as history:
        write_replicas(history, "broker-a", stores, commit_index)
    by_name = {c.name: c for c in suite_of(read_history(path)).results()}
    check = by_name["replicas differ"]
    return check.verdict, "; ".join([check.detail, *check.examples])


@pytest.mark.parametrize("framed", [True, False])
def test_equal_stores_pass_with_any_bytes_after_blank_records(tmp_path: Path, framed: bool) -> None:
    log = some_log(framed)
    other = log.copy()
    first = min(log.segments)
    shape = shape_of(written(tmp_path / "probe", {"n0": log})["n0"])
    tail_low, tail_high = shape.tails[0]
    assert first < tail_low < tail_high <= first + log.segment_size_bytes
    other.patch(tail_low, bytes(tail_high - tail_low))
    stores = written(tmp_path, {"n0": log, "n1": other, "n2": log})
    result = compare_replicas(stores)
    assert (result.start, result.end, result.errors) == (0, log.end, {})
    assert len(result.parts["n0"]) == len(log.segments)
    assert verdict(tmp_path, stores)[0] is Verdict.PASS


@pytest.mark.parametrize("framed", [True, False])
def test_changed_byte_of_a_store_is_found_in_its_segment(tmp_path: Path, framed: bool) -> None:
    log = some_log(framed)
    damaged = log.copy()
    placed = log.placed[40]
    damaged.flip(placed.position + 200)  # in a body, so the walk does not notice
    stores = written(tmp_path, {"n0": log, "n1": damaged, "n2": log})
    answer, text = verdict(tmp_path, stores)
    assert answer is Verdict.FAIL
    base = placed.position - placed.position % log.segment_size_bytes
    assert f"n1 is unlike n0, n2 from the part at {base} on" in text


def test_stores_are_compared_up_to_the_common_commit(tmp_path: Path) -> None:
    log = some_log()
    position, _ = log.frames[40]
    behind = log.copy()
    behind.patch(position, bytes(60))  # data of a deposed leader
    stores = written(tmp_path, {"n0": log, "n1": behind}, {"n1": position})
    assert compare_replicas(stores).end == position
    assert verdict(tmp_path, stores)[0] is Verdict.PASS
    (tmp_path / "history.jsonl").unlink()
    # All have committed frame 40; the frames' indexes count from 1.
    assert verdict(tmp_path, stores, commit_index=40)[0] is Verdict.PASS
    (tmp_path / "history.jsonl").unlink()
    answer, text = verdict(tmp_path, stores, commit_index=41)
    assert answer is Verdict.FAIL
    assert "frame 41, which was committed, is not in the log" in text


def test_frames_remaining_after_a_truncation_do_not_count(tmp_path: Path) -> None:
    log = some_log()
    end = log.end
    log.other(9, FrameKind.NOOP)
    log.other(2, FrameKind.NOOP)
    shape = shape_of(written(tmp_path, {"n0": log})["n0"])
    assert shape.end == end + 60


def test_log_that_starts_later_is_compared_from_its_start(tmp_path: Path) -> None:
    stores = written(tmp_path, dict.fromkeys(NODES, some_log()))
    first = min((stores["n1"] / "commitlog").iterdir())
    size = first.stat().st_size
    first.unlink()
    assert compare_replicas(stores).start == size
    assert verdict(tmp_path, stores)[0] is Verdict.PASS


def test_lagging_slave_is_compared_up_to_its_end(tmp_path: Path) -> None:
    log = some_log(framed=False)
    slave = log.copy()
    last = log.placed[-3]
    slave.patch(last.position, bytes(log.end - last.position))
    stores = written(tmp_path, {"m0": log, "s0": slave})
    assert compare_replicas(stores).end == last.position
    assert verdict(tmp_path, stores)[0] is Verdict.PASS


def test_unreadable_stores_are_undecided(tmp_path: Path) -> None:
    stores = written(tmp_path, {"n0": some_log(), "n1": some_log()})
    stores["n2"] = tmp_path / "nowhere"
    answer, text = verdict(tmp_path, stores)
    assert answer is Verdict.UNKNOWN
    assert "n2" in text and "no commitlog" in text
    empty = tmp_path / "empty"
    (empty / "commitlog").mkdir(parents=True)
    with pytest.raises(StoreUnreadable, match="no CommitLog segment"):
        shape_of(empty)
    assert compare_replicas({"n2": empty}).parts == {}


def test_log_shorter_than_its_own_commit_differs(tmp_path: Path) -> None:
    log = some_log()
    position, _ = log.frames[30]
    short = log.copy()
    short.patch(position, bytes(60))
    stores = written(tmp_path, {"n0": log, "n1": short, "n2": log})  # n1 has committed everything
    answer, text = verdict(tmp_path, stores)
    assert answer is Verdict.FAIL
    assert f"the log ends at {position}" in text


# ---- logs

TRACEBACK = """\
2026-01-01 00:00:00,000 ERROR broker callback_failed peer=x
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
ValueError: no such thing
2026-01-01 00:00:01,000 INFO broker role_changed term=7
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026 INFO broker started\n", []),
        (
            TRACEBACK,
            [
                "2026-01-01 00:00:00,000 ERROR broker callback_failed peer=x | "
                "ValueError: no such thing"
            ],
        ),
        (
            "x CRITICAL dledger member_failed node=n0\n",
            ["x CRITICAL dledger member_failed node=n0"],
        ),
        ("x ERROR broken invariant: 7\n", ["x ERROR broken invariant: 7"]),
        ("AssertionError: next_pull\n", ["AssertionError: next_pull"]),
        (
            "raftmq.store.errors.StoreDamaged: frame 7",
            ["raftmq.store.errors.StoreDamaged: frame 7"],
        ),
        ("Traceback (most recent call last):\n  torn", ["a traceback without an end"]),
    ],
)
def test_log_search_finds_failures(text: str, found: list[str]) -> None:
    assert [finding.line for finding in search(text.splitlines(keepends=True))] == found


def test_log_findings_have_line_number_and_level() -> None:
    (finding,) = search(TRACEBACK.splitlines(keepends=True))
    assert (finding.number, finding.level) == (2, "ERROR")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (TRACEBACK, "2026-01-01 00:00:00,000"),
        (TRACEBACK.replace("ERROR", "INFO"), ""),  # perhaps of a process that started again
        ("2026-01-01 00:00:00,123 CRITICAL member_failed\n", "2026-01-01 00:00:00,123"),
        ('{"time":"2026-01-01T00:00:00.123Z","event":"member_failed"}', "2026-01-01T00:00:00.123Z"),
        ("AssertionError: at 2026-01-01 00:00:00,123\n", ""),
    ],
)
def test_log_finding_has_the_time_of_its_own_line(text: str, time: str) -> None:
    (finding,) = search(text.splitlines(keepends=True))
    assert finding.time == time


def test_damage_logged_before_a_fault_is_not_excused_by_it(tmp_path: Path) -> None:
    """From the log to the verdict, with the same line before and after the injection."""
    for late_s, verdict in ((-60.0, Verdict.FAIL), (60.0, Verdict.PASS)):
        path = tmp_path / f"{verdict.value}.jsonl"
        with HistoryWriter(path) as writer:
            fault = {"fault": 1, "kind": "flip-body", "nodes": ["n1"], "whom": "follower"}
            fault |= {"role": "follower", "pid": 7, "detail": ""}
            op = writer.next_op()
            for kind in ("invoke", "ok"):
                writer.event(kind, "inject", "nemesis", op, **fault)
            at = datetime.now(UTC) + timedelta(seconds=late_s)
            log = tmp_path / "n1.log"
            log.write_text(f"{at:%Y-%m-%d %H:%M:%S},000 ERROR store | StoreDamaged: frame 7\n")
            assert write_findings(writer, {"n1": log}, UTC) == 1
        result = {check.name: check for check in suite_of(read_history(path)).results()}
        assert result["failures in server logs"].verdict is verdict


def test_invalid_log_time_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "n0.log").write_text("2026-99-99 00:00:00,000 CRITICAL member_failed\n")
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        write_findings(writer, {"n0": tmp_path / "n0.log"})
    assert [line.logged_ns for line in read_history(tmp_path / "h.jsonl").log_lines] == [0]


def test_lines_logged_before_the_run_are_no_failure(tmp_path: Path) -> None:
    """In any amount; but a line without a known time counts."""
    log = tmp_path / "n1.log"
    at = datetime.now(UTC)
    stamps = [at - timedelta(minutes=1)] * (FINDINGS_MAX + 5) + [at + timedelta(minutes=1)]
    lines = [f"{stamp:%Y-%m-%d %H:%M:%S},000 ERROR store | StoreDamaged" for stamp in stamps]
    log.write_text("\n".join([*lines, "StoreDamaged"]))
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        assert write_findings(writer, {"n1": log}, UTC, time.monotonic_ns()) == 2
    history = read_history(tmp_path / "h.jsonl")
    assert history.logs[0].lines == {"n1": FINDINGS_MAX + 7}
    assert [line.logged_ns > 0 for line in history.log_lines] == [True, False]


def test_log_line_without_a_time_precedes_the_next_with_one(tmp_path: Path) -> None:
    """For example an uncaught exception's, of a process that ended before the run started."""
    log = tmp_path / "n1.log"
    at = datetime.now(UTC)
    early, late = (
        f"{at + timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S},000 INFO started"
        for minutes in (-1, 1)
    )
    log.write_text(
        "\n".join(["Fatal Python error: 1", early, "AssertionError: 2", late, "invariant 3"])
    )
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        write_findings(writer, {"n1": log}, UTC, time.monotonic_ns())
    result = read_history(tmp_path / "h.jsonl").log_lines
    assert [line.line for line in result] == ["AssertionError: 2", "invariant 3"]


def test_log_findings_and_lines_are_limited(tmp_path: Path) -> None:
    log = tmp_path / "n0.log"
    log.write_text(("AssertionError " + "x" * 2_000 + "\n") * (FINDINGS_MAX + 5))
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        assert write_findings(writer, {"n0": log}) == FINDINGS_MAX
    result = read_history(tmp_path / "h.jsonl").log_lines
    assert {len(finding.line) for finding in result} == {logs_module.LINE_LENGTH_MAX}


def test_log_findings_are_written_and_judged(tmp_path: Path) -> None:
    (tmp_path / "n0.txt").write_text(TRACEBACK)
    (tmp_path / "n1.txt").write_text("all is well\n")
    logs = {node: tmp_path / f"{node}.txt" for node in NODES}
    with HistoryWriter(tmp_path / "h.jsonl") as writer:
        assert write_findings(writer, logs) == 1
    history = read_history(tmp_path / "h.jsonl")
    assert history.logs[0].lines == {"n0": 6, "n1": 1, "n2": 0}
    (line,) = history.log_lines
    assert (line.node, line.level) == ("n0", "ERROR")
    by_name = {c.name: c for c in suite_of(history).results()}
    assert by_name["failures in server logs"].verdict is Verdict.FAIL
