"""Faults wait for the load to flow, though not for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from raftmq.chaos.run import runner
from raftmq.chaos.workloads.base import Tally


def workload(failure: Exception | None = None) -> SimpleNamespace:
    return SimpleNamespace(tally=Tally(), failure=lambda: failure)


async def test_faults_wait_for_the_first_acknowledged_operation() -> None:
    idle, busy = workload(), workload()
    flowing = asyncio.create_task(runner._flows([idle, busy]))
    await asyncio.sleep(0.1)
    assert not flowing.done()
    busy.tally.ok = 1
    async with asyncio.timeout(60):
        await flowing


async def test_faults_wait_a_bounded_time_for_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "FLOW_TIMEOUT_S", 0.05)
    async with asyncio.timeout(60):
        await runner._flows([workload()])


async def test_broken_load_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        await runner._flows([workload(ZeroDivisionError("the load broke"))])
