"""Reads for clients: old frames are checked, whole, and once for all pieces of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftmq.dledger.raft.errors import FrameDamaged
from raftmq.dledger.storage import log_reads as framereads
from raftmq.dledger.storage.log_reads import FrameReads
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.store.errors import OffsetOutOfRange
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame
from raftmq.store.record import encode_record
from tests.dledger.storage.test_log_storage import SEGMENT, Opened, append, flip, sync
from tests.store.make import record

COUNT = 100  # frames, in two segments and a half


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Opened]:
    """A log that was opened again: nothing of it is in this process' memory."""
    first = Opened(tmp_path)
    append(first.open(), COUNT)
    sync(first.log)
    first.close()
    again = Opened(tmp_path)
    again.open()
    yield again
    again.close()


def reads_of(life: Opened) -> FrameReads:
    return FrameReads(life.log)


def whole(log: RaftLog) -> bytes:
    return b"".join(frame.data for frame in log.frames(1, 20))


def test_log_reads_return_the_bytes_of_the_file(life: Opened) -> None:
    reads, data = reads_of(life), whole(life.log)
    for offset in range(0, 1000, 37):
        for size in (1, 60, 161, 500):
            assert reads.read(offset, size) == data[offset : offset + size]


def test_log_reads_check_every_bit_of_a_frame(tmp_path: Path, life: Opened) -> None:
    frame = life.log.frames(30, 30)[0]
    for at in range(frame.position, frame.end):
        flip(tmp_path, at)
        with pytest.raises(FrameDamaged) as raised:
            reads_of(life).read(frame.payload_position, 4)
        assert raised.value.index == 30
        flip(tmp_path, at)
    assert reads_of(life).read(frame.payload_position, 4) == b"0030"


def test_damaged_adjacent_frame_does_not_affect_a_read(tmp_path: Path, life: Opened) -> None:
    frames = life.log.frames(29, 31)
    flip(tmp_path, frames[0].end - 1)
    flip(tmp_path, frames[2].position)
    reads = reads_of(life)
    assert reads.read(frames[1].position, frames[1].size_bytes) == frames[1].data
    with pytest.raises(FrameDamaged):
        reads.read(frames[1].position, frames[1].size_bytes + 1)


def test_damaged_frame_is_reported_for_repair_and_readable_after_it(
    tmp_path: Path, life: Opened
) -> None:
    reported: list[int] = []
    life.log.tell_damage(lambda damage: reported.append(damage.index))
    frame = life.log.frames(30, 30)[0]
    flip(tmp_path, frame.end - 1)
    reads = reads_of(life)
    for _ in range(2):  # what was found damaged is not remembered as read
        with pytest.raises(FrameDamaged):
            reads.read(frame.payload_position, 4)
    life.log.overwrite(frame).run()
    assert reads.read(frame.payload_position, 4) == b"0030"
    assert set(reported) == {30}


def test_recently_written_frames_are_read_without_a_check(tmp_path: Path, life: Opened) -> None:
    (frame,) = append(life.log)
    flip(tmp_path, frame.end - 1)
    reads = reads_of(life)
    assert reads.read(frame.position, frame.size_bytes) != frame.data
    assert reads.checked_bytes == 0


def test_frames_no_longer_in_memory_are_checked(tmp_path: Path) -> None:
    life = Opened(tmp_path, cache_bytes_max=1000)
    frames = append(life.open(), 50)
    assert life.log.memory_start == frames[-6].position  # of 160 bytes each
    flip(tmp_path, frames[-7].end - 1)
    with pytest.raises(FrameDamaged):
        reads_of(life).read(frames[-7].position, 1)
    life.close()


def test_truncated_frames_leave_the_read_cache(life: Opened) -> None:
    reads, old = reads_of(life), life.log.frames(90, 90)[0]
    assert reads.read(old.position, old.size_bytes) == old.data
    life.log.truncate(90)
    (new,) = append(life.log, term=2)
    sync(life.log)
    life.log._cache.clear()
    life.log._cache_first = life.log.last_index + 1
    assert new.position == old.position
    assert reads.read(new.position, new.size_bytes) == new.data


def test_read_after_the_last_frame_of_a_segment_returns_the_blank_record(life: Opened) -> None:
    index = life.log.index
    last = next(at for at in range(1, COUNT) if index.end_of(at) != index.position_of(at + 1))
    end = index.end_of(last)
    result = reads_of(life).read(end, 100)
    assert result == life.store.read(end, 100)
    assert len(result) == SEGMENT - end


def test_read_outside_of_the_log_is_rejected(life: Opened) -> None:
    reads, end = reads_of(life), life.log.index.end_position
    assert reads.read(end, 10) == b""
    assert reads.read(end - 10, 100) == life.store.read(end - 10, 100)
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRange):
            reads.read(offset, 1)
    assert reads.record_at(end) is None


def test_log_reads_cache_few_blocks(life: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framereads, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(framereads, "KEPT_BYTES_MAX", 3000)
    reads = reads_of(life)
    for index in range(1, COUNT):
        reads.read(life.log.index.position_of(index), 1)
    checked, again = reads.checked_bytes, set[int]()
    for index in range(COUNT - 1, 0, -1):
        position = life.log.index.position_of(index)
        reads.read(position, 1)
        if reads.checked_bytes > checked:
            break
        again.add(position // 1024)
    assert len(again) == 3, "blocks that are read without another check"


def test_large_frame_is_checked_once_in_every_bit(
    tmp_path: Path, life: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framereads, "BLOCK_BYTES", 100)
    monkeypatch.setattr(framereads, "STEP_BYTES", 16)
    monkeypatch.setattr(framereads, "PIECE_BYTES", 64)
    frame = life.log.frames(30, 30)[0]
    reads = reads_of(life)
    for start in range(frame.size_bytes):
        for end in range(start + 1, frame.size_bytes + 1):
            result = reads.read(frame.position + start, end - start)
            assert result == frame.data[start:end]
    assert len(reads._large) == 1
    for at in range(frame.position, frame.end):
        flip(tmp_path, at)
        with pytest.raises(FrameDamaged):
            reads_of(life).read(frame.payload_position, 4)
        if at >= frame.payload_position:  # the header is kept
            with pytest.raises(FrameDamaged):
                reads.read(at, 1)
        flip(tmp_path, at)
        assert reads.read(at, 1) == frame.data[at - frame.position :][:1]


@pytest.mark.parametrize("block", [1, 100, 161, 1000, 5000, 1 << 20])
def test_log_reads_are_equal_for_any_block_size(
    life: Opened, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A read may begin in any frame, and go over blocks, up to the segment's end."""
    monkeypatch.setattr(framereads, "BLOCK_BYTES", block)
    reads, end = reads_of(life), life.log.index.end_position
    for offset in range(0, end, 611):
        for size in (1, 200, 3000, 2 * SEGMENT):
            assert reads.read(offset, size) == life.store.read(offset, size)
    assert reads.checked_bytes


def test_sequential_pass_checks_each_frame_once(life: Opened) -> None:
    reads, index = reads_of(life), life.log.index
    for at in range(1, COUNT + 1):
        reads.read(index.position_of(at), index.size_of(at))
    assert reads.checked_bytes == sum(index.size_of(at) for at in range(1, COUNT + 1))


def records(log: RaftLog, count: int) -> tuple[Frame, list[tuple[int, bytes]]]:
    """Append a frame of records; return it, and where each record stands."""
    position, data = log.allocate(4000) + HEADER_SIZE_BYTES, b""
    result: list[tuple[int, bytes]] = []
    for number in range(count):
        stands_at = position + len(data)
        result.append(
            (stands_at, encode_record(record(physical_offset=stands_at, queue_offset=number)))
        )
        data += result[-1][1]
    start = position - HEADER_SIZE_BYTES
    frame = seal_frame(log.last_index + 1, 1, start, 7, FrameKind.MESSAGES, count, data)
    log.append((frame,))
    return frame, result


def test_log_reads_return_single_records_of_a_frame(tmp_path: Path) -> None:
    life = Opened(tmp_path, cache_bytes_max=0)
    log = life.open()
    frame, result = records(log, 10)
    append(log, 3)
    assert log.memory_start > frame.end
    reads = reads_of(life)
    for position, data in result:
        assert reads.record_at(position) == data
        assert reads.record_at(position + 1) is None
    assert reads.checked_bytes == life.log.index.end_position
    flip(tmp_path, result[3][0] + len(result[3][1]) - 1)  # a property
    with pytest.raises(FrameDamaged):
        reads_of(life).record_at(result[7][0])
    life.close()
