"""Group commit of a log, by fdatasync in the pool for many appends at once.

SYNC: `request()` after an append starts a sync unless a sync is running. The next sync covers
appends during that time and starts when it ends. ASYNC means a sync every `interval_ms` if there is
data to sync.

`on_durable(offset)` is called after every sync. `wait(offset)` suspends until that offset is
durable, for at most `waiting_max` callers (TooManyWaiting).

A failed fdatasync is final. The kernel may have dropped the pages, and the next call would report
success for lost data ("fsyncgate"). Then `on_error` is called once, every waiter gets SyncFailed,
and no sync starts again.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import Enum

from ..errors import SyncFailed, TooManyWaiting
from .commitlog import CommitLog
from .log_sync import SyncTicket

WAITING_MAX = 100_000


class FlushMode(Enum):
    """The flush policy; the values are those of the broker's `flushDiskType`."""

    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


class GroupFlusher:
    """Flushes a log on a loop. The executor should have a thread of its own."""

    def __init__(
        self,
        log: CommitLog,
        executor: Executor,
        mode: FlushMode,
        *,
        interval_ms: float,
        on_durable: Callable[[int], None],
        on_error: Callable[[BaseException], None],
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`interval_ms` applies to ASYNC mode only."""
        self._log = log
        self._executor = executor
        self._mode = mode
        self._interval_s = interval_ms / 1000
        self._on_durable = on_durable
        self._on_error = on_error
        self._waiting_max = waiting_max
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # by offset, then arrival
        self._arrivals = 0
        self._running: Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._again = False
        self._started = False
        self._timer: asyncio.TimerHandle | None = None
        self.failed: BaseException | None = None
        self.syncs = 0  # fdatasyncs finished

    def start(self) -> None:
        assert not self._started
        self._started = True
        if self._mode is FlushMode.ASYNC:
            self._set_timer()
        else:
            self.request()

    async def stop(self) -> None:
        """Wait for the running sync, and start no more. Remaining waiters get SyncFailed."""
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._idle.wait()
        self._fail_waiting(SyncFailed("the flusher was stopped"))

    def request(self) -> None:
        """Request a sync of new data. In ASYNC mode the interval does it."""
        if self._mode is FlushMode.SYNC:
            self._start()

    async def wait(self, offset: int) -> None:
        """Wait until everything below `offset` is durable. Raises SyncFailed, TooManyWaiting."""
        if self.failed is not None:
            raise SyncFailed(str(self.failed)) from self.failed
        if self._log.durable_offset >= offset:
            return
        if len(self._waiting) >= self._waiting_max:
            raise TooManyWaiting(f"{len(self._waiting)} wait for a flush already")
        self._arrivals += 1
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bisect.insort(self._waiting, (offset, self._arrivals, waiter))  # usually at the end
        self.request()
        await waiter

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._set_timer()
        self._start()

    def _start(self) -> None:
        if self._running is not None:
            self._again = True
            return
        if not self._started or self.failed is not None:
            return
        try:
            ticket = self._log.start_sync()
        except SyncFailed as error:
            self._fail(error)
            return
        if ticket is None:
            return
        self._idle.clear()
        self._again = False
        self._running = self._executor.submit(ticket.run)
        loop = asyncio.get_running_loop()
        self._running.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._finished, ticket, done)
        )

    def _finished(self, ticket: SyncTicket, done: Future[None]) -> None:
        self._running = None
        try:
            done.result()
            durable = self._log.finish_sync(ticket)
        except (OSError, SyncFailed) as error:
            self._fail(error)
            return
        finally:
            self._idle.set()
        self.syncs += 1
        count = bisect.bisect_right(self._waiting, durable, key=lambda waiting: waiting[0])
        served, self._waiting = self._waiting[:count], self._waiting[count:]
        for _, _, waiter in served:
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
        if self._again and self._mode is FlushMode.SYNC:
            self._start()
        self._on_durable(durable)

    def _fail(self, error: BaseException) -> None:
        self.failed = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail_waiting(SyncFailed(str(error)))
        self._on_error(error)

    def _fail_waiting(self, error: SyncFailed) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)
