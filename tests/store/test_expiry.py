import errno

import pytest

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import DiskUsage, OsDisk
from raftmq.store.get_message import GetStatus
from raftmq.store.log_clock import LogNow
from raftmq.store.record import decode_record
from raftmq.store.retention import HOUR_MS, RetentionPolicy
from tests.store.make import (
    recover,
)
from tests.store.stores import SEGMENT, fill, raft_store

EMPTY = DiskUsage(0, 100)


@pytest.mark.parametrize("damage", ["header", "unreadable"])
def test_a_damaged_frame_does_not_stop_retention(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    policy = RetentionPolicy(reserved_hours=1, delete_when=frozenset({4}))
    store = raft_store(disk)
    fill(store, 40)
    store.flush()
    later, last = 100 * HOUR_MS, store.commitlog.segments()[-1]
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == last.start
    spoilt = store.commitlog.segments()[1]
    if damage == "header":
        file = disk.open(spoilt.path)
        file.pwrite(20, bytes([file.pread(20, 1)[0] ^ 1]))
        file.close()
    else:
        read = CommitLog.read

        def fail(log: CommitLog, offset: int, size: int) -> bytes:
            if offset == spoilt.start:
                raise OSError(errno.EIO, "cannot read, says the test")
            return read(log, offset, size)

        monkeypatch.setattr(CommitLog, "read", fail)
    assert (
        store.expiry.expired(policy, LogNow(later, later), DiskUsage(90, 10), 3).before
        == last.start
    )
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == last.start
    young = HOUR_MS + 1_500  # only the first frames are older
    assert store.expiry.expired(policy, LogNow(young, young), EMPTY, 4).before == 0


def test_retention(disk: OsDisk) -> None:
    policy = RetentionPolicy(reserved_hours=1, delete_when=frozenset({4}))
    store = raft_store(disk)
    assert store.expiry.expired(policy, LogNow(0, 0), EMPTY, 4).before == 0
    fill(store, 40)
    later = 100 * HOUR_MS
    segments = store.commitlog.segments()
    assert len(segments) > 3
    assert (
        store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == 0
    )  # nothing is confirmed durable yet
    store.flush()
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 3).before == 0
    assert (
        store.expiry.expired(policy, LogNow(later, later), DiskUsage(90, 10), 3).before
        == segments[-1].start
    )
    young = HOUR_MS + 15_000  # frames 0..14 are older than an hour
    offset = store.expiry.expired(policy, LogNow(young, young), EMPTY, 4).before
    assert 0 < offset < segments[-1].start
    assert store.delete_before(offset) == offset // SEGMENT
    result = store.reads.get_messages("T", 0, 0, 32, 9999)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 0
    found = store.reads.get_messages("T", 0, result.min_offset, 1, 9999)
    assert found.status is GetStatus.FOUND
    assert decode_record(found.buffers[0]).physical_offset >= offset
    assert (
        store.reads.earliest_store_time("T", 0)
        == decode_record(found.buffers[0]).store_timestamp_ms
    )
    assert store.expiry.log_start_time() >= 1000
    assert store.reads.message_at(60) is None
    with pytest.raises(AssertionError):
        store.delete_before(1 << 40)
    store.close()
    store = raft_store(disk)
    recover(store)
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.min_offset == result.min_offset
