"""Checkpoints of the tables under config/, and the deletion of old segments.

In Raft mode the files are snapshots of the tables. A snapshot is written only once log and
ConsumeQueues are durable at least up to its index, and retention deletes no frame above the last
snapshot (see broker.scheduler). In classic mode the files are the tables
(broker.tables.config_files).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Protocol

from raftmq.store.message_store import MessageStore

from .context import Context
from .retention import Limit, Retained, Retention, Unexpired
from .scheduler import IDLE_MS, Chore
from .tables import snapshot
from .tables.config_files import ConfigFiles

log = logging.getLogger("raftmq.broker.checkpointer")

DURABLE_POLL_MS = 20
DURABLE_WAIT_MS = 5_000  # then this round's snapshot is skipped, which is logged once
QUEUE_REPAIR_PERIOD_MS = 50  # between steps of 16 MiB

# Reasons for which expired segments are kept.
FOR_OTHERS = "the other replicas: for a majority this has not expired yet, or is not known to have"
FOR_DELIVERY = "messages that wait for delivery"
FOR_SNAPSHOTS = "the next two snapshots of the tables"
FOR_BACKUP = "a backup that reads it"


class Keeper(Protocol):
    """Writes the tables' files, which broker.startup has loaded."""

    def chores(self) -> list[Chore]:
        """Return periodic work, which may block the scheduler's slow task."""
        ...

    async def retain(self, *, at_once: bool = False) -> Retained:
        """Delete old segments; `at_once` ignores deleteWhen. Raises OSError."""
        ...

    async def settle(self) -> None:
        """Wait until no write is in progress."""
        ...

    def close(self) -> None:
        """Write everything after a clean stop, before the store is closed. Blocking."""
        ...


class RaftKeeper:
    def __init__(
        self,
        context: Context,
        pool: Executor,
        retention: Retention,
        unexpired: Unexpired,
        *,
        covered_index: int,
        spare: Callable[[int], int],
        needed_from: Callable[[], int | None],
    ) -> None:
        """`covered_index` is the last frame in the loaded snapshots. `spare(position)` lowers a
        retention position for messages that still wait for delivery. `needed_from()` returns the
        lowest position that a backup reads, or None."""
        self._context = context
        self._disk = context.disk
        self._state = context.state
        self._store = context.store
        self._pool = pool
        self._retention = retention
        self._unexpired = unexpired
        self._spare = spare
        self._needed_from = needed_from
        self._waiting_for_others = 0  # the position logged last
        self._encoded: snapshot.Encoded = {}
        self._skipped = False  # whether the last snapshot was skipped
        self.covered_index = covered_index  # the last frame in durable snapshots
        self.fallback_index = 0  # the same for the .bak files

    def chores(self) -> list[Chore]:
        return [
            Chore("snapshot", self._context.durations.snapshot, self.write_snapshot),
            Chore("retention", self._context.durations.retention, self.retain),
            Chore(
                "queue_repair",
                QUEUE_REPAIR_PERIOD_MS,
                self.repair_queues,
                lambda: 0 if self._store.repairs or self._queues_lag else IDLE_MS,
            ),
        ]

    @property
    def _queues_lag(self) -> bool:
        """Return whether retention truncated the log while the queues were being flushed."""
        return self._store.queues.corrected_to != self._store.commitlog.min_offset

    async def repair_queues(self) -> None:
        """Repair a part of the known errors in ConsumeQueues. Raises OSError."""
        store, repairs, raft_log = self._store, self._store.repairs, self._context.log.raft.log
        if self._queues_lag:
            store.derived.correct_min_offset()
        step = repairs.next_step(store.derived.dispatched_offset, raft_log.frame_is_damaged)
        if step is None:
            return
        try:
            await finished(asyncio.get_running_loop().run_in_executor(self._pool, step.run))
        finally:
            bad_position = repairs.finish(step)
            if bad_position is not None:
                raft_log.frame_is_damaged(bad_position)  # if it is, this begins its repair

    async def write_snapshot(self) -> None:
        """Write a snapshot of the tables, in the order given in broker.scheduler. Write it twice
        before a pause, because retention needs an equally new .bak. Raises OSError."""
        copies = snapshot.capture(self._state)
        index = copies.applied_index
        if index < self.covered_index or index == self.covered_index == self.fallback_index:
            return
        raft_log = self._context.log.raft.log
        waited_ms = 0
        while raft_log.durable_index < copies.applied_index:
            if waited_ms >= DURABLE_WAIT_MS:
                if not self._skipped:
                    log.warning("snapshot_skipped index=%d: log not durable", copies.applied_index)
                self._skipped = True
                return
            await asyncio.sleep(DURABLE_POLL_MS / 1000)
            waited_ms += DURABLE_POLL_MS
        await flush_queues(self._store, self._pool)
        loop = asyncio.get_running_loop()
        before = self.covered_index
        self.covered_index = await finished(
            loop.run_in_executor(self._pool, snapshot.write, self._disk, copies, self._encoded)
        )
        self.fallback_index = before
        self._skipped = False

    async def retain(self, *, at_once: bool = False) -> Retained:
        """Delete old segments up to the frames that the snapshots and their .bak files cover.

        Unless deletion is forced, segments stay that a majority of replicas counts as unexpired.
        Unless the disk is too full, segments stay that a snapshot install or backup still reads."""
        engine, store = self._context.log.raft, self._store
        refilled = engine.refilled
        looked = self._retention.expired(at_once=at_once)
        expired, agreed = looked.before, engine.agree_expired(looked.by_age)
        crowded, forced = self._retention.crowded, self._retention.forced
        limit, before = Limit(expired), store.commitlog.min_offset
        if refilled and not crowded:
            log.info("retention_waits for=%s", ",".join(refilled))
            limit.lower(before, f"replicas that are refilled from this one: {', '.join(refilled)}")
        elif agreed < expired and not forced:
            if expired != self._waiting_for_others:
                log.info("retention_waits own=%d agreed=%d: a majority decides", expired, agreed)
            self._waiting_for_others = expired
            limit.lower(max(agreed, before), FOR_OTHERS)
        if limit.position > before:
            limit.lower(self._spare(limit.position), FOR_DELIVERY)
            index = engine.log.index
            covered = min(self.fallback_index, index.last_index)
            end = index.end_of(covered) if covered >= index.first_index else before
            limit.lower(end, FOR_SNAPSHOTS)
            needed = self._needed_from()
            if needed is not None and not crowded:
                limit.lower(needed, FOR_BACKUP)
        after = before
        if limit.position > before:
            early = self._unexpired.start(max(before, looked.by_age)) if forced else None
            after = await engine.delete_before(limit.position)
            if early is not None:
                self._unexpired.end(early, after)
        if after != before:
            store.derived.correct_min_offset()
            log.info("log_trimmed from=%d to=%d", before, after)
        return limit.retained(expired, before, after)

    async def settle(self) -> None:
        """Do nothing, because only the scheduler's chores write."""

    def close(self) -> None:
        copies = snapshot.capture(self._state)
        self._store.flush()
        snapshot.write(self._disk, copies, self._encoded)


class ClassicKeeper:
    """Writes the tables in Apache's files, and flushes queues and checkpoint."""

    def __init__(
        self,
        context: Context,
        pool: Executor,
        retention: Retention,
        unexpired: Unexpired,
        *,
        files: ConfigFiles,
        spare: Callable[[int], int],
    ) -> None:
        """`spare` is the same as in RaftKeeper."""
        self._context = context
        self._config = context.config
        self._files = files
        self._store = context.store
        self._pool = pool
        self._retention = retention
        self._unexpired = unexpired
        self._spare = spare

    def chores(self) -> list[Chore]:
        return [
            Chore("config_files", self._context.durations.config_files, self._files.save),
            Chore("queues", self._context.durations.snapshot, self._flush),
            Chore("retention", self._context.durations.retention, self.retain),
        ]

    async def _flush(self) -> None:
        await flush_queues(self._store, self._pool)

    async def retain(self, *, at_once: bool = False) -> Retained:
        """Delete old segments. A slave on a full disk also deletes messages that wait for delivery,
        because only its master stores them again."""
        before = after = self._store.commitlog.min_offset
        looked = self._retention.expired(at_once=at_once)
        expired = looked.before
        limit = Limit(expired)
        if not (self._config.is_slave and self._retention.crowded):
            limit.lower(self._spare(expired), FOR_DELIVERY)
        if limit.position > before:
            forced = self._retention.forced
            early = self._unexpired.start(max(before, looked.by_age)) if forced else None
            after = await self._context.log.engine.delete_before(limit.position)
            if early is not None:
                self._unexpired.end(early, after)
        if after > before:
            log.info("log_trimmed from=%d to=%d", before, after)
        return limit.retained(expired, before, after)

    async def settle(self) -> None:
        await self._files.settle()

    def close(self) -> None:
        self._files.write_now()


async def flush_queues(store: MessageStore, pool: Executor) -> None:
    """Make ConsumeQueues and checkpoint durable in the pool. Raises OSError."""
    loop = asyncio.get_running_loop()
    flush = store.flushes.start()
    synced = False
    try:
        await finished(loop.run_in_executor(pool, flush.run))
        synced = True
        while store.flushes.drop_saved(flush):  # noqa: ASYNC110 - others run in between
            await asyncio.sleep(0)
    finally:
        store.flushes.finish(flush, synced=synced)


async def finished(work: Awaitable[Any]) -> Any:
    """Return the result of work in the pool. A cancellation waits for the end of the work, so that
    files are not closed under the thread."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
