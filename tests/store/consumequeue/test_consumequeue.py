import errno
import os
from pathlib import Path
from typing import Any

import pytest

from raftmq.store.consumequeue import consumequeue
from raftmq.store.consumequeue.consumequeue import FILLER, ConsumeQueueStore
from raftmq.store.disk import OsDisk, OsFile
from raftmq.store.dispatch import QUEUE_ENTRY

PER_FILE = 10


def entry(n: int, queue: int = 0) -> bytes:
    """The entry of message n: CommitLog offset 1000 * (n + 1)."""
    return QUEUE_ENTRY.pack(1000 * (n + 1) + queue, 100 + n, n)


def entries(first: int, count: int) -> bytes:
    return b"".join(entry(n) for n in range(first, first + count))


def new_store(disk: OsDisk, confirmed: int = 1 << 62, **options: Any) -> ConsumeQueueStore:
    store = ConsumeQueueStore(disk, "consumequeue", PER_FILE, **options)
    store.open(confirmed)
    return store


def file_of(disk: OsDisk, number: int) -> bytes:
    return disk.open(f"consumequeue/T/0/{number * PER_FILE * 20:020d}").pread(0, PER_FILE * 20)


@pytest.mark.parametrize("flush_after", [0, 3, 10, 17, 25])
def test_queue_reads_are_equal_from_file_and_tail(disk: OsDisk, flush_after: int) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, flush_after))
    store.flush()
    store.append("T", 0, flush_after, entries(flush_after, 27 - flush_after))
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 27)
    for offset in range(27):
        for count in (1, 2, 9, 10, 11, 100):
            read = entries(offset, min(count, 27 - offset))
            assert queue.entries(offset, count) == read
            assert queue.stored(offset, count) == read.ljust(count * 20, b"\0")
    assert queue.stored(30, 2) == bytes(40)
    for offset, count in ((-1, 5), (27, 1), (28, 1), (3, 0)):
        assert queue.entries(offset, count) == b""
    assert queue.entry(5) == (6000, 105, 5)


@pytest.mark.parametrize("queues", [("T",), ("T", "U")])
@pytest.mark.parametrize("configured", [PER_FILE // 2, 3 * PER_FILE])
def test_queue_files_keep_the_size_of_an_existing_store(
    disk: OsDisk, queues: tuple[str, ...], configured: int
) -> None:
    """Apache's broker refuses a directory with files of another size."""
    count = 7 if len(queues) > 1 else 13  # one file each, or two of one queue
    store = new_store(disk)
    for topic in queues:
        store.append(topic, 0, 0, entries(0, count))
    store.flush()
    store.close()
    again = ConsumeQueueStore(disk, "consumequeue", configured)
    again.open(1 << 40, clean=True)
    again.append("T", 0, count, entries(count, 20))
    again.flush()
    assert disk.listdir("consumequeue/T/0") == [
        f"{start:020d}" for start in range(0, (count + 20) * 20, PER_FILE * 20)
    ]
    queue = again.queue("T", 0)
    assert queue is not None and queue.entries(0, 40) == entries(0, count + 20)


def test_short_queue_files_after_a_power_cut_do_not_set_the_size(disk: OsDisk) -> None:
    for topic in ("T", "U"):
        disk.makedirs(f"consumequeue/{topic}/0")
        disk.open(f"consumequeue/{topic}/0/{0:020d}").truncate(40)
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 5))
    store.flush()
    assert disk.open(f"consumequeue/T/0/{0:020d}").size_bytes == PER_FILE * 20


def test_queue_files_have_apaches_format(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 13))
    store.append("%RETRY%g", 3, 0, entries(0, 1))
    store.flush()
    assert disk.listdir("consumequeue/T/0") == [f"{0:020d}", f"{200:020d}"]
    assert file_of(disk, 0) == entries(0, 10)
    assert file_of(disk, 1) == entries(10, 3) + bytes(7 * 20)
    assert store.topics() == {"T": [0], "%RETRY%g": [3]}
    assert store.queue("T", 1) is None


def test_queue_append_is_idempotent_below_the_end_and_rejects_a_gap(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 5))
    store.append("T", 0, 0, entries(0, 5))
    store.append("T", 0, 2, entries(2, 3))
    store.append("T", 0, 3, entries(3, 4))  # half of it new
    store.flush()
    store.append("T", 0, 6, entries(6, 2))
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 8
    assert queue.entries(0, 100) == entries(0, 8)
    with pytest.raises(AssertionError):
        store.append("T", 0, 9, entries(9, 1))
    with pytest.raises(AssertionError):
        store.append("T", 0, 8, entries(8, 1)[:-1])
    assert queue.entries(0, 100) == entries(0, 8)


@pytest.mark.parametrize("first", [1, 9, 10, 13, 40])
def test_queue_that_starts_later_is_padded(disk: OsDisk, first: int) -> None:
    store = new_store(disk)
    store.append("T", 0, first, entries(first, 3))
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (first, first + 3)
    store.flush()
    store.close()
    start = first - first % PER_FILE
    assert file_of(disk, first // PER_FILE)[: (first - start) * 20] == FILLER * (first - start)
    store = new_store(disk)
    store.correct_min_offset(0)
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (first, first + 3)
    assert queue.entries(first, 9) == entries(first, 3)


@pytest.mark.parametrize("later", [7, 10, 25])
def test_queue_without_a_message_in_the_log_may_continue_later(disk: OsDisk, later: int) -> None:
    """What was noted of its end was not the last."""
    store = new_store(disk)
    store.start_at("T", 0, 5)
    store.append("T", 0, later, entries(later, 3))
    store.flush()
    store.close()
    queue = new_store(disk).queue("T", 0)
    assert queue is not None
    queue.correct_min(1000)
    assert (queue.min_offset, queue.max_offset) == (later, later + 3)
    assert queue.entries(later, 3) == entries(later, 3)


@pytest.mark.parametrize("confirmed_units", [0, 1, 9, 10, 11, 20, 24, 25])
def test_unconfirmed_queue_entries_are_dropped_at_open(disk: OsDisk, confirmed_units: int) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 25))
    store.flush()
    store.close()
    store = new_store(disk, 1000 * (confirmed_units + 1))
    queue = store.queue("T", 0)
    if confirmed_units == 0:
        assert queue is None
        assert disk.listdir("consumequeue/T/0") == []
    else:
        assert queue is not None
        assert queue.max_offset == confirmed_units
        content = b"".join(file_of(disk, n) for n in range(len(queue.file_starts)))
        assert content == entries(0, confirmed_units).ljust(len(content), b"\0")
    store.append("T", 0, confirmed_units, entries(confirmed_units, 30))
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 100) == entries(0, confirmed_units + 30)


def test_queue_entries_after_a_gap_are_dropped_at_open(disk: OsDisk) -> None:
    """A power cut lost a page in the middle of what was not confirmed."""
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 9))
    store.flush()
    store.close()
    disk.open(f"consumequeue/T/0/{0:020d}").pwrite(4 * 20, bytes(40))
    store = new_store(disk, confirmed=5000)
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 4
    assert file_of(disk, 0) == entries(0, 4) + bytes(6 * 20)


def test_unflushed_queue_tails_are_lost_by_a_kill(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 3))
    store.flush()
    store.append("T", 0, 3, entries(3, 3))
    store.close()
    queue = new_store(disk).queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 3


def test_queue_tails_are_limited(disk: OsDisk) -> None:
    store = new_store(disk, tail_entries_max=4, tails_bytes_max=200)
    store.append("T", 0, 0, entries(0, 3))
    assert store.tails_bytes == 60
    store.append("T", 0, 3, entries(3, 1))  # one tail is full: written
    assert store.tails_bytes == 0
    assert file_of(disk, 0)[:80] == entries(0, 4)
    for queue_id in range(1, 4):
        store.append("T", queue_id, 0, entries(0, 3))
        assert store.tails_bytes == 60 * queue_id
    store.append("T", 4, 0, entries(0, 1))  # all together reach 200: the oldest is written
    assert store.tails_bytes == 140
    for queue_id in range(1, 4):
        queue = store.queue("T", queue_id)
        assert queue is not None
        assert queue.tail_bytes == (0 if queue_id == 1 else 60)
        assert queue.entries(0, 10) == entries(0, 3)
    store.append("T", 1, 3, entries(3, 3))  # it is the youngest now
    assert store.tails_bytes == 140
    assert [queue.tail_bytes for queue in store.queues()] == [0, 60, 0, 60, 20]
    store.write_tails()
    store.append("T", 5, 0, entries(0, 100))  # larger than any bound at once
    assert store.tails_bytes == 0


def test_queue_is_truncated_to_the_commitlog(disk: OsDisk) -> None:
    """Queues that know more than the log are cut, in file and tail."""
    for end in range(1, 26):
        store = new_store(OsDisk(f"{disk.root}/{end}"))
        store.append("T", 0, 0, entries(0, 15))
        store.write_tails()
        store.append("T", 0, 15, entries(15, 10))
        store.truncate_to_commitlog(1000 * (end + 1))
        queue = store.queue("T", 0)
        assert queue is not None
        assert queue.max_offset == end
        store.append("T", 0, end, entries(end, 4))
        assert queue.entries(0, 100) == entries(0, end + 4)


def test_messages_before_the_start_of_a_topic_are_not_shown(disk: OsDisk) -> None:
    """Whether they came before that was known or after, and whatever is cut or deleted."""

    def shown(store: ConsumeQueueStore) -> tuple[int, int]:
        queue = store.queue("T", 0)
        assert queue is not None
        assert queue.first_at(lambda at, _: at >= 0) == queue.min_offset  # where a search begins
        return queue.min_offset, queue.max_offset

    first_shown = {"T": 13_000}
    store = new_store(disk, first_shown=first_shown)
    store.append("T", 0, 0, entries(0, 3))
    assert shown(store) == (3, 3)
    store.append("T", 0, 3, entries(3, 32))
    assert shown(store) == (12, 35)
    store.append("U", 0, 0, entries(0, 5))
    store.flush()
    store.close()
    store = new_store(disk, first_shown=first_shown)
    for start, first in ((0, 0), (13_000, 12), (36_000, 35), (13_000, 12)):
        first_shown["T"] = start
        assert shown(store) == (first, 35)
    store.correct_min_offset(1000 * 4)
    assert shown(store) == (12, 35)
    assert disk.listdir("consumequeue/T/0")[0] == f"{0:020d}"  # they can be shown again
    del first_shown["T"]
    assert shown(store) == (3, 35)
    first_shown["T"] = 13_000
    store.truncate_to_commitlog(1000 * 9)
    assert shown(store) == (8, 8)
    store.append("T", 0, 8, entries(8, 27))
    assert shown(store) == (12, 35)
    store.correct_min_offset(1000 * 24 - 1)
    assert shown(store) == (23, 35)
    other = store.queue("U", 0)
    assert other is not None
    assert (other.min_offset, other.max_offset) == (5, 5)


def test_queue_min_offset_follows_the_commitlog(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 35))
    store.correct_min_offset(1000 * 14)
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.min_offset == 13
    store.flush()
    store.correct_min_offset(1000 * 24 - 1)
    assert queue.min_offset == 23
    assert disk.listdir("consumequeue/T/0") == [f"{400:020d}", f"{600:020d}"]
    assert queue.entries(22, 1) == b""
    store.correct_min_offset(1 << 40)  # all gone: the last file stays
    assert (queue.min_offset, queue.max_offset) == (35, 35)
    assert disk.listdir("consumequeue/T/0") == [f"{600:020d}"]
    store.append("T", 0, 35, entries(35, 1))
    store.flush()
    store.close()
    store = new_store(disk)
    store.correct_min_offset(1 << 40)
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 36


def test_queue_files_are_not_removed_during_a_flush(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 35))
    ticket = store.start_flush()
    ticket.run()
    store.correct_min_offset(1 << 40)
    assert len(disk.listdir("consumequeue/T/0")) == 4
    store.finish_flush(ticket, synced=True)
    store.correct_min_offset(1 << 40)
    assert len(disk.listdir("consumequeue/T/0")) == 1


class Counted(OsDisk):
    """A disk that counts what changes it, and fails if told."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.made: list[str] = []
        self.fails = self.sync_fails = False

    def sync_directory(self, path: str) -> None:
        if self.sync_fails:
            raise OSError("the test says so")
        super().sync_directory(path)

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        if self.fails:
            raise OSError("the test says so")
        self.made.append(path)
        return super().open(path, allocate_bytes=allocate_bytes)

    def makedirs(self, path: str) -> None:
        self.made.append(path)
        super().makedirs(path)


def test_flush_of_many_new_queues_touches_no_file_before_it_runs(disk: OsDisk) -> None:
    counted = Counted(disk.root)
    store = new_store(counted)
    for number in range(50):
        store.append(f"T{number}", 0, 0, entries(0, 1))
    counted.made.clear()
    ticket = store.start_flush()
    assert counted.made == []
    ticket.run()
    written = len(counted.made)
    assert store.drop_saved(ticket, 20)
    assert store.tails_bytes == 30 * 20
    assert store.drop_saved(ticket, 29)
    assert not store.drop_saved(ticket, 20)
    store.finish_flush(ticket, synced=True)
    assert len(counted.made) == written
    assert store.tails_bytes == 0
    for number in range(50):
        assert disk.open(f"consumequeue/T{number}/0/{0:020d}").pread(0, 20) == entries(0, 1)
    store.close()
    again = new_store(disk)
    assert len(list(again.queues())) == 50


def test_queue_entries_are_appended_and_read_during_a_flush(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 3))
    store.append("T", 1, 0, entries(0, 12))  # two files
    ticket = store.start_flush()
    store.append("T", 0, 3, entries(3, 9))
    store.append("T", 1, 12, entries(12, 1))
    store.append("T", 2, 0, entries(0, 1))
    store.write_tails()  # as if their bound was reached
    store.append("T", 1, 13, entries(13, 1))

    def check(*counts: int) -> None:
        for queue_id, count in enumerate(counts):
            queue = store.queue("T", queue_id)
            assert queue is not None
            assert queue.entries(0, 100) == entries(0, count)

    check(12, 14, 1)
    ticket.run()
    check(12, 14, 1)
    store.append("T", 1, 14, entries(14, 8))  # into the next file, too
    store.finish_flush(ticket, synced=True)
    check(12, 22, 1)
    assert store.tails_bytes == 9 * 20
    store.flush()
    check(12, 22, 1)
    store.close()
    assert sorted(q.max_offset for q in new_store(disk).queues()) == [1, 12, 22]


def test_flush_removes_only_its_own_entries_from_the_tails(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 3))
    ticket = store.start_flush()
    ticket.run()
    store.append("T", 0, 3, entries(3, 2))
    store.finish_flush(ticket, synced=True)
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.tail_bytes, store.tails_bytes) == (40, 40)
    assert queue.entries(0, 9) == entries(0, 5)
    store.flush()
    assert file_of(disk, 0)[:120] == entries(0, 5) + bytes(20)


def test_next_flush_covers_one_that_could_not_write(disk: OsDisk) -> None:
    counted = Counted(disk.root)
    store = new_store(counted)
    store.append("T", 0, 0, entries(0, 12))
    store.append("U", 0, 0, entries(0, 1))
    counted.fails = True
    ticket = store.start_flush()
    with pytest.raises(OSError, match="the test"):
        ticket.run()
    store.finish_flush(ticket, synced=False)
    assert store.tails_bytes == 13 * 20
    counted.fails = False
    store.discard("U", 0)  # whose file was never made
    store.flush()
    assert store.tails_bytes == 0
    store.close()
    (queue,) = new_store(disk).queues()
    assert queue.entries(0, 100) == entries(0, 12)


def test_failed_queue_flush_stays_dirty(disk: OsDisk) -> None:
    counted = Counted(disk.root)
    store = new_store(counted)
    store.append("T", 0, 0, entries(0, 3))
    counted.sync_fails = True
    ticket = store.start_flush()
    with pytest.raises(OSError, match="the test"):
        ticket.run()
    store.finish_flush(ticket, synced=False)
    counted.sync_fails = False
    again = store.start_flush()
    again.run()
    dirty = again.files.all_dirty()
    assert dirty.paths == [f"consumequeue/T/0/{0:020d}"]
    assert dirty.directories == ["consumequeue/T/0", "consumequeue/T", "consumequeue"]
    store.finish_flush(again, synced=True)
    assert store.tails_bytes == 0
    third = store.start_flush()
    third.run()
    assert third.files.all_dirty().paths == []


def test_entries_written_before_their_flush_runs_are_synced_by_it(disk: OsDisk) -> None:
    store = new_store(disk)
    store.append("T", 0, 0, entries(0, 3))
    ticket = store.start_flush()
    store.write_tails()  # as at a limit; the flush confirms these entries
    ticket.run()
    assert ticket.files.all_dirty().paths == [f"consumequeue/T/0/{0:020d}"]
    store.finish_flush(ticket, synced=True)
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 9) == entries(0, 3)
    assert queue.file_starts == [0]


class Reads(OsDisk):
    """A disk that counts what is read and changed through its files."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reads = self.cuts = 0

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        return CountedFile(self, path)


class CountedFile(OsFile):
    def __init__(self, disk: Reads, path: str) -> None:
        super().__init__(f"{disk.root}/{path}", None)
        self._disk = disk

    def pread(self, offset: int, size: int) -> bytes:
        self._disk.reads += 1
        return super().pread(offset, size)

    def truncate(self, size: int) -> None:
        self._disk.cuts += 1
        super().truncate(size)


def manifested(disk: OsDisk, *, confirmed: int = 1 << 60) -> ConsumeQueueStore:
    store = ConsumeQueueStore(disk, "consumequeue", 1_000, manifest="consumequeue.manifest")
    store.open(confirmed)
    return store


@pytest.mark.parametrize("count", [1, 40, 990, 1_000, 2_300])
def test_unchanged_queue_is_loaded_without_a_change(disk: OsDisk, count: int) -> None:
    store = manifested(disk)
    store.append("T", 0, 0, entries(0, count))
    store.flush()
    store.close()
    counted = Reads(disk.root)
    again = manifested(counted)
    queue = again.queue("T", 0)
    assert queue is not None
    assert queue.max_offset == count
    assert queue.last_position == 1_000 * count
    assert counted.cuts == 0
    again.correct_min_offset(0)
    before = counted.reads
    for position in (0, 500, 1_000):  # of the first entry, or below: nothing moves
        again.correct_min_offset(position)
    assert counted.reads == before
    again.correct_min_offset(1_001)
    assert queue.min_offset == 1


def test_many_queues_are_known_at_start_without_their_files(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumequeue, "LOADED_QUEUES_MAX", 1)
    store = manifested(disk)
    for topic, count in (("A", 1), ("B", 3), ("C", 7)):
        store.append(topic, 0, 0, entries(0, count))
    ticket = store.start_flush(6_001)  # the last entry of C is not confirmed
    ticket.run()
    store.finish_flush(ticket, synced=True)
    store.append("A", 0, 1, entries(1, 3))
    store.append("D", 0, 0, entries(0, 3))
    store.write_tails()  # and killed
    store.close()
    counted = Reads(disk.root)
    again = ConsumeQueueStore(counted, "consumequeue", 10, manifest="consumequeue.manifest")
    again.open(9_000, lazy=True)
    assert again.confirmed == 6_001
    assert [again.end_of(topic, 0) for topic in "ABCD"] == [1, 3, 6, 0]
    assert counted.reads <= 1 + 8  # the manifest, and the end of C
    again.append("A", 0, 1, entries(1, 3))  # dispatched again
    again.flush()
    for topic, count in (("A", 4), ("B", 3), ("C", 6)):
        queue = again.queue(topic, 0)
        assert queue is not None
        assert queue.entries(0, 10) == entries(0, count)
    again.close()


@pytest.mark.parametrize("confirmed", [1_000, 1_001, 7_000, 20_001, 1 << 60])
@pytest.mark.parametrize("written", [5, 19, 600])
def test_unconfirmed_entries_of_a_manifest_queue_are_dropped_at_start(
    disk: OsDisk, confirmed: int, written: int
) -> None:
    store = manifested(disk)
    store.append("T", 0, 0, entries(0, 1))
    store.flush()
    store.append("T", 0, 1, entries(1, written))
    store.write_tails()  # and killed: they are in the page cache
    store.close()
    store = manifested(disk, confirmed=confirmed)
    queue = store.queue("T", 0)
    kept = min(written + 1, (confirmed - 1) // 1_000)
    if not kept:
        assert queue is None
        return
    assert queue is not None
    assert queue.max_offset == kept
    store.append("T", 0, kept, entries(kept, 1))
    store.flush()
    store.close()
    queue = manifested(disk).queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 2_000) == entries(0, kept + 1)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
def test_topic_name_cannot_leave_the_store_directory(disk: OsDisk, topic: str) -> None:
    with pytest.raises(ValueError):
        new_store(disk).append(topic, 0, 0, entries(0, 1))
    with pytest.raises(ValueError):
        new_store(disk).append("T", -1, 0, entries(0, 1))


def test_more_queues_than_file_descriptors_are_served(disk: OsDisk) -> None:
    before = len(os.listdir("/dev/fd"))
    store = new_store(disk, open_files_max=3)
    for queue_id in range(10):
        store.append("T", queue_id, 0, entries(0, 2))
    store.write_tails()
    assert len(os.listdir("/dev/fd")) - before == 3
    store.flush()
    assert len(os.listdir("/dev/fd")) - before == 3
    for queue_id in range(10):
        queue = store.queue("T", queue_id)
        assert queue is not None
        assert queue.entries(0, 5) == entries(0, 2)
    assert len(os.listdir("/dev/fd")) - before == 3


class ShortDisk(OsDisk):
    """Opens no file while it is short of descriptors."""

    short = False
    error = errno.EMFILE

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        if self.short:
            raise OSError(self.error, "says the test")
        return super().open(path, allocate_bytes=allocate_bytes)


@pytest.mark.parametrize("bounds", [{"tail_entries_max": 4}, {"tails_bytes_max": 80}])
def test_queue_entries_are_kept_while_the_disk_is_full(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    disk = ShortDisk(str(tmp_path))
    store = new_store(disk, **bounds)
    disk.short = True
    store.append("T", 0, 0, entries(0, 7))
    store.append("T", 0, 7, entries(7, 7))
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 14) == entries(0, 14)
    assert store.tails_bytes == 14 * 20
    with pytest.raises(OSError, match="says the test"):
        store.write_full_tails()
    disk.short = False
    store.write_full_tails()
    assert store.tails_bytes == 0
    assert queue.entries(0, 14) == entries(0, 14)
    assert file_of(disk, 0) == entries(0, 10)
    disk.short, disk.error = True, errno.EIO
    store.append("U", 0, 0, entries(0, 1))
    with pytest.raises(OSError, match="says the test"):
        store.append("U", 0, 1, entries(1, 6))


def test_queue_dropped_at_start_is_not_missed_at_the_next_start(disk: OsDisk) -> None:
    """It was to be dispatched again, from the log's beginning, and power was cut before a flush."""
    store = manifested(disk)
    store.append("T", 0, 0, entries(0, 13))
    store.append("U", 0, 0, entries(0, 3))
    store.flush()
    for _ in range(2):
        store = manifested(disk, confirmed=0)
        assert not store.damaged
        assert not store.topics()
    assert disk.listdir("consumequeue/T/0") == []


def test_entries_dropped_after_the_confirmed_offset_are_not_missed(disk: OsDisk) -> None:
    """But files that are lost besides are missed."""
    store = manifested(disk)
    store.append("U", 0, 0, entries(0, 3))
    store.append("T", 0, 0, entries(3, 12))
    store.append("V", 0, 0, entries(12, 20))
    store.flush()
    for _ in range(2):
        store = manifested(disk, confirmed=9_500)
        assert not store.damaged
        assert [store.end_of(topic, 0) for topic in "UTV"] == [3, 6, 0]
    for name in disk.listdir("consumequeue/T/0"):
        disk.remove(f"consumequeue/T/0/{name}")
    assert list(manifested(disk, confirmed=9_500).damaged) == [("T", 0)]


def archived(store: ConsumeQueueStore, topic: str, queue_id: int = 0) -> bool:
    """Whether the queue is made for each call."""
    return store.queue(topic, queue_id) is not store.queue(topic, queue_id)


def test_queues_of_a_deleted_topic_leave_memory_and_continue(disk: OsDisk) -> None:
    store = new_store(disk, manifest="m")
    store.append("T", 0, 0, entries(0, 3))
    store.append("T", 1, 0, entries(3, 1))
    store.append("U", 0, 0, entries(4, 1))
    store.topic_changed("T", exists=False)
    assert not archived(store, "T")
    store.flush()
    assert archived(store, "T")
    assert archived(store, "T", 1)
    assert not archived(store, "U")
    assert store.queue("T", 2) is None
    ends = [(queue.topic, queue.queue_id, queue.max_offset) for queue in store.queues()]
    assert sorted(ends) == [("T", 0, 3), ("T", 1, 1), ("U", 0, 1)]
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 9) == entries(0, 3)
    store.append("U", 0, 1, entries(5, PER_FILE))  # a new file, so the manifest is written
    store.flush()
    store.close()

    store = new_store(disk, manifest="m")
    assert not store.damaged
    store.topic_changed("T", exists=False)
    store.flush()
    assert archived(store, "T")
    store.topic_changed("T", exists=True)
    assert not archived(store, "T")
    assert store.end_of("T", 0) == 3
    store.append("T", 0, 2, entries(2, 3))
    queue = store.queue("T", 0)
    assert queue is not None
    assert queue.entries(0, 9) == entries(0, 5)


def test_archived_queue_gets_messages_that_were_in_flight(disk: OsDisk) -> None:
    store = new_store(disk, manifest="m")
    store.append("T", 0, 0, entries(0, 3))
    store.topic_changed("T", exists=False)
    store.flush()
    store.append("T", 0, 3, entries(3, 1))
    assert not archived(store, "T")
    store.flush()
    assert archived(store, "T")
    assert store.end_of("T", 0) == 4


def test_archived_queue_follows_the_log(disk: OsDisk) -> None:
    store = new_store(disk, manifest="m")
    store.append("T", 0, 0, entries(0, 5))
    store.append("Many", 0, 0, entries(0, PER_FILE + 1))
    for topic in ("T", "Many"):
        store.topic_changed(topic, exists=False)
    store.flush()
    assert archived(store, "T")
    assert not archived(store, "Many")  # retention removes its first file
    store.truncate_to_commitlog(1000 * 4)
    assert store.end_of("T", 0) == 3
    store.topic_changed("T", exists=False)
    store.flush()
    assert archived(store, "T")
    assert store.has_messages("T", 0)
    store.correct_min_offset(1000 * 9)
    assert not store.has_messages("T", 0)
    assert store.end_of("T", 0) == 3
    store.discard("T", 0)
    assert store.queue("T", 0) is None


def test_queues_of_a_topic_created_again_stay_in_memory(disk: OsDisk) -> None:
    store = new_store(disk, manifest="m")
    store.append("T", 0, 0, entries(0, 3))
    store.topic_changed("T", exists=False)
    ticket = store.start_flush()
    ticket.run()
    store.topic_changed("T", exists=True)
    store.finish_flush(ticket, synced=True)
    assert not archived(store, "T")
