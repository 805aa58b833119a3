"""Classic mode's tables as files under config/, with Apache's format and names.

    topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  sentOnce.json
                                                            each with .bak, the version before

Topics and groups are written soon after a change, many changes at once; their creator may wait for
it. Offsets are written every `flushConsumerOffsetInterval`. Offsets and progress refer to the log,
so they are written only once the log is durable up to there. After a power failure they would
otherwise count lost messages as delivered. broker.tables.snapshot describes how files are replaced
safely.

Entries that only Apache's broker accepts are left out and logged, and the original file is kept as
NAME.refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import Disk

from ..errors import StateError
from . import snapshot
from .state import BrokerState
from .timer_wheel import CHECK_HEAD_BYTES, CHECK_PATH, NOTHING, progress_of

log = logging.getLogger("raftmq.broker.configfiles")

DEFINITIONS = ("topics.json", "subscriptionGroup.json")  # these do not refer to the log
EXPECTED = (*DEFINITIONS, "consumerOffset.json")  # also written by Apache's brokers
PROGRESS = tuple(name for name in snapshot.FILES if name not in DEFINITIONS)
DURABLE_POLL_S = 0.02
MARGIN_BYTES = 64 << 10  # for further writes before the tables'
REFUSED = ".refused"  # a copy of the file with the omitted entries
REFUSED_SHOWN_MAX, WHY_MAX = 20, 200
PROBE = "room"  # exists only during a check for space


class ConfigFiles:
    """Writes the tables' files. Only `_write` writes, in the pool of one thread, so that the order
    of the copies is kept."""

    def __init__(
        self, disk: Disk, state: BrokerState, pool: Executor, commitlog: CommitLog
    ) -> None:
        self._disk = disk
        self._state = state
        self._pool = pool
        self._commitlog = commitlog
        self._written: dict[str, bytes] = {}  # file contents by name
        self._settling = False
        self._definitions = Rounds(self._write_definitions)
        self._all = Rounds(self._write_all)

    def load(self) -> None:
        """Fill the tables from the files. Blocking. Raises OSError, and StateError if a file and
        its .bak are both unreadable, because the next write would replace them."""
        snapshot.load(self._disk, self._state, indexed=False)
        lost = [name for name in snapshot.FILES if self._is_lost(name)]
        if lost:
            raise StateError(
                f"{', '.join(lost)} under config/ cannot be read, nor can .bak (see the lines"
                " snapshot_damaged): put a copy there, a slave's or a backup's, or move it"
                " elsewhere to begin without what it said"
            )
        snapshot.put_right(self._disk, self._state)
        for path, refused in self._state.refused.items():
            self._keep(path, refused)
        if self._commitlog.max_offset:
            for name in EXPECTED:
                if not any(self._disk.exists(f"{snapshot.DIRECTORY}/{n}") for n in both(name)):
                    log.warning("snapshot_missing path=%s/%s", snapshot.DIRECTORY, name)
        delays = self._state.delays
        if delays.timer == NOTHING and self._disk.exists(CHECK_PATH):
            file = self._disk.open(CHECK_PATH)
            try:
                delays.timer = progress_of(file.pread(0, CHECK_HEAD_BYTES))
            finally:
                file.close()

    def _keep(self, path: str, refused: Mapping[str, str]) -> None:
        """Copy a file with omitted entries, before it is replaced. Raises OSError."""
        kept = f"{path}{REFUSED}"
        file = self._disk.open(path)
        try:
            snapshot.replace(self._disk, kept, [file.pread(0, file.size_bytes)])
        finally:
            file.close()
        text = refused_text(refused)
        log.warning("entries_refused path=%s kept=%s count=%d: %s", path, kept, len(refused), text)

    def _is_lost(self, name: str) -> bool:
        versions = (*both(name), name + snapshot.NEXT)
        there = [n for n in versions if self._disk.exists(f"{snapshot.DIRECTORY}/{n}")]
        return bool(there) and all(n in self._state.damaged for n in there)

    def check_room(self, more_bytes: int) -> None:
        """Raise OSError if the disk lacks space for the tables and `more_bytes` of changes. Called
        before a change that only a file keeps. Blocks briefly."""
        size_bytes = sum(map(len, self._written.values())) + 2 * more_bytes + MARGIN_BYTES
        path = f"{snapshot.DIRECTORY}/{PROBE}"
        self._disk.makedirs(snapshot.DIRECTORY)
        if self._disk.exists(path):
            self._disk.remove(path)  # left by a crash
        try:
            self._disk.open(path, allocate_bytes=size_bytes).close()
        finally:
            if self._disk.exists(path):
                self._disk.remove(path)

    def defined(self) -> asyncio.Future[None]:
        """Return a future that is done once the current topics and groups are in their files; it
        fails with OSError."""
        return self._definitions.next()

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done once all current tables are in their files; it fails with
        OSError. The log has to be durable first."""
        return self._all.next()

    async def save(self) -> None:
        """Save the tables, on a timer. Raises OSError."""
        await self.saved()

    async def settle(self) -> None:
        """Return once no write is in progress. Called when the log is no longer made durable, so
        tables that wait for that are not written."""
        self._settling = True
        await self._all.ended()
        await self._definitions.ended()

    def write_now(self) -> None:
        """Write the tables after `settle`, with a durable log. Blocking. Raises OSError."""
        self._write(snapshot.capture(self._state), snapshot.FILES)

    async def _write_definitions(self) -> None:
        loop, copies = asyncio.get_running_loop(), snapshot.capture(self._state)
        await loop.run_in_executor(self._pool, self._write, copies, DEFINITIONS)

    async def _write_all(self) -> None:
        loop, copies = asyncio.get_running_loop(), snapshot.capture(self._state)
        end = self._commitlog.max_offset
        while self._commitlog.durable_offset < end:
            if self._settling:
                raise TimeoutError(f"the log did not become durable up to {end}")
            await asyncio.sleep(DURABLE_POLL_S)
        # First, so that a partly deleted group does not reappear with its offsets.
        await loop.run_in_executor(self._pool, self._write, copies, PROGRESS)
        await self._write_definitions()

    def _write(self, copies: snapshot.Snapshot, names: Sequence[str]) -> None:
        snapshot.write_changed(self._disk, copies, self._written, names)


def refused_text(refused: Mapping[str, str]) -> str:
    """Return the omitted entries with reasons, abbreviated."""
    shown = [
        f"{name!r}: {why[:WHY_MAX]}" for name, why in list(refused.items())[:REFUSED_SHOWN_MAX]
    ]
    return "; ".join(shown)


def both(name: str) -> tuple[str, str]:
    """Return the names of a table's file and of its .bak."""
    return name, f"{name}.bak"


class Rounds:
    """Calls `write` while there are waiters; arrivals during a call share the next."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        """`write()` raises OSError."""
        self._write = write
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """Return a future for the end of the next call; it fails with the call's OSError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return future

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await self._write()
            except OSError as error:
                log.error("config_not_written: %s", error)
                for future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future in waiting:
                if not future.done():
                    future.set_result(None)
