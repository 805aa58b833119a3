import pytest

from raftmq.store.config import hot_span_bytes
from raftmq.store.disk import OsDisk
from raftmq.store.errors import StoreDamaged
from raftmq.store.get_message import GetStatus
from raftmq.store.properties import tags_code
from tests.store.make import (
    FrameWriter,
    record,
)
from tests.store.stores import QUEUE_0, SEGMENT, bodies, fill, raft_store


def test_dispatched_frames_are_served(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store)
    assert len(store.commitlog.segments()) > 1
    assert bodies(store) == QUEUE_0
    assert bodies(store, 1) == [b"%d-x" % n for n in range(10)]
    codes = {tags_code("TagB")}
    assert bodies(store, tag_codes=codes) == [b"%d-b" % n for n in range(10)]
    assert bodies(store, tag_codes={1}) == []
    assert store.derived.dispatched_offset == writer.frames[-1].end


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (19, GetStatus.FOUND, 20),
        (20, GetStatus.OFFSET_OVERFLOW_ONE, 20),
        (21, GetStatus.OFFSET_OVERFLOW_BADLY, 20),
    ],
)
def test_get_message_statuses(
    disk: OsDisk, offset: int, status: GetStatus, next_offset: int
) -> None:
    store = raft_store(disk)
    fill(store)
    result = store.reads.get_messages("T", 0, offset, 32, 9999)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 20)
    unknown = store.reads.get_messages("T", 9, 5, 32, 9999)
    assert (unknown.status, unknown.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_cold_data_have_smaller_limits(disk: OsDisk) -> None:
    store = raft_store(disk, hot_span_bytes=0, cold_count_max=3)
    fill(store)
    result = store.reads.get_messages("T", 0, 0, 32, 9999)
    assert result.cold
    assert result.message_count == 3
    assert hot_span_bytes() > 1 << 20


def test_one_read_serves_adjacent_frames(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = FrameWriter(store.commitlog)
    for n in range(5):
        store.derived.dispatch_frame(writer.messages([record(body=b"%d" % n), record(queue_id=1)]))
    reads = []
    real = store.commitlog.read
    store.commitlog.read = lambda at, *rest: reads.append(at) or real(at, *rest)  # type: ignore
    assert store.reads.get_messages("T", 0, 0, 5, 99_999).message_count == 5
    assert len(reads) == 1


def test_queue_entry_with_a_wrong_position_is_damage(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, 1)
    store.commitlog.patch(writer.frames[0].payload_position, b"\0\0\0\1")
    with pytest.raises(StoreDamaged):
        store.reads.get_messages("T", 0, 0, 1, 999)


def test_offsets_by_time_and_store_times(disk: OsDisk) -> None:
    store = raft_store(disk)
    assert store.expiry.log_start_time() == -1
    fill(store)
    for n in range(10):
        assert store.reads.offset_by_time("T", 0, 1000 * n) == 2 * n
        assert store.reads.offset_by_time("T", 0, 1000 * n + 1) == 2 * n + 2
        assert store.reads.last_offset_by_time("T", 0, 1000 * n) == 2 * n + 1
        assert store.reads.last_offset_by_time("T", 0, 1000 * n + 1) == 2 * n + 1
    assert store.reads.last_offset_by_time("T", 0, -5) == 0
    assert store.reads.last_offset_by_time("T", 0, 1 << 60) == 19
    assert store.reads.last_offset_by_time("U", 0, 5) == 0
    assert store.reads.offset_by_time("T", 0, -5) == 0
    assert store.reads.offset_by_time("U", 0, 5) == 0
    assert store.reads.earliest_store_time("T", 1) == 0
    assert store.reads.earliest_store_time("T", 2) == -1
    assert store.expiry.log_start_time() == 0


def test_records_removed_before_their_queue_entries(disk: OsDisk) -> None:
    store = raft_store(disk)
    fill(store, 40)
    store.commitlog.delete_before(2 * SEGMENT)
    result = store.reads.get_messages("T", 0, 0, 2, 9999)
    assert result.status is GetStatus.MESSAGE_WAS_REMOVING
    assert result.next_offset == 2
    queue = store.queues.queue("T", 0)
    assert queue is not None
    edge = queue.first_at(lambda at, size: at >= 2 * SEGMENT)
    result = store.reads.get_messages("T", 0, edge - 1, 2, 9999)
    assert (result.status, result.message_count) == (GetStatus.FOUND, 1)
    assert store.reads.offset_by_time("T", 0, 0) == edge
    assert store.reads.last_offset_by_time("T", 0, 1 << 60) == queue.max_offset - 1
