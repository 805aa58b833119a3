import os
import shutil
from pathlib import Path

import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.errors import EntryDamaged, StoreDamaged
from raftmq.store.message_store import MessageStore
from raftmq.store.record import decode_record
from tests.store.make import (
    append_classic,
    record,
    recover,
    redispatch,
)
from tests.store.stores import QUEUE_0, SEGMENT, bodies, classic_store, fill, raft_store


def restart(store: MessageStore, disk: OsDisk) -> MessageStore:
    again = raft_store(disk)
    recover(again)
    return again


def test_clean_stop_keeps_every_queue_entry(disk: OsDisk) -> None:
    store = raft_store(disk)
    end = fill(store).frames[-1].end
    store.close()
    assert not disk.exists("store/abort")
    store = restart(store, disk)
    assert store.last_stop_clean
    assert store.derived.dispatched_offset == end
    assert bodies(store) == QUEUE_0


def open_files(below: Path) -> list[str]:
    """The files of this process below a directory, removed ones too."""
    result = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # the one by which the directory was listed
            continue
        if target.startswith(str(below)):
            result.append(target)
    return result


def test_closed_store_has_no_open_file(disk: OsDisk, tmp_path: Path) -> None:
    raft = raft_store(disk)
    fill(raft, 30)
    raft.flush()
    raft.queues.discard("T", 1)
    classic = classic_store(disk)
    for n in range(30):
        append_classic(classic, [record(body=b"%d" % n)], 1000 * n)
    classic.flush()
    assert len(open_files(tmp_path)) > 8
    raft.close()
    classic.close()
    assert open_files(tmp_path) == [str(tmp_path)]  # the disk keeps its root
    again = restart(raft, disk)
    again.close_unclean()
    assert open_files(tmp_path) == [str(tmp_path)]  # the disk keeps its root


@pytest.mark.parametrize("flushed", range(0, 15, 2))
def test_restart_after_a_kill_dispatches_the_remaining_frames(disk: OsDisk, flushed: int) -> None:
    store = raft_store(disk)
    writer = fill(store, dispatch=False)
    for n, frame in enumerate(writer.frames):
        if n == flushed:
            store.flush()
        store.derived.dispatch_frame(frame)
    store.close_unclean()
    store = restart(store, disk)
    assert not store.last_stop_clean
    expected = writer.frames[flushed - 1].end if 0 < flushed < len(writer.frames) else 0
    assert store.derived.dispatched_offset == expected
    seen = bodies(store)
    assert seen == QUEUE_0[: len(seen)]
    half = writer.frames[-5].end
    assert redispatch(store, half) == max(0, len(writer.frames) - 4 - (flushed if expected else 0))
    for frame in writer.frames:  # the member applies from where its snapshot is
        store.derived.dispatch_frame(frame)
    assert bodies(store) == QUEUE_0
    assert redispatch(store, half) == 0


@pytest.mark.parametrize("noted", [True, False])
def test_deleted_queues_are_rebuilt_from_the_log(disk: OsDisk, tmp_path: Path, noted: bool) -> None:
    store = raft_store(disk)
    end = fill(store).frames[-1].end
    store.close()
    (tmp_path / "store" / "consumequeue").rename(tmp_path / "away")
    if noted:  # it is known which ones there were: only those are made anew, at once
        store = restart(store, disk)
        assert store.derived.dispatched_offset == end
    else:
        (tmp_path / "store" / "consumequeue.manifest").unlink()
        store = restart(store, disk)
        assert store.derived.dispatched_offset == 0
        redispatch(store, end)
    assert bodies(store) == QUEUE_0


def test_damage_below_the_durable_offset_is_detected(disk: OsDisk) -> None:
    store = raft_store(disk)
    writer = fill(store, 2)
    store.flush()
    store.close_unclean()
    file = disk.open(f"store/commitlog/{0:020d}")
    file.pwrite(writer.frames[1].position + 5, b"\xff")
    store = raft_store(disk)
    with pytest.raises(StoreDamaged):
        recover(store)


@pytest.mark.parametrize("flushed", [0, 30, 100])
@pytest.mark.parametrize("torn", [False, True])
def test_classic_store_recovers_after_a_kill(disk: OsDisk, flushed: int, torn: bool) -> None:
    store = classic_store(disk)
    for n in range(100):
        append_classic(store, [record(body=b"%d" % n)], now_ms=10_000 + 1000 * n)
        if n == flushed:
            store.flush()
    last = store.commitlog.max_offset - 12
    store.close_unclean()
    if torn:
        file = disk.open(f"commitlog/{last // SEGMENT * SEGMENT:020d}")
        file.pwrite(last % SEGMENT, bytes(12))
    store = classic_store(disk)
    expected = [b"%d" % n for n in range(99 if torn else 100)]
    assert bodies(store) == expected
    assert store.derived.dispatched_offset == store.commitlog.max_offset
    assert append_classic(store, [record()], 1)[0].queue_offset == len(expected)
    store.close()
    store = classic_store(disk)
    assert len(bodies(store)) == len(expected) + 1


def test_queues_longer_than_the_log_are_truncated(disk: OsDisk) -> None:
    """A power cut took the log's tail; the queues' files had reached the disk."""
    store = classic_store(disk)
    appended = append_classic(store, [record(body=b"%d" % n) for n in range(60)], 1000)
    store.queues.flush()
    store.close_unclean()
    cut = appended[50].physical_offset
    file = disk.open(f"commitlog/{cut // SEGMENT * SEGMENT:020d}")
    file.pwrite(cut % SEGMENT, bytes(SEGMENT - cut % SEGMENT))
    store = classic_store(disk)
    assert bodies(store) == [b"%d" % n for n in range(50)]
    append_classic(store, [record(body=b"new")], 1000)
    assert bodies(store)[-1] == b"new"
    assert len(bodies(store)) == 51


def units_of(store: MessageStore, queue_id: int) -> tuple[int, bytes]:
    queue = store.queues.queue("T", queue_id)
    assert queue is not None
    return queue.min_offset, queue.entries(queue.min_offset, queue.max_offset)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["consumequeue/T/0", "consumequeue/T/1", "consumequeue"])
def test_lost_queues_of_a_classic_store_are_rebuilt_from_the_log(
    disk: OsDisk, tmp_path: Path, clean: bool, lost: str
) -> None:
    store = classic_store(disk)
    for n in range(120):
        append_classic(store, [record(queue_id=n % 2)], now_ms=10_000 + 1000 * n)
    append_classic(store, [record(topic="Newest")], 200_000)
    store.flush()
    store.delete_before(store.commitlog.segments()[2].start)
    expected = [units_of(store, 0), units_of(store, 1)]
    assert expected[0][0] > 0
    if clean:
        store.close()
    else:
        store.close_unclean()
    shutil.rmtree(tmp_path / lost)
    store = classic_store(disk)
    assert [units_of(store, 0), units_of(store, 1)] == expected
    for queue_id in (0, 1):
        assert append_classic(store, [record(queue_id=queue_id)], 1)[0].queue_offset == 60
    store.close()
    store = classic_store(disk)
    assert [units_of(store, n)[1][:-20] for n in (0, 1)] == [entries for _, entries in expected]


@pytest.mark.parametrize("clean", [True, False])
def test_lost_empty_queue_of_a_classic_store_continues_at_its_end(
    disk: OsDisk, tmp_path: Path, clean: bool
) -> None:
    store = classic_store(disk)
    append_classic(store, [record(topic="Idle", body=b"%d" % n) for n in range(5)], 1000)
    append_classic(store, [record(body=b"%d" % n) for n in range(60)], 1000)
    store.flush()
    store.delete_before(store.commitlog.segments()[2].start)
    expected = units_of(store, 0)
    if clean:
        store.close()
    else:
        store.close_unclean()
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(2):
        store = classic_store(disk)
        queue = store.queues.queue("Idle", 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (5, 5)
        assert units_of(store, 0) == expected
        store.close()


def test_queues_removed_by_another_program_are_not_rebuilt(disk: OsDisk, tmp_path: Path) -> None:
    store = classic_store(disk)
    append_classic(store, [record(topic="Deleted"), record(body=b"kept")], 1000)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "Deleted")
    again = MessageStore(disk, store.config)
    again.open(foreign=True)
    assert again.queues.topics() == {"T": [0]}
    assert bodies(again) == [b"kept"]
    again.close()
    shutil.rmtree(tmp_path / "consumequeue")  # not as another program leaves it
    again = MessageStore(disk, store.config)
    again.open(foreign=True)
    assert bodies(again) == [b"kept"]


@pytest.mark.parametrize("mode", ["raft", "classic"])
def test_retention_just_before_a_kill_damages_no_queue(
    disk: OsDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The manifest still names the files that it removed."""
    store = raft_store(disk) if mode == "raft" else classic_store(disk)
    directory = tmp_path / store.config.directory
    if mode == "raft":
        end = fill(store, 60).frames[-1].end
    else:
        append_classic(store, [record() for _ in range(120)], 1000)
    store.flush()
    noted = (directory / "consumequeue.manifest").read_bytes()
    store.delete_before(store.commitlog.segments()[-1].start)
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.file_starts == [100]
    expected = units_of(store, 0)
    store.close_unclean()
    assert (directory / "consumequeue.manifest").read_bytes() == noted
    again = MessageStore(disk, store.config)
    again.open()
    if mode == "raft":
        again.derived.log_recovered()
        assert again.derived.dispatched_offset == end
    assert "queue_damaged" not in caplog.text
    assert units_of(again, 0) == expected


def test_removed_first_queue_files_are_rebuilt(disk: OsDisk, tmp_path: Path) -> None:
    store = classic_store(disk)
    append_classic(store, [record(body=b"%d" % n) for n in range(120)], 1000)
    store.close()
    (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    assert bodies(classic_store(disk)) == [b"%d" % n for n in range(120)]


def test_classic_queue_is_rebuilt_around_damage(
    disk: OsDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = classic_store(disk)
    for n in range(120):
        append_classic(store, [record(body=b"%d" % n)], 1000)
    queue = store.queues.queue("T", 0)
    assert queue is not None
    second, third = (segment.start for segment in store.commitlog.segments()[1:3])
    damaged = 2 + queue.first_at(lambda position, _: position >= second)
    following = queue.first_at(lambda position, _: position >= third)
    position, _, _ = queue.entry(damaged)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    file = disk.open(f"commitlog/{second:020d}")
    file.pwrite(position - second + 4, bytes(40))
    file.close()
    for _ in range(2):
        store = classic_store(disk)
        for n in range(120):
            if damaged <= n < following:
                with pytest.raises(EntryDamaged):
                    store.reads.get_messages("T", 0, n, 1, 4000)
            else:
                (result,) = store.reads.get_messages("T", 0, n, 1, 4000).buffers
                assert decode_record(result).body == b"%d" % n
        append_classic(store, [record()], 1000)
        store.close()
    assert f"queue_gap at={position} to={third}" in caplog.text


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/Idle"])
def test_queues_continue_after_messages_of_a_damaged_log(
    disk: OsDisk, tmp_path: Path, lost: str
) -> None:
    """The next message of a queue gets no queue offset that consumers have passed already."""
    store = classic_store(disk)
    for topic in ("Idle", "Gone"):
        append_classic(store, [record(topic=topic) for _ in range(5)], 1000)
    append_classic(store, [record(topic="Other")], 1000)
    append_classic(store, [record() for _ in range(60)], 1000)
    append_classic(store, [record(topic="Idle")], 1000)
    append_classic(store, [record() for _ in range(60)], 1000)
    queue = store.queues.queue("Idle", 0)
    assert queue is not None
    position, _, _ = queue.entry(3)
    store.close()
    shutil.rmtree(tmp_path / lost)
    file = disk.open(f"commitlog/{0:020d}")
    file.pwrite(position + 4, bytes(40))
    file.close()
    for more in range(2):
        store = classic_store(disk)
        for topic, end in (("Idle", 6), ("Gone", 5), ("Other", 1), ("T", 120)):
            appended = append_classic(store, [record(topic=topic)], 1000)
            assert [one.queue_offset for one in appended] == [end + more]
        store.close()


def test_classic_store_without_a_manifest_starts(disk: OsDisk, tmp_path: Path) -> None:
    store = classic_store(disk)
    append_classic(store, [record(body=b"%d" % n) for n in range(60)], 1000)
    store.close()
    (tmp_path / "consumequeue.manifest").unlink()
    assert bodies(classic_store(disk)) == [b"%d" % n for n in range(60)]
