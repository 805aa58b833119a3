"""Classic mode's tables as files under config/, in Apache's format and by Apache's names.

    topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  sentOnce.json
                                                            each with .bak, the version before

Topics and groups are written as soon as they change, many changes at once; the creator of one may
wait for it. Offsets are written every `flushConsumerOffsetInterval`. They and all progress speak of
the log, so they are written once the log is durable as far as they may speak of it: after a power
cut they would else call delivered, or stored, what is lost. broker.tables.snapshot says how files
are replaced and how a crash in between is survived.

Apache's broker takes entries that this one does not. They are left out and logged, and the file as
it was is kept as NAME.refused.
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
from . import timer_check as timercheck
from .state import BrokerState
from .timer_wheel import NOTHING

log = logging.getLogger("raftmq.broker.configfiles")

DEFINITIONS = ("topics.json", "subscriptionGroup.json")  # these say nothing of the log
EXPECTED = (*DEFINITIONS, "consumerOffset.json")  # Apache's brokers have them, too
PROGRESS = tuple(name for name in snapshot.FILES if name not in DEFINITIONS)
DURABLE_POLL_S = 0.02
MARGIN_BYTES = 64 << 10  # for what else is written before the tables are
REFUSED = ".refused"  # a copy of the file before entries were left out of its table
REFUSED_SHOWN_MAX, WHY_MAX = 20, 200
PROBE = "room"  # a file that is there only while its room is looked for


class ConfigFiles:
    """Writes the tables' files; owned by the broker. The only writer is `_write`, in the pool,
    which has one thread: what was copied first is written first."""

    def __init__(
        self, disk: Disk, state: BrokerState, pool: Executor, commitlog: CommitLog
    ) -> None:
        self._disk = disk
        self._state = state
        self._pool = pool
        self._commitlog = commitlog
        self._written: dict[str, bytes] = {}  # by name, the file's content
        self._settling = False
        self._definitions = Rounds(self._write_definitions)
        self._all = Rounds(self._write_all)

    def load(self) -> None:
        """Fill the tables from the files. Blocking. Raises OSError; StateError if a file is there
        and cannot be read, nor can its .bak: it would be written over."""
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
        if delays.timer == NOTHING and self._disk.exists(timercheck.PATH):
            file = self._disk.open(timercheck.PATH)
            try:
                delays.timer = timercheck.progress_of(file.pread(0, timercheck.HEAD_BYTES))
            finally:
                file.close()

    def _keep(self, path: str, refused: Mapping[str, str]) -> None:
        """Keep a copy of a file of which entries were left out: it will be written over. Raises
        OSError."""
        kept = f"{path}{REFUSED}"
        file = self._disk.open(path)
        try:
            snapshot.replace(self._disk, kept, [file.pread(0, file.size_bytes)])
        finally:
            file.close()
        told = refused_text(refused)
        log.warning("entries_refused path=%s kept=%s count=%d: %s", path, kept, len(refused), told)

    def _is_lost(self, name: str) -> bool:
        versions = (*both(name), name + snapshot.BESIDE)
        there = [n for n in versions if self._disk.exists(f"{snapshot.DIRECTORY}/{n}")]
        return bool(there) and all(n in self._state.damaged for n in there)

    def check_room(self, more_bytes: int) -> None:
        """Raise OSError if the tables cannot be written once more, with `more_bytes` of changes. To
        be called before a change is applied that only a file keeps. Blocking, for a moment."""
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
        """Return a future that is done once topics and groups as they are now are in their files;
        it fails with OSError."""
        return self._definitions.next()

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done once all tables as they are now are in their files; it fails
        with OSError. The log has to be durable first."""
        return self._all.next()

    async def save(self) -> None:
        """Save the tables; the timer's `saved`. Raises OSError."""
        await self.saved()

    async def settle(self) -> None:
        """Return when nothing is being written. Called when nothing makes the log durable any more:
        what waits for that is not written."""
        self._settling = True
        await self._all.ended()
        await self._definitions.ended()

    def write_now(self) -> None:
        """Write the tables, when the writer is settled and the log is durable. Blocking. Raises
        OSError."""
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
        # First, so that a group whose deletion was cut short does not come back with its offsets.
        await loop.run_in_executor(self._pool, self._write, copies, PROGRESS)
        await self._write_definitions()

    def _write(self, copies: snapshot.Snapshot, names: Sequence[str]) -> None:
        snapshot.write_changed(self._disk, copies, self._written, names)


def refused_text(refused: Mapping[str, str]) -> str:
    """Return refused entries and the reasons, the first of many."""
    shown = [
        f"{name!r}: {why[:WHY_MAX]}" for name, why in list(refused.items())[:REFUSED_SHOWN_MAX]
    ]
    return "; ".join(shown)


def both(name: str) -> tuple[str, str]:
    """Return the names of a table's file and of the version before."""
    return name, f"{name}.bak"


class Rounds:
    """Calls `write` as long as somebody waits for it: who comes while it runs shares the next
    call."""

    def __init__(self, write: Callable[[], Awaitable[None]]) -> None:
        """`write()` raises OSError."""
        self._write = write
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """Return a future that is done when a call that is yet to begin has ended; it fails with
        that call's OSError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return future

    async def ended(self) -> None:
        """Return when nobody waits."""
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
