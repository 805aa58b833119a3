"""The flusher makes the log durable, by a single fdatasync at a time in its own thread.

In SYNC_FLUSH a frame is durable when an fdatasync that started after its write has returned. Frames
gather for the next fdatasync during the present, as group commit without a timer. The leader's
fdatasync runs while its peers receive the frames.

In ASYNC_FLUSH a frame counts as durable once it is written (it survives the process, not a power
cut); an fdatasync follows on an interval.

A failed fdatasync is final. The kernel may have dropped the dirty pages, and a later success would
prove nothing. So the flusher reports it once and never syncs again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from raftmq.store.errors import SyncFailed

from .durations import Durations
from .log_storage import LogSyncTicket, RaftLog


class FlushMode(Enum):
    """The flush policy; the values are those of the broker's `flushDiskType`."""

    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(slots=True, eq=False)
class LogFlusher:
    """Makes a member's log durable, on the loop; only `ticket.run` is in the thread."""

    _log: RaftLog
    mode: FlushMode
    _interval_ms: int
    _durations: Durations
    syncs: int = field(default=0, init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)  # None: not started
    _on_durable: Callable[[int], None] | None = field(default=None, init=False)
    _on_failed: Callable[[Exception], None] | None = field(default=None, init=False)
    _busy: asyncio.Future[None] | None = field(default=None, init=False)  # done with the sync
    _started_ms: float | None = field(default=None, init=False)
    _due_ms: float = field(default=0.0, init=False)  # the next sync by the interval
    _failed: bool = field(default=False, init=False)

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[Exception], None]
    ) -> None:
        """Start to sync. `on_durable(index)` is called after a sync, in SYNC mode only; `on_failed`
        at most once."""
        self._on_durable, self._on_failed = on_durable, on_failed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raft-fdatasync")

    async def stop(self) -> None:
        """Wait for the sync in flight, run a last sync, and end the thread."""
        if self._pool is None:
            return
        while not self._failed and (self._busy is not None or self._start()):
            assert self._busy is not None
            await asyncio.wait([self._busy])
        self._pool.shutdown()
        self._pool = None

    def written(self) -> None:
        """Note that frames were appended; in SYNC mode, sync them."""
        if self.mode is FlushMode.SYNC and self._busy is None:
            self._start()

    def tick(self, now_ms: float) -> None:
        """Start a sync if the interval is over (ASYNC mode)."""
        if self._busy is None and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self._start()

    @property
    def due_ms(self) -> float:
        """The time of the next useful `tick`; infinite during a sync."""
        return self._due_ms if self._busy is None else math.inf

    @property
    def all_durable(self) -> bool:
        """True if, after `stop`, everything is durable."""
        return (
            self._pool is None
            and not self._failed
            and (self._log.durable_index == self._log.last_index)
        )

    def stalled_ms(self, now_ms: float) -> float:
        """Return the time of the fdatasync in flight since a call first saw it; 0 without one."""
        if self._busy is None:
            return 0.0
        if self._started_ms is None:
            self._started_ms = now_ms
        return now_ms - self._started_ms

    def _start(self) -> bool:
        """Start the next sync in the thread; return False if there is nothing to sync."""
        if self._failed or self._pool is None:
            return False
        ticket = self._log.start_sync()
        if ticket is None:
            return False
        self._durations.start()
        self._busy = asyncio.get_running_loop().run_in_executor(self._pool, ticket.run)
        self._busy.add_done_callback(partial(self._finished, ticket))
        return True

    def _finished(self, ticket: LogSyncTicket, done: asyncio.Future[None]) -> None:
        self._busy = None
        self._started_ms = None
        self._durations.end()
        assert self._on_durable is not None
        assert self._on_failed is not None
        error = done.exception()
        durable = None
        if error is None:
            self.syncs += 1
            try:
                durable = self._log.finish_sync(ticket)
            # The note of the durable end, or a truncation's own sync, failed.
            except (OSError, SyncFailed) as failure:
                error = failure
        if error is None:
            if self.mode is FlushMode.SYNC:
                self._start()  # first, so that disk and loop work in parallel
                if durable is not None:
                    self._on_durable(durable)
        elif isinstance(error, Exception):
            self._failed = True
            self._on_failed(error)
        else:
            raise error
