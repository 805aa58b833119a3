import errno
import os
from pathlib import Path

import pytest

from store.disk import OsDisk


def test_files(tmp_path: Path) -> None:
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
    total, available = disk.usage()
    assert 0 < available <= total


def test_a_full_disk_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    disk = OsDisk(str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            disk.open("f", allocate_bytes=10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_short_writes_and_reads_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_write(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_read(fd, min(size, 2), at))
    file = OsDisk(str(tmp_path)).open("f")
    file.pwrite(1, b"0123456789")
    assert file.size_bytes == 11
    assert file.pread(0, 50) == b"\x000123456789"
