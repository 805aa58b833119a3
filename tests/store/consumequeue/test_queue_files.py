import pytest

from raftmq.store.consumequeue.queue_files import SYNCS_MAX, DirtyFiles, QueueFiles
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES

QUEUE = "queues/T/0"
UNIT_A = b"a" * QUEUE_ENTRY_BYTES
UNIT_B = b"b" * QUEUE_ENTRY_BYTES


@pytest.fixture
def files(disk: OsDisk) -> QueueFiles:
    """Two files of ten entries; the first has an entry at 3, the second one at 10."""
    files = QueueFiles(disk, "queues", 10)
    files.create(QUEUE, 0, first=True)
    files.write(QUEUE, 3, UNIT_A)
    files.create(QUEUE, 10, first=False)
    files.write(QUEUE, 10, UNIT_B)
    return files


def test_queue_entries_are_read_from_the_file_of_their_offset(files: QueueFiles) -> None:
    assert files.starts(QUEUE) == [0, 10]
    assert [files.start_of(offset) for offset in (0, 9, 10, 19)] == [0, 0, 10, 10]
    assert files.read(QUEUE, 2, 2) == bytes(QUEUE_ENTRY_BYTES) + UNIT_A
    assert files.read(QUEUE, 10, 1) == UNIT_B
    assert files.read(QUEUE, 19, 1) == bytes(QUEUE_ENTRY_BYTES)


def test_written_queue_file_is_dirty_once(files: QueueFiles) -> None:
    dirty = files.take_dirty()
    assert dirty.paths == [f"{QUEUE}/{0:020d}", f"{QUEUE}/{200:020d}"]
    assert dirty.directories == [QUEUE, "queues/T", "queues"]
    dirty.run()
    assert files.take_dirty().paths == []
    files.mark_dirty(dirty)
    assert files.take_dirty() == dirty


def test_truncated_queue_file_has_zeros_and_is_dirty(files: QueueFiles, disk: OsDisk) -> None:
    files.write(QUEUE, 4, UNIT_B)
    files.take_dirty()
    files.truncate(QUEUE, 0, 10)
    assert files.take_dirty().paths == [], "nothing stands behind the end of a full file"
    files.truncate(QUEUE, 0, 4)
    assert files.read(QUEUE, 3, 2) == UNIT_A + bytes(QUEUE_ENTRY_BYTES)
    assert files.take_dirty().paths == [f"{QUEUE}/{0:020d}"]
    assert disk.open(f"{QUEUE}/{0:020d}").size_bytes == 10 * QUEUE_ENTRY_BYTES


def test_removed_queue_file_is_not_synced(files: QueueFiles) -> None:
    files.remove(QUEUE, 0)
    assert files.starts(QUEUE) == [10]
    dirty = files.take_dirty()
    assert dirty.paths == [f"{QUEUE}/{200:020d}"]
    assert QUEUE in dirty.directories


def test_queue_file_without_its_size_is_extended(files: QueueFiles, disk: OsDisk) -> None:
    disk.open(f"{QUEUE}/{400:020d}").close()
    files.fill_up(QUEUE, 20)
    assert files.read(QUEUE, 29, 1) == bytes(QUEUE_ENTRY_BYTES)


class Syncs(OsDisk):
    """A disk that counts syncs, and may have no call for a whole tree."""

    def __init__(self, root: str, *, has_tree: bool = True) -> None:
        super().__init__(root)
        self.has_tree = has_tree
        self.directories = self.trees = 0

    def sync_directory(self, path: str) -> None:
        self.directories += 1
        super().sync_directory(path)

    def sync_tree(self, path: str) -> bool:
        self.trees += 1
        return self.has_tree and super().sync_tree(path)


@pytest.mark.parametrize("has_tree", [True, False])
@pytest.mark.parametrize("count", [SYNCS_MAX, SYNCS_MAX + 1])
def test_many_queue_files_are_synced_by_one_call_where_available(
    disk: OsDisk, count: int, has_tree: bool
) -> None:
    syncs = Syncs(disk.root, has_tree=has_tree)
    directories = [f"queues/T{number}" for number in range(count)]
    for directory in directories:
        syncs.makedirs(directory)
    DirtyFiles(syncs, "queues", [], directories).run()
    many = count > SYNCS_MAX
    assert syncs.trees == many
    assert syncs.directories == (0 if many and has_tree else count)


def test_missing_queue_tree_is_not_synced(disk: OsDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.sync_tree("nowhere")
