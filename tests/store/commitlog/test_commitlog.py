import errno
import threading
from pathlib import Path
from random import Random
from typing import cast

import pytest

from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import File, OsDisk, OsFile
from raftmq.store.errors import OffsetOutOfRange, RecordTooLarge, StoreError, SyncFailed
from raftmq.store.record import BLANK, MAGIC_BLANK, encode_record
from tests.simulator.disk import SimDisk
from tests.store.failingdisk import FailingDisk
from tests.store.make import new_log, record, sync

SIZE = 1024


def put(log: CommitLog, data: bytes) -> int:
    position = log.allocate(len(data))
    log.write(position, data)
    return position


def raw(disk: OsDisk, start: int) -> bytes:
    return disk.open(f"commitlog/{start:020d}").pread(0, SIZE)


# -- placing and rolling ------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(1, 1016, 97))
def test_commitlog_rolls_when_the_length_and_eight_bytes_do_not_fit(
    disk: OsDisk, first: int
) -> None:
    log = new_log(disk, SIZE)
    assert put(log, b"a" * first) == 0
    remaining = SIZE - first
    if remaining > 8:
        assert log.allocate(remaining - 8) == first
    assert log.allocate(remaining - 7) == SIZE
    put(log, b"b" * (remaining - 7))
    assert log.read(first, 8) == BLANK.pack(remaining, MAGIC_BLANK)
    assert log.read(SIZE, 5) == (b"b" * (remaining - 7))[:5]
    assert log.max_offset == SIZE + remaining - 7
    assert [s.start for s in log.segments()] == [0, SIZE]


def test_segment_can_be_filled_up_to_its_last_eight_bytes(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * (SIZE - 8))
    assert log.allocate(0) == SIZE - 8
    assert log.allocate(1) == SIZE
    put(log, b"b")
    assert raw(disk, 0)[-8:] == BLANK.pack(8, MAGIC_BLANK)


def test_allocation_larger_than_a_segment_is_rejected(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    with pytest.raises(RecordTooLarge):
        log.allocate(SIZE - 7)
    put(log, b"x")
    with pytest.raises(RecordTooLarge):
        log.allocate(SIZE - 7)
    assert log.max_offset == 1


def test_write_into_a_prepared_segment_opens_no_file(disk: OsDisk) -> None:
    log, opened = new_log(disk, SIZE), []
    opens = disk.open

    def counting(path: str, *, allocate_bytes: int | None = None) -> File:
        opened.append(path)
        return opens(path, allocate_bytes=allocate_bytes)

    disk.open = counting  # type: ignore[method-assign,assignment]
    for length, count in ((600, 1), (100, 0), (600, 1), (SIZE - 8, 1), (1, 1)):
        position = log.allocate(length)
        for _ in range(2):
            opened.clear()
            log.prepare_segment(position)
            count -= len(opened)
        assert count == 0, "made once, and only if it is lacking"
        end = log.max_offset
        opened.clear()
        log.write(position, b"x" * length)
        assert not opened
        assert end <= position < log.max_offset == position + length


def test_commitlog_write_accepts_only_the_next_position(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"x" * 10)
    for position in (0, 9, 11, SIZE + 1, 2 * SIZE):
        with pytest.raises(AssertionError):
            log.write(position, b"y")
    with pytest.raises(AssertionError):
        log.write(10, b"y" * (SIZE - 17))  # would leave no room for the blank record
    log.write(SIZE, b"y")  # a follower writes where the leader's frame stands
    assert log.read(10, 8) == BLANK.pack(SIZE - 10, MAGIC_BLANK)


def test_write_many_writes_buffers_one_after_another(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    log.write_many(0, [b"ab", memoryview(b"cd"), b"e"])
    assert log.read(0, 100) == b"abcde"


# -- reading ------------------------------------------------------------------------------------


def test_commitlog_reads_end_at_segments_and_at_the_end(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    assert log.read(990, 5000) == b"a" * 10 + BLANK.pack(24, MAGIC_BLANK) + bytes(16)
    assert log.read(SIZE, 5000) == b"b" * 100
    assert log.read(log.max_offset, 5) == b""
    for offset in (-1, log.max_offset + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1)


def test_record_at_returns_only_complete_records_at_their_position(disk: OsDisk) -> None:
    log = new_log(disk, 1 << 16)
    put(log, b"junk")
    small = encode_record(record(physical_offset=4))
    large = encode_record(record(physical_offset=4 + len(small), body=bytes(9000)))
    elsewhere = encode_record(record(physical_offset=7))
    put(log, small)
    put(log, large)
    wrong = put(log, elsewhere)
    assert log.record_at(4) == small
    assert log.record_at(4 + len(small)) == large
    for offset in (-1, 0, 5, wrong, log.max_offset - 3, log.max_offset, 1 << 40):
        assert log.record_at(offset) is None


# -- opening ------------------------------------------------------------------------------------


def test_reopened_commitlog_is_truncated_to_the_settled_end(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    log.close()
    log = new_log(disk, SIZE)
    assert not log.settled
    assert (log.min_offset, log.max_offset) == (0, 2 * SIZE)
    with pytest.raises(AssertionError):
        log.write(log.max_offset, b"x")
    log.settle(SIZE + 60)
    assert log.max_offset == log.durable_offset == SIZE + 60
    assert raw(disk, SIZE) == b"b" * 60 + bytes(SIZE - 60)
    put(log, b"c")
    assert log.read(SIZE + 59, 9) == b"bc"


def test_settling_removes_later_segments(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    for _ in range(4):
        put(log, b"a" * 1000)
    log.close()
    log = new_log(disk, SIZE)
    log.settle(700)
    assert disk.listdir("commitlog") == [f"{0:020d}"]
    assert raw(disk, 0) == b"a" * 700 + bytes(SIZE - 700)


def test_open_completes_a_short_last_segment_and_removes_a_stray_one(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    log.close()
    disk.open(f"commitlog/{SIZE:020d}").truncate(5)
    disk.open(f"commitlog/{3 * SIZE:020d}", allocate_bytes=SIZE)
    log = new_log(disk, SIZE)
    assert [s.start for s in log.segments()] == [0, SIZE]
    assert log.read(SIZE, SIZE) == b"b" * 5 + bytes(SIZE - 5)


@pytest.mark.parametrize("name", ["x", f"{5:020d}", f"{2 * SIZE:020d}"])
def test_open_rejects_files_that_are_no_log(disk: OsDisk, name: str) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 10)
    log.close()
    disk.open(f"commitlog/{name}", allocate_bytes=SIZE).pwrite(0, b"data")
    with pytest.raises(StoreError):
        new_log(disk, SIZE)


@pytest.mark.parametrize(
    ("segments", "size", "why"),
    [
        (2, 2 * SIZE, f"segments 0 and {SIZE} are not {2 * SIZE} bytes apart; "),
        (1, SIZE // 2, f"{0:020d} has {SIZE} bytes; "),
    ],
)
def test_open_rejects_another_segment_size_and_names_the_key(
    disk: OsDisk, segments: int, size: int, why: str
) -> None:
    log = new_log(disk, SIZE)
    for _ in range(segments):
        put(log, b"a" * (SIZE // 2))
    log.close()
    with pytest.raises(StoreError, match=f"{why}mappedFileSizeCommitLog must be"):
        new_log(disk, size)


def test_commitlog_can_start_at_a_later_offset(disk: OsDisk) -> None:
    log = CommitLog(disk, "commitlog", SIZE)
    log.open(start_offset=5 * SIZE)
    assert put(log, b"x") == 5 * SIZE
    assert log.min_offset == 5 * SIZE
    assert disk.listdir("commitlog") == [f"{5 * SIZE:020d}"]


# -- truncating and deleting ----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 500, 1000, 1008, SIZE, SIZE + 5, 2 * SIZE, 2 * SIZE + 99])
def test_truncate_leaves_only_zeros(disk: OsDisk, offset: int) -> None:
    log = new_log(disk, SIZE)
    for letter in (b"a", b"b"):
        put(log, letter * 1000)
    put(log, b"c" * 100)
    before = log.read(0, SIZE) + log.read(SIZE, SIZE) + log.read(2 * SIZE, 100)
    sync(log)
    log.truncate(offset)
    assert log.max_offset == log.durable_offset == offset
    names = disk.listdir("commitlog")
    content = b"".join(raw(disk, int(name)) for name in names)
    assert content == before[:offset] + bytes(len(content) - offset)
    put(log, b"d" * 10)
    assert sync(log) == log.max_offset
    with pytest.raises(OffsetOutOfRange):
        log.truncate(log.max_offset + 1)


def test_truncate_clears_bytes_of_a_failed_write(tmp_path: Path) -> None:
    disk = FailingDisk(str(tmp_path))
    log = new_log(disk, SIZE)
    put(log, b"a" * 100)
    disk.bytes_per_write = 30
    with pytest.raises(OSError, match="full"):
        log.write(100, b"b" * 60)
    disk.bytes_per_write = None
    assert log.max_offset == 100
    assert raw(disk, 0)[100:130] == b"b" * 30
    log.truncate(100)
    assert raw(disk, 0)[100:] == bytes(SIZE - 100)


def test_delete_before_keeps_the_segment_of_the_offset_and_the_last(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    for _ in range(4):
        put(log, b"a" * 1000)
    assert log.delete_before(SIZE - 1) == 0
    assert log.delete_before(2 * SIZE + 5) == 2
    assert log.min_offset == 2 * SIZE
    assert log.read(2 * SIZE, 3) == b"aaa"
    with pytest.raises(OffsetOutOfRange):
        log.read(SIZE, 1)
    assert log.delete_before(1 << 40) == 1  # never the last
    assert disk.listdir("commitlog") == [f"{3 * SIZE:020d}"]
    assert sync(log) == log.max_offset


def test_segment_with_a_failed_deletion_is_deleted_later(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(disk, SIZE)
    for _ in range(4):
        put(log, b"a" * 1000)

    def refuse(_: OsDisk, path: str) -> None:
        raise OSError(errno.EPERM, "not permitted, says the test", path)

    with monkeypatch.context() as patch:
        patch.setattr(OsDisk, "remove", refuse)
        with pytest.raises(OSError, match="not permitted"):
            log.delete_before(2 * SIZE)
    assert (log.min_offset, log.read(0, 3)) == (0, b"aaa")
    disk.remove(f"commitlog/{SIZE:020d}")  # an operator made room by hand
    assert log.delete_before(2 * SIZE) == 2
    assert log.min_offset == 2 * SIZE
    assert disk.listdir("commitlog") == [f"{2 * SIZE:020d}", f"{3 * SIZE:020d}"]


# -- durability ---------------------------------------------------------------------------------


class OrderDisk(OsDisk):
    """Records the order of what matters for durability."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.order: list[tuple[str, str]] = []

    def open(self, path: str, *, allocate_bytes: int | None = None) -> File:  # type: ignore[override]
        file = super().open(path, allocate_bytes=allocate_bytes)
        return cast(File, OrderFile(self, path, file))

    def sync_directory(self, path: str) -> None:
        self.order.append(("sync directory", path))
        super().sync_directory(path)

    def remove(self, path: str) -> None:
        self.order.append(("remove", path[-4:]))
        super().remove(path)


class OrderFile:
    def __init__(self, disk: OrderDisk, path: str, file: File) -> None:
        self._order, self._name, self._file = disk.order, path[-4:], file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        self._order.append(("write", self._name))
        self._file.pwrite(offset, data)

    def sync(self) -> None:
        self._order.append(("sync", self._name))
        self._file.sync()

    def close(self) -> None:
        self._order.append(("close", self._name))
        self._file.close()


def test_sync_ticket_covers_every_dirty_segment_and_new_name(tmp_path: Path) -> None:
    disk = OrderDisk(str(tmp_path))
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 1000)
    put(log, b"c" * 100)
    disk.order.clear()
    ticket = log.start_sync()
    assert ticket is not None
    put(log, b"later")
    assert log.durable_offset == 0
    ticket.run()
    assert disk.order == [
        ("write", "2048"),  # "later"
        ("sync", "0000"),
        ("sync", "1024"),
        ("sync", "2048"),
        ("sync directory", "commitlog"),
    ]
    assert log.finish_sync(ticket) == 2 * SIZE + 100
    disk.order.clear()
    assert sync(log) == log.max_offset
    assert disk.order == [("sync", "2048")]  # the others were done, no new name
    assert log.start_sync() is None


def test_segment_rolled_after_a_ticket_belongs_to_the_next_ticket(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    ticket = log.start_sync()
    assert ticket is not None
    put(log, b"b" * 100)
    ticket.run()
    assert log.finish_sync(ticket) == 1000
    following = log.start_sync()
    assert following is not None
    assert len(following.files) == 2  # the blank record came after the first ticket
    assert following.directory == "commitlog"
    following.run()
    assert log.finish_sync(following) == log.max_offset


def test_two_sync_tickets_may_finish_in_any_order(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 10)
    first = log.start_sync()
    put(log, b"b" * 10)
    second = log.start_sync()
    assert first is not None
    assert second is not None
    second.run()
    assert log.finish_sync(second) == 20
    first.run()
    assert log.finish_sync(first) == 20


def test_truncation_lowers_the_offset_that_a_sync_ticket_makes_durable(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    ticket = log.start_sync()
    assert ticket is not None
    log.truncate(500)
    put(log, b"c" * 300)
    ticket.run()  # its second file is unlinked by now, and still open
    assert log.finish_sync(ticket) == 500
    assert sync(log) == 800


def test_removed_segment_is_closed_after_its_sync_ticket(tmp_path: Path) -> None:
    disk = OrderDisk(str(tmp_path))
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    ticket = log.start_sync()
    assert ticket is not None
    log.truncate(500)
    assert ("remove", "1024") in disk.order
    assert ("close", "1024") not in disk.order
    ticket.run()
    log.finish_sync(ticket)
    assert disk.order[-1] == ("close", "1024")


def test_truncation_is_durable_before_it_returns(tmp_path: Path) -> None:
    disk = OrderDisk(str(tmp_path))
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open()
    put(log, b"a" * 1000)
    put(log, b"b" * 100)
    sync(log)
    assert mark.durable_offset == log.durable_hint == SIZE + 100
    disk.order.clear()
    log.truncate(500)
    assert disk.order == [
        ("write", "oint"),
        ("sync", "oint"),  # the mark is lowered first
        ("remove", "1024"),
        ("close", "1024"),
        ("sync directory", "commitlog"),
        ("write", "0000"),
        ("sync", "0000"),
    ]
    assert mark.durable_offset == 500


def test_lost_durable_mark_is_restored_by_a_sync_of_the_full_log(tmp_path: Path) -> None:
    disk = OrderDisk(str(tmp_path))
    log = CommitLog(disk, "commitlog", SIZE)
    log.open()
    for _ in range(3):
        put(log, b"a" * 1000)
    end = log.max_offset
    log.close()
    mark = Checkpoint(disk, "checkpoint")
    mark.open(verify=True)
    assert mark.lost
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open(restore=True)
    assert (log.durable_hint, log.mark_lost) == (0, True)
    disk.order.clear()
    log.settle(end)
    synced = [name for action, name in disk.order if action == "sync"]
    assert synced == [segment.path[-4:] for segment in log.segments()]
    assert disk.order[-1] == ("write", "oint")
    assert (mark.lost, mark.durable_offset) == (False, end)


@pytest.mark.parametrize("action", ["patch", "hold"])
def test_segment_in_use_by_a_thread_is_closed_after_its_use(disk: OsDisk, action: str) -> None:
    log = new_log(disk, SIZE)
    for _ in range(3):
        put(log, b"a" * 900)
    sync(log)
    if action == "patch":
        ticket = log.patch(10, b"patched")
        assert log.read(8, 12) == b"aapatchedaaa"
        log.delete_before(SIZE)
        ticket.run()  # of a file without a name
        durable = log.durable_offset
        assert log.finish_sync(ticket) == durable
        with pytest.raises(OSError, match="Bad file"):
            ticket.files[0].pread(0, 1)
    else:
        hold = log.hold(10)
        log.delete_before(SIZE)
        assert hold.read(10, 3) == b"aaa"
        log.release(hold)
        with pytest.raises(OSError, match="Bad file"):
            hold.read(10, 3)
    with pytest.raises(OffsetOutOfRange):
        log.patch(10, b"gone")


def test_failed_commitlog_sync_ends_all_later_syncs(tmp_path: Path) -> None:
    disk = FailingDisk(str(tmp_path))
    log = new_log(disk, SIZE)
    put(log, b"a" * 10)
    disk.sync_fails = True
    ticket = log.start_sync()
    assert ticket is not None
    with pytest.raises(OSError, match="broken"):
        ticket.run()
    disk.sync_fails = False  # too late
    with pytest.raises(SyncFailed):
        log.finish_sync(ticket)
    with pytest.raises(SyncFailed):
        log.start_sync()
    assert log.durable_offset == 0


# -- zeros ahead ----------------------------------------------------------------------------------


def test_zeros_ahead_leave_every_frame_and_the_end_as_written(tmp_path: Path) -> None:
    size, random = 1 << 20, Random(1)
    log = CommitLog(OsDisk(str(tmp_path)), "commitlog", size, zero_ahead=True)
    log.open()
    written = b""
    for length in [100_000, 7, 300_000, 1, 200_000, 90_000]:
        data = random.randbytes(length)
        put(log, data)
        written += data
    log.truncate(600_000)
    written = written[:600_000] + b"new" * 1000
    put(log, b"new" * 1000)
    assert (tmp_path / f"commitlog/{0:020d}").read_bytes() == written.ljust(size, b"\0")


@pytest.mark.parametrize("failing", ["zeros", "data"])
def test_failed_write_leaves_no_byte_behind_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    log = CommitLog(OsDisk(str(tmp_path)), "commitlog", SIZE, zero_ahead=True)
    log.open()
    real = OsFile.pwrite

    def full(self: OsFile, offset: int, data: bytes | memoryview) -> None:
        if failing == "zeros" or any(data):
            real(self, offset, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "full")
        real(self, offset, data)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(OsFile, "pwrite", full)
        put(log, b"a" * 200)
    assert log.max_offset == 0
    assert put(log, b"b" * 50) == 0
    log.truncate(50)
    assert raw(OsDisk(str(tmp_path)), 0) == b"b" * 50 + bytes(SIZE - 50)


# -- preparing ahead ------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_ahead", [False, True])
def test_prepared_segment_is_used(tmp_path: Path, zero_ahead: bool) -> None:
    disk = OrderDisk(str(tmp_path))
    log = CommitLog(disk, "commitlog", SIZE, zero_ahead=zero_ahead)
    log.open()
    log.prepare_next()  # nothing to follow yet
    put(log, b"a" * 10)
    log.prepare_next()
    log.prepare_next()
    assert disk.listdir("commitlog") == [f"{0:020d}", f"{SIZE:020d}"]
    prepared = (tmp_path / f"commitlog/{SIZE:020d}").stat()
    assert prepared.st_size == SIZE
    assert put(log, b"b" * 1010) == SIZE
    assert (tmp_path / f"commitlog/{SIZE:020d}").stat().st_ino == prepared.st_ino
    ticket = log.start_sync()
    assert ticket is not None
    assert ticket.directory is not None  # its name is not durable yet


def test_truncation_removes_a_prepared_segment(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 10)
    log.prepare_next()
    log.truncate(5)
    assert disk.listdir("commitlog") == [f"{0:020d}"]
    log.prepare_next()
    log.close()
    log = new_log(disk, SIZE)
    assert len(log.segments()) == 2
    log.settle(5)
    assert len(log.segments()) == 1


@pytest.mark.parametrize("zero_ahead", [False, True])
@pytest.mark.parametrize("meanwhile", ["roll", "truncate"])
def test_roll_or_truncation_during_a_segment_preparation(
    tmp_path: Path, zero_ahead: bool, meanwhile: str
) -> None:
    """The roll or the truncation comes between opening the file and offering it."""

    class Slow(OsDisk):
        def open(self, path: str, *, allocate_bytes: int | None = None) -> File:  # type: ignore[override]
            file = super().open(path, allocate_bytes=allocate_bytes)
            if threading.current_thread() is not threading.main_thread():
                opened.set()
                assert go_on.wait(10)
            return file

    opened, go_on = threading.Event(), threading.Event()
    log = CommitLog(Slow(str(tmp_path)), "commitlog", SIZE, zero_ahead=zero_ahead)
    log.open()
    put(log, b"a" * 10)
    thread = threading.Thread(target=log.prepare_next)
    thread.start()
    assert opened.wait(10)
    put(log, b"b" * 1010)
    if meanwhile == "truncate":
        log.truncate(10)
    go_on.set()
    thread.join(10)
    names = sorted(p.name for p in (tmp_path / "commitlog").iterdir())
    if meanwhile == "roll":
        assert log.read(SIZE, 2000) == b"b" * 1010
        assert len(names) == 2
    else:
        assert names == [f"{0:020d}"]
    assert log._next.is_prepared is False
    position = put(log, b"c" * 1014)
    path = tmp_path / "commitlog" / f"{position:020d}"  # not an unlinked file
    assert path.read_bytes() == b"c" * 1014 + bytes(10)


def test_full_disk_leaves_the_log_unchanged(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(disk, SIZE)
    put(log, b"a" * 1000)
    real = OsDisk.open

    def full(self: OsDisk, path: str, *, allocate_bytes: int | None = None) -> File:
        real(self, path).close()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(OsDisk, "open", full)
    with pytest.raises(OSError, match="full"):
        put(log, b"b" * 100)
    monkeypatch.undo()
    assert log.max_offset == 1000
    assert disk.listdir("commitlog") == [f"{0:020d}"]
    assert put(log, b"b" * 100) == SIZE


def test_restored_segments_take_no_space(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    size = 1 << 20
    log = CommitLog(disk, "commitlog", size)
    log.open(8 * size)
    log.write(8 * size, b"a" * 100)
    log.write(log.allocate(size - 100), b"b" * (size - 100))
    log.close()
    (tmp_path / "commitlog" / f"{8 * size:020d}").rename(tmp_path / "away")
    log = CommitLog(disk, "commitlog", size)
    log.open(restore=True)
    log.restore_front(0)
    assert [s.start for s in log.segments()] == [n * size for n in range(10)]
    for segment in log.segments()[:-1]:
        stat = (tmp_path / segment.path).stat()
        assert (stat.st_size, stat.st_blocks) == (size, 0)
    assert log.read(9 * size, 3) == b"bbb"


def test_pages_of_a_failed_sync_are_written_again_at_the_next_start() -> None:
    """Its pages are clean but not on the disk: without that, a power cut after the next process has
    acknowledged what it read would take it."""
    disk = SimDisk(Random(1))
    disk.makedirs("commitlog")

    def opened() -> CommitLog:
        checkpoint = Checkpoint(disk, "checkpoint")
        checkpoint.open()
        log = CommitLog(disk, "commitlog", SIZE, checkpoint)
        log.open(restore=True)
        return log

    log = opened()
    put(log, b"a" * 100)
    sync(log)
    put(log, b"b" * 100)
    ticket = log.start_sync()
    assert ticket is not None
    disk.fails_sync = True
    with pytest.raises(OSError, match="Input/output error"):
        ticket.run()
    disk.kill_process()
    again = opened()
    again.settle(200)
    assert again.read(100, 100) == b"b" * 100
    disk.lose_power()
    assert opened().read(100, 100) == b"b" * 100
