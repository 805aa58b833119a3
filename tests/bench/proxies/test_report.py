"""bench.proxies.report and the command line: CPU for a send, medians, shares, the goal."""

from __future__ import annotations

from array import array

import click
import pytest
from click.testing import CliRunner

import bench.proxies.__main__ as command
from bench.peers.system import Missing
from bench.proxies.lanes import Timed
from bench.proxies.report import HEAD, Figures, figures_of, lines, smallest, verdicts
from bench.rounds import markdown, share
from bench.wire import LoadResult

GOAL, SAME = "theirs", "theirs, our brokers"


def figures(rate: float, refused: int = 0) -> Figures:
    return Figures(rate, 1.0, rate / 10, 0.5, 2.0, 0.25, refused)


FOUND = {
    "1": {
        "one": [figures(50), figures(70), figures(60)],
        "two": [figures(90), figures(80), figures(240)],
        SAME: [figures(100), figures(100), figures(300)],
        GOAL: [figures(100), figures(100), figures(100)],
    },
    "16": {
        "one": [figures(10), figures(10), figures(10)],
        "two": [figures(20), figures(20, 3), figures(20)],
        SAME: [figures(40), figures(40), figures(40)],
        GOAL: [figures(80), figures(80), figures(80)],
    },
}


def test_cpu_time_is_shared_by_the_sends() -> None:
    latencies = array("q", [1_000_000, 2_000_000, 3_000_000, 4_000_000])
    timed = Timed(LoadResult(4, 2.0, latencies, 1), 8_000.0)
    found = figures_of(timed, proxies_us=2_000.0, brokers_us=4_000.0)
    assert found == Figures(2.0, 3.0, 4.0, 0.5, 1.0, 2.0, 1)


def test_a_share_is_the_median_of_the_rounds_shares() -> None:
    ways = FOUND["1"]
    assert share(ways["two"], ways[SAME]) == pytest.approx(0.8)  # of 0.9, 0.8 and 0.8
    assert share(ways[GOAL], ways[GOAL]) == 1


@pytest.mark.parametrize(
    ("shares", "count"),
    [
        ({1: 0.79, 2: 0.8, 4: 0.9}, 2),
        ({4: 1.2, 1: 0.8}, 1),
        ({1: 0.5, 2: 0.7}, None),
    ],
)
def test_the_smallest_number_of_proxies_is_the_first_that_reaches_the_goal(
    shares: dict[int, float], count: int | None
) -> None:
    assert smallest(shares) == count


def test_lines_are_medians_and_shares_load_by_load() -> None:
    table = lines(FOUND, GOAL)
    assert [line[:2] for line in table] == [(load, way) for load in FOUND for way in FOUND[load]]
    assert table[0] == ("1", "one", "60", "60%", "1.00", "6.0", "0.50", "2.00", "0.25")
    assert table[1][2:4] == ("90", "90%")
    assert table[3][3] == "100%"
    assert "| 1 | one | 60 | 60% |" in markdown(HEAD, table)


def test_the_goal_is_named_with_what_reaches_it_and_failed_sends_are() -> None:
    assert verdicts(FOUND, GOAL, SAME, {"one": 1, "two": 2}) == [
        "1 in flight, 80% of theirs: 2 mqproxy (1: 60%, 2: 90%)",
        "1 in flight, of theirs, our brokers: 1: 50%, 2: 80%",
        "16 in flight, 80% of theirs: not reached (1: 12%, 2: 25%)",
        "16 in flight, of theirs, our brokers: 1: 25%, 2: 50%",
        "16 in flight, two: 3 sends failed",
    ]


def test_numbers_of_proxies_are_sorted_and_checked() -> None:
    assert command.parsed_counts("4,1,4") == [1, 4]
    for words in ("", "0,1", "99", "two"):
        with pytest.raises(click.BadParameter):
            command.parsed_counts(words)


def test_what_cannot_be_had_ends_the_command_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def measure(*_: object) -> None:
        raise Missing("no jars")

    monkeypatch.setattr(command, "measure", measure)
    result = CliRunner().invoke(command.main, [])
    assert result.exit_code == 1
    assert "no jars" in result.output
