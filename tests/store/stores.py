"""Small opened stores for the tests of what a store has."""

from __future__ import annotations

from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import Disk
from raftmq.store.get_message import GetStatus
from raftmq.store.message_store import MessageStore
from raftmq.store.record import decode_record, walk_records
from tests.store.make import FrameWriter, record

SEGMENT = 2048
HOT = 1 << 40
QUEUE_0 = [b"%d-%s" % (n, letter) for n in range(10) for letter in (b"a", b"b")]  # by `fill`


def raft_store(disk: Disk, **changes: object) -> MessageStore:
    options: dict[str, object] = {
        "hot_span_bytes": HOT,
        "segment_size_bytes": SEGMENT,
        **changes,
    }
    config = StoreConfig(
        mode=StoreMode.RAFT,
        directory="store",
        entries_per_file=50,
        **options,  # type: ignore[arg-type]
    )
    store = MessageStore(disk, config)
    store.open()
    return store


def classic_store(disk: Disk, segment_size_bytes: int = SEGMENT) -> MessageStore:
    config = StoreConfig(
        mode=StoreMode.CLASSIC,
        segment_size_bytes=segment_size_bytes,
        entries_per_file=50,
        hot_span_bytes=HOT,
    )
    store = MessageStore(disk, config)
    store.open()
    return store


def fill(store: MessageStore, frames: int = 10, dispatch: bool = True) -> FrameWriter:
    """Two messages of queue 0 and one of queue 1 a frame, with a command after every third."""
    writer = FrameWriter(store.commitlog)
    for n in range(frames):
        frame = writer.messages(
            [
                record(body=b"%d-a" % n, store_timestamp_ms=1000 * n),
                record(body=b"%d-x" % n, queue_id=1, store_timestamp_ms=1000 * n),
                record(
                    body=b"%d-b" % n,
                    properties=b"TAGS\x01TagB\x02",
                    store_timestamp_ms=1000 * n,
                ),
            ]
        )
        if dispatch:
            store.derived.dispatch_frame(frame)
        if n % 3 == 0:
            command = writer.command()
            if dispatch:
                assert list(store.derived.dispatch_frame(command)) == []
    return writer


def bodies(store: MessageStore, queue_id: int = 0, **options: object) -> list[bytes]:
    actual: list[bytes] = []
    offset = 0
    while True:
        result = store.reads.get_messages("T", queue_id, offset, 5, 4000, **options)  # type: ignore[arg-type]
        offset = result.next_offset
        body = b"".join(result.buffers)
        assert len(body) == result.size_bytes
        positions = list(walk_records(body))
        assert len(positions) == result.message_count
        actual += [decode_record(body, at).body for at, _ in positions]
        if result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return actual
