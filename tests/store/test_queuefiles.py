import pytest

from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import UNIT_SIZE_BYTES
from raftmq.store.queuefiles import QueueFiles

QUEUE = "queues/T/0"
UNIT_A = b"a" * UNIT_SIZE_BYTES
UNIT_B = b"b" * UNIT_SIZE_BYTES


@pytest.fixture
def files(disk: OsDisk) -> QueueFiles:
    """Two files of ten units; the first has a unit at 3, the second one at 10."""
    files = QueueFiles(disk, "queues", 10)
    files.create(QUEUE, 0, first=True)
    files.write(QUEUE, 3, UNIT_A)
    files.create(QUEUE, 10, first=False)
    files.write(QUEUE, 10, UNIT_B)
    return files


def test_units_are_read_from_the_file_that_holds_them(files: QueueFiles) -> None:
    assert files.starts(QUEUE) == [0, 10]
    assert [files.start_of(offset) for offset in (0, 9, 10, 19)] == [0, 0, 10, 10]
    assert files.read(QUEUE, 2, 2) == bytes(UNIT_SIZE_BYTES) + UNIT_A
    assert files.read(QUEUE, 10, 1) == UNIT_B
    assert files.read(QUEUE, 19, 1) == bytes(UNIT_SIZE_BYTES)


def test_what_was_written_is_dirty_once(files: QueueFiles) -> None:
    dirty = files.take_dirty()
    assert dirty.paths == [f"{QUEUE}/{0:020d}", f"{QUEUE}/{200:020d}"]
    assert dirty.directories == [QUEUE, "queues/T", "queues"]
    dirty.run()
    assert files.take_dirty().paths == []
    files.give_back(dirty)
    assert files.take_dirty() == dirty


def test_a_cut_leaves_zeros_and_is_dirty(files: QueueFiles, disk: OsDisk) -> None:
    files.write(QUEUE, 4, UNIT_B)
    files.take_dirty()
    files.cut(QUEUE, 0, 10)
    assert files.take_dirty().paths == [], "nothing stands behind the end of a full file"
    files.cut(QUEUE, 0, 4)
    assert files.read(QUEUE, 3, 2) == UNIT_A + bytes(UNIT_SIZE_BYTES)
    assert files.take_dirty().paths == [f"{QUEUE}/{0:020d}"]
    assert disk.open(f"{QUEUE}/{0:020d}").size_bytes == 10 * UNIT_SIZE_BYTES


def test_a_removed_file_is_not_synced(files: QueueFiles) -> None:
    files.remove(QUEUE, 0)
    assert files.starts(QUEUE) == [10]
    dirty = files.take_dirty()
    assert dirty.paths == [f"{QUEUE}/{200:020d}"]
    assert QUEUE in dirty.directories


def test_a_file_that_was_never_sized_gets_its_size(files: QueueFiles, disk: OsDisk) -> None:
    disk.open(f"{QUEUE}/{400:020d}").close()
    files.fill_up(QUEUE, 20)
    assert files.read(QUEUE, 29, 1) == bytes(UNIT_SIZE_BYTES)
