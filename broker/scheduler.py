"""The scheduler of a broker's quick and slow periodic work, with a task for each.

Quick chores time out held pulls, propose offset commits, answer overdue sends and expire clients.
Slow chores write snapshots and delete segments; their blocking work runs in a pool of one thread.

While the broker is active, due quick chores with work run every TICK_MS. A chore may report how
long it has none (`Chore.rest_ms`), so that a lone request does not wait for a dozen idle chores. An
idle broker sleeps until the first chore has work. Since these reports are estimates, all due chores
run every REST_MS_MAX.

A snapshot copies the tables (applied up to frame a), makes log and ConsumeQueues durable up to a,
and only then replaces the files under config/. So the files never reflect a frame that the log
could lose, and a restart behind a finds everything below in the ConsumeQueues. Retention deletes no
frame above the last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

log = logging.getLogger("raftmq.broker.scheduler")

TICK_MS = 25  # maximum delay of a held pull's time-out
REST_MS_MAX = 1_000  # maximum delay of a chore after a wrong estimate
IDLE_MS = float("inf")  # an unlimited rest, until the next event


class Activity:
    """Records activity that may give the quick chores work."""

    __slots__ = ("_waiter", "recent")

    def __init__(self) -> None:
        self.recent = True  # since the last run of the quick chores
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """True while `wait` has not returned, so that the quick chores rest."""
        return self._waiter is not None

    def note(self) -> None:
        """Record a request, an applied frame or a change of role."""
        self.recent = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next activity, or after `timeout_s`. For one caller."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._give_up, self._waiter)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    @staticmethod
    def _give_up(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)


def _no_rest() -> float:
    """Let the chore run whenever its period is over."""
    return 0


@dataclass(slots=True)
class Chore:
    """Work done every `period_ms`; `run` may be a coroutine function. `rest_ms()` returns the
    expected milliseconds without work: 0 if there is work, IDLE_MS if only an event can bring it.
    """

    name: str
    period_ms: int
    run: Callable[[], Awaitable[object] | None]
    rest_ms: Callable[[], float] = _no_rest
    due_ms: int = field(default=0, init=False)


class Row:
    """Chores that run one after another."""

    def __init__(
        self, clock_ms: Callable[[], int], chores: Sequence[Chore], on_fatal: Callable[[str], None]
    ) -> None:
        self._clock_ms = clock_ms
        self._chores = chores
        self._on_fatal = on_fatal
        self._all_due_ms = 0  # when all due chores run regardless of estimates

    def start(self) -> None:
        now_ms = self._clock_ms()
        self._all_due_ms = now_ms + REST_MS_MAX
        for chore in self._chores:
            chore.due_ms = now_ms + chore.period_ms

    def rest_ms(self) -> float:
        """Return the time until the first chore has work."""
        now_ms = self._clock_ms()
        rest_ms = float(self._all_due_ms - now_ms)
        for chore in self._chores:
            left_ms = chore.due_ms - now_ms
            if left_ms < rest_ms:
                rest_ms = min(rest_ms, max(left_ms, self._rest_of(chore)))
        return rest_ms

    async def run_due(self) -> None:
        now_ms = self._clock_ms()
        everything = now_ms >= self._all_due_ms
        if everything:
            self._all_due_ms = now_ms + REST_MS_MAX
        for chore in self._chores:
            if chore.due_ms <= now_ms:
                chore.due_ms = now_ms + chore.period_ms
                if everything or self._rest_of(chore) <= 0:
                    await self._do(chore)

    def _rest_of(self, chore: Chore) -> float:
        try:
            return chore.rest_ms()
        except Exception:  # an unreadable file, which the chore reports
            log.exception("chore_failed name=%s", chore.name)
            return IDLE_MS

    async def _do(self, chore: Chore) -> None:
        try:
            waiting = chore.run()
            if waiting is not None:
                await waiting
        except AssertionError as error:
            log.critical("chore_failed name=%s", chore.name, exc_info=error)
            self._on_fatal(f"{chore.name}: {error!r}")
        except Exception:
            # A snapshot that could not be written or a file that could not be deleted. The next
            # round retries, and dependent work (retention) waits.
            log.exception("chore_failed name=%s", chore.name)


class Housekeeper:
    """Runs quick chores in one task and slow ones in a second."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        quick: Sequence[Chore],
        slow: Sequence[Chore],
        activity: Activity,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal(reason)` is called for a broken invariant; the broker then ends."""
        self._quick = Row(clock_ms, quick, on_fatal)
        self._slow = Row(clock_ms, slow, on_fatal)
        self._activity = activity
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._quick.start()
        self._slow.start()
        self._tasks = [
            loop.create_task(self._keep_quick()),
            loop.create_task(self._keep_slow()),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_quick(self) -> None:
        activity, row = self._activity, self._quick
        while True:
            rest_ms = 0.0 if activity.recent else row.rest_ms()
            if rest_ms > TICK_MS:
                await activity.wait((rest_ms + 1) / 1000)  # never early
            if rest_ms <= TICK_MS or activity.recent:
                await asyncio.sleep(TICK_MS / 1000)
            activity.recent = False
            await row.run_due()

    async def _keep_slow(self) -> None:
        row = self._slow
        while True:
            await asyncio.sleep(max(TICK_MS, row.rest_ms() + 1) / 1000)
            await row.run_due()
