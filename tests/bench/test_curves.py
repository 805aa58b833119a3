"""bench.curves: its table of curves, its command line, its page; and that one point runs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from bench import curves
from bench.curvepage import kind_of, render
from bench.curves import CURVES, Curve, main
from bench.points import Figures, body, window
from tests.pictures import assert_readable, pictures, tooltips, words_of


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The points that a curve called "planned" was asked for."""
    asked: list[tuple[int, float]] = []

    async def measured(value: int, seconds: float) -> Figures:
        asked.append((value, seconds))
        return {"rate": 1_000.0 / value}

    monkeypatch.setitem(CURVES, "window", Curve("window", "things", (1, 2), measured))
    monkeypatch.setattr(curves, "raise_file_limit", lambda: None)
    return asked


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_curve_has_its_own_points_unless_others_are_named(
    planned: list[tuple[int, float]],
) -> None:
    run("--curve", "window")
    run("--curve", "window", "--points", "7,9", "--seconds", "2")
    assert planned == [(1, 5.0), (2, 5.0), (7, 2.0), (9, 2.0)]


def test_points_are_added_to_a_file_and_drawn(
    planned: list[tuple[int, float]], tmp_path: Path
) -> None:
    figures, page = tmp_path / "found.json", tmp_path / "page.html"
    run("--curve", "window", "--json", str(figures))
    run("--curve", "window", "--points", "4", "--json", str(figures), "--page", str(page))
    kept = orjson.loads(figures.read_bytes())
    assert kept == {"window": {"1": {"rate": 1000}, "2": {"rate": 500}, "4": {"rate": 250}}}
    assert "a second over things" in page.read_text()


def test_wrong_points_are_refused(planned: list[tuple[int, float]]) -> None:
    result = CliRunner().invoke(main, ["--points", "1,x"])
    assert result.exit_code == 2
    assert "numbers, separated by commas" in result.output
    assert planned == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("floor_rate", "a second"),
        ("p99_ms", "ms"),
        ("leader_us", "CPU µs a message"),
        ("follower_mib", "resident MiB"),
        ("mib_s", "MiB a second"),
        ("restart_follower_s", "seconds"),
        ("leader_kib_topic", "KiB a topic"),
        ("idle_kib_each", "KiB a connection"),
        ("quiet_namesrv_cpu_ms_s", "CPU ms a second"),
    ],
)
def test_figures_of_one_kind_share_a_chart(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_page_has_a_chart_for_each_kind() -> None:
    text = render({"things": {"1": {"rate": 5.0, "p50_ms": 1.0}, "2": {"rate": 6.0}}})
    assert [picture.get("aria-label") for picture in pictures(text)] == [
        "a second over things",
        "ms over things",
    ]


def test_a_page_shows_every_point_and_tells_lines_apart() -> None:
    names = [f"find_{n}_ms" for n in range(9)]
    values = (1, 16, 17, 1_048_576)
    found = {str(at): {name: at + n / 10 for n, name in enumerate(names)} for at in values}
    text = render({"<things>": found})
    assert_readable(text)
    (picture,) = pictures(text)
    said = tooltips(picture, "mark")
    assert len(said) == len(names) * len(values)
    assert "find_3_ms at 16: 16.3" in said
    assert "find_3_ms at 1,048,576: 1,048,576" in said
    assert {"1", "16", "1,048,576"} <= set(words_of(picture))  # 17 would lie on 16
    swatches = re.findall(r'<svg class="swatch".*?</svg>', text)
    looks = {tuple(re.findall(r'class="mark (\w+)" d="([^"]+)"', swatch)) for swatch in swatches}
    assert len(looks) == len(names)


def test_a_curve_of_one_point_is_drawn() -> None:
    text = render({"replicas": {"3": {"rate": 1_234_567.0}}})
    assert_readable(text)
    assert tooltips(pictures(text)[0], "mark") == ["rate at 3: 1,234,567"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("measure", [window, pytest.param(body, marks=pytest.mark.long)])
async def test_a_point_is_measured_on_a_group_of_its_own(
    measure: Callable[[int, float], Awaitable[Figures]],
) -> None:
    figures = await measure(16, 0.2)
    assert {"rate", "floor_rate", "p50_ms", "p99_ms", "leader_us", "leader_mib"} <= figures.keys()
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
