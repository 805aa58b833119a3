"""The output of mqchaos affects neither the run nor its exit status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raftmq.chaos import commands as work
from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cli import main
from raftmq.chaos.report.figures import Latency, Load
from raftmq.chaos.run.judge import RunResult
from tests.brokenpipe import unread


def test_run_continues_to_its_verdict_with_closed_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_to: list[str] = []

    async def scenario(config: object, command: str, say: Callable[[str], None]) -> RunResult:
        for text in ("started", "struck", "judged"):
            say(text)
            came_to.append(text)
        return RunResult(
            *(Verdict.UNKNOWN, (), [], Load(0, 0, 0, 0, 0, 0.0, Latency(0, 0, 0, 0)), (), ()),
            *(tmp_path / "history.jsonl", tmp_path / "report.html", {}),
        )

    monkeypatch.setattr(work, "run_scenario", scenario)
    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        main(["run", "kill:leader", "--dir", str(tmp_path / "run")])
    assert ended.value.code == work.EXIT_UNDECIDED
    assert came_to == ["started", "struck", "judged"]
    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        main(["list"])
    assert ended.value.code == 0
