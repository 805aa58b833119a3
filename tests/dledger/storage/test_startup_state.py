"""A replica at its start: recovered, or recovering and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.hard_state import HardStateFile, Owner
from raftmq.dledger.storage.startup_state import Promises
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.store.disk import OsDisk
from tests.simulator.disk import SimDisk

ASYNC, SYNC = True, False


def start(disk: SimDisk, unsynced: bool, log_is_empty: bool = False) -> Promises:
    disk.makedirs("raft")
    promises = Promises(disk, "raft", unsynced)
    promises.open(log_is_empty)
    return promises


def recovered_disk(unsynced: bool) -> SimDisk:
    """Of a replica that is recovered in term 3 and has just started."""
    disk = SimDisk(Random(1))
    start(disk, unsynced, log_is_empty=True).hard_state.save(HardState(3, "b"))
    disk.kill_process()
    assert start(disk, unsynced).recovering is None
    return disk


def test_replica_with_a_blank_disk_recovers_durably() -> None:
    disk = SimDisk(Random(1))
    promises = start(disk, SYNC, log_is_empty=True)
    assert promises.recovering == "there is no vote file"
    disk.lose_power()
    promises = Promises(disk, "raft", SYNC)
    assert promises.open(True) == HardState(0, None, recovered=False)
    assert promises.recovering == "it was recovering when it stopped"


def test_log_without_a_vote_file_recovers() -> None:
    disk = recovered_disk(SYNC)
    disk.remove("raft/hardstate")
    assert start(disk, SYNC).recovering == "there is no vote file"


def test_damaged_vote_file_recovers() -> None:
    disk = recovered_disk(SYNC)
    file = disk.open("raft/hardstate")
    file.pwrite(20, b"??")
    file.pwrite(4096 + 20, b"??")
    promises = Promises(disk, "raft", SYNC)
    assert promises.open(False) == HardState(0, None, recovered=False)
    assert "term and vote are lost" in str(promises.recovering)
    promises.hard_state.save(HardState(9, "c"))
    disk.kill_process()
    assert Promises(disk, "raft", SYNC).open(False) == HardState(9, "c")


@pytest.mark.parametrize("unsynced", [ASYNC, SYNC])
def test_killed_process_stays_recovered(unsynced: bool) -> None:
    disk = recovered_disk(unsynced)
    for _ in range(3):
        disk.kill_process()
        assert start(disk, unsynced).recovering is None


def test_power_cut_under_async_flush_makes_the_replica_recover() -> None:
    disk = recovered_disk(ASYNC)
    disk.lose_power()
    promises = Promises(disk, "raft", ASYNC)
    assert promises.open(False) == HardState(3, "b", recovered=False)  # term and vote are known
    assert "the machine went down" in str(promises.recovering)


def test_power_cut_under_sync_flush_keeps_the_replica_recovered() -> None:
    disk = recovered_disk(SYNC)
    disk.lose_power()
    assert start(disk, SYNC).recovering is None
    # It is what the process before acknowledged that counts, not what this one will.
    disk.lose_power()
    assert start(disk, ASYNC).recovering is None
    disk.lose_power()
    assert start(disk, SYNC).recovering is not None


def test_kill_before_a_power_cut_does_not_hide_the_power_cut() -> None:
    disk = recovered_disk(ASYNC)
    disk.kill_process()
    disk.lose_power()
    assert start(disk, ASYNC).recovering is not None


def test_clean_stop_keeps_the_replica_recovered_across_a_power_cut() -> None:
    disk = recovered_disk(ASYNC)
    disk.kill_process()
    promises = start(disk, ASYNC)
    promises.close(clean=True)
    disk.lose_power()
    assert start(disk, ASYNC).recovering is None
    disk.lose_power()  # and the mark of the clean stop went with that start
    assert start(disk, ASYNC).recovering is not None


def test_stop_without_clean_mark_counts_as_a_kill() -> None:
    disk = recovered_disk(ASYNC)
    disk.kill_process()
    start(disk, ASYNC).close(clean=False)
    disk.lose_power()
    assert start(disk, ASYNC).recovering is not None


def test_missing_boot_record_is_accepted_only_under_sync_flush() -> None:
    for unsynced in (ASYNC, SYNC):
        disk = recovered_disk(unsynced)
        disk.remove("raft/boot")
        promises = start(disk, unsynced)
        assert (promises.recovering is not None) is unsynced
        disk.kill_process()
        again = start(disk, unsynced)
        assert again.recovering in (None, "it was recovering when it stopped")


def rot(disk: SimDisk) -> None:
    file = disk.open("raft/boot")
    for at in (20, 4096 + 20):
        file.pwrite(at, b"??")
    file.sync()


def replace_note(disk: SimDisk) -> None:
    """As of a version that this one does not know."""
    note = SlotFile(disk, "raft/boot")
    note.load()
    note.save(b"\x07\x00boot")


@pytest.mark.parametrize("log_is_empty", [False, True])
@pytest.mark.parametrize("before", [ASYNC, SYNC])
@pytest.mark.parametrize("now", [ASYNC, SYNC])
@pytest.mark.parametrize("damage", [rot, replace_note])
def test_damaged_boot_record_makes_the_replica_recover(
    damage: Callable[[SimDisk], None], before: bool, now: bool, log_is_empty: bool
) -> None:
    """How the process before acknowledged is not known, nor what the log held."""
    disk = recovered_disk(before)
    damage(disk)
    disk.lose_power()
    promises = Promises(disk, "raft", now)
    assert promises.open(log_is_empty) == HardState(3, "b", recovered=False)
    assert "is not known" in str(promises.recovering)
    disk.kill_process()
    assert start(disk, now).recovering == "it was recovering when it stopped"


OWN = Owner("n1", b"g" * 16)


@pytest.mark.parametrize(
    "noted, log_is_empty, told",
    [
        (OWN, False, None),
        (Owner("n1"), False, None),  # its group had no id yet
        (Owner(), False, None),  # an earlier program's: the store's identity says whose it is
        (Owner("n2", b"g" * 16), False, "the vote file is that of replica n2"),
        (Owner("n1", b"h" * 16), False, "the vote file is that of a replica of group id 6868"),
        (OWN, True, "the log is gone"),
        (Owner(), True, "the log is gone"),
    ],
)
def test_vote_file_of_another_store_makes_the_replica_recover(
    noted: Owner, log_is_empty: bool, told: str | None
) -> None:
    disk = recovered_disk(SYNC)
    file = HardStateFile(disk, "raft/hardstate")
    file.owner = noted if file.load().recovered else OWN
    file.save(HardState(3, "b"))
    promises = Promises(disk, "raft", SYNC, lambda: OWN)
    assert promises.open(log_is_empty) == HardState(3, "b", recovered=told is None)
    assert (promises.recovering or "").startswith(told or "")
    disk.lose_power()
    again = HardStateFile(disk, "raft/hardstate")
    assert again.load() == HardState(3, "b", recovered=told is None)
    assert again.owner == OWN  # what it promises from now on is its own


def test_dropped_damaged_frames_make_the_replica_recover() -> None:
    disk = recovered_disk(SYNC)
    promises = Promises(disk, "raft", SYNC)
    promises.give_up("frames 3..7 are damaged everywhere")
    assert promises.open(False) == HardState(3, "b", recovered=False)
    assert promises.recovering == "frames 3..7 are damaged everywhere"


@pytest.mark.parametrize("operations", range(1, 14))
def test_kill_at_any_point_of_a_start_keeps_the_replica_recovering(operations: int) -> None:
    """The vote file says so before the note of the boot is renewed."""
    from tests.simulator.disk import SimCrash

    for seed in range(20):
        disk = recovered_disk(ASYNC)
        disk.rng = Random(seed)
        disk.lose_power()
        disk.crash_after(operations)
        try:
            start(disk, ASYNC)
        except SimCrash:
            pass
        disk.lose_power() if seed % 2 else disk.kill_process()
        assert start(disk, ASYNC).recovering is not None


def test_boot_id_of_the_operating_system_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(str(tmp_path))
    assert disk.boot_id() == disk.boot_id()
    monkeypatch.setattr("raftmq.store.disk.BOOT_ID_PATH", str(tmp_path / "none"))
    assert disk.boot_id() == ""
    # Unknown is never the same as before.
    promises = Promises(disk, "raft", ASYNC)
    promises.open(True)
    promises.hard_state.save(HardState(1, None))
    promises.close(clean=False)
    promises = Promises(disk, "raft", ASYNC)
    promises.open(False)
    assert "went down" in str(promises.recovering)
    promises.close(clean=False)
