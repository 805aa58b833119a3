"""MessageStore: CommitLog, ConsumeQueues and checkpoint as one thing.

In Raft mode the Raft log writes frames into `commitlog`; committed frames come here through
`dispatch_frame`, in log order, and only they are visible to readers. In classic mode
`append_classic` writes records and dispatches them at once.

`dispatched_offset` is how far the ConsumeQueues go. After a restart it is how far the last flush
made them durable: the frames behind it must be dispatched again (`redispatch`, or frame by frame;
units already there are skipped). If the ConsumeQueues are gone it is the log's beginning.

Opening, Raft mode: `open()` reads checkpoint and queues, then the caller recovers the log (RaftLog,
or `recover_frames` here). Classic mode: `open()` does all of it.

One caller (the loop). `open`, `redispatch`, `flush`, `close` and a flush ticket's `run` block; the
last is meant for the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import compress, pairwise

from raftmq.store.checkedreads import CheckedReads
from raftmq.store.checkpoint import AbortFile, Checkpoint
from raftmq.store.commitlog import CommitLog
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.consumequeue import ConsumeQueue, ConsumeQueueStore, FlushTicket
from raftmq.store.disk import Disk, DiskUsage
from raftmq.store.dispatch import UNIT, UNIT_SIZE_BYTES, Dispatcher, QueueUnits
from raftmq.store.errors import Diverged, StoreDamaged
from raftmq.store.frame import FRAME_MAGIC, HEADER_SIZE_BYTES, Frame, FrameKind, parse_header
from raftmq.store.messageindex import STEP_BYTES, IndexFlush, KeyQuery, MessageIndex
from raftmq.store.queuerepair import QueueRepairs, QueueStep, mend_queues
from raftmq.store.record import (
    BLANK,
    BLANK_SIZE_BYTES,
    HEAD_SIZE_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    MessageRecord,
    encode_record,
    store_timestamp_at,
    walk_records,
)
from raftmq.store.recovery import (
    FrameHeader,
    RecoveredFrames,
    RecoveredRecords,
    recover_frames,
    recover_records,
    walk_frames,
)
from raftmq.store.retention import SegmentAge, expired_before
from raftmq.store.selection import (
    GetStatus,
    Limits,
    offset_status,
    scan_count,
    select,
)

__all__ = [
    "AppendedRecord",
    "GetResult",
    "GetStatus",
    "KeyQuery",
    "MessageStore",
    "StoreConfig",
    "StoreMode",
]

_REDISPATCH_BYTES = 4 << 20  # of classic records, read at once
_HEAD_WITH_HOSTS = HEAD_SIZE_BYTES + 24


@dataclass(frozen=True, slots=True)
class GetResult:
    """The result of a pull. The buffers, one behind the other, are `message_count` whole records;
    `cold`: they were read from far behind the log's end, another replica may serve better."""

    status: GetStatus
    buffers: list[bytes]
    next_offset: int
    min_offset: int
    max_offset: int
    message_count: int = 0
    size_bytes: int = 0
    cold: bool = False


@dataclass(frozen=True, slots=True)
class AppendedRecord:
    """The place that `append_classic` gave one record."""

    physical_offset: int
    queue_offset: int
    size_bytes: int
    store_timestamp_ms: int


class StoreFlush:
    """A flush of the derived files in flight: `run` it in the pool, then `finish_flush`."""

    __slots__ = ("_checkpoint", "confirmed", "index", "stamp_ms", "ticket")

    def __init__(
        self,
        ticket: FlushTicket,
        index: IndexFlush | None,
        checkpoint: Checkpoint,
        confirmed: int,
        stamp_ms: int,
    ) -> None:
        self.ticket = ticket
        self.index = index
        self._checkpoint = checkpoint
        self.confirmed = confirmed  # the queues are complete and durable up to here
        self.stamp_ms = stamp_ms

    def run(self) -> None:
        """Sync the files. Blocking. Raises OSError."""
        self.ticket.run()
        if self.index is not None:
            self.index.run()
        self._checkpoint.sync()


class MessageStore:
    """A store of messages: CommitLog, ConsumeQueues, index and checkpoint."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self.disk = disk
        self.config = config
        self._raft = config.mode is StoreMode.RAFT
        self.checkpoint = Checkpoint(disk, config.path("checkpoint"))
        self.abort_file = AbortFile(disk, config.path("abort"))
        self.commitlog = CommitLog(
            disk,
            config.path("commitlog"),
            config.segment_size_bytes,
            self.checkpoint,
            zero_ahead=config.zero_ahead,
        )
        self.queues = ConsumeQueueStore(
            disk,
            config.path("consumequeue"),
            config.units_per_file,
            tail_units_max=config.tail_units_max,
            tails_bytes_max=config.tails_bytes_max,
            open_files_max=config.open_files_max,
            manifest=config.path("consumequeue.manifest") if self._raft else None,
        )
        self.repairs = QueueRepairs(self.commitlog, self.queues)
        repairs = self.repairs if self._raft else None
        self.reads = CheckedReads(self.commitlog, self.queues, repairs)
        self.index = (
            MessageIndex(disk, config.path("index"), self.commitlog, config.index_limits)
            if config.index_enable
            else None
        )
        self.dispatched_offset = 0
        self.last_stop_clean = True
        self.recovered: RecoveredFrames | RecoveredRecords | None = None
        self._dispatcher = Dispatcher(config.delay_levels_ms)
        self._stamp_ms = 0  # store time of the newest record dispatched
        self._log_stamp: tuple[int, int] | None = None  # (log end, its store time) to note next

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Open and, in classic mode, recover. Raises StoreError, OSError."""
        if self.config.directory:
            self.disk.makedirs(self.config.directory)
        self.last_stop_clean = not self.abort_file.found()
        self.abort_file.create()
        self.checkpoint.open(verify=self._raft)
        self.commitlog.open(restore=self._raft)
        self._stamp_ms = self.checkpoint.fields.logics_timestamp_ms
        if self.config.mode is StoreMode.RAFT:
            confirmed = self.checkpoint.fields.confirm_offset
            self.queues.open(confirmed, clean=self.last_stop_clean)
            self._open_index(confirmed)
            if not self.queues.topics() and not self.queues.damaged:
                confirmed = 0  # never written, or deleted: then they are made from the log again
            # The log may begin before or after that once it is mended: see `log_recovered`.
            self.dispatched_offset = confirmed
        else:
            self._recover_classic()
            self.queues.correct_min_offset(self.commitlog.min_offset)

    def log_recovered(self) -> None:
        """Fit the queues to the recovered log, in Raft mode, before anything is dispatched: drop
        units of lost frames, and rebuild damaged queues (that reads the whole log)."""
        begin, end = self.commitlog.min_offset, self.commitlog.max_offset
        if end < self.dispatched_offset:
            self.cut_back(end)
        self.queues.correct_min_offset(begin)
        self.dispatched_offset = max(self.dispatched_offset, begin)  # not known before
        if not mend_queues(self.queues, self.repairs, self._dispatcher, self.dispatched_offset):
            self.dispatched_offset = begin

    def recover_frames(
        self, on_frame: Callable[[FrameHeader], None] | None = None
    ) -> RecoveredFrames:
        """Raft mode: find and settle the end of the log. Raises StoreDamaged, OSError."""
        self.recovered = recover_frames(self.commitlog, self.dispatched_offset, on_frame)
        self.log_recovered()
        return self.recovered

    def _recover_classic(self) -> None:
        recovered = recover_records(
            self.commitlog, self.checkpoint.fields, clean=self.last_stop_clean
        )
        self.recovered = recovered
        self.queues.open(recovered.dispatch_from, clean=self.last_stop_clean)
        self._open_index(recovered.dispatch_from)
        dispatched = recovered.dispatch_from
        if self.last_stop_clean or not self.queues.topics():
            # Complete, unless somebody deleted them: the end of the last message tells.
            dispatched = max((_end_of(q) for q in self.queues.queues()), default=0)
        self.dispatched_offset = max(dispatched, self.commitlog.min_offset)
        self._redispatch_records()

    def _open_index(self, bound: int) -> None:
        if self.index is not None:
            stamp_ms = self.checkpoint.fields.index_timestamp_ms
            self.index.open(bound, clean=self.last_stop_clean, full_until_ms=stamp_ms)

    def close(self) -> None:
        """Flush everything and remove the abort file. In classic mode the index is completed first,
        since an Apache broker would not do it. Raises OSError; then the stop is unclean."""
        if self.config.mode is StoreMode.CLASSIC:
            self.index_all()
        self.flush()
        self.checkpoint.sync()
        self.close_unclean()
        self.abort_file.remove()

    def close_unclean(self) -> None:
        """Close the files as they are; the abort file stays."""
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.commitlog.close()
        self.checkpoint.close()

    # -- dispatch -----------------------------------------------------------------------------

    def dispatch_frame(
        self, frame: Frame, units: Sequence[tuple[str, int, int, bytes]] | None = None
    ) -> Sequence[tuple[str, int, int, bytes]]:
        """Make a committed frame's messages visible. Return the units by queue (topic, queue id,
        first queue offset, units); `units` are the same, if the leader has computed them already.

        A frame dispatched before is skipped (returns []). Raises DispatchError; OSError, after
        which the same call may be repeated."""
        if frame.end <= self.dispatched_offset:
            return []
        self._assert_follows(frame.position)
        if frame.kind != FrameKind.MESSAGES:
            units = []
        elif units is None:
            units = self._dispatcher.index_frame(frame)
        append = self.queues.append
        for topic, queue_id, first, packed in units:
            append(topic, queue_id, first, packed)
        self.dispatched_offset = frame.end
        self._stamp_ms = frame.timestamp_ms
        return units

    def redispatch(self, end_offset: int) -> int:
        """Raft mode, at start: dispatch the frames in the log between `dispatched_offset` and
        `end_offset`, which must be the end of a committed frame. Return the count of frames."""
        count = 0
        if end_offset <= self.dispatched_offset:
            return 0
        walk = walk_frames(self.commitlog, self.dispatched_offset, end_offset)
        for header in walk:
            data = self.commitlog.read(header.position, header.size_bytes)
            self.dispatch_frame(
                Frame(
                    header.index,
                    header.term,
                    header.position,
                    header.timestamp_ms,
                    header.kind,
                    header.record_count,
                    data,
                )
            )
            count += 1
        if self.dispatched_offset != end_offset:
            raise StoreDamaged(walk.bad_position, walk.reason or "not the end of a frame")
        return count

    def cut_back(self, offset: int) -> bool:
        """Raft mode, for an engine that breaks Raft's promise: drop the units from `offset` on,
        because the log lost dispatched frames and ends there now. They may be dispatched anew.

        Returns False, having done nothing, while a flush is in flight. Blocking. Raises OSError."""
        if self.queues.flushing:
            return False
        if offset < self.dispatched_offset:
            fields = self.checkpoint.fields
            if fields.confirm_offset > offset:  # first, or a kill leaves a hole in the queues
                self.checkpoint.note(
                    physic_timestamp_ms=fields.physic_timestamp_ms,
                    logics_timestamp_ms=fields.logics_timestamp_ms,
                    confirm_offset=offset,
                )
                self.checkpoint.sync()
            self.queues.truncate_to_commitlog(offset)
            if self.index is not None:
                self.index.truncate(offset)
            self.dispatched_offset = offset
        return True

    def _assert_follows(self, position: int) -> None:
        """Assert that the dispatched part ends at `position`, or in the segment just before it."""
        if position == self.dispatched_offset:
            return
        following = self.commitlog.segment_end(self.dispatched_offset)
        assert position == following, (position, self.dispatched_offset)

    # -- reading ------------------------------------------------------------------------------

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: Set[int] | None = None,
    ) -> GetResult:
        """Return messages of a queue from `offset` on (DefaultMessageStore.getMessage). `max_count`
        and `max_bytes` limit hot data; for cold data the configuration's limits apply, too.

        Raises StoreDamaged when a unit does not point at a record, OSError."""
        queue = self.queues.queue(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, [], 0, 0, 0)
        minimum, maximum = queue.min_offset, queue.max_offset
        refused = offset_status(offset, minimum, maximum)
        if refused is not None:
            return GetResult(refused[0], [], refused[1], minimum, maximum)
        count = max_count if tag_codes is None else scan_count(max_count)
        units = queue.units(offset, max(1, count))
        config, log = self.config, self.commitlog
        limits = Limits(
            max_count,
            max_bytes,
            config.cold_count_max,
            config.cold_bytes_max,
            log.max_offset - config.hot_span_bytes,
        )
        chosen, looked_at = select(units, limits, tag_codes)
        next_offset = offset + looked_at
        offsets: Sequence[int] = range(offset, next_offset)
        if tag_codes is not None:
            looked_at_units = UNIT.iter_unpack(units[: looked_at * UNIT_SIZE_BYTES])
            offsets = [
                n for n, unit in zip(offsets, looked_at_units, strict=True) if unit[2] in tag_codes
            ]
        if not chosen:
            status = GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, [], next_offset, minimum, maximum)
        if chosen[0][0] < log.min_offset:
            self.reads.check_removed(queue, offset)
            kept = [at >= log.min_offset for at, _ in chosen]
            chosen, offsets = list(compress(chosen, kept)), list(compress(offsets, kept))
            if not chosen:
                status = GetStatus.MESSAGE_WAS_REMOVING
                return GetResult(status, [], next_offset, minimum, maximum)
        return GetResult(
            GetStatus.FOUND,
            self.reads.read(chosen, queue, offsets, chosen[0][0] < limits.hot_from),
            next_offset,
            minimum,
            maximum,
            len(chosen),
            sum([size for _, size in chosen]),
            chosen[0][0] < limits.hot_from,
        )

    def begin_queue_repair(self) -> QueueStep | None:
        """Return the next step of repairing wrong units: `run` it in the pool, then
        `finish_queue_repair`; None if there is nothing to do. Raises OSError."""
        return self.repairs.begin(self.dispatched_offset)

    def finish_queue_repair(self, step: QueueStep) -> None:
        """Write the units that the step found. Raises OSError."""
        bad_position = self.repairs.finish(step)
        if bad_position is not None:
            self.reads.frame_is_damaged(bad_position)  # the step is repeated when that is mended

    def index_step(self, budget_bytes: int = STEP_BYTES) -> int:
        """Index about `budget_bytes` more of the dispatched part; return how many are left. Called
        when there is time for it (store.messageindex). Raises OSError; then call again."""
        if self.index is None:
            return 0
        return self.index.step(self.dispatched_offset, budget_bytes)

    def index_all(self) -> None:
        """Index everything dispatched. Blocking. Raises OSError."""
        while self.index_step():
            pass

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> KeyQuery:
        """Find messages by key, as far as the index goes (MessageIndex.query). Raises OSError."""
        if self.index is None:
            return KeyQuery([], 0, 0)
        return self.index.query(topic, key, max_count, begin_ms, end_ms)

    def message_at(self, offset: int) -> bytes | None:
        """Return the record that begins at this CommitLog offset, None if none is visible there."""
        if offset >= self.dispatched_offset:
            return None
        return self.commitlog.record_at(offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the first queue offset whose message was stored at `timestamp_ms` or later;
        max_offset if none was; 0 for an unknown queue."""
        queue = self.queues.queue(topic, queue_id)
        if queue is None:
            return 0
        return queue.first_at(lambda at, _: self._store_time(at) >= timestamp_ms)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time in ms of a queue's oldest message; -1 if it has none."""
        queue = self.queues.queue(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._store_time(queue.unit(queue.min_offset)[0])

    def log_start_time(self) -> int:
        """Return the time in ms of the oldest frame or record in the log; -1 if it has none."""
        for segment in self.commitlog.segments():
            stamp = self._first_time(segment.start)
            if stamp >= 0:
                return stamp
        return -1

    def _store_time(self, position: int) -> int:
        """Return a record's store time in ms; -1 if it is not in the log any more."""
        if not self.commitlog.min_offset <= position < self.commitlog.max_offset:
            return -1
        return store_timestamp_at(self.commitlog.read(position, _HEAD_WITH_HOSTS), 0)

    def _first_time(self, segment_start: int) -> int:
        head = self.commitlog.read(segment_start, _HEAD_WITH_HOSTS)
        if len(head) < HEADER_SIZE_BYTES:
            return -1
        magic = BLANK.unpack_from(head)[1]
        if magic == FRAME_MAGIC:
            return parse_header(head)[5]
        if magic in (MAGIC_V1, MAGIC_V2) and len(head) >= HEAD_SIZE_BYTES:
            return store_timestamp_at(head, 0)
        return -1

    # -- classic mode -------------------------------------------------------------------------

    def append_classic(self, records: Sequence[MessageRecord], now_ms: int) -> list[AppendedRecord]:
        """Give the records their queue offset, physical offset and store time, write and dispatch
        them. Not durable until a GroupFlusher or `flush` says so.

        Prepared and rolled-back records get queue offset 0 and no unit. Raises RecordTooLarge
        before anything was written; OSError."""
        assert self.config.mode is StoreMode.CLASSIC
        now_ms = max(now_ms, self._stamp_ms)  # store times never go back: offset_by_time bisects
        for record in records:
            self.commitlog.place(len(encode_record(record)))
        appended: list[AppendedRecord] = []
        next_offsets: dict[tuple[str, int], int] = {}
        log = self.commitlog
        run: list[bytes] = []  # adjacent records in one segment: one write
        position = run_limit = 0
        for record in records:
            size = len(encode_record(record))
            if run and position + size > run_limit:
                self._write_run(run)
                run = []
            if not run:
                position = log.place(size)
                run_limit = log.segment_end(position) - BLANK_SIZE_BYTES
            queue_offset = self._take_queue_offset(record, next_offsets)
            stored = replace(
                record,
                queue_offset=queue_offset,
                physical_offset=position,
                store_timestamp_ms=now_ms,
            )
            run.append(encode_record(stored))
            appended.append(AppendedRecord(position, queue_offset, size, now_ms))
            position += size
        if run:
            self._write_run(run)
        self._stamp_ms = now_ms
        return appended

    def append_records(
        self, position: int, data: bytes, units: Sequence[tuple[str, int, int, bytes]], now_ms: int
    ) -> None:
        """Append records that are encoded already, with queue offsets and position (from the log's
        `place`) in them, and their `units`; otherwise as `append_classic`. Raises OSError."""
        assert self.config.mode is StoreMode.CLASSIC
        self.commitlog.write(position, data)
        for topic, queue_id, first, packed in units:
            self.queues.append(topic, queue_id, first, packed)
        self.dispatched_offset = position + len(data)
        self._stamp_ms = now_ms

    def copy_records(self, data: bytes, newest_ms: int) -> Sequence[tuple[str, int, int, bytes]]:
        """Append whole records of a master's log at the end of this one and dispatch them; return
        the units by queue. Raises Diverged, having written nothing; OSError; DispatchError."""
        assert self.config.mode is StoreMode.CLASSIC
        position = self.commitlog.max_offset
        units = self._dispatcher.index(data, position)
        for topic, queue_id, first, _ in units:
            queue = self.queues.queue(topic, queue_id)
            end = 0 if queue is None else queue.max_offset
            if end not in (first, 0):  # 0: the log may begin in the middle of the master's
                text = f"queue offset {first} of {topic}/{queue_id} follows {end - 1}"
                raise Diverged(position, text)
        self.commitlog.copy(data)
        self._append_units(units)
        self.dispatched_offset = position + len(data)
        self._stamp_ms = newest_ms
        return units

    def copy_blank(self, data: bytes) -> None:
        """Append the rest of a segment of a master's log, from its blank record on."""
        self.commitlog.copy(data)
        self.dispatched_offset = self.commitlog.max_offset

    @property
    def newest_ms(self) -> int:
        """Store time of the newest record dispatched."""
        return self._stamp_ms

    def _take_queue_offset(
        self, record: MessageRecord, next_offsets: dict[tuple[str, int], int]
    ) -> int:
        if record.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_TRANSACTION_COMMIT):
            return 0
        key = (record.topic, record.queue_id)
        if key not in next_offsets:
            queue = self.queues.queue(*key)
            next_offsets[key] = 0 if queue is None else queue.max_offset
        next_offsets[key] += 1
        return next_offsets[key] - 1

    def _write_run(self, run: list[bytes]) -> None:
        data = b"".join(run)
        position = self.commitlog.place(len(data))
        units = self._dispatcher.index(data, position)  # before writing: it may refuse
        self.commitlog.write(position, data)
        self._append_units(units)
        self.dispatched_offset = position + len(data)

    def _append_units(self, units: Sequence[QueueUnits]) -> None:
        for topic, queue_id, first, packed in units:
            self.queues.append(topic, queue_id, first, packed)

    def _redispatch_records(self) -> None:
        """Dispatch classic records from `dispatched_offset` to the end of the log."""
        log, position = self.commitlog, self.dispatched_offset
        while position < log.max_offset:
            data = log.read(position, _REDISPATCH_BYTES)
            if BLANK.unpack_from(data)[1] == MAGIC_BLANK:
                position += BLANK.unpack_from(data)[0]
                continue
            walk = walk_records(data, position, check_body=False)
            last = 0
            for offset, _ in walk:
                last = offset
            if walk.end == 0:
                record = log.record_at(position)
                if record is None:
                    raise StoreDamaged(position, walk.detail)
                data, walk.end = record, len(record)
            self._append_units(self._dispatcher.index(data, position, 0, walk.end))
            self._stamp_ms = store_timestamp_at(data, last)
            position += walk.end
        self.dispatched_offset = log.max_offset

    # -- flushing -----------------------------------------------------------------------------

    def begin_flush(self) -> StoreFlush:
        """Write the queues' tails; return a flush whose `run` makes the queues durable up to its
        `confirmed`. One at a time. Raises OSError."""
        confirmed = min(self.dispatched_offset, self.commitlog.durable_offset)
        if self._log_stamp is None:
            self._log_stamp = (self.commitlog.max_offset, self._stamp_ms)
        queues = self.queues.begin_flush()  # first: it writes, and so may raise
        index = None if self.index is None else self.index.begin_flush()
        return StoreFlush(queues, index, self.checkpoint, confirmed, self._stamp_ms)

    def finish_flush(self, flush: StoreFlush, *, synced: bool) -> None:
        """After `run`: note in the checkpoint how far all is durable now. The note itself is synced
        by the next flush; losing it costs dispatching again. Raises OSError."""
        self.queues.finish_flush(flush.ticket, synced=synced)
        if self.index is not None and flush.index is not None:
            self.index.finish_flush(flush.index, synced=synced)
        if not synced:
            return
        fields = self.checkpoint.fields
        physic_ms = fields.physic_timestamp_ms
        if self._log_stamp is not None and self.commitlog.durable_offset >= self._log_stamp[0]:
            physic_ms, self._log_stamp = self._log_stamp[1], None
        raft = self.config.mode is StoreMode.RAFT
        self.checkpoint.note(
            physic_timestamp_ms=physic_ms,
            logics_timestamp_ms=flush.stamp_ms,
            index_timestamp_ms=None if self.index is None else self.index.full_until_ms,
            confirm_offset=flush.confirmed if raft else fields.confirm_offset,
        )

    def flush(self) -> None:
        """Make log, queues and checkpoint durable. Blocking. Raises OSError, SyncFailed."""
        ticket = self.commitlog.begin_sync()
        if ticket is not None:
            ticket.run()
            self.commitlog.finish_sync(ticket)
        flush = self.begin_flush()
        synced = False
        try:
            flush.run()
            synced = True
        finally:
            self.finish_flush(flush, synced=synced)
        self.checkpoint.sync()

    # -- retention ----------------------------------------------------------------------------

    def expired_before(
        self,
        now_ms: int,
        usage: DiskUsage | None = None,
        hour: int | None = None,
        by_age: bool = True,
    ) -> int:
        """Return the offset below which the configured policy deletes segments (store.retention).

        `usage` is Disk.usage(), `hour` the local hour; both are looked up if not given. Without
        `by_age` the time does not matter, only usage. Raises OSError."""
        usage = self.disk.usage() if usage is None else usage
        policy = self.config.retention
        infos = self.commitlog.segments()
        ages: list[SegmentAge] = []
        # The next segment's first record bounds the age of this one's last.
        for info, following in pairwise(infos):
            if len(ages) > policy.segments_at_once_max:
                break
            stamp = self._first_time(following.start)
            ages.append(SegmentAge(info.start, info.end, stamp if stamp >= 0 else now_ms))
        if infos:
            ages.append(SegmentAge(infos[len(ages)].start, infos[len(ages)].end, now_ms))
        if not ages:
            return self.commitlog.min_offset
        limit = min(self.dispatched_offset, self.commitlog.durable_offset)
        if self.config.mode is StoreMode.RAFT:
            limit = min(limit, self.checkpoint.fields.confirm_offset)
        return expired_before(
            ages,
            policy,
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour if hour is None else hour,
            disk_used_ratio=usage.used_ratio,
            limit=limit,
            by_age=by_age,
        )

    def delete_before(self, offset: int) -> int:
        """Remove whole segments below `offset`, and adjust the queues. Return how many. In Raft
        mode use RaftLog.trim and then `correct_min_offset`. Raises OSError."""
        assert offset <= self.dispatched_offset
        count = self.commitlog.delete_before(offset)
        self.correct_min_offset()
        return count

    def correct_min_offset(self) -> None:
        """Move the queues' min_offset up to the log's after segments were removed, and remove index
        files wholly below it."""
        self.queues.correct_min_offset(self.commitlog.min_offset)
        if self.index is not None:
            self.index.delete_before(self.commitlog.min_offset)


def _end_of(queue: ConsumeQueue) -> int:
    """Return the CommitLog offset behind the last message of a queue; 0 for an empty one."""
    if queue.max_offset <= queue.min_offset:
        return 0
    position, size, _ = queue.unit(queue.max_offset - 1)
    return position + size if position else 0
