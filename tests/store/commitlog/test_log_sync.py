from pathlib import Path

import pytest

from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.log_sync import LogSyncs
from raftmq.store.commitlog.segments import Segment, SegmentFiles
from raftmq.store.disk import OsDisk
from raftmq.store.errors import SyncFailed

SIZE = 1024


class Rig:
    """The syncs of a log of two segments, the second one new."""

    def __init__(self, root: Path) -> None:
        disk = OsDisk(str(root))
        disk.makedirs("log")
        files = SegmentFiles(disk, "log", SIZE)
        self.checkpoint = Checkpoint(disk, "checkpoint")
        self.checkpoint.open()
        self.took_s: list[float] = []
        self.syncs = LogSyncs(disk, "log", self.checkpoint, self.took_s.append)
        self.first, self.second = files.open(0), files.open(SIZE)
        self.syncs.created(self.first)
        self.syncs.created(self.second)

    def sync(self, end: int) -> list[object]:
        """Return the files that were synced."""
        ticket = self.syncs.start(end)
        if ticket is None:
            return []
        ticket.run()
        self.syncs.finish(ticket, self.second.start)
        return list(ticket.files)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def is_closed(segment: Segment) -> bool:
    try:
        segment.file.pread(0, 1)
    except OSError:
        return True
    return False


def test_log_sync_syncs_only_segments_written_since(rig: Rig) -> None:
    assert rig.sync(SIZE + 10) == [rig.first.file, rig.second.file]
    assert rig.syncs.durable_offset == rig.checkpoint.durable_offset == SIZE + 10
    assert rig.sync(SIZE + 10) == []
    rig.syncs.wrote(rig.second)
    assert rig.sync(SIZE + 20) == [rig.second.file]
    assert len(rig.took_s) == 2


def test_truncation_lowers_the_durable_offset_of_a_sync_ticket(rig: Rig) -> None:
    ticket = rig.syncs.start(SIZE + 100)
    assert ticket is not None
    rig.syncs.lower(SIZE + 50)
    ticket.run()
    rig.syncs.finish(ticket, SIZE)
    assert rig.syncs.durable_offset == SIZE + 50


def test_directory_is_synced_until_the_newest_segment_is_durable(rig: Rig) -> None:
    for end, names in ((SIZE, True), (SIZE + 1, True), (SIZE + 2, False)):
        rig.syncs.wrote(rig.second)
        ticket = rig.syncs.start(end)
        assert ticket is not None
        assert (ticket.directory == "log") is names, end
        ticket.run()
        rig.syncs.finish(ticket, SIZE)


def test_removed_segment_is_closed_after_its_last_use(rig: Rig) -> None:
    ticket = rig.syncs.start(SIZE + 1)
    hold = rig.syncs.hold(rig.first)
    assert ticket is not None
    rig.syncs.retire(rig.first)
    ticket.run()
    rig.syncs.finish(ticket, SIZE)
    assert hold.read(0, 3) == bytes(3)
    rig.syncs.release(hold)
    assert is_closed(rig.first)
    assert not is_closed(rig.second)
    rig.syncs.retire(rig.second)
    assert is_closed(rig.second), "at once"


def test_failed_log_sync_raises_no_durable_offset_afterwards(rig: Rig) -> None:
    assert rig.sync(10)
    rig.syncs.fail(OSError("broken"))
    with pytest.raises(SyncFailed, match="broken"):
        rig.syncs.start(SIZE)
    assert rig.syncs.durable_offset == 10
