import errno
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import Disk, File, OsDisk
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import Frame
from raftmq.store.index import message_index as messageindex
from raftmq.store.index.index_file import ENTRY, IndexFile
from raftmq.store.index.index_keys import keys_of
from raftmq.store.index.index_limits import IndexLimits
from raftmq.store.index.message_index import CHAIN_ENTRIES_MAX, UNMARKED_BYTES
from raftmq.store.message_store import MessageStore
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, decode_record, encode_record, walk_records
from tests.simulator import disk as simulated
from tests.simulator.disk import SimCrash, SimDisk
from tests.store.make import (
    FrameWriter,
    add_keys,
    append_classic,
    drained,
    record,
    recover,
    recover_frames,
    redispatch,
    sync,
)

LIMITS = IndexLimits(slots=11, entries=16)
SEGMENT = 4096
ALWAYS = (0, 1 << 60)


def open_store(
    disk: Disk, mode: StoreMode = StoreMode.RAFT, limits: IndexLimits = LIMITS, **changes: object
) -> MessageStore:
    options: dict[str, object] = {"segment_size_bytes": SEGMENT, **changes}
    config = StoreConfig(mode=mode, entries_per_file=50, index_limits=limits, **options)  # type: ignore[arg-type]
    store = MessageStore(disk, config)
    store.open()
    if mode is StoreMode.RAFT:
        recovered = recover(store)
        redispatch(store, recovered.end_offset)
    return store


def keyed(n: int, **changes: object) -> MessageRecord:
    """Message n: a key of its own, one in ten, one of all; a second and a half after the last."""
    properties = f"UNIQ_KEY\x01u{n}\x02KEYS\x01ten-{n % 10} all\x02".encode()
    stamp = 1_700_000_000_000 + 1500 * n
    return record(body=b"%d" % n, properties=properties, store_timestamp_ms=stamp, **changes)


def write(store: MessageStore, count: int, writer: FrameWriter | None = None) -> FrameWriter:
    """So many messages, four a frame, dispatched; a command between frames."""
    writer = writer or FrameWriter(store.commitlog)
    done = sum(writer.offsets.values())
    for first in range(done, done + count, 4):
        writer.messages([keyed(n) for n in range(first, min(first + 4, done + count))])
        writer.command()
    for frame in writer.frames:
        store.derived.dispatch_frame(frame)
    return writer


def append(store: MessageStore, first: int, count: int) -> None:
    for n in range(first, first + count):
        item = keyed(n)
        append_classic(store, [item], item.store_timestamp_ms)


def numbers(
    store: MessageStore, key: str, count: int = 64, span: tuple[int, int] = ALWAYS
) -> list[int]:
    return [
        int(decode_record(data).body)
        for data in drained(store.derived.query("T", key, count, *span)).records
    ]


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


# -- following the log -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", StoreMode)
@pytest.mark.parametrize("budget", [1, 100, 700, 1 << 20])
def test_index_finds_every_message_for_any_step_size(
    disk: OsDisk, mode: StoreMode, budget: int
) -> None:
    store = open_store(disk, mode)
    if mode is StoreMode.RAFT:
        write(store, 40)
    else:
        append(store, 0, 40)
    assert numbers(store, "u7") == []  # nothing was done for the index yet
    left = store.derived.index_step(budget)
    while left:
        now = store.derived.index_step(budget)
        assert now < left
        left = now
    for n in range(40):
        assert numbers(store, f"u{n}") == [n]
    assert numbers(store, "ten-3") == [3, 13, 23, 33]
    assert numbers(store, "all") == list(range(40))
    assert drained(store.derived.query("U", "all", 64, *ALWAYS)).records == []
    assert len(disk.listdir("index")) == 8 + (120 % 15 > 0)  # 15 entries a file
    store.close()


@pytest.mark.parametrize(("limit", "batches"), [("BATCHES_MAX", 7), ("BATCHES_BYTES_MAX", 3000)])
def test_index_notes_of_dispatched_messages_are_limited_and_optional(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, limit: str, batches: int
) -> None:
    monkeypatch.setattr(messageindex, limit, batches)
    store = open_store(disk)
    assert store.index is not None
    writer, most = FrameWriter(store.commitlog), 0
    for n in range(40):
        writer.messages([keyed(n)])
        store.derived.dispatch_frame(writer.frames[-1])
        most = max(most, len(store.index.dispatched))
    assert 3 < most <= 20
    store.derived.index_all()
    assert numbers(store, "all") == list(range(40))
    store.close()


def test_index_has_only_dispatched_messages(disk: OsDisk) -> None:
    store = open_store(disk)
    writer = write(store, 4)
    writer.messages([keyed(4)])
    store.derived.index_all()
    assert numbers(store, "all") == [0, 1, 2, 3]
    store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    assert numbers(store, "u4") == [4]
    store.close_unclean()


def test_index_file_names_are_increasing_times(disk: OsDisk) -> None:
    store = open_store(disk)
    writer = FrameWriter(store.commitlog)
    for n in range(12):  # 36 entries in three files, all of one millisecond
        writer.messages([record(properties=keyed(n).properties, body=b"%d" % n)])
        store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    names = disk.listdir("index")
    assert len(names) == 3
    assert all(len(name) == 17 and name.isdecimal() for name in names)
    assert names[0][2:6] == "2311"  # November 2023, wherever this runs
    assert [int(name) - int(names[0]) for name in names] == [0, 1, 2]
    store.close_unclean()


# -- lookups ---------------------------------------------------------------------------------------


def test_index_query_returns_the_newest_matches_oldest_first(disk: OsDisk) -> None:
    store = open_store(disk, segment_size_bytes=1 << 20, limits=IndexLimits(11, 1000))
    write(store, 100)
    store.derived.index_all()
    assert numbers(store, "all", 3) == [97, 98, 99]
    assert numbers(store, "all", 64) == list(range(36, 100))
    assert numbers(store, "all", 1000) == list(range(36, 100))
    assert numbers(store, "all", 0) == numbers(store, "all", -5) == []
    size = len(encode_record(keyed(99)))
    assert store.index is not None
    for max_bytes, count in ((1, 1), (size, 1), (2 * size, 2), (3 * size - 1, 2)):
        result = drained(store.index.query("T", "all", 64, *ALWAYS, max_bytes=max_bytes))
        assert len(result.records) == count
    store.close_unclean()


def test_index_query_times_are_exact_to_the_millisecond(disk: OsDisk) -> None:
    store = open_store(disk)
    write(store, 40)
    store.derived.index_all()
    start = 1_700_000_000_000
    for first, last in ((0, 39), (3, 3), (10, 20), (39, 39)):
        span = (start + 1500 * first, start + 1500 * last)
        assert numbers(store, "all", 64, span) == list(range(first, last + 1))
        assert numbers(store, "all", 64, (span[0] - 1, span[1] + 1)) == list(range(first, last + 1))
        assert numbers(store, "all", 64, (span[0] + 1, span[1] - 1)) == list(range(first + 1, last))
    assert numbers(store, "all", 64, (0, start - 1)) == []
    assert numbers(store, "all", 64, (start + 100_000, 1 << 60)) == []
    store.close_unclean()


def test_index_query_rejects_a_colliding_hash(disk: OsDisk) -> None:
    assert hash_twins()
    store = open_store(disk)
    writer = FrameWriter(store.commitlog)
    for n, key in enumerate(hash_twins()):
        writer.messages([record(properties=f"KEYS\x01{key}\x02".encode(), body=b"%d" % n)])
        store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    for n, key in enumerate(hash_twins()):
        assert numbers(store, key) == [n]
    store.close_unclean()


def hash_twins() -> list[str]:
    """Different keys of one hash: Aa and BB are such a pair in Java."""
    return ["AaAa", "AaBB", "BBAa", "BBBB"]


def test_message_with_a_repeated_key_is_returned_once(disk: OsDisk) -> None:
    store = open_store(disk)
    writer = FrameWriter(store.commitlog)
    writer.messages([record(properties=b"UNIQ_KEY\x01k\x02KEYS\x01k k\x02", body=b"1")])
    store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    assert numbers(store, "k") == [1]
    store.close_unclean()


def test_index_query_for_a_very_frequent_key_is_bounded(disk: OsDisk) -> None:
    limits = IndexLimits(slots=11, entries=CHAIN_ENTRIES_MAX + 1000)
    store = open_store(disk, limits=limits, segment_size_bytes=1 << 20)
    write(store, 1)
    store.derived.index_all()
    assert store.index is not None
    (file,) = store.index.files
    (hashed, _, _, _) = file.entry(3)
    offset = store.commitlog.max_offset  # no message of ours: each is looked at in vain
    spare = CHAIN_ENTRIES_MAX - 1
    add_keys(file, [(hashed, offset, 1_700_000_000_000)] * (spare - 1))
    assert numbers(store, "all") == [0]
    add_keys(file, [(hashed, offset, 1_700_000_000_000)] * 2)
    assert numbers(store, "all") == []
    store.close_unclean()


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", StoreMode)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("indexed", [0, 1, 30, 100])
def test_index_continues_after_a_stop_at_any_point(
    disk: OsDisk, tmp_path: Path, mode: StoreMode, clean: bool, indexed: int
) -> None:
    """Stopped at any point, flushed or not, it is in the end what it would have been."""
    store = open_store(disk, mode)
    if mode is StoreMode.RAFT:
        writer = write(store, 30)
    else:
        append(store, 0, 30)
    for _ in range(indexed):
        store.derived.index_step(1)
    store.flush()
    for _ in range(3):
        store.derived.index_step(1)
    if clean:
        store.close()
    else:
        store.close_unclean()
    store = open_store(disk, mode)
    assert store.last_stop_clean is clean
    if mode is StoreMode.RAFT:
        writer.log = store.commitlog
        write(store, 10, writer)
    else:
        append(store, 30, 10)
    store.derived.index_all()
    store.flush()
    assert numbers(store, "all") == list(range(40))
    store.close_unclean()
    assert contents(tmp_path) == made_anew(disk, tmp_path, mode)


def test_index_without_unique_keys_continues_after_its_last_message(
    disk: OsDisk, tmp_path: Path
) -> None:
    """A broker of 3.x indexes a message by its KEYS alone."""
    store = open_store(disk, StoreMode.CLASSIC)
    append(store, 0, 12)
    store.derived.index_all()
    assert store.index is not None
    foreign = [
        (hashed, offset, store.index.files[0].start_ms)
        for file in store.index.files
        for hashed, offset, _, _ in map(file.entry, range(1, file.count))
    ]
    del foreign[::3]  # the UNIQ_KEY of each
    store.close()
    for name in disk.listdir("index"):
        disk.remove(f"index/{name}")
    for number, part in enumerate((foreign[:15], foreign[15:])):  # the first file is full
        file = IndexFile(disk, f"index/{20231114221320000 + number}", LIMITS)
        add_keys(file, part)
        file.start_flush().run()
        file.close()
    before = contents(tmp_path)
    store = open_store(disk, StoreMode.CLASSIC)
    store.derived.index_all()
    store.flush()
    store.close()
    assert contents(tmp_path) == before
    store = open_store(disk, StoreMode.CLASSIC)
    append(store, 12, 1)
    store.derived.index_all()
    assert numbers(store, "all") == list(range(13))
    assert numbers(store, "u12") == [12]
    assert store.index is not None
    assert sum(file.count - 1 for file in store.index.files) == len(foreign) + 3
    store.close_unclean()


def made_anew(disk: OsDisk, root: Path, mode: StoreMode) -> list[bytes]:
    """Return the index of this log as it looks when made in one go."""
    for name in disk.listdir("index"):
        disk.remove(f"index/{name}")
    store = open_store(disk, mode)
    store.derived.index_all()
    store.flush()
    store.close_unclean()
    return contents(root)


def test_truncated_log_removes_its_index_entries(disk: OsDisk, tmp_path: Path) -> None:
    """The index was flushed, the log behind it was not; then other messages take its place."""
    store = open_store(disk)
    writer = write(store, 20)
    sync(store.commitlog)
    end = store.commitlog.max_offset
    state = dict(writer.offsets)
    write(store, 20, writer)
    store.derived.index_all()
    flush = store.flushes.start()
    flush.run()
    store.flushes.finish(flush, synced=True)
    assert numbers(store, "all") == list(range(40))
    store.commitlog.truncate(end)  # as recovery after a power cut does
    store.close_unclean()
    store = open_store(disk)
    assert numbers(store, "all", 64) == list(range(20))
    writer = FrameWriter(store.commitlog, index=recover(store).last.index)  # type: ignore[union-attr]
    writer.offsets = state
    writer.messages([keyed(n + 100) for n in range(4)])
    store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    assert numbers(store, "all") == [*range(20), 100, 101, 102, 103]
    store.flush()
    store.close_unclean()
    assert contents(tmp_path) == made_anew(disk, tmp_path, StoreMode.RAFT)


DAMAGES = ["first gone", "middle gone", "last gone", "all gone", "header", "entry", "short", "huge"]


@pytest.mark.parametrize("mode", StoreMode)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_missing_index_files_are_rebuilt(
    disk: OsDisk, tmp_path: Path, mode: StoreMode, damage: str
) -> None:
    store = open_store(disk, mode)
    if mode is StoreMode.RAFT:
        write(store, 39)
    else:
        append(store, 0, 39)
    store.derived.index_all()
    store.close()
    before = contents(tmp_path)
    names = sorted((tmp_path / "index").iterdir())
    assert len(names) == 8
    data = names[4].read_bytes()
    match damage:
        case "first gone":
            names[0].unlink()
        case "middle gone":
            names[4].unlink()
        case "last gone":
            names[-1].unlink()
        case "all gone":
            for name in names:
                name.unlink()
        case "header":
            names[4].write_bytes(b"\xff" * 40 + data[40:])
        case "entry":
            last, at = names[-1].read_bytes(), 40 + LIMITS.slots * 4 + 5 * 20
            names[-1].write_bytes(last[:at] + b"\xff" * 20 + last[at + 20 :])
            (tmp_path / "abort").touch()  # else nobody looks
        case "short":
            names[4].write_bytes(data[:-1])
        case "huge":
            names[4].write_bytes(data + b"\0")
    store = open_store(disk, mode)
    store.derived.index_all()
    assert numbers(store, "all") == list(range(39))
    store.close()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("count", [1, 3, 20])  # 20: with files that are full
@pytest.mark.parametrize("configured", [IndexLimits(17, 100), IndexLimits()])
def test_index_files_keep_the_size_of_an_existing_index(
    disk: OsDisk, tmp_path: Path, count: int, configured: IndexLimits
) -> None:
    store = open_store(disk)
    write(store, count)
    store.derived.index_all()
    store.close()
    before = contents(tmp_path)
    store = open_store(disk, limits=configured)
    assert store.index is not None and store.index.limits == LIMITS
    store.derived.index_all()
    assert numbers(store, "all") == list(range(count))
    store.close()
    assert contents(tmp_path) == before


def test_foreign_files_in_the_index_directory_are_kept(
    disk: OsDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.makedirs("index")
    disk.open("index/notes.txt").close()
    store = open_store(disk)
    write(store, 4)
    store.derived.index_all()
    store.close()
    assert "notes.txt" in disk.listdir("index")
    assert "notes.txt" in caplog.text


def test_log_without_keys_is_not_walked_again(disk: OsDisk) -> None:
    store = open_store(disk, segment_size_bytes=1 << 20)
    writer = FrameWriter(store.commitlog)
    for _ in range(24):
        writer.messages([record(body=b"x" * 100_000)])
        store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    end = store.derived.dispatched_offset
    store.close()
    store = open_store(disk, segment_size_bytes=1 << 20)
    assert store.index is not None
    assert store.index.position > end - UNMARKED_BYTES - 200_000
    writer = FrameWriter(store.commitlog, index=24)
    writer.offsets = {("T", 0): 24}
    writer.messages([keyed(1)])
    store.derived.dispatch_frame(writer.frames[-1])
    store.derived.index_all()
    assert numbers(store, "u1") == [1]
    store.close()


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(more, marks=pytest.mark.long) for more in range(8, 24))]
)
def test_index_is_complete_after_any_power_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a power cut leaves, the index made complete is the log's, no more and no less."""
    # The checkpoint's record lies in one sector; this is not about how it tears otherwise.
    monkeypatch.setattr(simulated, "WHOLE_BYTES", 48)
    rng = random.Random(seed)
    disk = SimDisk(rng)
    limits = IndexLimits(slots=rng.choice([3, 1500]), entries=rng.choice([9, 40]))
    store = open_store(disk, limits=limits)
    writer = FrameWriter(store.commitlog)
    number = 0
    for _ in range(rng.randrange(2, 5)):
        disk.crash_after(rng.randrange(20, 200))
        try:
            while True:
                number = act(rng, store, writer, number)
        except SimCrash:
            disk.lose_power()
        store = open_store(disk, limits=limits)
        last = recover_frames(store.commitlog).last
        writer = FrameWriter(store.commitlog, index=last.index if last else 0)
        writer.offsets = {(q.topic, q.queue_id): q.max_offset for q in store.queues.queues()}
        store.derived.index_all()
        check(store)


def act(rng: random.Random, store: MessageStore, writer: FrameWriter, number: int) -> int:
    match rng.randrange(6):
        case 0 | 1 | 2:
            count = rng.randrange(1, 5)
            frame: Frame = writer.messages([keyed(n) for n in range(number, number + count)])
            store.derived.dispatch_frame(frame)
            return number + count
        case 3:
            store.derived.index_step(rng.choice([1, 500]))
        case 4:
            sync(store.commitlog)
        case 5:
            if rng.random() < 0.5:
                sync(store.commitlog)
            flush = store.flushes.start()
            flush.run()
            store.flushes.finish(flush, synced=True)
    return number


def check(store: MessageStore) -> None:
    """The index holds exactly the keys of the log, in order, and each is found."""
    expected = [(key, data) for data in records(store) for key in keys_in(data)]
    assert store.index is not None
    entries = [file.entry(n)[:2] for file in store.index.files for n in range(1, file.count)]
    assert [offset for _, offset in entries] == [
        decode_record(data).physical_offset for _, data in expected
    ]
    for key, data in expected:
        result = drained(store.derived.query("T", key, 1000, *ALWAYS)).records
        assert data in result or len(result) == 64
    for file in store.index.files:
        assert not file.drop_bad()
        before = file.slots
        file.rebuild()
        assert file.slots is not None
        assert before is None or np.array_equal(before, file.slots)


def keys_in(data: bytes) -> list[str]:
    return keys_of(decode_properties(decode_record(data).properties))


def records(store: MessageStore) -> Iterator[bytes]:
    for segment in store.commitlog.segments():
        data = store.commitlog.read(segment.start, SEGMENT)
        for offset, size in walk_records(data, segment.start):
            yield data[offset : offset + size]


# -- retention and trouble -------------------------------------------------------------------------


def test_retention_removes_full_index_files_except_the_last(disk: OsDisk) -> None:
    store = open_store(disk)
    write(store, 63)
    store.derived.index_all()
    store.flush()
    assert store.index is not None
    ends = [file.end_offset for file in store.index.files]
    assert len(store.commitlog.segments()) >= 3, "there is something to remove"
    flush = store.flushes.start()
    store.delete_before(store.commitlog.segments()[-1].start)
    minimum = store.commitlog.min_offset
    assert len(store.index.files) == len(ends)  # not while a flush may hold them
    flush.run()
    store.flushes.finish(flush, synced=True)
    store.derived.correct_min_offset()
    assert [f.end_offset for f in store.index.files] == [end for end in ends if end >= minimum]
    assert len(disk.listdir("index")) == len(store.index.files)
    left = [int(decode_record(data).body) for data in records(store)]
    assert left[0] > 0
    assert numbers(store, "all") == left
    store.close()
    store = open_store(disk)
    store.derived.index_all()
    assert numbers(store, "all") == left
    assert store.index is not None
    store.index.delete_before(1 << 60)
    assert len(store.index.files) == 1
    store.close()


def test_checkpoint_has_the_time_of_durable_full_index_files(disk: OsDisk) -> None:
    store = open_store(disk)
    write(store, 4)  # 12 entries of 15
    store.derived.index_all()
    store.flush()
    assert store.checkpoint.fields.index_timestamp_ms == 0
    write(store, 4, FrameWriterAt(store))
    store.derived.index_all()
    assert store.checkpoint.fields.index_timestamp_ms == 0  # full, but not durable yet
    store.flush()
    assert store.checkpoint.fields.index_timestamp_ms == keyed(4).store_timestamp_ms
    store.close()


def FrameWriterAt(store: MessageStore) -> FrameWriter:
    """A writer that goes on where the store's log ends."""
    last = recover(store).last
    writer = FrameWriter(store.commitlog, index=last.index if last else 0)
    writer.offsets = {(q.topic, q.queue_id): q.max_offset for q in store.queues.queues()}
    return writer


class FullDisk(OsDisk):
    """No room for index files (or for what `place` says) while `full`."""

    full = False
    place = "index/"

    def open(self, path: str, *, allocate_bytes: int | None = None) -> File:  # type: ignore[override]
        if self.full and path.startswith(self.place) and not self.exists(path):
            raise OSError(errno.ENOSPC, "full")
        file = super().open(path, allocate_bytes=allocate_bytes)
        real = file.pwrite

        def pwrite(offset: int, data: bytes | memoryview) -> None:
            if self.full and path.startswith(self.place):
                raise OSError(errno.ENOSPC, "full")
            real(offset, data)

        file.pwrite = pwrite  # type: ignore[method-assign]
        return file


def test_index_flush_on_a_full_disk_can_be_started_again(tmp_path: Path) -> None:
    """Found by disk-full: the second round of snapshots ended the broker."""
    disk = FullDisk(str(tmp_path))
    store = open_store(disk)
    write(store, 8)
    store.derived.index_all()
    disk.full, disk.place = True, "consumequeue/"
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            store.flush()
    disk.full = False
    store.flush()
    assert numbers(store, "all") == list(range(8))
    store.close()


@pytest.mark.parametrize("before", [0, 2, 4, 8])
def test_full_disk_stops_only_the_index(tmp_path: Path, before: int) -> None:
    disk = FullDisk(str(tmp_path))
    store = open_store(disk)
    writer = write(store, before) if before else FrameWriter(store.commitlog)
    store.derived.index_all()
    disk.full = True
    write(store, 20, writer)
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            store.derived.index_all()
    assert numbers(store, "all") == list(range(before))
    disk.full = False
    store.derived.index_all()
    assert numbers(store, "all") == list(range(before + 20))
    store.flush()
    store.close_unclean()
    assert contents(tmp_path) == made_anew(disk, tmp_path, StoreMode.RAFT)


@pytest.mark.parametrize("harm", ["magic", "size", "length", "zeros", "header"])
def test_index_waits_for_damage_in_the_log(disk: OsDisk, harm: str) -> None:
    store = open_store(disk)
    write(store, 63)
    sound = damage(store, harm)
    seen = []
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            store.derived.index_all()
        seen.append(store.derived.indexed_offset)
    assert seen == [seen[0]] * 2
    result = numbers(store, "all")
    assert result == list(range(len(result)))
    file = disk.open(store.commitlog.segments()[1].path)
    file.pwrite(0, sound)
    file.close()
    store.derived.index_all()
    assert numbers(store, "all") == list(range(63))
    store.close_unclean()


@pytest.mark.parametrize(
    ("harm", "lost"), [("magic", 1), ("size", 1), ("length", 1), ("zeros", 23), ("header", 0)]
)
@pytest.mark.parametrize("budget", [200, messageindex.STEP_BYTES])
def test_unrepaired_damage_removes_only_its_messages_from_the_index(
    disk: OsDisk, harm: str, lost: int, budget: int
) -> None:
    store = open_store(disk)
    write(store, 63)
    damage(store, harm)
    left = 1
    while left:
        try:
            left = store.derived.index_step(budget)
        except StoreDamaged as error:
            store.derived.pass_damage(error.position)
    assert store.index is not None
    entries = [file.entry(n)[1] for file in store.index.files for n in range(1, file.count)]
    assert entries == sorted(entries)
    assert len(set(entries)) == 63 - lost
    result = numbers(store, "all")
    assert len(result) == 63 - lost
    store.close_unclean()


def test_classic_store_with_damage_stops_cleanly(disk: OsDisk) -> None:
    """Its index is completed then, but for what nobody repairs."""
    store = open_store(disk, StoreMode.CLASSIC)
    append(store, 0, 30)
    second = list(walk_records(store.commitlog.read(0, SEGMENT)))[1][0]
    file = disk.open(store.commitlog.segments()[0].path)
    file.pwrite(second + 4, b"\xff")
    file.close()
    closing = store.derived.close

    def indexed() -> None:
        result.extend(numbers(store, "all"))
        closing()

    result: list[int] = []
    store.derived.close = indexed  # type: ignore[method-assign]
    store.close()
    assert result == [0, *range(2, 30)]
    assert not disk.exists("abort")


def damage(store: MessageStore, harm: str) -> bytes:
    """Damage the second segment's second message; return what stood in the segment."""
    second = store.commitlog.segments()[1]
    data = store.commitlog.read(second.start, SEGMENT)
    at, size = list(walk_records(data))[1]
    header = next(at for at in range(at, SEGMENT) if data[at + 4 : at + 8] == data[4:8])
    changed = {
        "magic": (at + 4, b"\xff"),
        "size": (at, (size - 7).to_bytes(4, "big")),
        "length": (at, (1 << 20).to_bytes(4, "big")),
        "zeros": (at, bytes(SEGMENT - at - 500)),
        "header": (header, b"\xff" * 60),
    }
    file = store.disk.open(second.path)
    file.pwrite(*changed[harm])
    file.close()
    return data


def test_queue_entry_is_verified_before_its_record_is_served(disk: OsDisk) -> None:
    store = open_store(disk)
    write(store, 4)
    store.derived.index_all()
    assert store.index is not None
    file: IndexFile = store.index.files[0]
    hashed, offset, seconds, before = file.entry(1)
    at = 40 + LIMITS.slots * 4 + 20
    for wrong in (offset + 1, 1 << 40, 0):
        file.file.pwrite(at, ENTRY.pack(hashed, wrong, seconds, before))
        assert numbers(store, "u0") == []
    store.close_unclean()


def test_disabled_index_creates_no_file(disk: OsDisk) -> None:
    store = open_store(disk, index_enable=False)
    write(store, 4)
    assert store.derived.index_step() == 0
    assert drained(store.derived.query("T", "all", 64, *ALWAYS)).records == []
    store.flush()
    store.close()
    assert not disk.exists("index")
