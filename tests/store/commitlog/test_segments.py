import errno
import threading
from pathlib import Path

import pytest

from raftmq.store.commitlog.segments import NextSegment, SegmentFiles
from raftmq.store.disk import OsDisk
from raftmq.store.errors import StoreError

SIZE = 1024
FIRST, SECOND = f"{0:020d}", f"{SIZE:020d}"


@pytest.fixture
def files(tmp_path: Path) -> SegmentFiles:
    disk = OsDisk(str(tmp_path))
    disk.makedirs("log")
    return SegmentFiles(disk, "log", SIZE)


def names(files: SegmentFiles) -> list[str]:
    return files.disk.listdir("log")


def test_new_segment_has_its_size_and_zeros(files: SegmentFiles) -> None:
    segment = files.open(SIZE)
    assert (segment.start, segment.end, segment.written_end) == (SIZE, 2 * SIZE, SIZE)
    assert segment.file.pread(0, 2 * SIZE) == bytes(SIZE)
    segment.file.pwrite(0, b"a" * 20)
    segment.fill(SIZE + 5, SIZE + 15)
    assert segment.file.pread(0, 20) == b"a" * 5 + bytes(10) + b"a" * 5
    assert files.starts() == [SIZE]


def test_foreign_file_name_is_no_segment(files: SegmentFiles) -> None:
    files.disk.open("log/notes").close()
    with pytest.raises(StoreError, match="notes"):
        files.starts()


def test_only_an_empty_segment_is_a_stray(files: SegmentFiles) -> None:
    files.open(0).file.pwrite(0, b"x")
    files.open(SIZE)
    assert not files.drop_stray(0)
    assert files.drop_stray(SIZE)
    assert names(files) == [FIRST]


def test_segment_is_prepared_only_when_expected(files: SegmentFiles) -> None:
    following = NextSegment(files)
    following.prepare()
    following.expect(None)
    following.prepare()
    assert names(files) == []
    following.expect(SIZE)
    following.prepare()
    assert following.is_prepared
    assert names(files) == [SECOND]


def test_prepared_segment_is_used_once(files: SegmentFiles) -> None:
    following = NextSegment(files)
    following.expect(SIZE)
    following.prepare()
    segment = following.get(SIZE)
    assert following.get(SIZE) is segment, "until it has come into use"
    assert following.expect(segment.end) is segment
    assert not following.is_prepared
    assert following.get(2 * SIZE).start == 2 * SIZE


class SlowDisk(OsDisk):
    """Stops in `open`, in another thread than the main one, until `go_on`. `full`: the threads for
    which a new file has no room."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened, self.go_on = threading.Event(), threading.Event()
        self.full: set[threading.Thread] = set()

    def open(self, path: str, *, allocate_bytes: int | None = None):
        thread = threading.current_thread()
        room = None if thread in self.full else allocate_bytes
        file = super().open(path, allocate_bytes=room)
        if thread is not threading.main_thread():
            self.opened.set()
            assert self.go_on.wait(10)
        if thread in self.full:
            file.close()
            raise OSError(errno.ENOSPC, "no room, says the test")
        return file


@pytest.mark.parametrize(
    ("meanwhile", "stays"), [("used", True), ("dropped", False), ("got", True), ("closed", True)]
)
def test_late_prepared_segment_is_removed_unless_in_use(
    tmp_path: Path, meanwhile: str, stays: bool
) -> None:
    disk = SlowDisk(str(tmp_path))
    disk.makedirs("log")
    following = NextSegment(SegmentFiles(disk, "log", SIZE))
    following.expect(SIZE)
    thread = threading.Thread(target=following.prepare)
    thread.start()
    assert disk.opened.wait(10)
    if meanwhile == "got":  # while the thread is opening it, too
        kept = threading.Thread(target=following.get, args=(SIZE,))
        disk.go_on.set()
        kept.start()
        kept.join(10)
    elif meanwhile == "used":
        following.expect(2 * SIZE)
    elif meanwhile == "dropped":
        following.expect(SIZE)
    else:
        following.close()
    disk.go_on.set()
    thread.join(10)
    assert (disk.listdir("log") == [SECOND]) is stays
    assert following.is_prepared is (meanwhile == "got")


def test_segment_that_cannot_be_prepared_is_removed_unless_in_use(tmp_path: Path) -> None:
    """The log rolls into the file that could not be prepared, because there is room by now."""
    disk = SlowDisk(str(tmp_path))
    disk.makedirs("log")
    following = NextSegment(SegmentFiles(disk, "log", SIZE))
    following.expect(SIZE)
    failed: list[OSError] = []

    def prepare() -> None:
        try:
            following.prepare()
        except OSError as error:
            failed.append(error)

    for meanwhile in ("nothing", "rolled"):
        disk.opened.clear()
        disk.go_on.clear()
        thread = threading.Thread(target=prepare)
        disk.full = {thread}
        thread.start()
        assert disk.opened.wait(10)
        if meanwhile == "rolled":
            following.expect(following.get(SIZE).end)
        disk.go_on.set()
        thread.join(10)
        assert (disk.listdir("log") == [SECOND]) is (meanwhile == "rolled")
    assert [error.errno for error in failed] == [errno.ENOSPC] * 2


def test_roll_on_a_full_disk_keeps_the_file_under_preparation(tmp_path: Path) -> None:
    disk = SlowDisk(str(tmp_path))
    disk.makedirs("log")
    following = NextSegment(SegmentFiles(disk, "log", SIZE))
    following.expect(SIZE)
    with pytest.raises(OSError, match="no room"):
        disk.full = {threading.current_thread()}
        following.get(SIZE)
    assert disk.listdir("log") == []  # no half segment is left behind
    thread = threading.Thread(target=following.prepare)
    started, go_on = disk.opened, disk.go_on
    thread.start()
    assert started.wait(10)
    with pytest.raises(OSError, match="no room"):
        following.get(SIZE)
    go_on.set()
    thread.join(10)
    assert following.is_prepared
    assert disk.listdir("log") == [SECOND]
