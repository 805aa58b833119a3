"""Saves term and vote in its own thread, so that a slow disk does not block the loop.

Saves are made one at a time, and the member performs nothing else until a save has returned, in the
order persist, send, acknowledge. A save that fails for a shortage (store.transient_errors) is
repeated, and counts as stalled. Any other failure is final, and no message may be sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from raftmq.store.transient_errors import RETRY_S, passes

from ..raft.messages import HardState
from .hard_state import HardStateFile

log = logging.getLogger("raftmq.dledger.storage.hard_state_writer")

Then = Callable[[BaseException | None], None]


class HardStateSaver:
    """Saves a member's hard state. Runs on the loop, except the saving."""

    def __init__(self, file: HardStateFile) -> None:
        self.busy = False  # an attribute, because the pump reads it in every turn
        self._file = file
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raft-votes")
        self._saving: asyncio.Future[None] | None = None
        self._started_ms: float | None = None
        self._again: asyncio.TimerHandle | None = None  # when a shortage is to be over
        self._stopped = False

    def save(self, state: HardState, then: Then) -> None:
        """Call `then(error or None)` on the loop once `state` is durable or has failed."""
        assert self._saving is None
        self.busy = True
        self._start(state, then)

    def _start(self, state: HardState, then: Then) -> None:
        loop = asyncio.get_running_loop()
        self._saving = loop.run_in_executor(self._pool, self._file.save, state)
        self._saving.add_done_callback(partial(self._done, state, then))

    def _done(self, state: HardState, then: Then, saved: asyncio.Future[None]) -> None:
        error = saved.exception()
        if passes(error) and not self._stopped:
            log.warning("vote_not_saved: %s", error)
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(RETRY_S, self._start, state, then)
            return
        self._saving = self._started_ms = None
        self.busy = False
        then(error)

    def stalled_ms(self, now_ms: float) -> float:
        """Return the time of the save in flight since a call first saw it; 0 without one."""
        if self._saving is None:
            return 0.0
        if self._started_ms is None:
            self._started_ms = now_ms
        return now_ms - self._started_ms

    async def stop(self) -> None:
        """Wait for the save in flight, without repetitions."""
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        if self._saving is not None:
            await asyncio.wait([self._saving])
        self._pool.shutdown()
