import errno
import random
from pathlib import Path

import pytest

from raftmq.store.disk import File, OsDisk, OsFile
from raftmq.store.index.index_file import ENTRY, HEADER, IndexFile
from raftmq.store.index.index_limits import IndexLimits
from tests.store.make import Row, add_keys

LIMITS = IndexLimits(slots=7, entries=20)
SIZE = 40 + 7 * 4 + 20 * 20


def flush(file: IndexFile, synced: bool = True) -> None:
    ticket = file.start_flush()
    ticket.run()
    ticket.finish(synced=synced)


def found(file: IndexFile, hashed: int, start_ms: int = 0, end_ms: int = 1 << 60) -> list[int]:
    return [at for at in file.select(hashed, start_ms, end_ms) if at is not None]


def test_index_file_bytes(disk: OsDisk, tmp_path: Path) -> None:
    assert IndexLimits().file_size_bytes == 420_000_040
    file = IndexFile(disk, "f", LIMITS)
    assert add_keys(file, [(8, 100, 5000), (15, 100, 5000), (3, 200, 7999)]) == 3
    flush(file)
    data = (tmp_path / "f").read_bytes()
    assert len(data) == SIZE
    assert HEADER.unpack_from(data) == (5000, 7999, 100, 200, 2, 4)
    slots = [int.from_bytes(data[40 + 4 * n : 44 + 4 * n], "big") for n in range(7)]
    assert slots == [0, 2, 0, 3, 0, 0, 0]  # 8 and 15 share slot 1
    entries = [ENTRY.unpack_from(data, 68 + 20 * n) for n in range(5)]
    assert entries == [
        (0, 0, 0, 0),
        (8, 100, 0, 0),
        (15, 100, 0, 1),
        (3, 200, 2, 0),
        (0, 0, 0, 0),
    ]


def test_index_seconds_are_limited(disk: OsDisk) -> None:
    file = IndexFile(disk, "f", LIMITS)
    add_keys(file, [(1, 0, 10_000), (2, 1, 9_000), (3, 2, 10_000 + (1 << 31) * 1000)])
    assert [file.entry(n)[2] for n in (1, 2, 3)] == [0, 0, 0x7FFFFFFF]


def test_full_index_file_accepts_no_further_key(disk: OsDisk) -> None:
    file = IndexFile(disk, "f", LIMITS)
    keys: list[Row] = [(n, n, 1000) for n in range(30)]
    assert add_keys(file, keys[:18]) == 18
    assert not file.full
    assert add_keys(file, keys[18:]) == 1  # entry 0 stays unused
    assert file.full
    assert add_keys(file, keys[19:]) == 0
    assert found(file, 18) == [18]
    assert found(file, 19) == []
    assert file.slots is not None
    flush(file)
    assert file.slots is None  # 20 MB of a real one: given back once they are on disk
    assert found(file, 18) == [18]


def test_index_file_continues_after_a_restart(disk: OsDisk, tmp_path: Path) -> None:
    file, twin = IndexFile(disk, "f", LIMITS), IndexFile(disk, "twin", LIMITS)
    keys: list[Row] = [(n % 9, n, 1000 * n) for n in range(15)]
    add_keys(file, keys[:6])
    flush(file)
    file.close()
    file = IndexFile(disk, "f", LIMITS)
    assert file.plausible
    add_keys(file, keys[6:])
    add_keys(twin, keys)
    flush(file)
    flush(twin)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


@pytest.mark.parametrize("loaded", [True, False])
def test_index_file_selects_by_hash_and_time(disk: OsDisk, loaded: bool) -> None:
    file = IndexFile(disk, "f", LIMITS)
    #            hash, offset, time: 1, 8 and 15 share a slot
    add_keys(file, [(1, 10, 1000), (8, 20, 2500), (1, 30, 2999), (15, 40, 3000), (1, 50, 9000)])
    flush(file)
    if not loaded:
        file.close()
        file = IndexFile(disk, "f", LIMITS)
    assert found(file, 1) == [50, 30, 10]  # newest first
    assert found(file, 8) == [20]
    assert found(file, 2) == []  # a slot without entries
    assert found(file, 22) == []  # a slot with others' entries only
    assert found(file, 1, 0, 8999) == [30, 10]
    assert found(file, 1, 3000, 8999) == []
    assert found(file, 1, 2999, 2999) == [30]  # the entry says 2000: rounded down
    assert found(file, 1, 3001, 9000) == [50]
    # Whoever searches can count what was looked at, and the walk ends where it is too old.
    assert list(file.select(1, 0, 1 << 60)) == [50, None, 30, None, 10]
    assert list(file.select(1, 3500, 1 << 60)) == [50, None]


def test_damaged_index_chain_ends(disk: OsDisk, tmp_path: Path) -> None:
    file = IndexFile(disk, "f", LIMITS)
    add_keys(file, [(1, 10, 1000), (1, 20, 1000), (1, 30, 1000)])
    flush(file)
    file.close()
    path = tmp_path / "f"
    for before in (3, 4, 1 << 30, -1):  # itself, ahead, beyond the file, nowhere
        data = bytearray(path.read_bytes())
        data[68 + 3 * 20 : 68 + 4 * 20] = ENTRY.pack(1, 30, 0, before)
        path.write_bytes(data)
        again = IndexFile(disk, "f", LIMITS)
        assert found(again, 1) == [30]
        assert again.drop_bad()
        again.close()
        path.write_bytes(data)


class Failing(OsDisk):
    """Writes and syncs of the file called `f` fail while `errors` says so."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.errors = False

    def open(self, path: str, *, allocate_bytes: int | None = None) -> File:  # type: ignore[override]
        file = super().open(path, allocate_bytes=allocate_bytes)
        real = file.pwrite

        def pwrite(offset: int, data: bytes | memoryview) -> None:
            if self.errors:
                raise OSError(errno.ENOSPC, "full")
            real(offset, data)

        file.pwrite = pwrite  # type: ignore[method-assign]
        return file


def test_failed_index_write_changes_nothing(tmp_path: Path) -> None:
    disk = Failing(str(tmp_path))
    file, twin = IndexFile(disk, "f", LIMITS), IndexFile(disk, "twin", LIMITS)
    keys: list[Row] = [(n % 3, n, 1000) for n in range(12)]
    add_keys(file, keys[:5])
    disk.errors = True
    with pytest.raises(OSError, match="full"):
        add_keys(file, keys[5:])
    with pytest.raises(OSError, match="full"):
        ticket = file.start_flush()
        ticket.run()
    ticket.finish(synced=False)
    assert file.changed
    disk.errors = False
    assert add_keys(file, keys[5:]) == 7
    flush(file)
    assert not file.changed
    add_keys(twin, keys)
    flush(twin)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


def test_unreadable_index_slots_are_read_again(disk: OsDisk, tmp_path: Path) -> None:
    file, twin = IndexFile(disk, "f", LIMITS), IndexFile(disk, "twin", LIMITS)
    rows: list[Row] = [(n % 9, n, 1000) for n in range(15)]
    add_keys(file, rows[:6])
    flush(file)
    file.close()
    file = IndexFile(disk, "f", LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OsFile, "pread", refuse)
        with pytest.raises(OSError, match="bad"):
            add_keys(file, rows[6:])
    add_keys(file, rows[6:])
    add_keys(twin, rows)
    flush(file)
    flush(twin)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


def refuse(*_: object) -> bytes:
    raise OSError(errno.EIO, "a bad sector")


def test_failed_index_flush_writes_its_slots_again(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    file = IndexFile(disk, "f", LIMITS)
    add_keys(file, [(1, 10, 1000)])
    flush(file, synced=False)
    assert file.changed
    assert any(file.dirty)
    flush(file)
    assert not any(file.dirty)


@pytest.mark.parametrize("seed", range(20))
def test_truncated_and_rebuilt_index_equals_one_that_was_never_longer(
    disk: OsDisk, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    limits = IndexLimits(slots=3000, entries=200)  # three pages of slots
    file, twin = IndexFile(disk, "f", limits), IndexFile(disk, "twin", limits)
    keys: list[Row] = []
    offset, stamp = 0, 50_000
    for _ in range(rng.randrange(1, 199)):
        offset += rng.choice([0, 0, 10, 300])
        stamp += rng.choice([0, 1, 700])
        keys.append((rng.randrange(6000), offset, stamp))
    add_keys(file, keys)
    if rng.random() < 0.5:
        flush(file)
    at = rng.randrange(offset + 2)
    kept = [key for key in keys if key[1] < at]
    file.truncate(at, kept[-1][2] if kept else None)
    add_keys(twin, kept)
    assert file.count == twin.count
    if kept:
        flush(file)
        flush(twin)
        assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ((-1, 50, 0, 0), [10, 20, 30]),  # the message at 40 comes again, with all its keys
        ((5, 39, 0, 0), [10, 20, 30]),
        ((5, 5000, 0, 0), [10, 20, 30]),
        ((5, 50, -1, 0), [10, 20, 30]),
        ((5, 50, 0, 5), [10, 20, 30]),
        ((5, 50, 0, -2), [10, 20, 30]),
    ],
)
def test_damaged_index_entry_ends_the_file(
    disk: OsDisk, entry: tuple[int, int, int, int], kept: list[int]
) -> None:
    file = IndexFile(disk, "f", LIMITS)
    add_keys(file, [(5, 10 * n, 1000) for n in range(1, 9)])
    file.file.pwrite(68 + 5 * 20, ENTRY.pack(*entry))
    assert file.drop_bad()
    assert found(file, 5) == kept[::-1]
    assert file.end_offset == kept[-1]
    assert not file.drop_bad()


@pytest.mark.parametrize(
    "header",
    [
        (5, 4, 0, 10, 1, 3),
        (1, 4, 11, 10, 1, 3),
        (1, 4, -1, 10, 1, 3),
        (-1, 4, 0, 10, 1, 3),
        (1, 4, 0, 10, 8, 3),
        (1, 4, 0, 10, -1, 3),
        (1, 4, 0, 10, 1, 21),
    ],
)
def test_implausible_index_header_is_detected(disk: OsDisk, header: tuple[int, ...]) -> None:
    file = IndexFile(disk, "f", LIMITS)
    file.file.pwrite(0, HEADER.pack(*header))
    file.close()
    assert not IndexFile(disk, "f", LIMITS).plausible


def test_index_files_are_sparse(disk: OsDisk, tmp_path: Path) -> None:
    file = IndexFile(disk, "f", IndexLimits())
    add_keys(file, [(n * 1_000_003, n, 1000) for n in range(100)])
    flush(file)
    stat = (tmp_path / "f").stat()
    assert stat.st_size == 420_000_040
    assert stat.st_blocks * 512 < 2 << 20
    file.truncate(50)
    flush(file)
    assert (tmp_path / "f").stat().st_blocks * 512 < 2 << 20
    file.close()


def test_slot_changed_during_a_flush_is_written_by_the_next_flush(
    disk: OsDisk, tmp_path: Path
) -> None:
    file, twin = IndexFile(disk, "f", LIMITS), IndexFile(disk, "twin", LIMITS)
    add_keys(file, [(1, 10, 1000)])
    ticket = file.start_flush()
    add_keys(file, [(1, 20, 2000)])
    ticket.run()
    ticket.finish(synced=True)
    header = HEADER.unpack_from((tmp_path / "f").read_bytes())
    assert header == (1000, 1000, 10, 10, 1, 2)  # as of the beginning of the flush
    assert file.changed
    add_keys(file, [(1, 30, 3000)])
    flush(file)
    add_keys(twin, [(1, 10, 1000), (1, 20, 2000), (1, 30, 3000)])
    flush(twin)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


def test_index_file_with_slots_loaded_in_pieces_equals_its_twin(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.store.index.index_file._PAGES_AT_A_TIME", 1)  # 1,024 slots
    limits = IndexLimits(slots=4000, entries=1000)
    file, twin = IndexFile(disk, "f", limits), IndexFile(disk, "twin", limits)
    keys: list[Row] = [(n * 97, n, 1000 * n) for n in range(400)]
    add_keys(file, keys[:300])
    flush(file)
    file.close()
    again = IndexFile(disk, "f", limits)
    loads = []
    for _ in range(3):
        loads.append(again.load())
        assert again.slots is None, "never a part of them"
        assert found(again, 97) == [1]
    assert [*loads, again.load(), again.load()] == [False, False, False, True, True]
    add_keys(again, keys[300:])
    flush(again)
    add_keys(twin, keys)
    flush(twin)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "twin").read_bytes()


def test_new_index_file_has_nothing_to_load_and_a_rebuilt_one_reloads(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.store.index.index_file._PAGES_AT_A_TIME", 1)
    limits = IndexLimits(slots=4000, entries=1000)
    file = IndexFile(disk, "f", limits)
    assert file.load()
    add_keys(file, [(n * 97, n, 1000 * n) for n in range(300)])
    flush(file)
    file.close()
    again = IndexFile(disk, "f", limits)
    assert not again.load()
    again.truncate(100)
    assert again.load()
    assert found(again, 97) == [1]
    assert found(again, 97 * 200) == []
