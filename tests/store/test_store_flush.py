from raftmq.store.disk import OsDisk
from tests.store.make import append_classic, record, sync
from tests.store.stores import classic_store, fill, raft_store


def test_what_is_confirmed_is_durable(disk: OsDisk) -> None:
    """confirmPhyOffset never exceeds what the log has synced, nor what the queues have."""
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    fields = store.checkpoint.fields
    for n, frame in enumerate(writer.frames):
        store.derived.dispatch_frame(frame)
        if n == 4:
            sync(store.commitlog)
        flush = store.flushes.begin()
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


def test_a_flush_that_failed_is_done_again_by_the_next(disk: OsDisk) -> None:
    store = raft_store(disk)
    fill(store)
    sync(store.commitlog)
    flush = store.flushes.begin()
    store.flushes.finish(flush, synced=False)
    assert store.checkpoint.fields.confirm_offset == 0
    again = store.flushes.begin()
    assert again.confirmed == flush.confirmed == store.derived.dispatched_offset
    again.run()
    store.flushes.finish(again, synced=True)
    assert store.checkpoint.fields.confirm_offset == again.confirmed


def test_without_an_index_the_time_that_another_broker_noted_stays(disk: OsDisk) -> None:
    store = raft_store(disk, index_enable=False)
    store.checkpoint.note(store.checkpoint.fields._replace(index_timestamp_ms=3))
    fill(store)
    store.flush()
    assert store.checkpoint.fields.index_timestamp_ms == 3
    assert store.checkpoint.fields.confirm_offset > 0


def test_classic_mode_confirms_nothing(disk: OsDisk) -> None:
    store = classic_store(disk)
    append_classic(store, [record()], 5000)
    store.flush()
    assert store.checkpoint.fields.confirm_offset == 0
    assert store.checkpoint.fields.logics_timestamp_ms == 5000
