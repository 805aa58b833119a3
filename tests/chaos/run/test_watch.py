"""The live view of a growing history."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from rich.console import Console

from raftmq.chaos.run.watch import Scene, watch
from tests.chaos.builder import HistoryBuilder, clean


def seen(builder: HistoryBuilder) -> str:
    scene = Scene()
    for record in builder.records:
        scene.feed(record)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(scene.render())
    return capture.get()


def test_watch_shows_rates_leader_faults_and_checks() -> None:
    builder = clean()
    builder.leader("n2", 9, "broker-a")
    builder.fault("cut-node", "n0", heal=False)
    builder.invoke("waits")
    text = seen(builder)
    assert "4 of 5" in text  # acknowledged of sent
    assert "waiting 1" in text
    assert "broker-a n2 in term 9" in text
    assert "cut-node n0" in text
    assert "acknowledged but lost" in text


def test_watch_shows_a_healed_fault_as_over() -> None:
    builder = clean()
    builder.fault("pause", "n1")
    text = seen(builder)
    assert "faults: 1 so far" in text
    assert "pause n1" not in text


def test_watch_rates_ignore_old_sends() -> None:
    builder = clean()
    builder.wait(60)
    builder.sent("late", 2, 0)
    scene = Scene()
    for record in builder.records:
        scene.feed(record)
    rates, took = scene.rates()
    assert rates == {"ok": 0.5}
    assert took == [1.0]


def test_watch_ends_with_the_verdict_beside_the_history(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in clean().records))
    (tmp_path / "verdict.json").write_bytes(b"{}")
    console = Console(width=120, quiet=True)
    assert watch(history, console).counts["ok"] == 4


def test_watch_without_a_history_reports_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no history"):
        watch(tmp_path / "history.jsonl", Console(quiet=True), wait_s=0.0)
