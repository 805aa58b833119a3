"""bench.peers.report and the command line, with medians, dashes, reasons and the page."""

from __future__ import annotations

import struct
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

import bench.peers.__main__ as command
from bench.peers.remoting import records_in
from bench.peers.report import lines, markdown, reasons, render
from bench.peers.rounds import Figures, Measured
from bench.peers.system import KILL, MANY, ONE, Failed, Missing, Running
from tests.pictures import assert_readable, pictures, tooltips, words_of

FOUND = {
    "A": Measured(
        {
            ONE: [
                Figures(1000, 1.0, 2.0, 10.0, 100.0, 3.0, 4.0),
                Figures(3000, 3.0, 4.0, 30.0, 300.0, 5.0, 6.0),
            ],
            "sends at 50 %": [Figures(500, 1.0, 2.0, None, None, 7.0, 9.0)],
            KILL: [Figures(20, 50.0, 50.0, None, None)],
        },
        failures=["round 3: Failed: x < y"],
    ),
    "<B>": Measured({MANY: [Figures(5, None, None, None, None)]}),
    "C": Measured(missing="no package"),
}


def test_benchmark_lines_are_medians_per_row() -> None:
    assert lines(FOUND) == [
        (ONE, "A", "2,000", "2.00", "3.00", "4.00", "5.00", "20.0", "200"),
        (MANY, "<B>", "5", "-", "-", "-", "-", "-", "-"),
        ("sends at 50 %", "A", "500", "1.00", "2.00", "7.00", "9.00", "-", "-"),
        (KILL, "A", "-", "50.00", "-", "-", "-", "-", "-"),
    ]


def test_missing_benchmark_results_are_named() -> None:
    assert reasons(FOUND) == ["C is not measured: no package", "A, round 3: Failed: x < y"]
    assert "\n- C is not measured: no package" in markdown(FOUND)


def test_benchmark_page_is_complete_and_escaped() -> None:
    page = render(FOUND, "a <machine>")
    assert "a &lt;machine&gt;" in page
    assert "x &lt; y" in page
    assert "<td>&lt;B&gt;</td>" in page
    assert_readable(page)
    assert [picture.get("aria-label") for picture in pictures(page)] == [
        f"{ONE} (ms, p50)",
        f"{MANY} (a second)",
        "sends at 50 % (ms, p99.9)",
        f"{KILL} (ms, p50)",
    ]


def test_every_system_has_a_bar_with_its_name_and_rounds() -> None:
    rounds = [Figures(rate, 1.0, None, None, None) for rate in (20_000, 12_345, 30_000)]
    result = {system.name: Measured({MANY: rounds}) for system in command.SYSTEMS}
    page = render(result, "")
    assert_readable(page)
    (picture,) = pictures(page)
    assert {system.name for system in command.SYSTEMS} <= set(words_of(picture))
    assert tooltips(picture, "bar") == [
        f"{name}: 20,000 a second (median of 20,000; 12,345; 30,000)" for name in result
    ]
    assert len(tooltips(picture, "round")) == 3 * len(result)


class NotThere:
    """A system that cannot be had."""

    name = "Other"

    def running(self, directory: Path, scale: float) -> AbstractAsyncContextManager[Running]:
        raise Missing("no package has it")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command.main, arguments)
    return result.exit_code, result.output


def test_benchmark_command_writes_files_without_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SYSTEMS", (NotThere(),))
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    code, said = run("--rounds", "1", "--json", str(figures), "--page", str(page))
    assert code == 0
    assert "Other is not measured: no package has it" in said
    assert orjson.loads(figures.read_bytes())["systems"]["Other"]["rows"] == {}
    assert "Other is not measured: " in page.read_text()


def test_systems_are_selected_by_words_of_their_names() -> None:
    names = [system.name for system in command.SYSTEMS]
    assert command.chosen("sync_flush, FLOOR", names) == [
        "floor",
        "ours, R3, ASYNC_FLUSH",
        "ours, R3, SYNC_FLUSH",
    ]
    assert command.chosen("", names) == names


def test_unknown_system_word_is_rejected() -> None:
    code, said = run("--only", "kafka")
    assert code == 2
    assert "kafka" in said


def test_records_are_walked_over() -> None:
    body = b"".join(struct.pack(">i", 4 + n) + bytes(n) for n in (0, 1, 300))
    assert records_in(body) == 3
    assert records_in(b"") == 0


@pytest.mark.parametrize("body", [b"\0\0\0\x03", b"\0\0\0\x05", b"\0\0\0\x04\0"])
def test_damaged_record_is_a_failure(body: bytes) -> None:
    with pytest.raises(Failed):
        records_in(body)
