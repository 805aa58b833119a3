"""Runs a broker's periodic work: quick chores in one task and slow ones in another, on one tick.

Every TICK_MS: time out held pulls, propose gathered offset commits, answer sends that have waited
too long. More rarely: expire clients, look at the disk, write snapshots, let retention delete.
Blocking work runs in a pool of one thread, never two pieces at once.

Snapshots and retention: `snapshot` copies the tables (applied up to frame a), makes the log and the
ConsumeQueues durable at least that far, and only then replaces the files under config/. So the
files never reflect a frame that the log could lose, and a restart that begins behind a finds
everything below it in the ConsumeQueues. Retention deletes no frame above the last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

log = logging.getLogger("raftmq.broker.housekeeping")

TICK_MS = 25  # by this much a held pull may time out late


@dataclass(slots=True)
class Chore:
    """Work done every `period_ms`; `run` may be a coroutine function, which is awaited."""

    name: str
    period_ms: int
    run: Callable[[], Awaitable[None] | None]
    due_ms: int = field(default=0)


class Housekeeper:
    """Runs quick chores in one task and slow ones in a second, one after the other."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        quick: list[Chore],
        slow: list[Chore],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal(reason)` is called for a broken invariant; the broker then ends."""
        self._clock_ms = clock_ms
        self._quick = quick
        self._slow = slow
        self._on_fatal = on_fatal
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        now_ms = self._clock_ms()
        for chore in (*self._quick, *self._slow):
            chore.due_ms = now_ms + chore.period_ms
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(self._quick)),
            loop.create_task(self._keep(self._slow)),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, chores: list[Chore]) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now_ms = self._clock_ms()
            for chore in chores:
                if chore.due_ms <= now_ms:
                    chore.due_ms = now_ms + chore.period_ms
                    await self._do(chore)

    async def _do(self, chore: Chore) -> None:
        try:
            waiting = chore.run()
            if waiting is not None:
                await waiting
        except AssertionError as error:
            log.critical("chore_failed name=%s", chore.name, exc_info=error)
            self._on_fatal(f"{chore.name}: {error!r}")
        except Exception:
            # A snapshot that could not be written, a file that could not be deleted: the next
            # round tries again, and what depends on it (retention) waits.
            log.exception("chore_failed name=%s", chore.name)
