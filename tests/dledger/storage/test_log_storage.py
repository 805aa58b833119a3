"""The CommitLog as the Raft log: cache and file, cutting, syncing, recovering, retention."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raftmq.dledger.raft.errors import FrameDamaged
from raftmq.dledger.raft.repair import DamagedFrame, checked_frames
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import OsDisk, OsFile
from raftmq.store.errors import StoreDamaged, SyncFailed
from raftmq.store.frame import Frame, FrameKind, seal_frame
from tests.dledger.trims import trimmed

SEGMENT = 8192


class Opened:
    """One life of a log in `root`."""

    def __init__(self, root: Path, cache_bytes_max: int = 1 << 20) -> None:
        self.disk = OsDisk(str(root))
        self.mark = Checkpoint(self.disk, "checkpoint")
        self.mark.open()
        self.store = CommitLog(self.disk, "commitlog", SEGMENT, self.mark)
        self.store.open(restore=True)
        self.log = RaftLog(self.store, SlotFile(self.disk, "raft/trim"), cache_bytes_max)

    def open(self) -> RaftLog:
        self.log.open()
        return self.log

    def close(self) -> None:
        self.log.close()
        self.store.close()
        self.mark.close()


def append(log: RaftLog, count: int = 1, term: int = 1, size: int = 100) -> list[Frame]:
    frames = []
    for _ in range(count):
        index = log.last_index + 1
        payload = b"%04d" % index + b"." * (size - 4)
        frame = seal_frame(index, term, log.allocate(size), 7, FrameKind.COMMAND, 0, payload)
        log.append((frame,))
        frames.append(frame)
    return frames


def sync(log: RaftLog) -> int | None:
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    return log.finish_sync(ticket)


def flip(root: Path, position: int) -> None:
    path = root / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[position % SEGMENT] ^= 0x10
    path.write_bytes(data)


def test_empty_log_has_no_frames(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    assert (log.last_index, log.durable_index, log.start_sync()) == (0, 0, None)
    assert log.frames(1, 0) == ()
    life.close()


def test_frames_of_one_append_are_written_by_one_call_per_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = Opened(tmp_path / "leader"), Opened(tmp_path / "follower")
    frames = append(leader.open(), 300)
    log = follower.open()
    calls: list[int] = []
    write_many = follower.store.write_many

    def counted(position: int, buffers: Sequence[bytes | memoryview]) -> None:
        calls.append(position)
        write_many(position, buffers)

    monkeypatch.setattr(follower.store, "write_many", counted)
    log.append(frames[:1])
    log.append(frames[1:])
    files = sorted((tmp_path / "leader" / "commitlog").iterdir())
    assert calls == [0, frames[1].position, *(int(file.name) for file in files[1:])]
    assert len(files) > 3 and log.frames(1, 300) == tuple(frames)
    for life in (leader, follower):
        life.close()
    for file in files:
        assert file.read_bytes() == (tmp_path / "follower" / "commitlog" / file.name).read_bytes()


def test_written_frames_are_read_from_cache_and_from_file(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    frames = append(life.open(), 300)  # several segments
    assert life.log.frames(1, 300) == tuple(frames)
    assert life.log.reads_from_file == 0
    life.close()
    again = Opened(tmp_path)
    log = again.open()
    assert log.last_index == log.durable_index == 300
    assert log.frames(1, 300) == tuple(frames)
    assert log.reads_from_file == len(again.store.segments()) == 6  # one read each
    assert log.frames(57, 57) == (frames[56],)
    again.close()


def test_frame_cache_is_bounded_and_older_frames_are_read_from_file(tmp_path: Path) -> None:
    life = Opened(tmp_path, cache_bytes_max=1000)  # six frames of 160 bytes
    log = life.open()
    frames = append(log, 40)
    assert log.memory_start == frames[34].position
    assert log.frames(35, 40) == tuple(frames[34:])
    assert log.reads_from_file == 0
    assert log.frames(33, 40) == tuple(frames[32:])  # two of them from the file
    assert log.reads_from_file == 1
    big = append(log, size=3000)  # more than the cache: the last frame is always kept
    assert log.frames(41, 41) == tuple(big)
    assert log.reads_from_file == 1
    life.close()


@pytest.mark.parametrize("cache_bytes_max", [1 << 20, 200])
def test_bytes_max_limits_returned_frames(tmp_path: Path, cache_bytes_max: int) -> None:
    life = Opened(tmp_path, cache_bytes_max)
    log = life.open()
    append(log, 20)
    assert [f.index for f in log.frames(3, 20, 480)] == [3, 4, 5]
    assert [f.index for f in log.frames(3, 20, 1)] == [3]
    assert [f.index for f in log.frames(3, 4, 1 << 20)] == [3, 4]
    life.close()


def test_durable_index_rises_with_each_sync_ticket(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 3)
    ticket = log.start_sync()
    assert ticket is not None
    append(log, 2)  # behind the ticket: not promised by it
    ticket.run()
    assert log.finish_sync(ticket) == 3
    assert log.durable_index == 3
    assert sync(log) == 5
    assert log.start_sync() is None
    life.close()


def test_sync_across_a_truncation_does_not_raise_the_durable_index(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 3)
    assert sync(log) == 3
    append(log, 3)
    ticket = log.start_sync()
    assert ticket is not None
    log.truncate(5)
    new = append(log, 3, term=2)  # frames 5..7 of another term
    ticket.run()
    assert log.finish_sync(ticket) is None
    assert log.durable_index == 3
    assert sync(log) == 7
    assert log.frames(5, 7) == tuple(new)
    life.close()


def test_truncation_zeroes_the_removed_frames(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    frames = append(log, 100)  # three segments
    sync(log)
    log.truncate(11)
    assert (log.last_index, log.durable_index) == (10, 10)
    assert log.frames(8, 10) == tuple(frames[7:10])
    life.close()
    again = Opened(tmp_path)
    assert again.open().last_index == 10
    assert append(again.log, term=4)[0].position == frames[10].position
    again.close()


def test_torn_tail_is_truncated_on_open(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 5)
    sync(log)
    tail = append(log, 3)  # never synced
    life.close()
    flip(tmp_path, tail[0].position + 80)
    again = Opened(tmp_path)
    assert again.open().last_index == 5  # the two good ones behind the hole went as well
    assert append(again.log)[0].position == tail[0].position
    again.close()


def test_damage_before_durable_frames_is_rejected_without_truncation(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    frames = append(log, 8)
    sync(log)
    life.close()
    flip(tmp_path, frames[3].position + 80)
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "commitlog").iterdir())
    again = Opened(tmp_path)
    with pytest.raises(StoreDamaged) as caught:
        again.open()
    assert caught.value.position == frames[3].position
    again.close()
    after = sorted((p.name, p.read_bytes()) for p in (tmp_path / "commitlog").iterdir())
    assert before == after


def test_corrupt_frame_raises_an_error_on_read(tmp_path: Path) -> None:
    life = Opened(tmp_path, cache_bytes_max=200)
    log = life.open()
    frames = append(log, 8)
    result: list[FrameDamaged] = []
    log.tell_damage(result.append)
    flip(tmp_path, frames[2].position + 80)
    assert log.frames(1, 8) == tuple(frames[:2])  # what stands before it
    with pytest.raises(StoreDamaged) as caught:
        log.frames(3, 8)
    assert caught.value.position == frames[2].position
    assert [damage.index for damage in result] == [3, 3]
    assert log.frames(4, 8) == tuple(frames[3:])
    assert checked_frames(frames[2].data, log.damaged_frame(3), log.segment_end) == (frames[2],)
    ticket = log.overwrite(frames[2])
    assert log.frames(1, 8) == tuple(frames)
    ticket.run()
    life.store.finish_sync(ticket)
    with pytest.raises(AssertionError):
        log.overwrite(seal_frame(3, 2, frames[2].position, 7, FrameKind.COMMAND, 0, bytes(100)))
    life.close()


def test_damaged_frame_is_reported_only_with_a_repair_subscriber(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    frames = append(log, 4)
    flip(tmp_path, frames[2].position + 80)
    inside = frames[2].position + 90
    assert not log.frame_is_damaged(inside)
    requested: list[FrameDamaged] = []
    log.tell_damage(requested.append)
    assert log.frame_is_damaged(inside), "although the cache still has it"
    assert [damage.index for damage in requested] == [3]
    assert not log.frame_is_damaged(frames[3].position)
    assert not log.frame_is_damaged(log.index.end_position)
    life.close()


def test_repaired_log_equals_the_original_files(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    frames = append(life.open(), 100) + append(life.log, 100, term=2)
    sync(life.log)
    life.close()
    before = {p.name: p.read_bytes() for p in (tmp_path / "commitlog").iterdir()}
    for victim in (0, 49, 99, 198):
        flip(tmp_path, frames[victim].position + 8)
    flip(tmp_path, frames[150].position + 70)
    again = Opened(tmp_path)
    log = again.log
    expected = log.recover()
    requested = []
    while expected is not None:
        requested.append(expected)
        assert not log.is_open
        assert log.damage_reason
        frame = frames[expected.index - 1]
        prev_term = frames[expected.index - 2].term if expected.index > 1 else 0
        assert (expected.prev_term, expected.term) == (prev_term, 2 if expected.index == 151 else 0)
        assert checked_frames(frame.data, expected, log.segment_end) == (frame,)
        if expected.index < 199:
            following = frames[expected.index]
            assert log.following(frame.end) == (following.index, following.term)
        expected = log.repair((frame,), proven=True)
    assert [w.index for w in requested] == [1, 50, 100, 151, 199]
    assert log.is_open
    assert log.frames(1, 200) == tuple(frames)
    assert log.durable_index == 200
    append(log, 1, term=2)
    again.close()
    assert {
        name: data if name != max(before) else before[name]
        for name, data in ((p.name, p.read_bytes()) for p in (tmp_path / "commitlog").iterdir())
    } == before


def test_frames_after_damage_can_be_truncated(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    frames = append(life.open(), 200)
    sync(life.log)
    life.close()
    flip(tmp_path, frames[120].position + 8)
    again = Opened(tmp_path)
    assert again.log.recover() is not None
    again.log.cut_damaged()
    assert again.log.frames(1, 120) == tuple(frames[:120])
    assert again.log.last_index == again.log.durable_index == 120
    again.close()
    once_more = Opened(tmp_path)
    assert once_more.open().last_index == 120
    once_more.close()


@pytest.mark.parametrize("victim", [0, 85])
def test_lost_first_segment_is_repaired_or_truncated(tmp_path: Path, victim: int) -> None:
    """A lost first segment: where the log began is noted beside it."""
    life = Opened(tmp_path)
    log = life.open()
    frames = append(log, 80) + append(log, 160, term=2)
    sync(log)
    first = trimmed(log, 2 * SEGMENT)
    assert first > 81
    life.close()
    names = sorted(p.name for p in (tmp_path / "commitlog").iterdir())
    (tmp_path / "commitlog" / names[0]).unlink()
    again = Opened(tmp_path)
    expected = again.log.recover()
    assert expected == DamagedFrame(first, 2, 0, 2 * SEGMENT)
    if victim:
        count = sum(1 for f in frames if f.position // SEGMENT == 2)
        last = frames[first - 1 + count - 1]
        assert again.log.following(last.end) == (last.index + 1, 2)
        expected = again.log.repair(frames[first - 1 : first - 1 + count], proven=True)
        assert expected == DamagedFrame(
            last.index + 1, 2, 0, last.end
        )  # the blank record is still gone
        assert again.log.repair(frames[last.index : last.index + 1], proven=True) is None
        assert again.log.frames(first, 240) == tuple(frames[first - 1 :])
    else:
        again.log.cut_damaged()
        assert (again.log.index.first_index, again.log.last_index) == (first, first - 1)
        assert again.log.index.term_at(first - 1) == 2
        again.close()
        again = Opened(tmp_path)
        log = again.open()
        assert log.last_index == first - 1
        at_start = seal_frame(first, 3, log.allocate(10), 7, FrameKind.COMMAND, 0, bytes(10))
        assert at_start.position == 2 * SEGMENT
        log.append((at_start,))
    again.close()


def test_failed_sync_ends_all_later_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 3)
    ticket = log.start_sync()
    assert ticket is not None

    def fail(_: object) -> None:
        raise OSError(5, "says the test")

    monkeypatch.setattr("raftmq.store.disk.OsFile.sync", fail)
    with pytest.raises(OSError, match="says the test"):
        ticket.run()
    monkeypatch.undo()
    with pytest.raises(SyncFailed):
        log.start_sync()
    assert log.durable_index == 0
    life.close()


def test_retention_keeps_the_term_before_the_first_index(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 60, term=1)
    append(log, 140, term=3)
    sync(log)
    assert trimmed(log, SEGMENT - 1) == 1  # no whole segment lies below
    first = trimmed(log, 2 * SEGMENT + 100)
    assert life.store.min_offset == 2 * SEGMENT
    assert log.index.position_of(first) == 2 * SEGMENT
    term = log.index.term_at(first - 1)
    assert term == 3
    frames = log.frames(first, 200)
    life.close()
    again = Opened(tmp_path)
    log = again.open()
    assert (log.index.first_index, log.index.previous_term) == (first, 3)
    assert log.frames(first, 200) == frames
    again.close()


def test_deletion_interrupted_after_its_record_is_finished_on_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 200)
    sync(log)
    monkeypatch.setattr(life.store, "delete_before", lambda _: 0)
    first = trimmed(log, 2 * SEGMENT)
    assert life.store.min_offset == 0
    life.close()
    again = Opened(tmp_path)
    log = again.open()
    assert log.index.first_index == first
    assert log.index.previous_term == 1
    assert again.store.min_offset == 2 * SEGMENT
    again.close()


def test_full_disk_does_not_prevent_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 200)
    sync(log)
    existing = OsDisk.open

    def full(disk: OsDisk, path: str, **more: Any) -> OsFile:
        if not disk.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return existing(disk, path, **more)

    monkeypatch.setattr(OsDisk, "open", full)
    trimmed(log, 2 * SEGMENT)
    assert life.store.min_offset == 2 * SEGMENT
    life.close()


def test_missing_first_segment_without_a_retention_record_is_damage(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    append(log, 200)
    sync(log)
    trimmed(log, 2 * SEGMENT)
    life.close()
    (tmp_path / "raft" / "trim").unlink()
    again = Opened(tmp_path)
    with pytest.raises(StoreDamaged, match="damaged at 0: ends; durable up to"):
        again.open()
    again.close()


def test_log_storage_needs_an_open_store(tmp_path: Path) -> None:
    log = RaftLog(CommitLog(OsDisk(str(tmp_path)), "commitlog", SEGMENT))
    with pytest.raises(AssertionError, match="not open"):
        log.open()
