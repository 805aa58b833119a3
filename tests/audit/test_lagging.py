"""A replica that lags costs an audit what it lags: no query more, and no record is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.engine.frames import Frame
from raftmq.audit.engine.local_engine import LocalEngine, LocalFrame
from raftmq.audit.read.spark_sources import LogReader
from raftmq.spark.layout import ItemKind
from tests.audit.run import NAMES, Run
from tests.audit.stores import queue_units

LAGS = {
    "one": {"n0": 5},
    "by segments": {"n1": 40},
    "two": {"n0": 5, "n2": 5},
    "each": {"n0": 9, "n2": 4},
}


def group(root: Path, behind: dict[str, int], commits: dict[str, int] | None = None) -> Run:
    """Write stores that lack the last frames. The log is committed as far as two of them have it,
    or by these `commits`."""
    run = Run.plan(root, 150).store()
    for name, frames in behind.items():
        run.logs[name] = run.log.until(len(run.log.frames) - frames)
        run.units[name] = queue_units(run.logs[name])
    committed = sorted(log.end for log in run.logs.values())[1]
    run.commits = {name: min(log.end, committed) for name, log in run.logs.items()}
    run.commits |= commits or {}
    return run.write()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries of the local engine, and the names of the tables and tasks beside them."""
    done: list[str] = []
    write, rows, reduced = LocalEngine.staged, LocalFrame.rows, LocalEngine.map_reduce

    def staged(engine: LocalEngine, frame: Frame, directory: str) -> LocalFrame:
        done.append(Path(directory).name)
        return write(engine, frame, directory)

    def asked(frame: LocalFrame) -> Iterator[dict[str, Any]]:
        done.append("query")
        yield from rows(frame)

    def made(engine: LocalEngine, function: Callable[..., Any], *args: Any) -> Any:
        done.append(getattr(function, "__name__", type(function).__name__))
        return reduced(engine, function, *args)

    monkeypatch.setattr(LocalEngine, "staged", staged)
    monkeypatch.setattr(LocalFrame, "rows", asked)
    monkeypatch.setattr(LocalEngine, "map_reduce", made)
    return done


@pytest.mark.parametrize("behind", LAGS.values(), ids=LAGS)
def test_lagging_replica_adds_no_query_table_or_task(
    tmp_path: Path, work: list[str], behind: dict[str, int]
) -> None:
    equal = run_audit(group(tmp_path / "equal", {}).stores)
    of_equal = work.copy()
    work.clear()
    lagging = run_audit(group(tmp_path / "lagging", behind).stores)
    assert equal.ok and lagging.ok
    assert {row["store"] for row in lagging.check("behind").offenders} <= behind.keys()
    assert {"query", "_WriteLog"} <= {*of_equal}
    assert sorted(work) == sorted(of_equal)


def test_items_before_the_end_of_a_lagging_replica_are_decoded_once(tmp_path: Path) -> None:
    run = group(tmp_path, {"n0": 9, "n2": 4})
    reader = LogReader({"stores": orjson.dumps(run.stores).decode(), "shared": "true"})
    found = [
        (part.stores, part.alike, row["position"])
        for partition in reader.partitions()
        for part in reader.parts(partition)
        for batch in part.batches
        for row in batch.to_pylist()
        if row["kind"] == ItemKind.FRAME
    ]
    expected = []
    for position, _ in run.log.frames:
        there = [name for name in NAMES if position < run.logs[name].end]
        expected.append((tuple(there), True, position))
    assert sorted(found, key=lambda each: each[2]) == expected


@pytest.mark.parametrize("damaged", NAMES)
@pytest.mark.parametrize("frame", [2, -12])
def test_damage_is_found_though_a_replica_lags(tmp_path: Path, damaged: str, frame: int) -> None:
    run = group(tmp_path, {"n0": 9})
    position = sum(run.log.frames[frame]) - 1
    files = sorted((Path(run.stores[damaged]) / "commitlog").iterdir())
    file = [each for each in files if int(each.name) <= position][-1]
    with file.open("r+b") as segment:
        segment.seek(position - int(file.name))
        byte = segment.read(1)[0]
        segment.seek(position - int(file.name))
        segment.write(bytes([byte ^ 1]))
    report = run_audit(run.stores)
    for name in ("damage", "replicas"):
        assert {row["store"] for row in report.check(name).offenders} == {damaged}


def test_replica_that_lost_committed_data_differs_from_its_end_on(tmp_path: Path) -> None:
    lost = {"n0": 9}
    end = group(tmp_path / "whole", {}).log.end
    run = group(tmp_path / "lost", lost, {"n0": end})
    (row,) = run_audit(run.stores).check("replicas").offenders
    assert row["store"] == "n0"
    assert 0 <= row["first_difference"] - run.logs["n0"].end < 4  # of a record's size


def test_report_of_a_lagging_group_counts_every_message_once(tmp_path: Path) -> None:
    run = group(tmp_path, {"n0": 5})
    report = run_audit(run.stores, run.history_path)
    assert report.ok
    assert report.figures["stored"] == report.figures["acknowledged"] == len(run.messages)
    alone = run_audit(run.stores)
    assert alone.figures["stored"] == len(run.log.placed)
