"""The files derived from the CommitLog, its ConsumeQueues, its index, and their flushes.

The ConsumeQueues cover the log up to `dispatched_offset`; readers see nothing above it. After a
restart it is the offset up to which the last flush made the queues durable. The log behind it is
dispatched again, and entries that exist already are skipped. If the ConsumeQueues are gone it is
the start of the log. The index follows later, in steps.

In Raft mode `dispatch_frame` gets committed frames in log order. In classic mode
store.commitlog.classic_log hands over the records that it has written.

`StoreFlusher` makes these files durable and records the progress in the checkpoint. A flush starts
on the loop, runs in the pool and finishes on the loop; only a single flush runs at a time.

For the loop only. `open`, `log_recovered`, `truncate` and `index_all` block.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .checkpoint import Checkpoint
from .commitlog.commitlog import CommitLog
from .consumequeue.consumequeue import ConsumeQueueStore, FlushTicket
from .consumequeue.repair import QueueRepairs, rebuild_queues
from .dispatch import Dispatcher
from .errors import QueuesLost
from .frame import EntryBatch, Frame, FrameKind
from .index.message_index import STEP_BYTES, IndexFlush, KeyQuery, MessageIndex


class DerivedFiles:
    """ConsumeQueues and index of a CommitLog."""

    def __init__(
        self,
        commitlog: CommitLog,
        checkpoint: Checkpoint,
        queues: ConsumeQueueStore,
        index: MessageIndex | None,
        repairs: QueueRepairs,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        self._commitlog = commitlog
        self._checkpoint = checkpoint
        self.queues = queues
        self.index = index  # None if it is disabled
        self._repairs = repairs
        self.dispatcher = Dispatcher(delay_levels_ms)
        self.dispatched_offset = 0
        self.newest_ms = 0  # store time of the newest record dispatched
        self._kept_to = 0  # `open` kept entries below this CommitLog offset

    def open(
        self, confirmed: int, *, clean: bool, foreign: bool = False, lazy: bool = False
    ) -> None:
        """Open the files and keep entries that point below CommitLog offset `confirmed`, or below
        the log's start, where they cannot be rebuilt. `clean` means that the last stop was clean,
        `foreign` that a different program may have deleted queues. Raises OSError."""
        fields = self._checkpoint.fields
        self.newest_ms = fields.logics_timestamp_ms
        start = self._commitlog.min_offset
        self._kept_to = kept_to = max(confirmed, start)
        self.queues.open(kept_to, clean=clean, log_start=start, foreign=foreign, lazy=lazy)
        if self.queues.confirmed < kept_to:
            self._kept_to = confirmed = self.queues.confirmed
        if self.index is not None:
            self.index.open(confirmed, clean=clean, full_until_ms=fields.index_timestamp_ms)
        if not self.queues.topics() and not self.queues.damaged:
            confirmed = 0  # never written, or deleted; then they are rebuilt from the log
        # The recovered log may start before or after that, see `log_recovered`.
        self.dispatched_offset = confirmed

    def log_recovered(self) -> None:
        """Fit the queues to the recovered log in Raft mode, before any dispatch. Drop entries of
        lost frames and rebuild damaged queues, which reads the whole log. Raises QueuesLost if that
        is not enough."""
        start, end = self._commitlog.min_offset, self._commitlog.max_offset
        if start and self.queues.unknown:
            raise QueuesLost(start)
        if end < self.dispatched_offset:
            self.truncate(end)
        self.queues.correct_min_offset(start)
        self.dispatched_offset = max(self.dispatched_offset, start)  # unknown before
        # lost segments were restored and the log starts earlier
        if self._kept_to > self.dispatched_offset:
            self.queues.truncate_to_commitlog(self.dispatched_offset)
        if not rebuild_queues(self.queues, self._repairs, self.dispatcher, self.dispatched_offset):
            self.dispatched_offset = start
        self.queues.restore_lost(start)

    def dispatch_frame(self, frame: Frame) -> Sequence[EntryBatch]:
        """Make a committed frame's messages visible. Return its entries by queue. A frame
        dispatched before is skipped (returns []). Raises DispatchError; OSError, after which the
        call may be repeated."""
        if frame.end <= self.dispatched_offset:
            return []
        if frame.position != self.dispatched_offset:  # the frame starts the next segment
            following = self._commitlog.segment_end(self.dispatched_offset)
            assert frame.position == following, (frame.position, self.dispatched_offset)
        entries = frame.entries
        if frame.kind != FrameKind.MESSAGES:
            entries = []
        elif entries is None:
            entries = self.dispatcher.index_frame(frame)
        self.append(entries, frame.end, frame.timestamp_ms)
        return entries

    def write_full_tails(self) -> None:
        """Write queue tails above their limits after a shortage. Call it before the next dispatch.
        Raises OSError; readers see no change then."""
        self.queues.write_full_tails()

    def append(self, entries: Sequence[EntryBatch], end: int, newest_ms: int) -> None:
        """Append the entries of the part of the log that ends at `end`. Raises OSError."""
        append = self.queues.append
        for topic, queue_id, first, packed in entries:
            append(topic, queue_id, first, packed)
        if self.index is not None:
            self.index.dispatched.add(self.dispatched_offset, end, entries)
        self.dispatched_offset = end
        self.newest_ms = newest_ms

    def truncate(self, offset: int) -> bool:
        """Drop entries from `offset` on, because the log lost dispatched frames; they may be
        dispatched again. Raft mode, for an engine that breaks Raft's guarantee. Returns False and
        does nothing during a flush. Blocking. Raises OSError."""
        if self.queues.flushing:
            return False
        if offset < self.dispatched_offset:
            fields = self._checkpoint.fields
            if fields.confirm_offset > offset:  # first, or a kill leaves a hole in the queues
                self._checkpoint.write(fields._replace(confirm_offset=offset))
                self._checkpoint.sync()
            self.queues.truncate_to_commitlog(offset)
            if self.index is not None:
                self.index.truncate(offset)
            self.dispatched_offset = offset
        return True

    def correct_min_offset(self) -> None:
        """Move min_offset up to the log's after a removal, and remove index files below."""
        self.queues.correct_min_offset(self._commitlog.min_offset)
        if self.index is not None:
            self.index.delete_before(self._commitlog.min_offset)

    @property
    def indexed_offset(self) -> int:
        """The CommitLog offset up to which the log is indexed."""
        return self.dispatched_offset if self.index is None else self.index.position

    def index_step(self, budget_bytes: int = STEP_BYTES) -> int:
        """Index about `budget_bytes` more of the dispatched part; return how many are left. Called
        when there is time (store.index.message_index). Raises StoreDamaged, OSError; then call
        again."""
        return 0 if self.index is None else self.index.step(self.dispatched_offset, budget_bytes)

    def pass_damage(self, position: int) -> None:
        """Let `index_step` continue after the damage that it found at `position`."""
        if self.index is not None:
            self.index.pass_damage(position)

    def index_all(self) -> None:
        """Index everything dispatched. Blocking. Raises StoreDamaged, OSError."""
        while self.index_step():
            pass

    def query(
        self, topic: str, key: str, max_count: int, start_ms: int, end_ms: int
    ) -> Generator[None, None, KeyQuery]:
        """Find messages by key in steps, as far as the log is indexed (MessageIndex.query)."""
        if self.index is None:
            return KeyQuery([], 0, 0)
        return (yield from self.index.query(topic, key, max_count, start_ms, end_ms))

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()


@dataclass(frozen=True, slots=True)
class StoreFlush:
    """A running flush: `run` it in the pool, then pass it to `StoreFlusher.finish`."""

    queues: FlushTicket
    index: IndexFlush | None
    checkpoint: Checkpoint
    confirmed: int  # the queues are complete and durable up to here
    newest_ms: int  # store time of the newest record dispatched

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError."""
        self.queues.run()
        if self.index is not None:
            self.index.run()
        self.checkpoint.sync()


@dataclass(slots=True, eq=False)
class StoreFlusher:
    """Flushes the derived files of a store. For the loop only, except `StoreFlush.run`."""

    _commitlog: CommitLog
    _checkpoint: Checkpoint
    _derived: DerivedFiles
    _confirms: bool  # write confirmPhyOffset also (Raft mode)
    _log_stamp: tuple[int, int] | None = None  # (log end, its store time) to write next

    def start(self, *, listed: bool = False) -> StoreFlush:
        """Return a flush; its `run` makes the queues durable up to its `confirmed`, and with
        `listed` writes their manifest in any case. Not concurrent. Raises OSError."""
        log, derived = self._commitlog, self._derived
        confirmed = min(derived.dispatched_offset, log.durable_offset)
        if self._log_stamp is None:
            self._log_stamp = (log.max_offset, derived.newest_ms)
        queues = derived.queues.start_flush(confirmed, listed=listed)
        index = None if derived.index is None else derived.index.start_flush()
        return StoreFlush(queues, index, self._checkpoint, confirmed, derived.newest_ms)

    def drop_saved(self, flush: StoreFlush) -> bool:
        """Drop some saved entries from memory after `run`; return whether there are more, so that
        the caller can yield in between. `finish` does the rest."""
        return self._derived.queues.drop_saved(flush.queues)

    def finish(self, flush: StoreFlush, *, synced: bool) -> None:
        """Record in the checkpoint how far everything is durable, after `run`. The next flush syncs
        the record; losing it costs a repeated dispatch. Raises OSError."""
        index = self._derived.index
        self._derived.queues.finish_flush(flush.queues, synced=synced)
        if index is not None and flush.index is not None:
            index.finish_flush(flush.index, synced=synced)
        if not synced:
            return
        fields = self._checkpoint.fields._replace(logics_timestamp_ms=flush.newest_ms)
        if self._log_stamp is not None and self._commitlog.durable_offset >= self._log_stamp[0]:
            fields = fields._replace(physic_timestamp_ms=self._log_stamp[1])
            self._log_stamp = None
        if index is not None:
            fields = fields._replace(index_timestamp_ms=index.full_until_ms)
        if self._confirms:
            fields = fields._replace(confirm_offset=flush.confirmed)
        self._checkpoint.write(fields)
