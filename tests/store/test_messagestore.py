from pathlib import Path

import pytest

from raftmq.store.config import StoreConfig, StoreMode, hot_span_bytes
from raftmq.store.disk import DiskUsage, OsDisk
from raftmq.store.dispatch import DispatchError, index_payload
from raftmq.store.errors import RecordTooLarge, StoreDamaged
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.messagestore import GetStatus, MessageStore
from raftmq.store.properties import tags_code
from raftmq.store.record import decode_record, encode_record, walk_records
from raftmq.store.retention import HOUR_MS, RetentionPolicy
from tests.store.make import FrameWriter, record, sync

SEGMENT = 2048
HOT = 1 << 40
EMPTY = DiskUsage(0, 100)


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(str(tmp_path))


def raft_store(disk: OsDisk, **changes: object) -> MessageStore:
    options: dict[str, object] = {"hot_span_bytes": HOT, **changes}
    config = StoreConfig(
        mode=StoreMode.RAFT,
        directory="store",
        segment_size_bytes=SEGMENT,
        units_per_file=50,
        **options,  # type: ignore[arg-type]
    )
    store = MessageStore(disk, config)
    store.open()
    return store


def classic_store(disk: OsDisk) -> MessageStore:
    config = StoreConfig(
        mode=StoreMode.CLASSIC, segment_size_bytes=SEGMENT, units_per_file=50, hot_span_bytes=HOT
    )
    store = MessageStore(disk, config)
    store.open()
    return store


def kill(store: MessageStore) -> None:
    """What a process leaves behind: files closed, tails in memory gone, abort file there."""
    store.queues.close()
    store.commitlog.close()
    store.checkpoint.close()


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
            store.dispatch_frame(frame)
        if n % 3 == 0:
            command = writer.command()
            if dispatch:
                assert list(store.dispatch_frame(command)) == []
    return writer


def bodies(store: MessageStore, queue_id: int = 0, **options: object) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        result = store.get_messages("T", queue_id, offset, 5, 4000, **options)  # type: ignore[arg-type]
        offset = result.next_offset
        body = b"".join(result.buffers)
        assert len(body) == result.size_bytes
        places = list(walk_records(body))
        assert len(places) == result.message_count
        found += [decode_record(body, at).body for at, _ in places]
        if result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return found


QUEUE_0 = [b"%d-%s" % (n, letter) for n in range(10) for letter in (b"a", b"b")]


# -- Raft mode: only what is committed is visible ----------------------------------------------


def test_dispatched_frames_are_served(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store)
    assert len(store.commitlog.segments()) > 1
    assert bodies(store) == QUEUE_0
    assert bodies(store, 1) == [b"%d-x" % n for n in range(10)]
    codes = {tags_code("TagB")}
    assert bodies(store, tag_codes=codes) == [b"%d-b" % n for n in range(10)]
    assert bodies(store, tag_codes={1}) == []
    assert store.dispatched_offset == writer.frames[-1].end


def test_written_but_not_dispatched_is_not_visible(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first = writer.frames[0]
    assert store.get_messages("T", 0, 0, 9, 999).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.message_at(first.payload_position) is None
    units = store.dispatch_frame(first)
    assert [(u[0], u[1], u[2], len(u[3])) for u in units] == [("T", 0, 0, 40), ("T", 1, 0, 20)]
    data = store.message_at(first.payload_position)
    assert data is not None
    assert decode_record(data).body == b"0-a"
    assert bodies(store) == [b"0-a", b"0-b"]


def test_dispatching_again_changes_nothing_and_a_gap_is_refused(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    first, second, third = writer.frames[:3]
    with pytest.raises(AssertionError):
        store.dispatch_frame(second)
    leaders = index_payload(first.payload, first.payload_position)
    assert store.dispatch_frame(first, leaders) == leaders
    assert store.dispatch_frame(first) == []
    with pytest.raises(AssertionError):
        store.dispatch_frame(third)
    assert store.dispatched_offset == first.end


def test_a_frame_that_contradicts_its_queue_is_refused(disk: OsDisk) -> None:
    store = raft_store(disk)
    position = store.commitlog.place(1000)
    payload = b"".join(encode_record(record(queue_offset=n)) for n in (0, 2))
    frame = seal_frame(1, 1, position, 0, FrameKind.MESSAGES, 2, payload)
    with pytest.raises(DispatchError):
        store.dispatch_frame(frame)
    assert store.dispatched_offset == 0


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (19, GetStatus.FOUND, 20),
        (20, GetStatus.OFFSET_OVERFLOW_ONE, 20),
        (21, GetStatus.OFFSET_OVERFLOW_BADLY, 20),
    ],
)
def test_statuses(disk: OsDisk, offset: int, status: GetStatus, next_offset: int) -> None:
    store = raft_store(disk)
    fill(store)
    result = store.get_messages("T", 0, offset, 32, 9999)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 20)
    unknown = store.get_messages("T", 9, 5, 32, 9999)
    assert (unknown.status, unknown.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_cold_data_has_smaller_limits(disk: OsDisk) -> None:
    store = raft_store(disk, hot_span_bytes=0, cold_count_max=3)
    fill(store)
    result = store.get_messages("T", 0, 0, 32, 9999)
    assert result.cold
    assert result.message_count == 3
    assert hot_span_bytes() > 1 << 20


def test_one_read_serves_neighbouring_frames(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = FrameWriter(store.commitlog)
    for n in range(5):
        store.dispatch_frame(writer.messages([record(body=b"%d" % n), record(queue_id=1)]))
    reads = []
    real = store.commitlog.read
    store.commitlog.read = lambda at, size: reads.append(at) or real(at, size)  # type: ignore
    assert store.get_messages("T", 0, 0, 5, 99_999).message_count == 5
    assert len(reads) == 1


def test_a_unit_that_points_wrong_is_damage(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, 1)
    file = store.commitlog._segments[0].file
    file.pwrite(writer.frames[0].payload_position, b"\0\0\0\1")
    with pytest.raises(StoreDamaged):
        store.get_messages("T", 0, 0, 1, 999)


def test_times(disk: OsDisk) -> None:
    store = raft_store(disk)
    assert store.log_start_time() == -1
    fill(store)
    for n in range(10):
        assert store.offset_by_time("T", 0, 1000 * n) == 2 * n
        assert store.offset_by_time("T", 0, 1000 * n + 1) == 2 * n + 2
    assert store.offset_by_time("T", 0, -5) == 0
    assert store.offset_by_time("U", 0, 5) == 0
    assert store.earliest_store_time("T", 1) == 0
    assert store.earliest_store_time("T", 2) == -1
    assert store.log_start_time() == 0


# -- Raft mode: restarts ----------------------------------------------------------------------


def restart(store: MessageStore, disk: OsDisk) -> MessageStore:
    again = raft_store(disk)
    again.recover_frames()
    return again


def test_after_a_clean_stop_everything_is_there(disk: OsDisk) -> None:
    store = raft_store(disk)
    end = fill(store).frames[-1].end
    store.close()
    assert not disk.exists("store/abort")
    store = restart(store, disk)
    assert store.last_stop_clean
    assert store.dispatched_offset == end
    assert bodies(store) == QUEUE_0


@pytest.mark.parametrize("flushed", range(0, 15, 2))
def test_after_a_kill_the_rest_is_dispatched_again(disk: OsDisk, flushed: int) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    for n, frame in enumerate(writer.frames):
        if n == flushed:
            store.flush()
        store.dispatch_frame(frame)
    kill(store)
    store = restart(store, disk)
    assert not store.last_stop_clean
    expected = writer.frames[flushed - 1].end if 0 < flushed < len(writer.frames) else 0
    assert store.dispatched_offset == expected
    seen = bodies(store)
    assert seen == QUEUE_0[: len(seen)]
    half = writer.frames[-5].end
    assert store.redispatch(half) == max(0, len(writer.frames) - 4 - (flushed if expected else 0))
    for frame in writer.frames:  # the member applies from where its snapshot is
        store.dispatch_frame(frame)
    assert bodies(store) == QUEUE_0
    assert store.redispatch(half) == 0


@pytest.mark.parametrize("noted", [True, False])
def test_deleted_queues_come_again_from_the_log(disk: OsDisk, tmp_path: Path, noted: bool) -> None:
    store = raft_store(disk)
    end = fill(store).frames[-1].end
    store.close()
    (tmp_path / "store" / "consumequeue").rename(tmp_path / "away")
    if noted:  # it is known which ones there were: only those are made anew, at once
        store = restart(store, disk)
        assert store.dispatched_offset == end
    else:
        (tmp_path / "store" / "consumequeue.manifest").unlink()
        store = restart(store, disk)
        assert store.dispatched_offset == 0
        store.redispatch(end)
    assert bodies(store) == QUEUE_0


def test_redispatch_wants_a_frames_end(disk: OsDisk) -> None:
    store = raft_store(disk)
    end = fill(store, dispatch=False).frames[2].end
    with pytest.raises(StoreDamaged):
        store.redispatch(end - 1)


def test_what_is_confirmed_is_durable(disk: OsDisk) -> None:
    """confirmPhyOffset never exceeds what the log has synced, nor what the queues have."""
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    fields = store.checkpoint.fields
    for n, frame in enumerate(writer.frames):
        store.dispatch_frame(frame)
        if n == 4:
            sync(store.commitlog)
        flush = store.begin_flush()
        flush.run()
        store.finish_flush(flush, synced=n != 6)
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


def test_damage_below_what_was_durable_is_found(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, 2)
    store.flush()
    kill(store)
    file = disk.open(f"store/commitlog/{0:020d}")
    file.pwrite(writer.frames[1].position + 5, b"\xff")
    store = raft_store(disk)
    with pytest.raises(StoreDamaged):
        store.recover_frames()


# -- retention -----------------------------------------------------------------------------------


def test_retention(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetentionPolicy(reserved_hours=1, delete_when=frozenset({4}))
    store = raft_store(disk, retention=policy)
    assert store.expired_before(0, EMPTY, 4) == 0
    fill(store, 40)
    later = 100 * HOUR_MS
    segments = store.commitlog.segments()
    assert len(segments) > 3
    assert store.expired_before(later, EMPTY, 4) == 0  # nothing is confirmed durable yet
    store.flush()
    assert store.expired_before(later, EMPTY, 3) == 0
    assert store.expired_before(later, DiskUsage(90, 10), 3) == segments[-1].start
    monkeypatch.setattr(OsDisk, "usage", lambda _: DiskUsage(90, 10))
    assert store.expired_before(later) == segments[-1].start  # looks at disk and clock
    young = HOUR_MS + 15_000  # frames 0..14 are older than an hour
    offset = store.expired_before(young, EMPTY, 4)
    assert 0 < offset < segments[-1].start
    assert store.delete_before(offset) == offset // SEGMENT
    result = store.get_messages("T", 0, 0, 32, 9999)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 0
    found = store.get_messages("T", 0, result.min_offset, 1, 9999)
    assert found.status is GetStatus.FOUND
    assert decode_record(found.buffers[0]).physical_offset >= offset
    assert store.earliest_store_time("T", 0) == decode_record(found.buffers[0]).store_timestamp_ms
    assert store.log_start_time() >= 1000
    assert store.message_at(60) is None
    with pytest.raises(AssertionError):
        store.delete_before(1 << 40)
    store.close()
    store = restart(store, disk)
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.min_offset == result.min_offset


def test_records_removed_before_the_queues_followed(disk: OsDisk) -> None:
    store = raft_store(disk)
    fill(store, 40)
    store.commitlog.delete_before(2 * SEGMENT)
    result = store.get_messages("T", 0, 0, 2, 9999)
    assert result.status is GetStatus.MESSAGE_WAS_REMOVING
    assert result.next_offset == 2
    queue = store.queues.queue("T", 0)
    assert queue is not None
    edge = queue.first_at(lambda at, size: at >= 2 * SEGMENT)
    result = store.get_messages("T", 0, edge - 1, 2, 9999)
    assert (result.status, result.message_count) == (GetStatus.FOUND, 1)
    assert store.offset_by_time("T", 0, 0) == edge


# -- classic mode ----------------------------------------------------------------------------------


def test_classic_append(disk: OsDisk) -> None:
    store = classic_store(disk)
    items = [record(body=b"%d" % n, queue_id=n % 2) for n in range(100)]
    appended = store.append_classic(items[:60], now_ms=5000)
    appended += store.append_classic(items[60:], now_ms=4000)  # the clock went back
    assert [a.queue_offset for a in appended] == [n // 2 for n in range(100)]
    assert {a.store_timestamp_ms for a in appended} == {5000}
    for item, place in zip(items, appended, strict=True):
        data = store.message_at(place.physical_offset)
        assert data is not None
        assert len(data) == place.size_bytes
        stored = decode_record(data)
        assert (stored.body, stored.queue_offset) == (item.body, place.queue_offset)
    assert bodies(store, 1) == [b"%d" % n for n in range(1, 100, 2)]
    assert len(store.commitlog.segments()) > 2
    assert store.append_classic([], 1) == []


def test_classic_transactions(disk: OsDisk) -> None:
    store = classic_store(disk)
    kinds = [0x4, 0, 0xC, 0x8, 0]
    appended = store.append_classic([record(sys_flag=k) for k in kinds], 1)
    assert [a.queue_offset for a in appended] == [0, 0, 0, 1, 2]
    assert store.get_messages("T", 0, 0, 32, 9999).message_count == 3


def test_classic_refuses_the_whole_batch(disk: OsDisk) -> None:
    store = classic_store(disk)
    with pytest.raises(RecordTooLarge):
        store.append_classic([record(), record(body=bytes(SEGMENT))], 1)
    assert store.commitlog.max_offset == 0


@pytest.mark.parametrize("flushed", [0, 30, 100])
@pytest.mark.parametrize("torn", [False, True])
def test_classic_kill(disk: OsDisk, flushed: int, torn: bool) -> None:
    store = classic_store(disk)
    for n in range(100):
        store.append_classic([record(body=b"%d" % n)], now_ms=10_000 + 1000 * n)
        if n == flushed:
            store.flush()
    last = store.commitlog.max_offset - 12
    kill(store)
    if torn:
        file = disk.open(f"commitlog/{last // SEGMENT * SEGMENT:020d}")
        file.pwrite(last % SEGMENT, bytes(12))
    store = classic_store(disk)
    expected = [b"%d" % n for n in range(99 if torn else 100)]
    assert bodies(store) == expected
    assert store.dispatched_offset == store.commitlog.max_offset
    assert store.append_classic([record()], 1)[0].queue_offset == len(expected)
    store.close()
    store = classic_store(disk)
    assert len(bodies(store)) == len(expected) + 1


def test_queues_longer_than_the_log_are_cut(disk: OsDisk) -> None:
    """A power cut took the log's tail; the queues' files had reached the disk."""
    store = classic_store(disk)
    appended = store.append_classic([record(body=b"%d" % n) for n in range(60)], 1000)
    store.queues.flush()
    kill(store)
    cut = appended[50].physical_offset
    file = disk.open(f"commitlog/{cut // SEGMENT * SEGMENT:020d}")
    file.pwrite(cut % SEGMENT, bytes(SEGMENT - cut % SEGMENT))
    store = classic_store(disk)
    assert bodies(store) == [b"%d" % n for n in range(50)]
    store.append_classic([record(body=b"new")], 1000)
    assert bodies(store)[-1] == b"new"
    assert len(bodies(store)) == 51


def test_raft_refuses_classic_appends(disk: OsDisk) -> None:
    with pytest.raises(AssertionError):
        raft_store(disk).append_classic([record()], 1)
