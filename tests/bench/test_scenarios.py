"""bench.scenarios and its command line, the points of a curve, and a single run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from bench import __main__ as command
from bench.__main__ import main
from bench.leader_changes import transfers
from bench.scenarios import SCENARIOS, Figures, Scenario, body, window


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The points that the scenario "window" was asked for."""
    requested: list[tuple[int, float]] = []

    async def measured(value: int, seconds: float) -> Figures:
        requested.append((value, seconds))
        return {"rate": 1_000.0 / value}

    monkeypatch.setitem(SCENARIOS, "window", Scenario("things", (1, 2), measured))
    monkeypatch.setattr(command, "raise_file_limit", lambda: None)
    return requested


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_scenario_has_its_own_points_unless_named(
    planned: list[tuple[int, float]],
) -> None:
    run("--scenario", "window")
    run("--scenario", "window", "--points", "7,9", "--seconds", "2")
    assert planned == [(1, 5.0), (2, 5.0), (7, 2.0), (9, 2.0)]


def test_points_are_shown_and_written(planned: list[tuple[int, float]], tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    shown = run("--scenario", "window", "--json", str(path))
    assert "things" in shown and "1,000" in shown and "500" in shown
    assert orjson.loads(path.read_bytes()) == {"window": {"1": {"rate": 1000}, "2": {"rate": 500}}}


def test_wrong_points_are_rejected(planned: list[tuple[int, float]]) -> None:
    result = CliRunner().invoke(main, ["--scenario", "window", "--points", "1,x"])
    assert result.exit_code == 2
    assert "numbers, separated by commas" in result.output
    assert planned == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("measure", [window, pytest.param(body, marks=pytest.mark.long)])
async def test_each_point_is_measured_on_a_new_group(
    measure: Callable[[int, float], Awaitable[Figures]],
) -> None:
    figures = await measure(16, 0.2)
    assert {"rate", "floor_rate", "p50_ms", "p99_ms", "leader_us", "leader_mib"} <= figures.keys()
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_benchmark_transfer_fails_no_send() -> None:
    figures = await transfers(2, 0)
    assert (figures["failed"], figures["lost"]) == (0, 0)
    assert figures["acknowledged"] > 0
