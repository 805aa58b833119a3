import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES
from raftmq.store.errors import Diverged, FlushUnderWay, RecordTooLarge, StoreDamaged
from raftmq.store.message_store import MessageStore
from raftmq.store.record import decode_record, encode_record, walk_records
from tests.store.make import (
    append_classic,
    record,
)
from tests.store.stores import SEGMENT, bodies, classic_store, raft_store


def test_classic_append_assigns_offsets_and_rolls_segments(disk: OsDisk) -> None:
    store = classic_store(disk)
    items = [record(body=b"%d" % n, queue_id=n % 2) for n in range(100)]
    appended = append_classic(store, items[:60], now_ms=5000)
    appended += append_classic(store, items[60:], now_ms=4000)  # the clock went back
    assert [a.queue_offset for a in appended] == [n // 2 for n in range(100)]
    assert {a.store_timestamp_ms for a in appended} == {5000}
    for item, position in zip(items, appended, strict=True):
        data = store.reads.message_at(position.physical_offset)
        assert data is not None
        assert len(data) == position.size_bytes
        stored = decode_record(data)
        assert (stored.body, stored.queue_offset) == (item.body, position.queue_offset)
    assert bodies(store, 1) == [b"%d" % n for n in range(1, 100, 2)]
    assert len(store.commitlog.segments()) > 2
    assert append_classic(store, [], 1) == []


def test_classic_append_counts_no_queue_offset_for_open_transactions(disk: OsDisk) -> None:
    store = classic_store(disk)
    kinds = [0x4, 0, 0xC, 0x8, 0]
    appended = append_classic(store, [record(sys_flag=k) for k in kinds], 1)
    assert [a.queue_offset for a in appended] == [0, 0, 0, 1, 2]
    assert store.reads.get_messages("T", 0, 0, 32, 9999).message_count == 3


def test_classic_append_rejects_a_batch_with_a_too_large_record(disk: OsDisk) -> None:
    store = classic_store(disk)
    with pytest.raises(RecordTooLarge):
        append_classic(store, [record(), record(body=bytes(SEGMENT))], 1)
    assert store.commitlog.max_offset == 0


def test_raft_store_rejects_classic_appends(disk: OsDisk) -> None:
    with pytest.raises(AssertionError):
        append_classic(raft_store(disk), [record()], 1)


def test_slave_store_copies_its_masters_log(tmp_path: Path) -> None:
    master = classic_store(OsDisk(str(tmp_path / "master")))
    slave = classic_store(OsDisk(str(tmp_path / "slave")))
    assert slave.classic is not None
    append_classic(master, [record(body=b"%d" % n) for n in range(60)], 1000)
    first, second, *_ = master.commitlog.segments()
    data = master.commitlog.read(first.start, SEGMENT)
    walk = walk_records(data, 0)
    count = sum(1 for _ in walk)
    (entries,) = slave.classic.copy(data[: walk.end], 1000)
    assert (entries[0], entries[1], entries[2], len(entries[3])) == (
        "T",
        0,
        0,
        count * QUEUE_ENTRY_BYTES,
    )
    slave.classic.copy_blank(data[walk.end :])
    assert slave.derived.dispatched_offset == slave.commitlog.max_offset == second.start
    assert slave.derived.newest_ms == 1000
    assert bodies(slave) == bodies(master)[:count]


def test_slave_store_rejects_records_that_do_not_continue_a_queue(disk: OsDisk) -> None:
    slave = classic_store(disk)
    assert slave.classic is not None
    append_classic(slave, [record()], 1000)
    end = slave.commitlog.max_offset
    with pytest.raises(Diverged):
        slave.classic.copy(encode_record(record(queue_offset=5, physical_offset=end)), 1000)
    assert slave.commitlog.max_offset == slave.derived.dispatched_offset == end


def written(store: MessageStore, *items: tuple[int, int]) -> bytes:
    """Records of (queue id, queue offset), to be copied to the end of the store's log."""
    data = b""
    for queue_id, offset in items:
        position = store.commitlog.max_offset + len(data)
        body = b"%d@%d" % (offset, position)
        one = record(queue_id=queue_id, queue_offset=offset, physical_offset=position, body=body)
        data += encode_record(one)
    return data


@pytest.mark.parametrize("cuts", [(), (3,), (2, 4)])
@pytest.mark.parametrize("flushed", [False, True])
def test_slave_store_restarts_a_queue_that_the_master_recreated(
    disk: OsDisk, cuts: tuple[int, ...], flushed: bool
) -> None:
    """Apache's broker deletes a topic's queues with it."""
    slave = classic_store(disk)
    assert slave.classic is not None
    items = [(0, 0), (0, 1), (0, 2), (1, 0), (0, 0), (0, 1), (1, 1)]
    reported: list[tuple[str, int, int]] = []
    for start, end in pairwise((0, *cuts, len(items))):
        entries = slave.classic.copy(written(slave, *items[start:end]), 1000)
        reported += [(topic, queue_id, first) for topic, queue_id, first, _ in entries]
        if flushed:
            slave.flush()
    assert reported.count(("T", 0, 0)) == 2
    expected = [bodies(slave, 0), bodies(slave, 1)]
    assert [[body.partition(b"@")[0] for body in result] for result in expected] == [
        [b"0", b"1"],
        [b"0", b"1"],
    ]
    slave.close()
    again = classic_store(disk)
    assert [bodies(again, 0), bodies(again, 1)] == expected
    # And after a crash without the queues, from the log alone.
    again.close_unclean()
    shutil.rmtree(Path(disk.root) / "consumequeue")
    assert [bodies(classic_store(disk), n) for n in (0, 1)] == expected


@pytest.mark.parametrize("together", [False, True])
def test_slave_store_rejects_a_queue_restart_by_a_raftmq_master(
    disk: OsDisk, together: bool
) -> None:
    slave = classic_store(disk)
    assert slave.classic is not None
    slave.classic.copy(written(slave, (0, 0), (0, 1)), 1000)
    expected, end = bodies(slave), slave.commitlog.max_offset
    items = [(1, 0), (1, 0)] if together else [(0, 0)]
    with pytest.raises(Diverged, match="begins at 0 again"):
        slave.classic.copy(written(slave, *items), 1000, own_from=end)
    assert (slave.commitlog.max_offset, bodies(slave)) == (end, expected)
    # What was in the log before, an Apache broker may have stored.
    slave.classic.copy(written(slave, (0, 0)), 1000, own_from=end + 1)
    assert bodies(slave) == [b"0@%d" % end]


def test_slave_store_accepts_a_restart_of_an_empty_queue(disk: OsDisk) -> None:
    slave = classic_store(disk)
    assert slave.classic is not None
    slave.queues.start_at("T", 0, 5)
    slave.classic.copy(written(slave, (1, 0)), 1000)
    end = slave.commitlog.max_offset
    slave.classic.copy(written(slave, (0, 0)), 1000, own_from=end)
    assert bodies(slave) == [b"0@%d" % end]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
def test_lost_queue_is_rebuilt_from_its_restart(disk: OsDisk, clean: bool, lost: int) -> None:
    slave = classic_store(disk, 1 << 16)
    assert slave.classic is not None
    items = [*((0, n) for n in range(60)), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    slave.classic.copy(written(slave, *items), 1000)
    expected = [bodies(slave, 0), bodies(slave, 1)]
    assert list(map(len, expected)) == [2, 3]
    slave.flush()
    if clean:
        slave.close()
    else:
        slave.close_unclean()
    shutil.rmtree(Path(disk.root) / f"consumequeue/T/{lost}")
    again = classic_store(disk, 1 << 16)
    assert [bodies(again, 0), bodies(again, 1)] == expected


def test_restarted_queue_is_found_in_the_log_after_a_crash(disk: OsDisk) -> None:
    slave = classic_store(disk, 1 << 16)
    assert slave.classic is not None
    slave.classic.copy(written(slave, *((0, n) for n in range(120))), 1000)
    slave.flush()  # three files
    slave.classic.copy(written(slave, (0, 120), (0, 0)), 1000)
    slave.queues.write_tails()
    expected = bodies(slave)
    assert len(expected) == 1
    slave.close_unclean()
    again = classic_store(disk, 1 << 16)
    assert bodies(again) == expected
    assert (again.queues.end_of("T", 0), again.last_stop_clean) == (1, False)


def test_queue_restart_is_rejected_during_a_flush(disk: OsDisk) -> None:
    slave = classic_store(disk)
    assert slave.classic is not None
    slave.classic.copy(written(slave, (0, 0), (0, 1)), 1000)
    end = slave.commitlog.max_offset
    data = written(slave, (0, 0))
    ticket = slave.queues.start_flush()
    with pytest.raises(FlushUnderWay):
        slave.classic.copy(data, 1000)
    assert slave.commitlog.max_offset == slave.derived.dispatched_offset == end
    ticket.run()
    slave.queues.finish_flush(ticket, synced=True)
    slave.classic.copy(data, 1000)
    assert bodies(slave) == [b"0@%d" % end]


def test_slave_store_rejects_contradictory_records(disk: OsDisk) -> None:
    slave = classic_store(disk)
    assert slave.classic is not None
    with pytest.raises(Diverged):
        slave.classic.copy(written(slave, (0, 0), (0, 1), (0, 5)), 1000)
    assert slave.commitlog.max_offset == 0


@pytest.mark.parametrize("number", [3, 7])
@pytest.mark.parametrize(
    ("at", "bits"),
    [(15, 1), (12, 0x80), (27, 64), (-1, 0x80)],
    ids=["queue", "none", "hole", "topic"],
)
def test_contradictory_records_at_start_are_damage_and_unchanged(
    disk: OsDisk, number: int, at: int, bits: int
) -> None:
    """These fields have no checksum. What a start reads then is told in words, and not changed."""
    master = classic_store(disk, 1 << 16)
    items = [record(body=b"%d" % n, queue_id=n % 2) for n in range(10)]
    position = append_classic(master, items, 1000)[number].physical_offset
    master.flush()
    master.close_unclean()
    path = Path(disk.root) / "commitlog" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    topic = data.index(b"\x01T", position + 84) + 1
    data[topic if at < 0 else position + at] ^= bits
    path.write_bytes(data)
    shutil.rmtree(Path(disk.root) / "consumequeue", ignore_errors=True)
    with pytest.raises(StoreDamaged, match=r"damaged at \d+: ") as refused:
        classic_store(disk, 1 << 16)
    assert 0 <= refused.value.position <= position + 1_000
    assert path.read_bytes() == data
