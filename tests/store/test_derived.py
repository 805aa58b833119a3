import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import DispatchError
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.record import decode_record, encode_record
from raftmq.store.selection import GetStatus
from tests.store.make import (
    index_payload,
    record,
)
from tests.store.stores import bodies, fill, raft_store


def test_written_but_not_dispatched_is_not_visible(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first = writer.frames[0]
    assert store.reads.get_messages("T", 0, 0, 9, 999).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.reads.message_at(first.payload_position) is None
    units = store.derived.dispatch_frame(first)
    assert [(u[0], u[1], u[2], len(u[3])) for u in units] == [("T", 0, 0, 40), ("T", 1, 0, 20)]
    data = store.reads.message_at(first.payload_position)
    assert data is not None
    assert decode_record(data).body == b"0-a"
    assert bodies(store) == [b"0-a", b"0-b"]


def test_dispatching_again_changes_nothing_and_a_gap_is_refused(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first, second, third = writer.frames[:3]
    with pytest.raises(AssertionError):
        store.derived.dispatch_frame(second)
    leaders = index_payload(first.payload, first.payload_position)
    assert store.derived.dispatch_frame(first, leaders) == leaders
    assert store.derived.dispatch_frame(first) == []
    with pytest.raises(AssertionError):
        store.derived.dispatch_frame(third)
    assert store.derived.dispatched_offset == first.end


def test_a_frame_that_contradicts_its_queue_is_refused(disk: OsDisk) -> None:
    store = raft_store(disk)
    position = store.commitlog.place(1000)
    payload = b"".join(encode_record(record(queue_offset=n)) for n in (0, 2))
    frame = seal_frame(1, 1, position, 0, FrameKind.MESSAGES, 2, payload)
    with pytest.raises(DispatchError):
        store.derived.dispatch_frame(frame)
    assert store.derived.dispatched_offset == 0


def test_units_cut_back_may_be_dispatched_anew(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store)
    store.flush()
    fourth = writer.frames[4]
    flush = store.flushes.begin()
    assert not store.derived.cut_back(fourth.position), "a flush is in flight"
    flush.run()
    store.flushes.finish(flush, synced=True)
    seen = bodies(store)
    assert store.derived.cut_back(fourth.position)
    assert store.derived.dispatched_offset == fourth.position
    assert store.checkpoint.fields.confirm_offset == fourth.position
    assert bodies(store) == seen[: len(bodies(store))] != seen
    for frame in writer.frames[4:]:
        store.derived.dispatch_frame(frame)
    assert bodies(store) == seen


def test_without_an_index_nothing_is_found_and_nothing_is_left_to_do(disk: OsDisk) -> None:
    store = raft_store(disk, index_enable=False)
    fill(store)
    assert store.derived.index_step() == 0
    assert store.derived.query("T", "key", 9, 0, 1 << 40).records == []
    store.close()
    assert not disk.exists("store/index")
