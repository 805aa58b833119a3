import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import DispatchError
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.get_message import GetStatus
from raftmq.store.record import decode_record, encode_record
from tests.store.make import (
    FrameWriter,
    append_classic,
    drained,
    index_payload,
    record,
    recover,
    redispatch,
    sync,
)
from tests.store.stores import bodies, classic_store, fill, raft_store


def test_written_undispatched_messages_are_not_visible(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first = writer.frames[0]
    assert store.reads.get_messages("T", 0, 0, 9, 999).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.reads.message_at(first.payload_position) is None
    entries = store.derived.dispatch_frame(first)
    assert [(u[0], u[1], u[2], len(u[3])) for u in entries] == [("T", 0, 0, 40), ("T", 1, 0, 20)]
    data = store.reads.message_at(first.payload_position)
    assert data is not None
    assert decode_record(data).body == b"0-a"
    assert bodies(store) == [b"0-a", b"0-b"]


def test_repeated_dispatch_changes_nothing_and_a_gap_is_rejected(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first, second, third = writer.frames[:3]
    with pytest.raises(AssertionError):
        store.derived.dispatch_frame(second)
    first.entries = index_payload(first.payload, first.payload_position)  # as from a leader
    assert store.derived.dispatch_frame(first) is first.entries
    assert store.derived.dispatch_frame(first) == []
    with pytest.raises(AssertionError):
        store.derived.dispatch_frame(third)
    assert store.derived.dispatched_offset == first.end


def test_frame_that_contradicts_its_queue_is_rejected(disk: OsDisk) -> None:
    store = raft_store(disk)
    position = store.commitlog.allocate(1000)
    payload = b"".join(encode_record(record(queue_offset=n)) for n in (0, 2))
    frame = seal_frame(1, 1, position, 0, FrameKind.MESSAGES, 2, payload)
    with pytest.raises(DispatchError):
        store.derived.dispatch_frame(frame)
    assert store.derived.dispatched_offset == 0


def test_truncated_queue_entries_may_be_dispatched_again(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store)
    store.flush()
    fourth = writer.frames[4]
    flush = store.flushes.start()
    assert not store.derived.truncate(fourth.position), "a flush is in flight"
    flush.run()
    store.flushes.finish(flush, synced=True)
    seen = bodies(store)
    assert store.derived.truncate(fourth.position)
    assert store.derived.dispatched_offset == fourth.position
    assert store.checkpoint.fields.confirm_offset == fourth.position
    assert bodies(store) == seen[: len(bodies(store))] != seen
    for frame in writer.frames[4:]:
        store.derived.dispatch_frame(frame)
    assert bodies(store) == seen


def test_disabled_index_finds_nothing_and_has_no_work(disk: OsDisk) -> None:
    store = raft_store(disk, index_enable=False)
    fill(store)
    assert store.derived.index_step() == 0
    assert drained(store.derived.query("T", "key", 9, 0, 1 << 40)).records == []
    store.close()
    assert not disk.exists("store/index")


def nothing(root: Path) -> None:
    """Leave the store as it is."""


def rot_the_checkpoint(root: Path) -> None:
    path = root / "store" / "checkpoint"
    data = bytearray(path.read_bytes())
    data[34] ^= 1
    path.write_bytes(data)


def remove_the_checkpoint(root: Path) -> None:
    (root / "store" / "checkpoint").unlink()


def remove_the_queue(root: Path) -> None:
    shutil.rmtree(root / "store" / "consumequeue" / "T" / "1")


def remove_all_queues(root: Path) -> None:
    shutil.rmtree(root / "store" / "consumequeue")


@pytest.mark.parametrize(
    "harm",
    [nothing, rot_the_checkpoint, remove_the_checkpoint, remove_the_queue, remove_all_queues],
)
def test_queue_with_all_messages_deleted_continues_at_its_end(
    disk: OsDisk, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Else its next messages would be given offsets that it had before, which nobody reads."""
    store = raft_store(disk)
    writer = FrameWriter(store.commitlog)
    for queue_id, count in ((1, 5), (0, 60)):
        for n in range(count):
            message = record(body=b"%d" % n, queue_id=queue_id)
            store.derived.dispatch_frame(writer.messages([message]))
    store.flush()
    segments = store.commitlog.segments()[-2].start
    store.delete_before(segments)
    store.flush()
    store.close()
    harm(tmp_path)
    store = raft_store(disk)
    recover(store)
    redispatch(store, store.commitlog.max_offset)
    assert [store.queues.end_of("T", queue_id) for queue_id in (0, 1)] == [60, 5]
    quiet, busy = store.queues.queue("T", 1), store.queues.queue("T", 0)
    assert quiet is not None and busy is not None
    assert (quiet.min_offset, quiet.max_offset) == (5, 5)
    assert busy.entry(busy.min_offset)[0] >= segments
    again = FrameWriter(store.commitlog, index=writer.index)
    again.offsets = writer.offsets
    store.derived.dispatch_frame(again.messages([record(body=b"next", queue_id=1)]))
    store.flush()
    store.close()
    store = raft_store(disk)
    recover(store)
    messages = store.reads.get_messages("T", 1, 5, 9, 999)
    assert [decode_record(data).body for data in messages.buffers] == [b"next"]
    assert store.queues.end_of("T", 0) == 60


def test_confirmed_offset_is_durable_in_log_and_queues(disk: OsDisk) -> None:
    """confirmPhyOffset never exceeds what the log has synced, nor what the queues have."""
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    fields = store.checkpoint.fields
    for n, frame in enumerate(writer.frames):
        store.derived.dispatch_frame(frame)
        if n == 4:
            sync(store.commitlog)
        flush = store.flushes.start()
        flush.run()
        store.flushes.finish(flush, synced=n != 6)
        fields = store.checkpoint.fields
        assert fields.confirm_offset <= store.commitlog.durable_offset
        assert fields.confirm_offset <= frame.end
        if n == 3:
            assert fields.confirm_offset == 0
        if n == 6:
            assert fields.confirm_offset == writer.frames[5].end
    assert fields.confirm_offset == writer.frames[-1].end
    assert fields.logics_timestamp_ms == writer.frames[-1].timestamp_ms
    assert fields.physic_timestamp_ms > 0
    assert fields.durable_offset == store.commitlog.durable_offset


def test_failed_flush_is_repeated_by_the_next(disk: OsDisk) -> None:
    store = raft_store(disk)
    fill(store)
    sync(store.commitlog)
    flush = store.flushes.start()
    store.flushes.finish(flush, synced=False)
    assert store.checkpoint.fields.confirm_offset == 0
    again = store.flushes.start()
    assert again.confirmed == flush.confirmed == store.derived.dispatched_offset
    again.run()
    store.flushes.finish(again, synced=True)
    assert store.checkpoint.fields.confirm_offset == again.confirmed


def test_disabled_index_keeps_the_index_time_of_another_broker(disk: OsDisk) -> None:
    store = raft_store(disk, index_enable=False)
    store.checkpoint.write(store.checkpoint.fields._replace(index_timestamp_ms=3))
    fill(store)
    store.flush()
    assert store.checkpoint.fields.index_timestamp_ms == 3
    assert store.checkpoint.fields.confirm_offset > 0


def test_classic_mode_writes_no_confirmed_offset(disk: OsDisk) -> None:
    store = classic_store(disk)
    append_classic(store, [record()], 5000)
    store.flush()
    assert store.checkpoint.fields.confirm_offset == 0
    assert store.checkpoint.fields.logics_timestamp_ms == 5000
