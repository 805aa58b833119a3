"""The page and the series it draws."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from chaos.checks.suite import check_all
from chaos.cli import main, operating_words
from chaos.cluster.clusterfile import ClusterError
from chaos.history.events import Outcome
from chaos.report.page import write_report
from chaos.report.series import BUCKETS_MAX, DOTS_PER_BUCKET, bucket_size, series_of
from tests.chaos.builder import HistoryBuilder, clean


def with_kill() -> HistoryBuilder:
    builder = clean()
    builder.kill("n0")
    builder.leader("n1", 2)
    op = builder.add("invoke", "start", "nemesis", node="n0", pid=0, role="")
    builder.add("ok", "start", "nemesis", op, node="n0", pid=8, role="")
    builder.ended("<script>", "unknown")
    return builder


def test_series_of_a_small_history() -> None:
    history = with_kill().build()
    series = series_of(history)
    assert series.bucket_s == 0.05
    assert series.rates[Outcome.OK].per_s == [4 / 0.05]
    assert series.rates[Outcome.FAIL].at_s == []
    assert series.consumed.per_s == [4 / 0.05]
    assert series.latency.p50_ms == series.latency.p99_ms == [1.0]
    assert len(series.dots[Outcome.OK].ms) == DOTS_PER_BUCKET
    (down,) = series.downtimes
    assert (down.node, down.role) == ("n0", "leader")
    assert down.from_s < down.to_s < series.end_s
    assert [(node, term) for _, node, term in series.leaders] == [("n0", 1), ("n1", 2)]


def test_node_that_never_came_back_is_down_to_the_end() -> None:
    builder = clean()
    builder.kill("n0")
    builder.sent("z", 0, 2)
    series = series_of(builder.build())
    assert series.downtimes[0].to_s == series.end_s


@pytest.mark.parametrize("seconds", [0.0, 1.0, 20.1, 3600.0, 10.0**7])
def test_intervals_are_bounded(seconds: float) -> None:
    assert seconds / bucket_size(seconds) <= BUCKETS_MAX


def test_page_is_self_contained_and_says_everything(tmp_path: Path) -> None:
    builder = with_kill()
    builder.records[0] |= {"seed": 7, "scenario": "failover", "command": "mqchaos run & more"}
    history = builder.build()
    path = tmp_path / "page" / "index.html"
    write_report(history, check_all(history), path)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)  # nothing from elsewhere
    for words in ("Chaos: failover", "seed 7", "mqchaos run &amp; more", "n0 killed"):
        assert words in text
    assert "n1 leads term 2" in text
    assert 'name="viewport"' in text
    assert "everything holds" in text
    assert "acknowledged but lost" in text


def test_report_command_judges_and_draws(tmp_path: Path) -> None:

    builder = with_kill()
    path = tmp_path / "h.jsonl"
    lines = [orjson.dumps(record) for record in builder.records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    page = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert page.exists()
    builder.leader("n2", 2)
    path.write_bytes(b"\n".join(map(orjson.dumps, builder.records)) + b"\n")
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(page)])
    assert result.exit_code == 1
    assert "term 2: n1, n2" in result.output
    path.write_bytes(b'{"type":"meta","version":1,"t_ns":0}\n')
    assert CliRunner().invoke(main, ["report", str(path), "-o", str(page)]).exit_code == 3
    path.write_bytes(b"nonsense\n")
    assert CliRunner().invoke(main, ["report", str(path), "-o", str(page)]).exit_code == 2


def test_help_and_list() -> None:
    listed = CliRunner().invoke(main, ["list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == ["failover", "followers", "anybody"]
    assert "mqchaos run failover" in CliRunner().invoke(main, ["--help"]).output
    assert CliRunner().invoke(main, ["run", "nonsense", "--dir", "x"]).exit_code == 2


def test_operating_errors_are_told_apart_from_bugs() -> None:
    group = ExceptionGroup("", [ClusterError("a"), ExceptionGroup("", [OSError("b")])])
    assert operating_words(group) == "a; b"
    assert operating_words(ExceptionGroup("", [ClusterError("a"), KeyError("b")])) is None
