"""The disk that forgets: what it must keep, what it may lose, and that it really loses it."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulator.disk import SimCrash, SimDisk

WRITTEN = b"0123456789abcdef" * 2  # longer than what never tears


def fates(write_sync: bool, tries: int = 200) -> set[bytes]:
    """Return what 200 power cuts leave of 32 bytes written over zeros."""
    result = set()
    for seed in range(tries):
        disk = SimDisk(Random(seed))
        file = disk.open("f", allocate_bytes=32)
        file.sync()
        disk.sync_directory("")
        file.pwrite(0, WRITTEN)
        if write_sync:
            file.sync()
        disk.lose_power()
        result.add(disk.open("f").pread(0, 32))
    return result


def test_simulated_disk_keeps_synced_writes() -> None:
    assert fates(write_sync=True) == {WRITTEN}


def test_simulated_disk_keeps_drops_or_tears_unsynced_writes() -> None:
    result = fates(write_sync=False)
    assert WRITTEN in result
    assert bytes(32) in result
    torn = result - {WRITTEN, bytes(32)}
    assert any(data.endswith(b"\0") for data in torn)
    assert any(data.startswith(b"\0") for data in torn)


def test_simulated_disk_never_tears_a_write_within_one_sector() -> None:
    for seed in range(100):
        disk = SimDisk(Random(seed))
        file = disk.open("f", allocate_bytes=8)
        file.sync()
        disk.sync_directory("")
        file.pwrite(0, WRITTEN[:8])
        disk.lose_power()
        assert disk.open("f").pread(0, 8) in (bytes(8), WRITTEN[:8])


def test_simulated_unsynced_writes_survive_independently() -> None:
    result = set()
    for seed in range(200):
        disk = SimDisk(Random(seed))
        file = disk.open("f", allocate_bytes=2)
        file.sync()
        disk.sync_directory("")
        file.pwrite(0, b"a")
        file.pwrite(1, b"b")
        disk.lose_power()
        result.add(disk.open("f").pread(0, 2))
    assert result == {b"\0\0", b"a\0", b"\0b", b"ab"}


def test_killed_process_loses_only_its_open_files() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f")
    file.pwrite(0, b"x")
    disk.kill_process()
    assert disk.open("f").pread(0, 9) == b"x"
    with pytest.raises(AssertionError):
        file.pwrite(0, b"y")


def test_simulated_names_survive_up_to_some_operation() -> None:
    result = set()
    for seed in range(100):
        disk = SimDisk(Random(seed))
        disk.open("a").sync()
        disk.sync_directory("")
        disk.open("b").sync()
        disk.rename("b", "c")
        disk.remove("a")
        disk.lose_power()
        result.add(tuple(disk.listdir("")))
    assert result == {("a",), ("a", "b"), ("a", "c"), ("c",)}


def test_simulated_rename_is_atomic() -> None:
    result = set()
    for seed in range(50):
        disk = SimDisk(Random(seed))
        for name, content in (("old", b"old"), ("new", b"new")):
            file = disk.open(name)
            file.pwrite(0, content)
            file.sync()
        disk.sync_directory("")
        disk.rename("new", "old")
        disk.lose_power()
        result.add(disk.open("old").pread(0, 9))
    assert result == {b"old", b"new"}


def test_simulated_sync_does_not_cover_later_writes() -> None:
    left = set()
    for seed in range(50):
        disk = SimDisk(Random(seed))
        file = disk.open("f", allocate_bytes=2)
        file.pwrite(0, b"a")
        disk.sync_horizon = disk.operations
        file.pwrite(1, b"b")
        file.sync()
        disk.sync_horizon = None
        disk.sync_directory("")
        disk.lose_power()
        left.add(disk.open("f").pread(0, 2))
    assert left == {b"a\0", b"ab"}


def test_simulated_disk_crashes_at_the_planned_operation() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f")
    disk.crash_after(2)
    file.pwrite(0, b"whole and well")
    with pytest.raises(SimCrash):
        file.pwrite(14, b"perhaps in part")
    disk.kill_process()
    data = disk.open("f").pread(0, 99)
    assert data.startswith(b"whole and well")
    assert b"whole and wellperhaps in part".startswith(data)


def test_simulated_corruption_changes_only_durable_bytes() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("a", allocate_bytes=8)
    file.pwrite(0, b"abcdefgh")

    def upper(old: bytes) -> bytes:
        return old[:2].upper() + old[2:]

    assert not disk.spoil("a", 2, upper), "what is not durable does not rot"
    file.sync()
    assert not disk.spoil("a", 2, upper), "nor does a file without a durable name"
    disk.sync_directory("")
    assert disk.spoil("a", 2, upper)
    assert not disk.spoil("a", 2, upper), "nothing changes any more"
    assert file.pread(0, 8) == disk.durable("a") == b"abCDefgh"
    assert disk.spoil("a", 5, lambda _: b"")
    disk.lose_power()
    assert disk.durable("a") == b"abCDe"
    assert disk.lose_file("a")
    assert not disk.lose_file("a")
    assert not disk.exists("a")
    assert disk.durable("a") == b""


def test_checkpoint_never_tears() -> None:
    torn = set()
    for seed in range(200):
        for path in ("checkpoint", "other"):
            disk = SimDisk(Random(seed))
            file = disk.open(path, allocate_bytes=64)
            file.sync()
            disk.sync_directory("")
            file.pwrite(0, b"x" * 48)
            disk.lose_power()
            if 0 < disk.durable(path).count(b"x") < 48:
                torn.add(path)
    assert torn == {"other"}
