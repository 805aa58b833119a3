"""A full disk, a slow one, a failed one: what the parts of the shell that look after it do."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

import raftmq.dledger.storage.hard_state_writer
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.durations import Durations
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.hard_state_writer import HardStateSaver
from raftmq.dledger.storage.log_flusher import FlushMode, LogFlusher
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.log_writer import FrameWriter
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import OsDisk, OsFile
from raftmq.store.errors import SyncFailed
from raftmq.store.frame import Frame
from tests.dledger.group import make_frame
from tests.dledger.members import TroubledDisk
from tests.waiting import until

SEGMENT_SIZE_BYTES = 4096


class SmallDisk(OsDisk):
    """Has room for so many segments."""

    def __init__(self, root: str, segments_max: int) -> None:
        super().__init__(root)
        self.segments_max = segments_max
        self.error = errno.ENOSPC

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        new = allocate_bytes is not None and not self.exists(path)
        if new and len(self.listdir("commitlog")) >= self.segments_max:
            raise OSError(self.error, "says the test")
        return super().open(path, allocate_bytes=allocate_bytes)


def written(root: Path, segments_max: int) -> tuple[SmallDisk, RaftLog, FrameWriter]:
    disk = SmallDisk(str(root), segments_max)
    commitlog = CommitLog(disk, "commitlog", SEGMENT_SIZE_BYTES)
    commitlog.open()
    log = RaftLog(commitlog)
    log.open()
    return disk, log, FrameWriter(log, Durations(lambda: 0.0))


def frames(first: int, last: int, term: int = 1) -> list[Frame]:
    """Of 1,500 bytes: two to a segment."""
    made = []
    for index in range(first, last + 1):
        position = (index - 1) // 2 * SEGMENT_SIZE_BYTES + (index - 1) % 2 * 1560
        made.append(make_frame(index, term, position, bytes(1500)))
    return made


@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM]
)
def test_frames_that_a_full_disk_rejects_are_held_and_written_later(
    tmp_path: Path, error: int
) -> None:
    disk, log, writer = written(tmp_path, 1)
    disk.error = error
    full = writer.append(frames(1, 4))
    assert full is not None
    assert full.errno == error
    assert log.last_index == 2
    assert [frame.index for frame in writer.held] == [3, 4]
    assert writer.append(frames(5, 5)) is None  # behind them
    assert not writer.retry()
    assert [frame.index for frame in writer.held] == [3, 4, 5]
    disk.segments_max = 2
    assert not writer.retry()  # room for one more segment: two of the three
    assert log.last_index == 4
    disk.segments_max = 3
    assert writer.retry()
    assert log.last_index == 5
    assert log.frames(1, 5) == tuple(frames(1, 5))


def test_truncation_drops_held_frames_before_written_ones(tmp_path: Path) -> None:
    _, log, writer = written(tmp_path, 1)
    writer.append(frames(1, 4))
    writer.truncate(4)
    assert [frame.index for frame in writer.held] == [3]
    assert log.last_index == 2
    writer.truncate(2)
    assert writer.held == []
    assert log.last_index == 1
    assert writer.retry()
    assert writer.append(frames(2, 2, term=2)) is None
    assert log.index.term_at(2) == 2


def test_disk_error_other_than_full_is_raised(tmp_path: Path) -> None:
    disk, _, writer = written(tmp_path, 1)
    disk.error = errno.EIO
    with pytest.raises(OSError, match="says the test"):
        writer.append(frames(1, 4))


async def test_vote_is_saved_off_the_loop_and_a_hang_is_detected(tmp_path: Path) -> None:
    disk = TroubledDisk(str(tmp_path))
    disk.trouble_below = "raft/"
    file = HardStateFile(disk, "raft/hardstate")
    file.load()
    file.save(HardState(1, None))
    saver = HardStateSaver(file)
    outcomes: list[BaseException | None] = []
    finished = asyncio.Event()

    def done(error: BaseException | None) -> None:
        outcomes.append(error)
        finished.set()

    disk.let_sync.clear()
    assert saver.stalled_ms(5.0) == 0
    saver.save(HardState(2, "a"), done)
    assert saver.busy
    assert saver.stalled_ms(10.0) == 0
    assert saver.stalled_ms(3_010.0) == 3_000
    assert outcomes == []
    disk.let_sync.set()
    await finished.wait()
    assert outcomes == [None]
    assert not saver.busy
    assert saver.stalled_ms(9_999.0) == 0
    disk.fail_syncs = True
    finished.clear()
    saver.save(HardState(3, "a"), done)
    await finished.wait()
    assert isinstance(outcomes[1], OSError)
    await saver.stop()


class ShortFile(HardStateFile):
    """Fails with these errors first."""

    def __init__(self, disk: OsDisk, errors: list[int]) -> None:
        super().__init__(disk, "raft/hardstate")
        self.errors = errors

    def save(self, state: HardState) -> None:
        if self.errors:
            raise OSError(self.errors.pop(0), "says the test")
        super().save(state)


async def test_vote_without_a_file_descriptor_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raftmq.dledger.storage.hard_state_writer, "RETRY_S", 0.001)
    file = ShortFile(OsDisk(str(tmp_path)), [errno.EMFILE, errno.ENOSPC])
    file.load()
    saver = HardStateSaver(file)
    outcomes: asyncio.Queue[BaseException | None] = asyncio.Queue()
    saver.save(HardState(1, "a"), outcomes.put_nowait)
    assert await outcomes.get() is None  # told once, when it is durable
    assert outcomes.empty()
    assert not saver.busy
    assert HardStateFile(OsDisk(str(tmp_path)), "raft/hardstate").load() == HardState(1, "a")
    file.errors.append(errno.EIO)
    saver.save(HardState(2, "a"), outcomes.put_nowait)
    assert isinstance(await outcomes.get(), OSError)
    await saver.stop()


async def test_vote_that_waits_for_a_descriptor_counts_as_a_stall(tmp_path: Path) -> None:
    file = ShortFile(OsDisk(str(tmp_path)), [errno.EMFILE] * 2)
    saver = HardStateSaver(file)
    saver.save(HardState(1, "a"), lambda error: pytest.fail("the node has stopped"))
    assert saver.stalled_ms(10.0) == 0
    await until(lambda: len(file.errors) == 1)
    assert saver.busy
    assert saver.stalled_ms(3_010.0) == 3_000
    await saver.stop()  # nobody waits for descriptors then
    assert len(file.errors) == 1


@pytest.mark.parametrize("fails_at", [1, 2])
def test_slot_file_with_an_unfinished_creation_is_created_again(
    tmp_path: Path, fails_at: int
) -> None:
    class FailsOnce(OsDisk):
        opened = 0

        def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
            self.opened += 1
            if self.opened == fails_at:
                raise OSError(errno.EMFILE, "says the test")
            return super().open(path, allocate_bytes=allocate_bytes)

    file = SlotFile(FailsOnce(str(tmp_path)), "raft/notes")
    assert file.load() is None
    with pytest.raises(OSError, match="says the test"):
        file.save(b"one")
    file.save(b"two")
    file.close()
    assert SlotFile(OsDisk(str(tmp_path)), "raft/notes").load() == b"two"


@pytest.mark.parametrize(
    "error", [OSError(errno.EROFS, "says the test"), SyncFailed("a truncation's sync failed")]
)
async def test_sync_whose_durability_cannot_be_recorded_is_a_failure(
    tmp_path: Path, error: Exception
) -> None:
    """The error was lost in a callback: the leader went on, and never counted its own copy."""
    _, log, writer = written(tmp_path, 1)
    failures: list[Exception] = []
    flusher = LogFlusher(log, FlushMode.SYNC, 500, Durations(lambda: 0.0))
    flusher.start(lambda index: failures.append(AssertionError(index)), failures.append)

    def finish(ticket: object) -> int:
        raise error

    log.finish_sync = finish  # type: ignore[method-assign]
    writer.append(frames(1, 1))
    flusher.written()
    await until(lambda: bool(failures))
    await flusher.stop()
    assert failures == [error]
    assert not flusher.all_durable
