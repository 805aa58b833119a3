import errno
from pathlib import Path

import pytest

from raftmq.store.disk import OsDisk, OsFile
from raftmq.store.file_cache import FileCache


class ScarceDisk(OsDisk):
    """Has descriptors for so many files at a time."""

    def __init__(self, root: str, files_max: int) -> None:
        super().__init__(root)
        self.files_max = files_max
        self.opened: list[OsFile] = []

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        if sum(file._fd >= 0 for file in self.opened) >= self.files_max:
            raise OSError(errno.EMFILE, "no descriptor")
        self.opened.append(super().open(path, allocate_bytes=allocate_bytes))
        return self.opened[-1]


def test_file_cache_closes_the_oldest_file_without_a_free_descriptor(tmp_path: Path) -> None:
    disk = ScarceDisk(str(tmp_path), 2)
    cache = FileCache(disk, 10)
    for name in ("a", "b", "c"):
        cache.get(name).pwrite(0, name.encode())
    assert len(cache) == 2
    assert cache.get("a").pread(0, 1) == b"a"
    cache.close()
    disk.files_max = 0
    with pytest.raises(OSError, match="no descriptor"):
        cache.get("a")


def test_file_cache_keeps_the_most_recently_used(tmp_path: Path) -> None:
    cache = FileCache(OsDisk(str(tmp_path)), 2)
    first = cache.get("a")
    cache.get("b")
    assert cache.get("a") is first
    cache.get("c")  # b goes
    assert cache.get("a") is first
    cache.forget("a")
    cache.forget("nothing")
    assert len(cache) == 1
    cache.close()
    assert len(cache) == 0
