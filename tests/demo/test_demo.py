"""The demo's parts: the data, the figures, the verdict's lines, the work directory, milestones."""

from __future__ import annotations

import asyncio
import itertools
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo.board import Board
from demo.delays import differences
from demo.flights import MARKER, RoomTaken, make_room
from demo.flights_data import (
    ROW_COUNT,
    Delays,
    data_file,
    delays_of,
    flight_id,
    read_flights,
    tail_number,
)
from demo.load import LoadResult, Milestones, held_at, messages
from demo.verdict import Evidence, all_hold, lines_of, phase_names, table_of, write_verdict
from raftmq.audit.report.report import AuditReport, CheckResult
from raftmq.chaos.checks.suite import check_all
from raftmq.chaos.history.events import Outcome
from raftmq.chaos.report.recovery import recoveries
from raftmq.chaos.workloads.base import Tally
from tests.chaos.builder import HistoryBuilder, clean
from tests.waiting import until

CSV = """\
"year","month","day","dep_delay","carrier","flight","tailnum","origin"
2013,1,1,2,"UA",1545,"N14228","EWR"
2013,1,2,-4,"UA",1545,"N14228","EWR"
2013,1,3,NA,"UA",7,NA,"LGA"
2013,9,3,NA,"AA",7,"N1","LGA"
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", CSV)
    return path


def test_flight_rows_have_ids_tails_and_delays(small: Path) -> None:
    flights = list(read_flights(small))
    assert flights[0]["dep_delay"] == 2 and flights[2]["dep_delay"] is None
    assert [flight_id(f) for f in flights[:2]] == ["UA1545-EWR-20130101", "UA1545-EWR-20130102"]
    assert [tail_number(f) for f in flights] == ["N14228", "N14228", "", "N1"]
    delays = delays_of(flights)
    assert delays == {("UA", 1): Delays(3, 2, -2), ("AA", 9): Delays(1, 0, 0)}
    assert delays["UA", 1].mean_min == -1.0
    assert delays["AA", 9].mean_min is None


def test_flight_data_set_is_the_expected_one() -> None:
    count = 0
    ids: set[str] = set()
    for flight in itertools.islice(read_flights(data_file()), 20_000):
        count += 1
        ids.add(flight_id(flight))
    assert count == len(ids) == 20_000 < ROW_COUNT


def test_flight_messages_carry_order_tag_key_and_sharding_key(small: Path) -> None:
    first, _, without_tail, _ = messages(read_flights(small))
    assert (first.topic, first.order, first.tag) == ("Flights", "N14228", "UA")
    assert first.key == "UA1545-EWR-20130101"
    assert first.properties == {"__SHARDINGKEY": "N14228"}
    assert b'"dep_delay":2' in first.body
    assert (without_tail.order, without_tail.properties) == ("", {})


def test_demo_differences_are_exact() -> None:
    table = {("UA", 1): Delays(3, 2, -2), ("AA", 9): Delays(1, 0, 0)}
    assert differences(table, dict(table)) == []
    assert len(differences(table, table | {("UA", 1): Delays(3, 2, -1)})) == 1
    assert len(differences(table, {("UA", 1): Delays(3, 2, -2)})) == 1
    nobodys: Any = {(None, None): Delays(1, 0, 0)}
    assert len(differences(table, table | nobodys)) == 1


async def test_milestone_wakes_at_its_count() -> None:
    milestones = Milestones()
    late = asyncio.create_task(milestones.reached(3))
    early = asyncio.create_task(milestones.reached(2))
    await asyncio.sleep(0)
    milestones.outcome(Outcome.OK)
    milestones.outcome(Outcome.UNKNOWN)
    milestones.outcome(Outcome.OK)
    await early
    assert not late.done()
    milestones.outcome(Outcome.OK)
    await late
    await milestones.reached(3)


class Held:
    """Stands in for a sender: what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def hold(self) -> None:
        self.told.append("hold")

    def go_on(self) -> None:
        self.told.append("go on")


async def test_demo_load_waits_for_a_late_kill() -> None:
    milestones, sender = Milestones(), Held()
    async with held_at(2, milestones, sender):  # type: ignore[arg-type]
        await asyncio.sleep(0)
        milestones.outcome(Outcome.OK)
        await asyncio.sleep(0)
        assert sender.told == []
        milestones.outcome(Outcome.OK)
        await until(lambda: sender.told, pause_s=0)
        assert sender.told == ["hold"]
    assert sender.told == ["hold", "go on"]
    async with held_at(9, milestones, sender):  # type: ignore[arg-type]
        pass
    milestones.acknowledged = 9
    await milestones.reached(9)
    assert sender.told == ["hold", "go on", "go on"]  # it came in time


def two_kills() -> HistoryBuilder:
    builder = clean()
    for number, node in enumerate(("n0", "n1")):
        builder.kill(node)
        builder.sent(f"after {number}", 0, 2 + number)
    builder.consumed(0, (2, "after 0"), (3, "after 1"))
    builder.drained()
    return builder


def evidence(builder: HistoryBuilder | None = None, **wrong: int) -> Evidence:
    history = (builder or two_kills()).build()
    names = ["missing", "phantom", "duplicate_broker", "offset_holes", "offset_repeats", "order"]
    names += ["order_queues", "replicas", "queue_index"]
    checks = [CheckResult(name, name, True, wrong.get(name, 0)) for name in names]
    checks.append(CheckResult("duplicate_retry", "retry", False, wrong.get("duplicate_retry", 0)))
    figures = {"sent": 6, "acknowledged": 6, "unknown": 0, "stored": 6}
    return Evidence(
        LoadResult(Tally(6, 6, 0, 0), True, {"n0": "stopped"}, {}),
        history,
        check_all(history),
        recoveries(history),
        AuditReport("Flights", (), figures, tuple(checks), 1.0),
        {("UA", 1): Delays(3, 2, -2)},
        [],
        {"Spark": 1.0},
    )


def test_demo_verdict_holds_for_clean_evidence() -> None:
    lines = lines_of(evidence(duplicate_retry=2))
    assert all_hold(lines), lines
    values = {line.name: line.value for line in lines}
    assert values["duplicates by a client's retry"] == "2"
    assert values["leaders killed under load"] == "2"
    assert values["kill 1 (n0) to the next acknowledged send"] == "3 ms"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("missing", "missing"),
        ("phantom", "phantom"),
        ("duplicate_broker", "duplicates made by a broker"),
        ("offset_holes", "holes or repeats in queue offsets"),
        ("offset_repeats", "holes or repeats in queue offsets"),
        ("order", "order violations"),
        ("order_queues", "order violations"),
        ("replicas", "replicas identical"),
        ("queue_index", "all 10 checks of the audit"),
    ],
)
def test_demo_verdict_fails_on_each_audit_fault(name: str, line: str) -> None:
    lines = lines_of(evidence(None, **{name: 3}))
    wrong = [entry.name for entry in lines if entry.holds is False]
    assert line in wrong
    assert not all_hold(lines)


def test_demo_verdict_fails_on_each_other_fault() -> None:
    good = evidence()
    first, second = good.recoveries
    never = replace(second, everybody_ms=None)
    for broken, name in (
        (replace(good, delay_differences=["UA"]), "delays by carrier and month (1 figures)"),
        (replace(good, load=replace(good.load, drained=False)), "everything consumed"),
        (
            replace(good, load=replace(good.load, stopped={"n1": "killed: late"})),
            "cluster stopped in order",
        ),
        (replace(good, recoveries=good.recoveries[:1]), "leaders killed under load"),
        (
            replace(good, recoveries=[first, never]),
            "kill 2 (n1) to the next acknowledged send",
        ),
    ):
        wrong = [line.name for line in lines_of(broken) if line.holds is False]
        assert wrong == [name]
    builder = two_kills()
    builder.consumed(0, (9, "ghost"))
    assert not all_hold(lines_of(evidence(builder)))


def test_demo_report_has_rates_by_phase_and_the_files(tmp_path: Path) -> None:
    result = evidence()
    lines = lines_of(result)
    names = [line.name for line in lines if line.name.startswith("acknowledged a second")]
    assert [name.split(", ")[1] for name in names] == phase_names(2)
    assert phase_names(0) == ["all of it"]
    assert len(phase_names(3)) == 4
    write_verdict(result, lines, tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "everything holds" in page and "mean departure delay" in page
    assert b'"ok": true' in (tmp_path / "report" / "verdict.json").read_bytes()
    console = Console(width=100, record=True)
    console.print(table_of(lines))
    assert "replicas identical" in console.export_text()


def test_demo_removes_only_its_own_directory(tmp_path: Path) -> None:
    mine = tmp_path / "work"
    make_room(mine, keep=False)
    (mine / "old").touch()
    make_room(mine, keep=False)
    assert [path.name for path in mine.iterdir()] == [MARKER]
    (mine / "old").touch()
    make_room(mine, keep=True)
    assert (tmp_path / "work.1" / "old").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother").touch()
    with pytest.raises(RoomTaken, match="not a demo's"):
        make_room(tmp_path / "letters", keep=False)
    assert (tmp_path / "letters" / "to-mother").exists()


def test_demo_board_writes_plain_lines_without_a_terminal() -> None:
    console = Console(width=100, record=True, force_terminal=False)
    board = Board(console)
    with board:
        board.count("sent", 100)
        for done in range(0, 101, 5):
            board.advance("sent", done)
    lines = console.export_text().splitlines()
    assert len(lines) == 10
    assert "sent: 100 of 100" in lines[-1]
