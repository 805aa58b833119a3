"""Makes the derived files durable, and notes in the checkpoint how far everything is.

A flush is begun on the loop, run in the pool, and finished on the loop, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checkpoint import Checkpoint
from .commitlog.commitlog import CommitLog
from .consumequeue.consumequeue import FlushTicket
from .derived_files import DerivedFiles
from .index.message_index import IndexFlush


@dataclass(frozen=True, slots=True)
class StoreFlush:
    """A flush in flight: `run` it in the pool, then hand it to `StoreFlusher.finish`."""

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
    """Flushes the derived files of one store. For one caller (the loop), except
    `StoreFlush.run`."""

    _commitlog: CommitLog
    _checkpoint: Checkpoint
    _derived: DerivedFiles
    _confirms: bool  # note confirmPhyOffset, too (Raft mode)
    _log_stamp: tuple[int, int] | None = None  # (log end, its store time) to note next

    def begin(self) -> StoreFlush:
        """Write the queues' tails; return a flush whose `run` makes the queues durable up to its
        `confirmed`. One at a time. Raises OSError."""
        log, derived = self._commitlog, self._derived
        confirmed = min(derived.dispatched_offset, log.durable_offset)
        if self._log_stamp is None:
            self._log_stamp = (log.max_offset, derived.newest_ms)
        queues = derived.queues.begin_flush()  # first: it writes, and so may raise
        index = None if derived.index is None else derived.index.begin_flush()
        return StoreFlush(queues, index, self._checkpoint, confirmed, derived.newest_ms)

    def drop_saved(self, flush: StoreFlush) -> bool:
        """After `run`: drop some of the units that are in files now from memory; return whether
        there are more, so that the caller can let others run in between. `finish` does the rest."""
        return self._derived.queues.drop_saved(flush.queues)

    def finish(self, flush: StoreFlush, *, synced: bool) -> None:
        """After `run`: note in the checkpoint how far all is durable now. The note itself is synced
        by the next flush; losing it costs dispatching again. Raises OSError."""
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
        self._checkpoint.note(fields)
