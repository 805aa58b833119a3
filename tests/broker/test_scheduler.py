"""The housekeeper looks at its chores while something happens, and rests while nothing does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from raftmq.broker import scheduler as housekeeping
from raftmq.broker.scheduler import IDLE_MS, Activity, Chore, Housekeeper, Row
from tests.waiting import until

NEVER_MS = 10_000_000


@pytest.fixture(autouse=True)
def nothing_is_done_for_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "REST_MS_MAX", NEVER_MS)


class Work:
    """A chore that notes its runs, and has no work any more then; `always`: in `rest_ms` again."""

    def __init__(
        self, rest_ms: float = IDLE_MS, period_ms: int = 0, *, always: bool = False
    ) -> None:
        self.runs = 0
        self.always = always
        self.rest_ms = rest_ms
        self.chore = Chore("work", period_ms, self._run, lambda: self.rest_ms)

    def _run(self) -> None:
        self.runs += 1
        if not self.always:
            self.rest_ms = IDLE_MS


class Keeper:
    """A housekeeper over the real clock, and what it is told."""

    def __init__(self, quick: list[Chore], slow: list[Chore]) -> None:
        self.activity = Activity()
        self.fatal: list[str] = []
        self.keeper = Housekeeper(
            lambda: time.monotonic_ns() // 1_000_000,
            quick,
            slow,
            self.activity,
            self.fatal.append,
        )

    async def rests(self) -> None:
        """Return when it waits for something to happen."""
        await until(lambda: self.activity.is_awaited)


@asynccontextmanager
async def keeping(*quick: Chore, slow: tuple[Chore, ...] = ()) -> AsyncIterator[Keeper]:
    made = Keeper(list(quick), list(slow))
    made.keeper.start()
    try:
        yield made
    finally:
        await made.keeper.stop()


async def test_scheduler_rests_until_activity_and_runs_due_chores() -> None:
    first, second = Work(), Work()
    async with keeping(first.chore, second.chore) as made:
        for runs in (1, 2, 3):
            await made.rests()
            first.rest_ms = 0
            made.activity.note()
            made.activity.note()
            await until(lambda: first.rest_ms == IDLE_MS)
            assert first.runs == runs
        await made.rests()
        assert not second.runs, "it never had anything to do"


async def test_chore_with_work_runs_without_activity() -> None:
    work = Work(0, always=True)
    async with keeping(work.chore):
        await until(lambda: work.runs >= 4)


async def test_chore_runs_after_its_rest_without_activity() -> None:
    until_s = time.monotonic() + 0.15
    runs: list[float] = []
    chore = Chore(
        "later",
        0,
        lambda: runs.append(time.monotonic()),
        lambda: max(0.0, until_s - time.monotonic()) * 1000 if not runs else IDLE_MS,
    )
    async with keeping(chore) as made:
        await until(lambda: runs)
        assert runs[0] >= until_s
        await made.rests()
        assert len(runs) == 1


async def test_chore_does_not_run_before_its_period() -> None:
    often, seldom = Work(0, always=True), Work(0, period_ms=NEVER_MS // 2)
    async with keeping(often.chore, seldom.chore):
        await until(lambda: often.runs >= 4)
    assert not seldom.runs


async def test_wrong_rest_estimate_delays_at_most_by_the_longest_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "REST_MS_MAX", 50)
    quick, slow = Work(), Work()
    async with keeping(quick.chore, slow=(slow.chore,)):
        await until(lambda: quick.runs >= 3 and slow.runs >= 3)


@pytest.mark.parametrize("error", [OSError("unreadable"), AssertionError("broken")])
async def test_failing_rest_estimate_does_not_end_the_scheduler(error: Exception) -> None:
    def fails() -> float:
        raise error

    work = Work()
    failing = Chore("failing", 0, lambda: None, fails)
    async with keeping(failing, work.chore) as made:
        await made.rests()
        work.rest_ms = 0
        made.activity.note()
        await until(lambda: work.runs)
        await made.rests()
        assert not made.fatal


async def test_failing_chore_is_retried_and_a_broken_invariant_is_reported() -> None:
    def failing(error: Exception) -> Callable[[], None]:
        def run() -> None:
            raise error

        return run

    work = Work(0, always=True)
    full, broken = failing(OSError("full")), failing(AssertionError("broken"))
    async with keeping(Chore("full", 0, full), Chore("broken", 0, broken), work.chore) as made:
        await until(lambda: work.runs >= 2)
        assert set(made.fatal) == {"broken: AssertionError('broken')"}


async def test_cancelled_activity_wait_leaves_no_waiter() -> None:
    activity = Activity()
    waiting = asyncio.ensure_future(activity.wait(NEVER_MS / 1000))
    await until(lambda: activity.is_awaited)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    activity.recent = False
    activity.note()
    assert activity.recent
    await activity.wait(0.001)


async def test_chore_period_continues_while_there_is_no_work() -> None:
    """Offsets that are gathered share a frame with those that come in the same period."""
    work, now_ms, fatal = Work(period_ms=100), [0], list[str]()
    row = Row(lambda: now_ms[-1], [work.chore], fatal.append)
    row.start()
    for later_ms, runs in ((100, 0), (120, 0), (199, 0), (200, 1)):
        now_ms.append(later_ms)
        await row.run_due()
        assert work.runs == runs
        work.rest_ms = 0  # there is work from 100 on
