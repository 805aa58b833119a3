"""bench.peers.rounds with systems in turns, their removal, and names of missing systems."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.peers import rounds
from bench.peers.ours import OURS, Floor
from bench.peers.rounds import Figures, Measured, figures_of, measure
from bench.peers.system import (
    BATCHES,
    MANY,
    ONE,
    PULLS,
    PUSH,
    WARM_UP,
    Failed,
    Load,
    Missing,
    Running,
    Stamps,
)
from bench.wire import STAMP, LoadResult


class Fake:
    """A system whose n-th load has rate n; `broken` is raised at its start."""

    def __init__(self, name: str, broken: Exception | None = None) -> None:
        self.name = name
        self.started = 0
        self.directories: list[Path] = []
        self._broken = broken
        self._loads = 0

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        self.started += 1
        self.directories.append(directory)
        if self._broken is not None:
            raise self._broken
        loads: dict[str, Load] = {WARM_UP: self._load, ONE: self._load}
        yield Running(loads, list)

    async def _load(self) -> LoadResult:
        self._loads += 1
        return LoadResult(self._loads, 1.0, array("q", [1_000_000]))


async def run(*systems: Fake, rounds: int = 3) -> tuple[dict[str, Measured], list[str]]:
    reported: list[str] = []
    return await measure(systems, rounds, 1.0, reported.append), reported


async def test_rounds_alternate_their_order_and_drop_warm_ups() -> None:
    result, reported = await run(Fake("A"), Fake("B"))
    assert [line[-1] for line in reported] == list("ABBAAB")
    assert [figures.rate for figures in result["A"].rows[ONE]] == [2, 4, 6]
    median = result["A"].medians(ONE)
    assert median == Figures(4, 1.0, 1.0, None, None, 1.0, 1.0)
    assert result["A"].rows.keys() == {ONE}
    assert result["A"].medians(MANY) is None


async def test_paced_rows_have_shares_of_the_capacity() -> None:
    asked: list[tuple[float, float, bool]] = []
    told: list[str] = []

    class Paced(Fake):
        @asynccontextmanager
        async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
            loads: dict[str, Load] = {WARM_UP: self._load, MANY: self._load}
            yield Running(loads, list, self._paced)

        async def _paced(self, rate: float, seconds: float, arrivals: bool) -> LoadResult:
            asked.append((rate, seconds, arrivals))
            return await self._load()

    rows = [MANY, "sends at 25 %", "end to end at 50 %"]
    await measure([Paced("A")], 1, 1.0, told.append, rows)
    assert asked == [(0.5, 10.0, False), (1.0, 10.0, True)]
    await measure([Paced("A")], 1, 0.1, told.append, rows, capacity=1000)
    assert asked[2:] == [(250.0, 1.0, False), (500.0, 1.0, True)]


async def test_arrivals_are_timed_and_other_rows_ignored() -> None:
    stamps = Stamps()
    due_ns = time.perf_counter_ns()
    for stamp in (b"x" * 8, STAMP.pack(1), STAMP.pack(due_ns), STAMP.pack(due_ns + 1)):
        stamps.see(stamp + b"body")
    arrived = await stamps.arrived(LoadResult(2, 1.0, array("q", [7, 7])))
    assert len(arrived.latencies_ns) == 2
    assert all(0 < latency < 60e9 for latency in arrived.latencies_ns)


async def test_missing_system_is_tried_once_and_others_are_measured() -> None:
    absent, there = Fake("A", Missing("no package")), Fake("B")
    result, _ = await run(absent, there)
    assert (absent.started, result["A"].missing, result["A"].rows) == (1, "no package", {})
    assert len(result["B"].rows[ONE]) == 3


@pytest.mark.parametrize("error", [Failed("no leader"), OSError("x"), TimeoutError("x")])
async def test_failed_round_is_named_and_the_next_one_tried(error: Exception) -> None:
    broken = Fake("A", error)
    result, _ = await run(broken)
    assert broken.started == 3
    assert result["A"].missing == ""
    expected = [f"round {n}: {type(error).__name__}: {error}" for n in (1, 2, 3)]
    assert result["A"].failures == expected


async def test_directories_are_removed_after_an_error() -> None:
    systems = Fake("A"), Fake("B", Failed("x")), Fake("C", ValueError("a defect of ours"))
    with pytest.raises(ValueError):
        await run(*systems)
    directories = [directory for system in systems for directory in system.directories]
    assert len(directories) == 3
    assert not any(directory.exists() for directory in directories)


async def test_load_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Fake):
        async def _load(self) -> LoadResult:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(rounds, "ROW_TIMEOUT_S", 0.01)
    result, _ = await run(Hanging("A"), rounds=1)
    assert result["A"].failures == ["round 1: TimeoutError: "]


def test_cpu_is_divided_by_the_messages() -> None:
    result = LoadResult(4, 2.0, array("q"))
    assert figures_of(result, 10.0, 5.0) == Figures(2.0, None, None, 2.5, 5.0)


def test_load_without_messages_is_a_failure() -> None:
    with pytest.raises(Failed):
        figures_of(LoadResult(0, 1.0, array("q")), None, None)


@pytest.mark.long
async def test_raftmq_and_the_floor_fill_their_rows() -> None:
    result = await measure([Floor(), OURS[0]], 1, 0.01, lambda _: None)
    assert not [measured.failures for measured in result.values() if measured.failures]
    assert result["floor"].rows.keys() == {ONE, MANY, PULLS}
    assert result[OURS[0].name].rows.keys() >= {ONE, MANY, BATCHES, PULLS, PUSH}
    for row in (ONE, MANY, BATCHES, PULLS, PUSH):
        figures = result[OURS[0].name].medians(row)
        assert figures is not None
        assert figures.rate > 0
        assert figures.cpu_us is not None
        assert figures.cpu_us > 0
