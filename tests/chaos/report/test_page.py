"""The page and the series it draws."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from raftmq.chaos.checks.suite import check_all
from raftmq.chaos.cli import main
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.ports import NoFreePort
from raftmq.chaos.commands import attempt, operating_text
from raftmq.chaos.faults.catalogue import REGISTRY
from raftmq.chaos.history.events import HistoryError, Outcome
from raftmq.chaos.report.figures import load_of
from raftmq.chaos.report.page import chaos_page, figure, recovery_figure, render, write_report
from raftmq.chaos.report.recovery import Recovery
from raftmq.chaos.report.series import (
    BUCKETS_MAX,
    DOTS_PER_BUCKET,
    Band,
    Dots,
    Latency,
    Rate,
    Series,
    Strip,
    bucket_size,
    series_of,
)
from raftmq.chaos.run.scenario import SCENARIOS
from raftmq.chaos.workloads.catalogue import WORKLOADS
from raftmq.ops.page import document
from tests.chaos.builder import HistoryBuilder, clean
from tests.pictures import PAGE_BYTES_MAX, assert_readable


def with_kill() -> HistoryBuilder:
    builder = clean()
    builder.fault("kill", "n0")
    builder.leader("n1", 2)
    builder.ended("<script>", "unknown")
    return builder


def test_series_of_a_small_history() -> None:
    history = with_kill().build()
    series = series_of(history)
    assert series.bucket_s == 0.05
    assert series.rates[Outcome.OK].per_s == [4 / 0.05]
    assert series.rates[Outcome.FAIL].at_s == []
    assert series.consumed.per_s == [4 / 0.05]
    assert series.latency.p50_ms == [1.0]
    assert series.latency.p99_ms == [None]  # four sends carry none
    assert len(series.dots[Outcome.OK].ms) == DOTS_PER_BUCKET
    (band,) = series.bands
    assert (band.kind, band.nodes) == ("kill", "n0")
    assert band.from_s < band.to_s < series.end_s
    (strip,) = series.strips
    assert strip.client == "producer-0"
    assert strip.share == [4 / 5]  # the fifth ended unknown
    assert [(node, term) for _, node, term in series.leaders] == [("n0", 1), ("n1", 2)]


def test_node_that_never_returned_is_down_to_the_end() -> None:
    builder = clean()
    builder.kill("n0")
    builder.sent("z", 0, 2)
    series = series_of(builder.build())
    assert series.bands[0].to_s == series.end_s


@pytest.mark.parametrize("seconds", [0.0, 1.0, 20.1, 3600.0, 10.0**7])
def test_series_intervals_are_limited(seconds: float) -> None:
    assert seconds / bucket_size(seconds) <= BUCKETS_MAX


def test_report_page_is_self_contained_and_complete(tmp_path: Path) -> None:
    builder = with_kill()
    builder.records[0] |= {"seed": 7, "scenario": "failover", "command": "mqchaos run & more"}
    history = builder.build()
    path = tmp_path / "page" / "index.html"
    write_report(history, check_all(history), path)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)  # nothing from elsewhere
    for texts in ("Chaos: failover", "seed 7", "mqchaos run &amp; more", "kill n0"):
        assert texts in text
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


def test_lost_messages_are_listed_one_by_one(tmp_path: Path) -> None:
    builder = clean()
    builder.fault("disk-loss", "m0")
    builder.sent("gone", 0, 2)
    builder.sent("later", 0, 3)
    builder.consumed(0, (3, "later"))
    builder.drained()
    lines = b"\n".join(map(orjson.dumps, builder.records)) + b"\n"
    path = tmp_path / "h.jsonl"
    path.write_bytes(lines)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(page)])
    assert result.exit_code == 1, result.output
    assert "lost: gone acknowledged at" in result.output
    assert "Acknowledged and lost: 1 messages" in page.read_text(encoding="utf-8")
    verdict = orjson.loads((tmp_path / "verdict.json").read_bytes())
    assert verdict["counts"]["lost"] == 1
    assert [message["id"] for message in verdict["lost"]] == ["gone"]


def test_latency_counts_from_when_a_send_was_due() -> None:
    builder = HistoryBuilder()
    op = builder.add(
        "invoke", "send", "producer-0", id="a", topic="T", key="a", order="", seq=0, crc=1, due_ns=0
    )
    builder.ok(op, 0, 0)  # invoked at 1 ms, acknowledged at 2 ms, due at 0
    load = load_of(builder.build())
    assert load.latency_ms.p50 == load.latency_ms.max == 2.0
    assert (load.sent, load.ok, load.fail, load.unknown) == (1, 1, 0, 0)


def test_list_names_scenarios_faults_and_workloads() -> None:
    listed = CliRunner().invoke(main, ["list"]).output
    for word in (*SCENARIOS, *REGISTRY, *WORKLOADS):
        assert word in listed
    assert "mqchaos run failover" in CliRunner().invoke(main, ["--help"]).output
    refused = CliRunner().invoke(main, ["run", "nonsense", "--dir", "x"])
    assert refused.exit_code == 2
    assert "no scenario 'nonsense'" in refused.output


def test_operating_errors_are_distinguished_from_bugs() -> None:
    group = ExceptionGroup("", [ClusterError("a"), ExceptionGroup("", [OSError("b")])])
    assert operating_text(group) == "a; b"
    assert operating_text(ExceptionGroup("", [ClusterError("a"), KeyError("b")])) is None


@pytest.mark.parametrize(
    "error",
    [
        NoFreePort("found 1 of 3 free ports"),
        HistoryError("h.jsonl:7: not a JSON object"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_run_that_cannot_continue_exits_with_status_2(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        attempt(fails)
    assert ended.value.code == 2  # 1 means that a promise was broken
    assert (str(error) or "interrupted") in capsys.readouterr().err


def largest() -> Series:
    """Return as many points as there can be, of 32 clients, with 200 faults."""
    at = [float(n) for n in range(BUCKETS_MAX)]
    dots = [n / DOTS_PER_BUCKET for n in range(BUCKETS_MAX * DOTS_PER_BUCKET)]
    outcomes = (Outcome.OK, Outcome.UNKNOWN, Outcome.FAIL)
    return Series(
        1.0,
        float(BUCKETS_MAX),
        {outcome: Rate(at, [1234.5 + n % 7 for n in at]) for outcome in outcomes},
        Rate(at, [99.5] * len(at)),
        Latency(at, [1.5 + n % 3 for n in at], [20.5 if n % 2 else None for n in at]),
        {outcome: Dots(dots, [1.0 + n for n in dots]) for outcome in outcomes},
        [Strip(f"producer-{n}", at, [(k % 9) / 9 for k in at]) for n in range(32)],
        [Band("kill", f"<n{n}>", 2.0 * n, 2.0 * n + 1) for n in range(200)],
        [(2.0 * n, "n1", n) for n in range(200)],
    )


def test_largest_page_is_limited_in_bytes_and_loads_nothing() -> None:
    result = [
        Recovery("kill", "leader", "n0", "", 0, 5.0 + n, {"p": 7.0 + n}, 1.0, None)
        for n in range(200)
    ]
    drawn = figure(largest()) + recovery_figure({"": result, "other": result})
    assert len(drawn) + 300_000 < PAGE_BYTES_MAX  # tables are also bounded
    assert_readable(document("largest", drawn))
    assert "<n1>" not in drawn and "&lt;n1&gt;" in drawn
    history = clean().build()
    assert_readable(render(chaos_page(history, check_all(history)), history))


def test_pages_follow_the_readers_color_scheme() -> None:
    drawn = figure(largest())
    assert not re.search(r'(fill|stroke)="#', drawn)  # colours are the page's
