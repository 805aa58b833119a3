"""Repair of ConsumeQueues from the CommitLog, single entries at run time, whole queues at start.

`queue_offset_at` checks an entry against its record by size, magic, position, queue, queue offset
and topic.

`QueueRepairs.report` records an entry with a position that does not match its record. If the log is
damaged there, the frame is repaired instead of the entry. Otherwise the nearest correct entries
below and above it bound a part of the log. A thread walks it in steps of STEP_BYTES and overwrites
every entry of the queue found there. The queue's remaining entries stay readable, and appends
continue.

`rebuild_queues` discards damaged queues at start and reads the whole log once to rebuild them. Raft
mode only, as frames show where to start, and dledger repairs damaged frames.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from ..commitlog.commitlog import CommitLog
from ..commitlog.log_sync import SegmentHold
from ..commitlog.recovery import FrameWalk
from ..dispatch import Dispatcher
from ..errors import EntryDamaged, OffsetOutOfRange, StoreDamaged
from ..frame import HEADER_SIZE_BYTES, FrameError, FrameKind, parse_frame
from ..record import (
    HEAD_SIZE_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    RecordError,
    StopReason,
    check_record,
    decode_record,
    walk_records,
)
from .consumequeue import ConsumeQueue, ConsumeQueueStore
from .queue_files import EntryKey

logger = logging.getLogger("raftmq.store.queues")

STEP_BYTES = 16 << 20  # of the log, per step in the pool
WINDOW_BYTES = 1 << 20
PENDING_MAX = 1_000  # pending repairs; further wrong entries are found again on the next read


@dataclass(slots=True)
class QueueStep:
    """A part of the log to walk for a queue; `run` it in the pool, then `finish` it."""

    topic: str
    queue_id: int
    offset: int  # the wrong entry
    position: int  # where the walk continues
    end: int
    segment_end: int
    hold: SegmentHold
    dispatcher: Dispatcher  # used by this step only
    entries: dict[int, bytes] = field(default_factory=dict)  # by queue offset
    bad_position: int | None = None  # position without a record

    def run(self) -> None:
        """Walk the part and collect the queue's entries. Blocking. Raises OSError."""
        topic = self.topic.encode()
        window, stop = WINDOW_BYTES, min(self.end, self.segment_end, self.position + STEP_BYTES)
        while self.position < stop:
            data = self.hold.read(self.position, min(window, self.segment_end - self.position))
            walk = walk_records(data, self.position, check_body=False)
            for at, size in walk:
                position = self.position + at
                queue_offset = queue_offset_at(data, at, position, size, topic, self.queue_id)
                if queue_offset >= 0:
                    batches = self.dispatcher.index(data[at : at + size], position)
                    self.entries.update({u.first_queue_offset: u.entries for u in batches})
            self.position += walk.end
            if walk.stop in (StopReason.BLANK, StopReason.ZEROS):
                self.position = self.segment_end
            elif walk.stop is StopReason.TRUNCATED and not walk.end:
                if window > RECORD_SIZE_BYTES_MAX:
                    self.bad_position = self.position
                    return
                window = RECORD_SIZE_BYTES_MAX + HEADER_SIZE_BYTES + 1
            elif walk.stop not in (StopReason.END_OF_BUFFER, StopReason.TRUNCATED):
                self.bad_position = self.position
                return
            else:
                window = WINDOW_BYTES


class QueueRepairs:
    """Wrong entries and the walk that repairs them. For the loop only, except `QueueStep.run`."""

    def __init__(
        self, commitlog: CommitLog, queues: ConsumeQueueStore, delay_levels_ms: tuple[int, ...]
    ) -> None:
        self.commitlog = commitlog
        self._queues = queues
        self._delay_levels_ms = delay_levels_ms
        # entry → position it points at, which may be damaged
        self._reported: dict[EntryKey, int] = {}
        # wrong entry → progress of its walk
        self._pending: dict[EntryKey, tuple[int, int] | None] = {}
        self.rewritten = 0
        self.dropped = 0  # not reported because of the limit

    def __len__(self) -> int:
        return len(self._reported.keys() | self._pending.keys() | self._queues.suspects.keys())

    def report(self, topic: str, queue_id: int, offset: int, position: int) -> None:
        """Report an entry that points to the wrong record at `position`."""
        if len(self) >= PENDING_MAX:
            self.dropped += 1
        else:
            self._reported[topic, queue_id, offset] = position

    def next_step(
        self, dispatched_offset: int, frame_is_damaged: Callable[[int], bool]
    ) -> QueueStep | None:
        """Return the next step of the walk, or None. `frame_is_damaged(position)` returns whether
        that frame is damaged, and has it repaired. Raises OSError."""
        log, suspects = self.commitlog, self._queues.suspects
        while suspects and len(self._reported.keys() | self._pending.keys()) < PENDING_MAX:
            key, position = suspects.popitem()
            self._reported[key] = position
        for key, position in self._reported.items():
            in_log = log.min_offset <= position < log.max_offset
            if not in_log or not frame_is_damaged(position):
                self._pending.setdefault(key, None)
        self._reported.clear()
        for key, reached in list(self._pending.items()):
            topic, queue_id, offset = key
            queue = self._queues.queue(topic, queue_id)
            if queue is None or not queue.first_offset <= offset < queue.max_offset:
                del self._pending[key]  # deleted by retention, or truncated
                continue
            start, end = reached or self._bounds(queue, offset, dispatched_offset)
            start = max(start, log.min_offset)
            if start >= end:
                del self._pending[key]
                continue
            segment_end, hold = log.segment_end(start), log.hold(start)
            dispatcher = Dispatcher(self._delay_levels_ms)
            return QueueStep(topic, queue_id, offset, start, end, segment_end, hold, dispatcher)
        return None

    def finish(self, step: QueueStep) -> int | None:
        """Write the entries found by `run`. Return the position of damage in the log, or None; the
        step is repeated after that repair. Raises OSError."""
        self.commitlog.release(step.hold)
        key = (step.topic, step.queue_id, step.offset)
        queue = self._queues.queue(step.topic, step.queue_id)
        if queue is not None:
            for offset, entry in step.entries.items():
                self.rewritten += queue.rewrite(offset, entry)
        if key in self._pending:
            if step.position < step.end:
                self._pending[key] = (step.position, step.end)
            else:
                del self._pending[key]
        return step.bad_position

    def _bounds(self, queue: ConsumeQueue, offset: int, dispatched_offset: int) -> tuple[int, int]:
        """Return the log range with the records of the wrong entries near `offset`."""
        below, above = (self._nearest_right(queue, offset, step) for step in (-1, 1))
        return (
            below if below >= 0 else self.commitlog.min_offset,
            above if above >= 0 else dispatched_offset,
        )

    def _nearest_right(self, queue: ConsumeQueue, offset: int, step: int) -> int:
        """Search in doubling steps for the nearest right entry there; its log offset, or -1."""
        while queue.first_offset <= offset + step < queue.max_offset:
            position = self.position_if_right(queue, offset + step)
            if position >= 0:
                return position
            step *= 2
        return -1

    def position_if_right(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the position of the entry at `offset` if a record of that queue and offset is
        there; otherwise -1. Raises OSError."""
        try:
            position, size, _ = queue.entry(offset)
        except EntryDamaged:
            return -1
        if not HEAD_SIZE_BYTES <= size <= RECORD_SIZE_BYTES_MAX:
            return -1
        try:
            data = self.commitlog.read(position, size)
        except OffsetOutOfRange:
            return -1
        topic = queue.topic.encode()
        queue_offset = queue_offset_at(data, 0, position, size, topic, queue.queue_id)
        return position if queue_offset == offset else -1


def rebuild_queues(
    queues: ConsumeQueueStore, repairs: QueueRepairs, dispatcher: Dispatcher, end_offset: int
) -> bool:
    """Rebuild at start, from a log recovered up to `end_offset`, the queues that were not loaded
    and those with a wrong last entry. Blocking. Returns False if the log has a damaged frame not
    found before. These queues are then empty, and everything must be dispatched again after the
    frame's repair. Raises OSError."""
    damaged = dict(queues.damaged)
    for queue in queues.queues():
        last = queue.max_offset - 1
        if last < queue.first_offset or not queue.is_checked:
            continue
        if repairs.position_if_right(queue, last) < 0:
            damaged[queue.topic, queue.queue_id] = f"entry {last} points at no record of it"
    if not damaged:
        return True
    for (topic, queue_id), reason in damaged.items():
        logger.error("queue_damaged topic=%s queue=%d reason=%s", topic, queue_id, reason)
        queues.discard(topic, queue_id)
    try:
        _rebuild(repairs.commitlog, queues, dispatcher, damaged.keys(), end_offset)
    except StoreDamaged as error:
        logger.error("queues_not_rebuilt reason=%s: everything is dispatched again", error)
        for topic, queue_id in damaged:
            queues.discard(topic, queue_id)
        return False
    logger.warning("queues_rebuilt count=%d", len(damaged))
    return True


def _rebuild(
    commitlog: CommitLog,
    queues: ConsumeQueueStore,
    dispatcher: Dispatcher,
    keys: Set[tuple[str, int]],
    end_offset: int,
) -> None:
    """Append all entries of the queues `keys` from the log. Raises StoreDamaged."""
    walk = FrameWalk(commitlog, commitlog.min_offset, end_offset)
    for header in walk:
        if header.kind != FrameKind.MESSAGES:
            continue
        try:
            frame = parse_frame(commitlog.read(header.position, header.size_bytes))
        except FrameError as error:
            raise StoreDamaged(header.position, error.reason) from error
        for topic, queue_id, first, entries in dispatcher.index_frame(frame):
            if (topic, queue_id) in keys:
                queues.append(topic, queue_id, first, entries)
    if walk.end < end_offset and walk.bad_position < end_offset:
        raise StoreDamaged(walk.bad_position, walk.reason or "the log ends")


HEAD = struct.Struct(">ii4xi4xqq")  # TOTALSIZE, MAGIC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET
# and SYSFLAG, BODYLEN (IPv4 hosts)
_HEAD = struct.Struct(">ii4xi4xqqi44xi")
_UNUSUAL = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

assert _HEAD.size == HEAD_SIZE_BYTES


def queue_offset_at(
    data: bytes, at: int, position: int, size: int, topic: bytes, queue_id: int
) -> int:
    """Return QUEUEOFFSET of the record at data[at:] for an entry (position, size) of that queue; -1
    for a different queue or position."""
    if at + max(size, HEAD_SIZE_BYTES) > len(data):
        return -1
    record_size, magic, queue, queue_offset, physical, sys_flag, body_length = _HEAD.unpack_from(
        data, at
    )
    if record_size != size or physical != position or queue != queue_id:
        return -1
    if magic == MAGIC_V1 and not sys_flag & _UNUSUAL:
        start = at + 89 + body_length
        length = len(topic)
        if not at + 89 <= start <= at + size - length - 2 or data[start - 1] != length:
            return -1
        if data[start : start + length] != topic:
            return -1
    elif magic not in (MAGIC_V1, MAGIC_V2) or _topic(data, at, size) != topic:
        return -1
    return int(queue_offset)


def body_is_valid(data: bytes, at: int, position: int) -> bool:
    """Return whether the record at data[at:] matches its lengths and its body's checksum."""
    try:
        check_record(data, at, position)
    except RecordError:
        return False
    return True


def _topic(data: bytes, at: int, size: int) -> bytes | None:
    try:
        return decode_record(data[at : at + size], check_body=False).topic.encode()
    except RecordError:
        return None
