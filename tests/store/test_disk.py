import errno
import gc
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import raftmq.store.disk
from raftmq.store.disk import OsDisk


def test_os_disk_creates_reads_renames_and_removes_files(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path / "root"))
    disk.makedirs("a/b")
    file = disk.open("a/b/f", allocate_bytes=100)
    assert file.size_bytes == 100
    assert file.pread(90, 20) == bytes(10)
    file.pwrite(98, b"1234")
    assert file.size_bytes == 102
    file.pwritev(0, [b"ab", memoryview(b"cd")])
    file.pwritev(10, [b"x"] * 70)
    assert file.pread(0, 4) == b"abcd"
    assert file.pread(10, 70) == b"x" * 70
    file.truncate(3)
    assert file.pread(0, 10) == b"abc"
    file.sync()
    file.close()
    file.close()
    assert disk.open("a/b/f", allocate_bytes=2).size_bytes == 3  # never shortened
    disk.rename("a/b/f", "a/b/g")
    disk.sync_directory("a/b")
    assert disk.listdir("a/b") == ["g"]
    assert disk.exists("a/b/g")
    assert not disk.exists("a/b/f")
    disk.remove("a/b/g")
    assert disk.listdir("a/b") == []
    assert disk.listdir("nowhere") == []


@pytest.mark.parametrize(
    ("blocks", "free", "to_us", "expected"),
    [
        (1000, 290, 240, (71 * 4096 * 10, 240 * 4096, 75)),  # df: 75 %; 76 of 100 are not ours
        (1000, 1000, 1000, (0, 1000 * 4096, 0)),
        (1000, 50, 0, (950 * 4096, 0, 100)),  # what is left is root's
        (1000, 999, 999, (4096, 999 * 4096, 1)),  # df rounds up
        (0, 0, 0, (0, 0, 0)),  # a file system without blocks, as some of the kernel's
    ],
)
def test_disk_usage_is_counted_as_by_df(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    to_us: int,
    expected: tuple[int, int, int],
) -> None:
    stat = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=to_us, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: stat)
    usage = OsDisk(str(tmp_path)).usage()
    assert (usage.used_bytes, usage.available_bytes, usage.used_percent) == expected
    assert usage.size_bytes == usage.used_bytes + usage.available_bytes
    assert usage.used_ratio * 100 == pytest.approx(usage.used_percent, abs=1)


def test_failed_open_on_a_full_disk_leaks_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    disk = OsDisk(str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    gc.collect()  # or it closes others' meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            disk.open("f", allocate_bytes=10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_short_writes_and_reads_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_write(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_read(fd, min(size, 2), at))
    file = OsDisk(str(tmp_path)).open("f")
    file.pwrite(1, b"0123456789")
    assert file.size_bytes == 11
    assert file.pread(0, 50) == b"\x000123456789"


def test_directory_is_synced_without_a_free_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    disk = OsDisk(str(tmp_path))
    disk.makedirs("a")

    def no_descriptor(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor")

    def syncfs(fd: int) -> int:
        synced.append(fd)
        return 0

    monkeypatch.setattr(os, "open", no_descriptor)
    monkeypatch.setattr(raftmq.store.disk, "_SYNCFS", syncfs)
    disk.sync_directory("a")
    assert len(synced) == 1
    monkeypatch.setattr(raftmq.store.disk, "_SYNCFS", None)  # a system without it
    with pytest.raises(OSError, match="no descriptor"):
        disk.sync_directory("a")


def test_failed_directory_sync_is_raised_without_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(str(tmp_path))

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="the disk"):
        disk.sync_directory("")
