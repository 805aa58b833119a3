"""A history judged again gives the run's own verdict."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.cli import main
from raftmq.chaos.run.judge import RECOVERED, WATCHED, judge
from tests.chaos.builder import HistoryBuilder, clean

STUCK = ("after kill:leader: not whole after 120 s",)


def written(directory: Path, builder: HistoryBuilder) -> Path:
    path = directory / "history.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in builder.records))
    return path


@pytest.mark.parametrize("says", [True, False], ids=["as written now", "of an older run"])
def test_report_has_the_verdict_of_its_run(tmp_path: Path, says: bool) -> None:
    builder = clean()
    builder.fault("kill", "n0")
    builder.inflicted(["kill:n7: no such node"], STUCK)
    path = written(tmp_path, builder)
    judge(path, tmp_path, lambda words: None)
    verdict = (tmp_path / "verdict.json").read_bytes()
    assert orjson.loads(verdict)["verdict"] == "fail"
    if not says:
        del builder.records[-1]
        written(tmp_path, builder)
    said = CliRunner().invoke(main, ["report", str(path), "-o", str(tmp_path / "again.html")])
    assert said.exit_code == 1, said.output
    assert STUCK[0] in said.output and "not done: kill:n7: no such node" in said.output
    assert (tmp_path / "verdict.json").read_bytes() == verdict


@pytest.mark.parametrize(
    "judged, findings, verdict",
    [
        (5, {}, Verdict.PASS),
        (5, {"late": 2, "unconsumed": 1}, Verdict.PASS),
        (0, {}, Verdict.UNKNOWN),
        *((5, {kind: 1, "late": 2}, Verdict.FAIL) for kind in ("missing", "altered", "unread")),
    ],
)
def test_loss_that_a_continuous_audit_found_fails_the_run(
    tmp_path: Path, judged: int, findings: dict[str, int], verdict: Verdict
) -> None:
    builder = clean()
    found = {"judged": judged, "kills": 1, "findings": findings, "examples": ["a finding"]}
    builder.add("ok", "watched", "runner", **found)
    result = judge(written(tmp_path, builder), tmp_path, lambda words: None)
    (check,) = [check for check in result.checks if check.name == WATCHED]
    assert (check.verdict, check.count) == (verdict, verdict is Verdict.FAIL)


def test_history_without_a_stored_verdict_is_judged_alone(tmp_path: Path) -> None:
    builder = clean()
    builder.fault("kill", "n0")
    path = written(tmp_path, builder)
    for _ in range(2):  # its own verdict does not contain it either
        result = judge(path, tmp_path, lambda words: None)
        assert RECOVERED not in [check.name for check in result.checks]
        assert result.skipped == ()
