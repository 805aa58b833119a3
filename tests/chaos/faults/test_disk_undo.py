"""The journal and the choice of survivors, without a disk."""

from __future__ import annotations

import random

import pytest

from raftmq.chaos.faults.power_loss_journal import (
    LOSE_ALL,
    PAGE_BYTES,
    SECTOR_BYTES,
    TEMPERS,
    PageFate,
    Pending,
    Record,
    RecordKind,
    Temper,
    by_page,
    decode,
    draw_temper,
    file_fate,
    rebuild,
    surviving,
)

RECORDS = (
    Record(RecordKind.CREATE, 1, 7, 0, 0, b"raft/hardstate.new"),
    Record(RecordKind.SIZE, 2, 7, 0, 8192),
    Record(RecordKind.BYTES, 3, 7, 0, 100, b"x" * 100),
    Record(RecordKind.BYTES, 4, 7, 100, 8092),
    Record(RecordKind.RENAME, 5, 7, 9, 0, b"raft/hardstate.new\0raft/hardstate"),
    Record(RecordKind.REMOVE, 6, 8, 0, 0, b"config/t\xc3\xb6pics.json"),
)


def test_truncated_undo_journal_has_its_complete_records() -> None:
    data = b"".join(record.encode() for record in RECORDS)
    ends = [sum(r.size_bytes for r in RECORDS[: n + 1]) for n in range(len(RECORDS))]
    for length in range(len(data) + 1):
        complete = sum(1 for end in ends if end <= length)
        assert tuple(decode(data[:length])) == RECORDS[:complete]


def test_undo_records_name_directories_and_paths() -> None:
    create, rename, remove = RECORDS[0], RECORDS[4], RECORDS[5]
    assert create.directory == rename.directory == "raft"
    assert rename.paths == ("raft/hardstate.new", "raft/hardstate")
    assert (create.buried, rename.buried, remove.buried) == (0, 9, 8)
    assert remove.paths == ("config/töpics.json",)
    assert Record(RecordKind.CREATE, 1, 7, 0, 0, b"checkpoint").directory == ""


def test_sync_removes_earlier_undo_records_of_its_file_only() -> None:
    pending = Pending(RECORDS)
    pending.add(Record(RecordKind.BYTES, 7, 8, 0, 1, b"y"))
    pending.add(Record(RecordKind.SYNCED, 8, 7, 3))
    assert [c.number for c in pending.files[7].changes] == [4]
    pending.add(Record(RecordKind.SYNCED, 9, 7, 8))
    assert set(pending.files) == {8}
    pending.add(Record(RecordKind.FORGET, 10, 8))
    assert not pending.files
    assert [n.number for n in pending.names] == [1, 5, 6]
    done = pending.add(Record(RecordKind.NAMED, 11, 0, 4, 0, b"raft"))
    assert [n.number for n in done] == [1]
    pending.add(Record(RecordKind.NAMED, 12, 0, 11, 0, b"raft"))
    assert [n.number for n in pending.names] == [6]
    pending.add(Record(RecordKind.NAMED, 13, 0, 12, 0, b"config"))
    assert pending.size_bytes == 0


def test_only_rewritten_pages_become_durable_after_a_failed_sync() -> None:
    pages = [Record(RecordKind.BYTES, n + 1, 5, n * PAGE_BYTES, PAGE_BYTES) for n in range(3)]
    pending = Pending([*pages, Record(RecordKind.FAILED, 4, 5, 3)])
    pending.add(Record(RecordKind.SYNCED, 5, 5, 4))
    assert sorted(by_page(pending.files[5])) == [0, 1, 2]
    pending.add(Record(RecordKind.BYTES, 6, 5, PAGE_BYTES + 10, 20))
    pending.add(Record(RecordKind.SYNCED, 7, 5, 6))
    assert sorted(by_page(pending.files[5])) == [0, 2]
    pending.add(Record(RecordKind.BYTES, 8, 5, PAGE_BYTES, 1, b"z"))
    shorter = Pending(decode(b"".join(r.encode() for r in pending.records())))
    for meaning in (pending, shorter):
        result = by_page(meaning.files[5])
        assert {page: [c.number for c in changes] for page, changes in result.items()} == {
            0: [1],
            1: [8],
            2: [3],
        }


WRITTEN = [kind for kind in RecordKind if kind is not RecordKind.HEALED]  # as things happen


@pytest.mark.parametrize("seed", range(40))
def test_compacted_undo_journal_is_equivalent(seed: int) -> None:
    rng = random.Random(seed)
    records = []
    for number in range(1, 60):
        inode, kind = rng.randrange(1, 4), rng.choice(WRITTEN)
        if kind in (RecordKind.SYNCED, RecordKind.FAILED, RecordKind.NAMED):
            records.append(Record(kind, number, inode, number - 1, 0, b"d"))
        elif kind in (RecordKind.CREATE, RecordKind.REMOVE):
            records.append(Record(kind, number, inode, 0, 0, b"d/n%d" % number))
        elif kind is RecordKind.RENAME:
            records.append(Record(kind, number, inode, 0, 0, b"d/a\0d/b"))
        else:
            at, length = rng.randrange(30_000), rng.randrange(1, 20_000)
            records.append(Record(kind, number, inode, at, length))
    long = Pending(records)
    short = Pending(decode(b"".join(record.encode() for record in long.records())))
    assert short.names == long.names
    for inode in (1, 2, 3):
        assert (inode in short.files) == (inode in long.files), f"seed {seed}"
        if inode in long.files:
            assert by_page(short.files[inode]) == by_page(long.files[inode]), f"seed {seed}"
            sizes = [
                [c for c in p.files[inode].changes if c.kind is RecordKind.SIZE]
                for p in (long, short)
            ]
            assert sizes[0] == sizes[1]


def page_of(*versions: bytes) -> tuple[bytes, list[Record]]:
    """The last version of a page, and the changes that led to it from the first."""
    records = []
    for number, before in enumerate(versions[:-1], 1):
        records.append(Record(RecordKind.BYTES, number, 1, 0, PAGE_BYTES, before * PAGE_BYTES))
    return versions[-1] * PAGE_BYTES, records


@pytest.mark.parametrize(
    ("below", "above", "split", "expected"),
    [
        (3, 3, 0, b"d" * 4096),
        (0, 0, 0, b"a" * 4096),
        (1, 1, 512, b"b" * 4096),
        (0, 3, 512, b"a" * 512 + b"d" * 3584),
        (2, 1, 3584, b"c" * 3584 + b"b" * 512),
    ],
)
def test_page_is_rebuilt_as_after_each_number_of_changes(
    below: int, above: int, split: int, expected: bytes
) -> None:
    content, changes = page_of(b"a", b"b", b"c", b"d")
    assert rebuild(content, changes, PageFate(0, split, below, above, 3)) == expected


def test_only_changed_bytes_are_undone() -> None:
    content = b"0" * 10 + b"new" + b"0" * 4083
    change = Record(RecordKind.BYTES, 1, 1, PAGE_BYTES + 10, 3, b"old")
    lost = PageFate(1, 0, 0, 0, 1)
    assert rebuild(content, [change], lost) == b"0" * 10 + b"old" + b"0" * 4083
    zeros = Record(RecordKind.BYTES, 1, 1, PAGE_BYTES + 10, 3)
    assert rebuild(content, [zeros], lost) == b"0" * 10 + b"\0\0\0" + b"0" * 4083
    # A change from the page before to the page after.
    wide = Record(RecordKind.BYTES, 1, 1, 100, 2 * PAGE_BYTES, bytes(range(256)) * 32)
    complete = bytes(range(256)) * 32
    assert rebuild(bytes(PAGE_BYTES), [wide], lost) == complete[3996 : 3996 + 4096]


def test_every_share_of_survivors_is_drawn() -> None:
    assert surviving(5, LOSE_ALL, random.Random(1)) == 0
    assert surviving(5, Temper(0.0, 1.0, 1.0), random.Random(1)) == 5
    rng = random.Random(1)
    assert {surviving(3, Temper(0.5, 0.5), rng) for _ in range(200)} == {0, 1, 2, 3}
    assert {draw_temper(rng) for _ in range(200)} == set(TEMPERS)


def test_pages_are_lost_kept_and_torn_within_their_changes() -> None:
    records = [Record(RecordKind.BYTES, n, 1, 0, 50 * PAGE_BYTES) for n in (1, 2, 3)]
    file = Pending(records).files[1]
    seen = set()
    for seed in range(30):
        fate = file_fate(file, 50 * PAGE_BYTES, Temper(0.3, 0.3), random.Random(seed))
        assert fate.size == 50 * PAGE_BYTES
        assert [page.page for page in fate.pages] == list(range(50))
        for page in fate.pages:
            assert page.split % SECTOR_BYTES == 0
            seen.add((page.below, page.above))
    assert seen == {(b, a) for b in range(4) for a in range(4)}
    again = [file_fate(file, 1, Temper(0.3, 0.3), random.Random(9)) for _ in range(2)]
    assert again[0] == again[1]


def test_lost_truncation_undoes_later_changes_of_its_pages() -> None:
    records = [
        Record(RecordKind.BYTES, 1, 1, 0, 3 * PAGE_BYTES),
        Record(RecordKind.SIZE, 2, 1, 3 * PAGE_BYTES, PAGE_BYTES),  # drops pages 1 and 2 …
        Record(RecordKind.BYTES, 2, 1, PAGE_BYTES, 2 * PAGE_BYTES, b"o" * 2 * PAGE_BYTES),
        Record(RecordKind.SIZE, 3, 1, PAGE_BYTES, 3 * PAGE_BYTES),  # … which return as zeros
        Record(RecordKind.BYTES, 4, 1, PAGE_BYTES, PAGE_BYTES),
    ]
    file = Pending(records).files[1]
    sizes = set()
    for seed in range(300):
        fate = file_fate(file, 3 * PAGE_BYTES, Temper(0.3, 0.3), random.Random(seed))
        counts = {p.page: {p.below, p.above} for p in fate.pages}
        sizes.add(fate.size)
        survivors = {1: range(2, 4), 2: range(2, 3)}
        if fate.size == PAGE_BYTES:  # the truncation survived, the growth did not
            assert counts[1] == {2} and counts[2] == {2}
        elif max(counts[2]) < 2:  # neither did
            assert max(counts[1]) < 2
        else:
            assert counts[1] <= set(survivors[1]) and counts[2] <= set(survivors[2])
    assert sizes == {PAGE_BYTES, 3 * PAGE_BYTES}
