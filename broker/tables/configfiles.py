"""Classic mode's tables as files under config/, in Apache's format and by Apache's names.

    topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  sentOnce.json
                                                            each with .bak, the version before

Topics and groups are written as soon as they change, many changes at once; the creator of one may
wait for it. Offsets are written every `flushConsumerOffsetInterval`. broker.tables.snapshot says
how files are replaced and how a crash in between is survived.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from raftmq.broker.delivery.timers import timercheck
from raftmq.broker.delivery.timers.wheel import NOTHING
from raftmq.broker.errors import StateError
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.state import BrokerState
from raftmq.store.disk import Disk

log = logging.getLogger("raftmq.broker.configfiles")


class ConfigFiles:
    """Writes the tables' files; owned by the broker. The only writer is `_write`, in the pool."""

    def __init__(self, disk: Disk, state: BrokerState, pool: Executor) -> None:
        self._disk = disk
        self._state = state
        self._pool = pool
        self._written: dict[str, bytes] = {}  # by name, the file's content
        self._writer: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def load(self) -> None:
        """Fill the tables from the files. Blocking. Raises OSError; StateError if a file is there
        and cannot be read, nor can its .bak: it would be written over."""
        snapshot.load(self._disk, self._state, indexed=False)
        lost = [name for name in snapshot.FILES if self._is_lost(name)]
        if lost:
            raise StateError(
                f"{', '.join(lost)} under config/ cannot be read, nor can .bak (see the lines"
                " snapshot_damaged): put a copy there, a slave's or a backup's, or remove it to"
                " begin without what it said"
            )
        delays = self._state.delays
        if delays.timer == NOTHING and self._disk.exists(timercheck.PATH):
            file = self._disk.open(timercheck.PATH)
            try:
                delays.timer = timercheck.progress_of(file.pread(0, timercheck.HEAD_BYTES))
            finally:
                file.close()

    def _is_lost(self, name: str) -> bool:
        there = [n for n in (name, f"{name}.bak") if self._disk.exists(f"{snapshot.DIRECTORY}/{n}")]
        return bool(there) and all(n in self._state.damaged for n in there)

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done once the tables as they are now are in their files; it fails
        with OSError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._keep_writing())
        return future

    async def save(self) -> None:
        """Save the tables; the timer's `saved`. Raises OSError."""
        await self.saved()

    async def settle(self) -> None:
        """Return when nothing is being written."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    def write_now(self) -> None:
        """Write the tables, when the writer is settled. Blocking. Raises OSError."""
        self._write(snapshot.capture(self._state))

    async def _keep_writing(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            copies = snapshot.capture(self._state)
            try:
                await loop.run_in_executor(self._pool, self._write, copies)
            except OSError as error:
                log.error("config_not_written: %s", error)
                for future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _write(self, copies: snapshot.Snapshot) -> None:
        snapshot.write_changed(self._disk, copies, self._written)
