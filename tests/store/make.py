"""Small records, frames and logs for the store's tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.recovery import FrameHeader, FrameRecovery, FrameWalk
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import Dispatcher, QueueEntries
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, parse_frame, seal_frame
from raftmq.store.index.index_file import IndexFile
from raftmq.store.index.key_walker import Keys
from raftmq.store.index.message_index import KeyQuery
from raftmq.store.message_store import MessageStore
from raftmq.store.record import (
    BLANK_SIZE_BYTES,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    MessageRecord,
    encode_record,
)

Row = tuple[int, int, int]  # an index key: hash, CommitLog offset, store time

PLAIN = MessageRecord(
    topic="T",
    body=b"hi",
    properties=b"TAGS\x01TagA\x02",
    queue_id=0,
    flag=0,
    queue_offset=0,
    physical_offset=0,
    sys_flag=0,
    born_timestamp_ms=1700000000000,
    born_host=("127.0.0.1", 50000),
    store_timestamp_ms=1700000000001,
    store_host=("127.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
)


def record(**changes: object) -> MessageRecord:
    return replace(PLAIN, **changes)  # type: ignore[arg-type]


class FrameWriter:
    """Writes frames into a CommitLog as a leader does, counting queue offsets."""

    def __init__(self, log: CommitLog, term: int = 1, index: int = 0) -> None:
        self.log = log
        self.term = term
        self.index = index
        self.offsets: dict[tuple[str, int], int] = {}
        self.frames: list[Frame] = []

    def messages(self, records: Sequence[MessageRecord]) -> Frame:
        size = sum(len(encode_record(r)) for r in records)
        position = self.log.allocate(HEADER_SIZE_BYTES + size) + HEADER_SIZE_BYTES
        parts = []
        for item in records:
            key = (item.topic, item.queue_id)
            offset = self.offsets.get(key, 0)
            self.offsets[key] = offset + 1
            parts.append(
                encode_record(replace(item, queue_offset=offset, physical_offset=position))
            )
            position += len(parts[-1])
        stamp = records[-1].store_timestamp_ms
        return self.write(FrameKind.MESSAGES, b"".join(parts), len(parts), stamp)

    def command(self, payload: bytes = b"command") -> Frame:
        return self.write(FrameKind.COMMAND, payload, 0, 5)

    def write(self, kind: FrameKind, payload: bytes, count: int, stamp_ms: int) -> Frame:
        self.index += 1
        position = self.log.allocate(HEADER_SIZE_BYTES + len(payload))
        frame = seal_frame(self.index, self.term, position, stamp_ms, kind, count, payload)
        self.log.write(position, frame.data)
        self.frames.append(frame)
        return frame


@dataclass(frozen=True, slots=True)
class Appended:
    """The place that `append_classic` gave one record."""

    physical_offset: int
    queue_offset: int
    size_bytes: int
    store_timestamp_ms: int


def append_classic(
    store: MessageStore, records: Sequence[MessageRecord], now_ms: int
) -> list[Appended]:
    """Append records one batch a segment, as the broker's send path does: give them their queue
    offset, physical offset and store time. Prepared and rolled-back ones get queue offset 0 and no
    entry. Raises RecordTooLarge before anything is written."""
    assert store.classic is not None
    log, queues, dispatcher = store.commitlog, store.queues, Dispatcher()
    now_ms = max(now_ms, store.derived.newest_ms)
    for item in records:
        log.allocate(len(encode_record(item)))
    appended: list[Appended] = []
    run: list[bytes] = []  # adjacent records in one segment: one write
    start = position = limit = 0
    next_offsets: dict[tuple[str, int], int] = {}

    def write() -> None:
        data = b"".join(run)
        assert store.classic is not None
        store.classic.append(start, data, dispatcher.index(data, start), now_ms)
        run.clear()

    for item in records:
        size = len(encode_record(item))
        if run and position + size > limit:
            write()
        if not run:
            start = position = log.allocate(size)
            limit = log.segment_end(position) - BLANK_SIZE_BYTES
        offset = 0
        if item.sys_flag & SYS_TRANSACTION_MASK in (0, SYS_TRANSACTION_COMMIT):
            key = (item.topic, item.queue_id)
            queue = queues.queue(*key)
            offset = next_offsets.get(key, 0 if queue is None else queue.max_offset)
            next_offsets[key] = offset + 1
        stored = replace(
            item, queue_offset=offset, physical_offset=position, store_timestamp_ms=now_ms
        )
        run.append(encode_record(stored))
        appended.append(Appended(position, offset, size, now_ms))
        position += size
    if run:
        write()
    return appended


@dataclass(frozen=True, slots=True)
class RecoveredFrames:
    """The result of a recovery in Raft mode. `torn`: why something was truncated behind the last
    good frame, None if only zeros stood there."""

    end_offset: int
    torn: str | None
    first: FrameHeader | None
    last: FrameHeader | None


def recover_frames(
    commitlog: CommitLog,
    durable_hint: int = 0,
    on_frame: Callable[[FrameHeader], None] | None = None,
) -> RecoveredFrames:
    """Find the end of a Raft log without a peer that could mend it, truncate a torn tail, and
    settle the CommitLog there. Raises StoreDamaged, having truncated nothing."""
    result: list[FrameHeader] = []
    recovery = FrameRecovery(commitlog, durable_hint, result.append)
    damage = recovery.run()
    if on_frame is not None:
        for header in result:
            on_frame(header)
    if damage is not None:
        raise StoreDamaged(damage.position, damage.reason)
    first = result[0] if result else None
    return RecoveredFrames(recovery.end, recovery.torn, first, recovery.last)


def recover(store: MessageStore) -> RecoveredFrames:
    """Recover an opened Raft store, as its Raft log would."""
    recovered = recover_frames(store.commitlog, store.derived.dispatched_offset)
    store.derived.log_recovered()
    return recovered


def redispatch(store: MessageStore, end_offset: int) -> int:
    """Dispatch the frames between `dispatched_offset` and `end_offset`, the end of a frame, as the
    Raft member does at start. Return how many."""
    log, derived, count = store.commitlog, store.derived, 0
    if end_offset <= derived.dispatched_offset:
        return 0
    for header in FrameWalk(log, derived.dispatched_offset, end_offset):
        derived.dispatch_frame(parse_frame(log.read(header.position, header.size_bytes)))
        count += 1
    return count


def index_payload(payload: bytes | memoryview, base_offset: int) -> list[QueueEntries]:
    """Return the entries of `payload` with the standard delay levels. Raises DispatchError."""
    return Dispatcher().index(bytes(payload), base_offset)


def new_log(disk: OsDisk, segment_size_bytes: int = 4096) -> CommitLog:
    log = CommitLog(disk, "commitlog", segment_size_bytes)
    log.open()
    return log


def sync(log: CommitLog) -> int:
    ticket = log.start_sync()
    if ticket is None:
        return log.durable_offset
    ticket.run()
    return log.finish_sync(ticket)


def add_keys(file: IndexFile, rows: list[Row]) -> int:
    """Append keys to an index file; return how many it had room for."""
    hashes, offsets, stamps = np.array(rows, np.int64).reshape(-1, 3).T
    return file.append(Keys(hashes.astype(np.int32), offsets, stamps))


def drained(steps: Generator[None, None, KeyQuery]) -> KeyQuery:
    """Run a query in steps to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: KeyQuery = end.value
            return result
