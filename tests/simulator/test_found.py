"""Faults that the simulator found in the code below it, each as a test of its own.

(The heartbeat answer that seemed to forget is tests/dledger/raft/test_core.py's.)
"""

from __future__ import annotations

from random import Random

import pytest

from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.frame import FrameKind, seal_frame
from tests.simulator.disk import SimCrash, SimDisk


@pytest.mark.parametrize("operations", range(1, 20))
def test_loaded_hard_state_is_durable(operations: int) -> None:
    """Killed at any operation of making or saving it; what is read then survives a power cut."""
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.crash_after(operations)
        try:
            file = HardStateFile(disk, "raft/hardstate")
            file.load()
            file.save(HardState(1, "a"))
            file.save(HardState(2, "b"))
        except SimCrash:
            pass
        disk.kill_process()
        loaded = HardStateFile(disk, "raft/hardstate").load()
        disk.lose_power()
        after = HardStateFile(disk, "raft/hardstate").load()
        assert after == loaded


def test_smaller_frame_replaces_a_truncated_frame_that_closed_its_segment() -> None:
    disk = SimDisk(Random(1))
    commitlog = CommitLog(disk, "commitlog", 4096)
    commitlog.open()
    log = RaftLog(commitlog)
    log.open()
    for index, size in ((1, 3000), (2, 2000)):
        frame = seal_frame(index, 1, log.allocate(size), 0, FrameKind.COMMAND, 0, bytes(size))
        log.append((frame,))
    assert log.index.position_of(2) == 4096
    log.truncate(2)
    small = seal_frame(2, 2, log.index.end_of(1), 0, FrameKind.COMMAND, 0, b"small")
    assert small.position < 4096
    log.append((small,))
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    disk.lose_power()
    commitlog = CommitLog(disk, "commitlog", 4096)
    commitlog.open()
    again = RaftLog(commitlog)
    again.open()
    assert again.frames(1, 2)[1] == small


@pytest.mark.parametrize("seed", range(20))
def test_restored_segment_makes_the_durable_mark_durable(seed: int) -> None:
    """The durable mark stood above it, but had not been synced: the start that restored the
    segment's file has to see to that."""
    disk = SimDisk(Random(seed))
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    commitlog = CommitLog(disk, "commitlog", 4096, mark)
    commitlog.open()
    log = RaftLog(commitlog)
    log.open()
    for index in range(1, 7):
        frame = seal_frame(index, 1, log.allocate(1500), 0, FrameKind.COMMAND, 0, bytes(1500))
        log.append((frame,))
        ticket = log.start_sync()
        assert ticket is not None
        ticket.run()
        log.finish_sync(ticket)
    disk.kill_process()
    assert disk.lose_file("commitlog/00000000000000004096")
    for lose in (disk.kill_process, disk.lose_power):
        mark = Checkpoint(disk, "checkpoint")
        mark.open(verify=True)
        commitlog = CommitLog(disk, "commitlog", 4096, mark)
        commitlog.open(restore=True)
        assert max(commitlog.restored_end, commitlog.durable_hint) >= 8192
        lose()
    mark = Checkpoint(disk, "checkpoint")
    mark.open(verify=True)
    assert mark.durable_offset >= 8192
