"""A pull of small messages that lie in large frames reads little, and always comes forward."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.dledger.raft.errors import FrameDamaged
from raftmq.dledger.storage.log_reads import STEP_BYTES, FrameReads
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.store.commitlog.commitlog import READ_BYTES_MAX
from raftmq.store.disk import OsDisk
from raftmq.store.get_message import GetStatus
from raftmq.store.message_reads import GetResult
from raftmq.store.message_store import MessageStore
from tests.store.make import FrameWriter, record
from tests.store.stores import raft_store

FRAMES, LARGE = 20, 1 << 20
SMALL_EACH = 2  # a small message at each side of a large one


class World:
    """A store with small messages in queue 0 and large ones in queue 1, none of it in memory."""

    def __init__(self, disk: OsDisk) -> None:
        self.store: MessageStore = raft_store(disk, segment_size_bytes=8 << 20)
        writer = FrameWriter(self.store.commitlog)
        small = [record(body=b"%03d" % n + b"s" * 297) for n in range(FRAMES * SMALL_EACH)]
        for n in range(FRAMES):
            large = record(queue_id=1, body=b"%03d" % n + bytes(LARGE))
            writer.messages([small[2 * n], large, small[2 * n + 1]])
        self.frames = writer.frames
        self.log = RaftLog(self.store.commitlog, cache_bytes_max=0)
        self.log.open()
        for frame in self.frames:
            self.store.derived.dispatch_frame(frame)
        self.served = self.store.commitlog.served = FrameReads(self.log)

    def pull(self, offset: int, count: int = 32, queue_id: int = 0) -> tuple[GetResult, int]:
        """Return the result, and how many bytes were read for it."""
        before = self.served.checked_bytes
        messages = self.store.reads.get_messages("T", queue_id, offset, count, 256 << 10)
        return messages, self.served.checked_bytes - before


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(OsDisk(str(tmp_path)))


def pass_through(world: World) -> tuple[list[int], list[int]]:
    """Pull all small messages; return the numbers of messages and of bytes read, by pull."""
    offset, counts, sizes = 0, [], []
    while offset < FRAMES * SMALL_EACH:
        result, size = world.pull(offset)
        assert result.status is GetStatus.FOUND and result.next_offset == offset + counts_of(result)
        offset = result.next_offset
        counts.append(result.message_count)
        sizes.append(size)
    return counts, sizes


def counts_of(found: GetResult) -> int:
    data = b"".join(found.buffers)
    assert found.size_bytes == len(data)
    return data.count(b"s" * 297)


def test_pull_reads_few_large_frames_and_delivers_their_messages(world: World) -> None:
    counts, sizes = pass_through(world)
    assert sum(counts) == FRAMES * SMALL_EACH
    assert max(sizes) <= READ_BYTES_MAX + world.frames[0].size_bytes
    assert min(counts[:-1]) >= SMALL_EACH * 3
    # Each frame is read once for its check. Afterwards the steps around the messages are.
    counts, sizes = pass_through(world)
    assert counts == [32, 8]
    assert max(sizes) <= 32 * 2 * STEP_BYTES


def test_pull_reads_less_than_twice_the_delivered_bytes_and_one_frame(world: World) -> None:
    for offset in range(FRAMES):
        result, size = world.pull(offset, 8, queue_id=1)
        assert result.message_count and size <= 2 * result.size_bytes + world.frames[0].size_bytes


def test_damage_after_the_frame_check_is_detected(world: World) -> None:
    pass_through(world)
    log, frame = world.store.commitlog, world.frames[5]
    last = frame.end - 10  # in the properties of the frame's second small message
    log.patch(last, bytes([log.read(last, 1)[0] ^ 1]))
    with pytest.raises(FrameDamaged):
        world.pull(0)
    log.patch(last, frame.data[-10:-9])
    assert sum(pass_through(world)[0]) == FRAMES * SMALL_EACH


def test_checksums_cached_for_large_frames_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.dledger.storage.log_reads.SUMS_MAX", 1000)  # of four frames
    pass_through(world)
    served = world.served
    assert served._sums == sum(len(one.sums) for one in served._large.values()) <= 1000
    assert len(served._large) == 3
