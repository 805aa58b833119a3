"""Small records, frames and logs for the store's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raftmq.store.commitlog import CommitLog
from raftmq.store.disk import OsDisk
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame
from raftmq.store.record import MessageRecord, encode_record

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
        position = self.log.place(HEADER_SIZE_BYTES + size) + HEADER_SIZE_BYTES
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
        position = self.log.place(HEADER_SIZE_BYTES + len(payload))
        frame = seal_frame(self.index, self.term, position, stamp_ms, kind, count, payload)
        self.log.write(position, frame.data)
        self.frames.append(frame)
        return frame


def new_log(disk: OsDisk, segment_size_bytes: int = 4096) -> CommitLog:
    log = CommitLog(disk, "commitlog", segment_size_bytes)
    log.open()
    return log


def sync(log: CommitLog) -> int:
    ticket = log.begin_sync()
    if ticket is None:
        return log.durable_offset
    ticket.run()
    return log.finish_sync(ticket)
