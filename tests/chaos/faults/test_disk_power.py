"""The kernel's own power cut, and why it cannot be had where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.faults import power
from raftmq.chaos.faults.power import LoopDisk, unavailable
from raftmq.store.disk import OsDisk


@contextmanager
def seen_from_elsewhere() -> Iterator[None]:
    """A process in its own mount namespace keeps the current mounts, like processes of a second
    cluster in network namespaces (`ip netns exec`)."""
    program = shutil.which("unshare")
    assert program is not None
    process = subprocess.Popen([program, "--mount", "sleep", "600"])
    try:
        while os.readlink(f"/proc/{process.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def test_loop_disk_keeps_only_synced_bytes_over_a_power_cut(tmp_path: Path) -> None:
    """The kernel does what the fault layer imitates, or the test names the obstacle."""
    loop = LoopDisk(tmp_path / "store")
    reason = unavailable()
    if reason is not None:
        with pytest.raises(ClusterError) as refused:
            loop.make()
        assert str(refused.value) == reason
        return
    try:
        disk = OsDisk(str(loop.make()))
        file = disk.open("f", allocate_bytes=1 << 16)
        file.pwrite(0, b"synced" * 100)
        file.sync()
        disk.sync_directory("")
        file.pwrite(0, b"not yet" * 100)
        file.close()
        late = disk.open("late")
        late.pwrite(0, b"x")
        late.close()
        del disk  # it keeps a descriptor, and busy file systems cannot be unmounted
        with seen_from_elsewhere():
            LoopDisk.of_store(tmp_path / "store").cut()
        (tmp_path / "store" / "lock").touch()  # it is written to again
        assert (tmp_path / "store" / "f").read_bytes()[:600] == b"synced" * 100
        assert not (tmp_path / "store" / "late").exists()
    finally:
        loop.remove()
    assert not loop.image.exists()
    loop.remove()
    assert not os.path.ismount(tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert (tmp_path / "store" / "f").read_bytes()[:600] == b"synced" * 100  # for the audit


def test_loop_disk_obstacles_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert unavailable() == "a loop device and mounting need root"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert unavailable() == "this machine has no loop devices (/dev/loop-control)"
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(power, "_program", lambda name: "" if name == "mkfs.ext4" else name)
    assert unavailable() == "mkfs.ext4 is not installed"
    monkeypatch.setattr(power, "_program", lambda name: name)
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "nodev\tproc\n\text4\n")
    assert unavailable() is None
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "nodev\tproc\n\txfs\n")
    assert unavailable() == "the kernel has no ext4 (/proc/filesystems)"


def test_store_without_its_own_file_system_has_no_kernel_power_cut(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no file system of its own"):
        LoopDisk.of_store(tmp_path)
