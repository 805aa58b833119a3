"""Rounds over the systems; each round starts every system anew, in reversed order.

The reversed order spreads a drift of the machine over all systems. A system that is missing, or
failed in a round, is no error; the table gives the reason. A missing system is not tried again.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from bench.group import cpu_us, resident_mib
from bench.peers.system import KILL, MANY, ROWS, WARM_UP, Failed, Load, Missing, Running, System
from bench.wire import LoadResult

ROW_TIMEOUT_S = 300.0
FAILURES = (Failed, OSError, RuntimeError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Figures:
    """A row of a system. `cpu_us` is the CPU of all its processes per message until the last
    response; `memory_mib` is their resident memory at that time; None if unknown."""

    rate: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: float | None
    memory_mib: float | None
    p999_ms: float | None = None
    longest_ms: float | None = None


@dataclass(slots=True)
class Measured:
    """All rounds of a system, with its rows and reasons for missing figures."""

    rows: dict[str, list[Figures]] = field(default_factory=dict)
    missing: str = ""
    failures: list[str] = field(default_factory=list)

    def medians(self, row: str) -> Figures | None:
        """Return the median of each figure of a row; None if it was never measured."""
        result = self.rows.get(row)
        if not result:
            return None
        rate = statistics.median(each.rate for each in result)
        others = {
            name: _median(getattr(each, name) for each in result)
            for name in Figures.__slots__
            if name != "rate"
        }
        return Figures(rate, **others)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


async def measure(
    systems: Sequence[System],
    rounds: int,
    scale: float,
    tell: Callable[[str], None],
    rows: Collection[str] = ROWS,
    capacity: float | None = None,
) -> dict[str, Measured]:
    """Measure these rows of every system `rounds` times, paced rows with this capacity or each with
    its own."""
    result = {system.name: Measured() for system in systems}
    for number in range(rounds):
        for system in systems if number % 2 == 0 else reversed(systems):
            measured = result[system.name]
            if measured.missing:
                continue
            tell(f"round {number + 1} of {rounds}: {system.name}")

            failed = partial(_failed, system.name, measured, number + 1, tell)
            try:
                await _one_round(system, scale, rows, capacity, measured, failed)
            except Missing as error:
                measured.missing = str(error)
                tell(f"{system.name} cannot be had: {error}")
            except FAILURES as error:
                failed("", error)
    return result


def _failed(
    name: str,
    measured: Measured,
    number: int,
    tell: Callable[[str], None],
    row: str,
    error: Exception,
) -> None:
    where = f"round {number}, {row}" if row else f"round {number}"
    measured.failures.append(f"{where}: {type(error).__name__}: {error}")
    tell(f"{name} failed: {measured.failures[-1]}")


async def _one_round(
    system: System,
    scale: float,
    rows: Collection[str],
    capacity: float | None,
    measured: Measured,
    failed: Callable[[str, Exception], None],
) -> None:
    rate = capacity
    directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="bench-peers-"))
    try:
        async with system.running(directory, scale) as running:
            for row in (WARM_UP, *(row for row in ROWS if row in rows)):
                load = running.load(row, rate, scale)
                if load is None:
                    continue
                try:
                    figures = await _row(running, row, load)
                except FAILURES as error:  # the remaining rows may still be measured
                    if row == WARM_UP:
                        raise
                    failed(row, error)
                    continue
                if row == MANY and capacity is None:
                    rate = figures.rate
                if row != WARM_UP:
                    measured.rows.setdefault(row, []).append(figures)
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _row(running: Running, row: str, load: Load) -> Figures:
    processes = running.processes() if row != KILL else []
    before = sum(map(cpu_us, processes))
    result = await asyncio.wait_for(load(), ROW_TIMEOUT_S)
    return figures_of(
        result,
        sum(map(cpu_us, processes)) - before if processes else None,
        sum(map(resident_mib, processes)) if processes else None,
    )


def figures_of(result: LoadResult, spent_us: float | None, memory_mib: float | None) -> Figures:
    """Return a load's figures, `spent_us` shared by its messages. Raises Failed if it had none."""
    if not result.messages:
        raise Failed("a load ended without a message")
    cpu_us = None if spent_us is None else spent_us / result.messages
    if not result.latencies_ns:
        return Figures(result.rate, None, None, cpu_us, memory_mib)
    p50, p99, p999, longest = result.percentiles_ms(0.5, 0.99, 0.999, 1.0)
    return Figures(result.rate, p50, p99, cpu_us, memory_mib, p999, longest)


def as_json(results: Mapping[str, Measured]) -> dict[str, object]:
    """Return every round's figures and every reason."""
    return {name: asdict(measured) for name, measured in results.items()}
