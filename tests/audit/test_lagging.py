"""Where a majority has the same records, an audit compares none of them, though a replica lags."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.engine.frames import Frame
from raftmq.audit.engine.local_engine import LocalEngine, LocalFrame
from tests.audit.run import Run
from tests.audit.stores import queue_units


def group(root: Path, behind: dict[str, int]) -> Run:
    """Write stores that lack the last frames. The log is committed as far as two of them have
    it."""
    run = Run.plan(root, 150).store()
    for name, frames in behind.items():
        run.logs[name] = run.log.until(len(run.log.frames) - frames)
        run.units[name] = queue_units(run.logs[name])
    committed = sorted(log.end for log in run.logs.values())[1]
    run.commits = {name: min(log.end, committed) for name, log in run.logs.items()}
    return run.write()


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that the local engine writes."""
    write, names = LocalEngine.staged, []

    def noted(engine: LocalEngine, frame: Frame, directory: str) -> LocalFrame:
        names.append(Path(directory).name)
        return write(engine, frame, directory)

    monkeypatch.setattr(LocalEngine, "staged", noted)
    return names


@pytest.mark.parametrize(
    ("behind", "compared"),
    [
        ({"n0": 5}, False),
        ({"n1": 40}, False),  # segments
        ({"n0": 5, "n2": 5}, False),
        ({"n0": 5, "n2": 3}, True),  # in the last window, in which no two stores are alike
    ],
)
def test_records_that_a_majority_has_alike_are_not_compared(
    tmp_path: Path, staged: list[str], behind: dict[str, int], compared: bool
) -> None:
    report = run_audit(group(tmp_path, behind).stores)
    assert report.ok
    assert ("log" in staged) is compared
    assert {row["store"] for row in report.check("behind").offenders} <= behind.keys()


def test_report_of_a_lagging_group_counts_every_message_once(tmp_path: Path) -> None:
    run = group(tmp_path, {"n0": 5})
    report = run_audit(run.stores, run.history_path)
    assert report.ok
    assert report.figures["stored"] == report.figures["acknowledged"] == len(run.messages)
    alone = run_audit(run.stores)
    assert alone.figures["stored"] == len(run.log.placed)
