"""A store of messages, with CommitLog, ConsumeQueues, index and checkpoint.

It first persists, then dispatches. In Raft mode the Raft log writes frames into `commitlog`; after
their commit `derived` makes them visible. In classic mode `classic` writes records and dispatches
them at once. `reads` returns messages, `flushes` makes the files durable, `repairs` corrects
ConsumeQueues, and `expiry` finds expired segments.

In Raft mode `open()` reads checkpoint and queues; then the caller recovers the log (RaftLog) and
calls `derived.log_recovered()`. In classic mode `open()` does all of it.

For the loop only. `open`, `flush` and `close` block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .checkpoint import AbortFile, Checkpoint
from .commitlog.classic_log import ClassicLog
from .commitlog.commitlog import CommitLog
from .commitlog.recovery import recover_records
from .config import StoreConfig, StoreMode
from .consumequeue.checked_reads import CheckedReads
from .consumequeue.consumequeue import ConsumeQueue, ConsumeQueueStore
from .consumequeue.repair import QueueRepairs
from .derived_files import DerivedFiles, StoreFlusher
from .disk import Disk
from .errors import StoreDamaged
from .index.message_index import MessageIndex
from .message_reads import MessageReads
from .retention import Expiry

logger = logging.getLogger("raftmq.store.message_store")


class MessageStore:
    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        *,
        on_synced: Callable[[float], None] | None = None,
        first_shown: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`on_synced` gets the duration of each CommitLog sync in s. Messages of a topic below the
        CommitLog offset in `first_shown` are not visible."""
        raft = config.mode is StoreMode.RAFT
        self.disk = disk
        self.config = config
        self.abort_file = AbortFile(disk, config.path("abort"))
        self.checkpoint = checkpoint = Checkpoint(disk, config.path("checkpoint"))
        self.commitlog = log = CommitLog(
            disk,
            config.path("commitlog"),
            config.segment_size_bytes,
            checkpoint,
            zero_ahead=config.zero_ahead,
            on_synced=on_synced,
        )
        self.queues = ConsumeQueueStore(
            disk,
            config.path("consumequeue"),
            config.entries_per_file,
            tail_entries_max=config.tail_entries_max,
            tails_bytes_max=config.tails_bytes_max,
            open_files_max=config.open_files_max,
            manifest=config.path("consumequeue.manifest"),
            first_shown=first_shown,
        )
        self.index = (
            MessageIndex(disk, config.path("index"), log, config.index_limits)
            if config.index_enable
            else None
        )
        self.repairs = QueueRepairs(log, self.queues, config.delay_levels_ms)
        self.derived = derived = DerivedFiles(
            log, checkpoint, self.queues, self.index, self.repairs, config.delay_levels_ms
        )
        checked = CheckedReads(log, self.queues, self.repairs if raft else None)
        self.reads = MessageReads(log, derived, checked, config)
        self.classic = None if raft else ClassicLog(log, derived)
        self.flushes = StoreFlusher(log, checkpoint, derived, raft)
        self.expiry = Expiry(log, derived, checkpoint if raft else None)
        self.last_stop_clean = True

    @property
    def files_held(self) -> int:
        """The number of files that are open as long as the store is, except a few small files, that
        is, segments (the next included) and index files."""
        index_files = 0 if self.index is None else len(self.index.files)
        return len(self.commitlog.segments()) + 1 + index_files

    def open(self, *, foreign: bool = False) -> None:
        """Open and, in classic mode, recover. `foreign` means that Apache's broker may have opened
        the store since. Raises StoreError, OSError."""
        if self.config.directory:
            self.disk.makedirs(self.config.directory)
        self.last_stop_clean = clean = not self.abort_file.exists()
        self.abort_file.create()
        self.checkpoint.open(verify=self.classic is None)
        self.commitlog.open(restore=self.classic is None)
        if self.classic is None:
            self.derived.open(self.checkpoint.fields.confirm_offset, clean=clean, lazy=True)
            return
        log_start = self.commitlog.min_offset
        dispatched = recover_records(self.commitlog, self.checkpoint.fields, clean=clean)
        self.derived.open(dispatched, clean=clean, foreign=foreign)
        if clean or not self.queues.topics():
            # Complete, unless they were deleted; use the end of the last message.
            dispatched = max((_end_of(q) for q in self.queues.queues()), default=0)
        dispatched = max(dispatched, log_start)
        self.classic.rebuild_damaged(dispatched)
        self.classic.dispatch_from(dispatched)
        self.queues.restore_lost(log_start, self.commitlog.max_offset, self.classic.gap)
        self.queues.correct_min_offset(log_start)

    def flush(self) -> None:
        """Make log, queues and checkpoint durable. Blocking. Raises OSError, SyncFailed."""
        ticket = self.commitlog.start_sync()
        if ticket is not None:
            ticket.run()
            self.commitlog.finish_sync(ticket)
        flush = self.flushes.start(listed=True)
        synced = False
        try:
            flush.run()
            synced = True
        finally:
            self.flushes.finish(flush, synced=synced)
        self.checkpoint.sync()

    def delete_before(self, offset: int) -> int:
        """Remove whole segments below `offset`, and adjust the queues; return how many. In Raft
        mode use RaftLog.trim and then `derived.correct_min_offset`. Raises OSError."""
        assert offset <= self.derived.dispatched_offset
        count = self.commitlog.delete_before(offset)
        self.derived.correct_min_offset()
        return count

    def close(self) -> None:
        """Flush everything and remove the abort file. In classic mode the index is completed first,
        because an Apache broker would not do it. Raises OSError; the stop is unclean then."""
        if self.classic is not None:
            self._complete_index()
        self.flush()
        self.checkpoint.sync()
        self.close_unclean()
        self.abort_file.remove()

    def _complete_index(self) -> None:
        """Index all but damaged parts: a classic log is never repaired. Raises OSError."""
        while True:
            try:
                self.derived.index_all()
                return
            except StoreDamaged as damage:
                logger.error("index_gap at=%d reason=%s", damage.position, damage.reason)
                self.derived.pass_damage(damage.position)

    def close_unclean(self) -> None:
        """Close the files without a flush; the abort file stays."""
        self.derived.close()
        self.commitlog.close()
        self.checkpoint.close()


def _end_of(queue: ConsumeQueue) -> int:
    """Return the CommitLog offset behind the last message of a queue; 0 for an empty queue."""
    if queue.max_offset <= queue.first_offset:
        return 0
    position, size, _ = queue.entry(queue.max_offset - 1)
    return position + size if position else 0
