from itertools import pairwise

import pytest

from raftmq.store.checkpoint import Checkpoint, CheckpointFields
from raftmq.store.commitlog.commitlog import CommitLog, ReadBudget
from raftmq.store.commitlog.recovery import (
    FrameHeader,
    FrameRecovery,
    FrameWalk,
    recover_records,
)
from raftmq.store.disk import OsDisk
from raftmq.store.errors import StoreDamaged, StoreError
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame
from raftmq.store.record import encode_record
from tests.store.make import PLAIN, FrameWriter, new_log, record, recover_frames, sync

SIZE = 2048


def written(disk: OsDisk, count: int = 12) -> FrameWriter:
    """A log of several segments, closed."""
    writer = FrameWriter(new_log(disk, SIZE))
    for n in range(count):
        if n % 3 == 2:
            writer.command(b"c" * (100 + n))
        else:
            writer.messages([record(body=b"x" * (50 * n % 200))] * (1 + n % 4))
    writer.log.close()
    return writer


def reopened(disk: OsDisk) -> CommitLog:
    return new_log(disk, SIZE)


def overwrite(disk: OsDisk, position: int, data: bytes) -> None:
    file = disk.open(f"commitlog/{position // SIZE * SIZE:020d}")
    file.pwrite(position % SIZE, data)
    file.close()


def test_recovery_reads_every_frame_of_all_segments(disk: OsDisk) -> None:
    writer = written(disk)
    log = reopened(disk)
    seen: list[FrameHeader] = []
    recovered = recover_frames(log, 0, seen.append)
    assert len(log.segments()) > 2
    assert [(h.index, h.term, h.position, h.end, h.kind) for h in seen] == [
        (f.index, f.term, f.position, f.end, f.kind) for f in writer.frames
    ]
    assert recovered.torn is None
    assert (recovered.first, recovered.last) == (seen[0], seen[-1])
    assert recovered.end_offset == log.max_offset == writer.frames[-1].end
    assert log.durable_offset == log.max_offset
    again = recover_frames(log, log.max_offset)
    assert again == recovered
    middle = writer.frames[4]
    walk = FrameWalk(log, middle.position, writer.frames[8].position)
    assert [h.index for h in walk] == [5, 6, 7, 8]
    assert (seen[3].position, seen[3].end) == (writer.frames[3].position, writer.frames[3].end)


def test_recovery_of_an_empty_log(disk: OsDisk) -> None:
    log = new_log(disk, SIZE)
    assert recover_frames(log).end_offset == 0
    with pytest.raises(StoreDamaged):
        recover_frames(log, durable_hint=1)


@pytest.mark.parametrize("how", ["zeros", "garbage"])
def test_recovery_truncates_a_tear_at_every_byte_of_the_last_frame(disk: OsDisk, how: str) -> None:
    writer = written(disk, 4)
    last = writer.frames[-1]
    complete = bytes(last.data)
    for at in range(len(complete)):
        rest = bytes(len(complete) - at) if how == "zeros" else b"\xa5" * (len(complete) - at)
        overwrite(disk, last.position, complete[:at] + rest)
        log = reopened(disk)
        recovered = recover_frames(log, last.position)
        if complete[:at] + rest == complete:
            assert recovered.end_offset == last.end
        else:
            assert recovered.end_offset == log.max_offset == last.position
            assert (recovered.torn is None) == (not any(complete[:at]) and how == "zeros")
            start = last.position - last.position % SIZE
            file = disk.open(f"commitlog/{start:020d}")
            assert not any(file.pread(last.position - start, len(complete)))
            file.close()
        log.close()


@pytest.mark.parametrize("victim", range(12))
@pytest.mark.parametrize("part", ["header", "payload"])
def test_recovery_never_truncates_damage_below_the_durable_mark(
    disk: OsDisk, victim: int, part: str
) -> None:
    writer = written(disk)
    frame = writer.frames[victim]
    at = frame.position + (20 if part == "header" else HEADER_SIZE_BYTES + 3)
    overwrite(disk, at, b"\xff\xfe")
    names = disk.listdir("commitlog")
    before = [disk.open(f"commitlog/{n}").pread(0, SIZE) for n in names]
    log = reopened(disk)
    checked_from = log.segments()[-3].start
    if part == "payload" and frame.position < checked_from:
        assert recover_frames(log, writer.frames[-1].end).torn is None  # old: headers only
        return
    with pytest.raises(StoreDamaged) as caught:
        recover_frames(log, writer.frames[-1].end)
    assert caught.value.position == frame.position
    assert [disk.open(f"commitlog/{n}").pread(0, SIZE) for n in names] == before
    assert not log.settled


@pytest.mark.parametrize("committed", [True, False])
def test_recovery_checks_uncommitted_payloads_of_any_age(disk: OsDisk, committed: bool) -> None:
    """Damage in it is found while a peer may still supply it, or while no other can lead."""
    writer = written(disk, 36)
    frame = writer.frames[0]
    overwrite(disk, frame.position + HEADER_SIZE_BYTES + 3, b"\xff\xfe")
    end = writer.frames[-1].end
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    mark.write(CheckpointFields(confirm_offset=end if committed else frame.position))
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open()
    assert frame.end < log.segments()[-3].start
    if committed:
        assert recover_frames(log, end).end_offset == end
        return
    with pytest.raises(StoreDamaged) as caught:
        recover_frames(log, end)
    assert caught.value.position == frame.position


@pytest.mark.parametrize("victim", range(12))
@pytest.mark.parametrize("hole", [bytes(30), b"\xff" * 30])
def test_recovery_truncates_a_hole_above_the_durable_mark(
    disk: OsDisk, victim: int, hole: bytes
) -> None:
    """Pages reach the disk in any order: valid frames may stand behind the hole."""
    writer = written(disk)
    frame = writer.frames[victim]
    overwrite(disk, frame.position, hole)
    log = reopened(disk)
    recovered = recover_frames(log, frame.position)
    end = writer.frames[victim - 1].end if victim else 0
    assert recovered.end_offset == log.max_offset == end
    assert recovered.torn
    following = FrameWriter(log, term=2, index=victim)
    following.command(b"after")
    log.close()
    log = reopened(disk)
    assert [h.term for h in FrameWalk(log, 0)] == [1] * victim + [2]


def test_recovery_finds_a_lost_page_in_the_middle_of_a_segment(disk: OsDisk) -> None:
    """Zeros where a whole frame was, and frames behind it in the same segment."""
    writer = written(disk, 4)
    frame = writer.frames[1]
    overwrite(disk, frame.position, bytes(frame.size_bytes))
    recovered = recover_frames(reopened(disk), 0)
    assert recovered.end_offset == frame.position
    assert recovered.torn == "zeros, and something behind them"


def test_recovery_finds_a_lost_blank_record(disk: OsDisk) -> None:
    writer = written(disk)
    first = next(i for i, f in enumerate(writer.frames) if f.position == SIZE)
    end = writer.frames[first - 1].end
    overwrite(disk, end, bytes(8))
    with pytest.raises(StoreDamaged):
        recover_frames(reopened(disk), SIZE + 1)
    recovered = recover_frames(reopened(disk), end)
    assert recovered.end_offset == end
    assert recovered.torn == "zeros, and frames in the next segment"


def test_recovery_drops_a_trailing_blank_record(disk: OsDisk) -> None:
    writer = written(disk)
    first = next(i for i, f in enumerate(writer.frames) if f.position == SIZE)
    overwrite(disk, SIZE, bytes(SIZE))
    for segment in disk.listdir("commitlog")[2:]:
        disk.remove(f"commitlog/{segment}")
    log = reopened(disk)
    recovered = recover_frames(log, writer.frames[first - 1].end)
    assert recovered.torn is None
    assert log.max_offset == writer.frames[first - 1].end
    assert log.allocate(10) == log.max_offset


def test_recovery_stops_at_a_frame_that_does_not_continue_the_log(disk: OsDisk) -> None:
    """Stale bytes never pass for a continuation: index, term and position must fit."""
    for index, term, shift in ((3, 2, 0), (2, 0, 0), (1, 1, 0), (2, 1, 60)):
        log = new_log(OsDisk(f"{disk.root}/{index}-{term}-{shift}"), SIZE)
        writer = FrameWriter(log, term=1)
        writer.command()
        stale = seal_frame(index, term, log.max_offset + shift, 0, FrameKind.NOOP, 0, b"")
        log.write(log.max_offset, stale.data)
        walk = FrameWalk(log, 0)
        assert [h.index for h in walk] == [1]
        assert walk.bad_position == writer.frames[0].end
        assert walk.reason


def test_durable_mark_in_the_checkpoint_is_a_hint(disk: OsDisk) -> None:
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open()
    writer = FrameWriter(log)
    for _ in range(5):
        writer.command(b"x" * 50)
    sync(log)
    unsynced = writer.command(b"y" * 50)
    log.close()
    overwrite(disk, writer.frames[2].position + 30, b"\xff")
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open()
    with pytest.raises(StoreDamaged):
        recover_frames(log)
    overwrite(disk, writer.frames[2].position, writer.frames[2].data)
    overwrite(disk, unsynced.position + 30, b"\xff")
    assert recover_frames(log).end_offset == unsynced.position


def test_recovery_reads_only_headers_of_old_segments(disk: OsDisk) -> None:
    log = new_log(disk, 1 << 20)
    writer = FrameWriter(log)
    for _ in range(20):
        writer.command(bytes(400_000))
    log.close()
    log = new_log(disk, 1 << 20)
    read = 0
    real = log.read

    def counting(offset: int, size: int, budget: ReadBudget | None = None) -> bytes:
        nonlocal read
        data = real(offset, size, budget)
        read += len(data)
        return data

    log.read = counting  # type: ignore[method-assign]
    recovered = recover_frames(log, writer.frames[-1].end)
    assert recovered.last is not None
    assert recovered.last.index == 20
    assert read < 6 * 400_000 + 4_000_000  # of 8 MB: three segments and window fringes


# -- classic ------------------------------------------------------------------------------------


def classic(disk: OsDisk, count: int = 30) -> list[tuple[int, bytes]]:
    log = new_log(disk, SIZE)
    result = []
    for n in range(count):
        item = record(body=b"x" * (n % 90), store_timestamp_ms=1_000_000 + n * 1000)
        size = len(encode_record(item))
        position = log.allocate(size)
        data = encode_record(
            record(
                body=item.body,
                physical_offset=position,
                store_timestamp_ms=item.store_timestamp_ms,
                queue_offset=n,
            )
        )
        log.write(position, data)
        result.append((position, data))
    log.close()
    return result


def test_classic_recovery_truncates_a_tear_at_every_byte(disk: OsDisk) -> None:
    records = classic(disk, 8)
    position, data = records[-1]
    for at in range(len(data)):
        overwrite(disk, position, data[:at] + bytes(len(data) - at))
        log = reopened(disk)
        dispatch_from = recover_records(log, CheckpointFields(), clean=False)
        if at >= len(data) - len(PLAIN.properties):
            # The format's own limit: BODYCRC covers the body, nothing covers the properties.
            assert log.max_offset == position + len(data)
            continue
        assert log.max_offset == position
        assert dispatch_from == 0
        log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_classic_recovery_truncates_at_the_first_damaged_record(disk: OsDisk, clean: bool) -> None:
    records = classic(disk)
    position = records[-5][0]
    overwrite(disk, position + 88, b"\xff\xff")
    log = reopened(disk)
    dispatch_from = recover_records(log, CheckpointFields(), clean=clean)
    assert log.max_offset == position
    assert dispatch_from == (position if clean else 0)


def test_classic_recovery_scans_three_segments_after_a_clean_stop(disk: OsDisk) -> None:
    records = classic(disk, 60)
    overwrite(disk, records[1][0] + 88, b"\xff")  # long ago: not looked at
    log = reopened(disk)
    assert len(log.segments()) > 3
    recover_records(log, CheckpointFields(), clean=True)
    assert log.max_offset == records[-1][0] + len(records[-1][1])


@pytest.mark.parametrize("seconds", [0, 5, 20, 33, 1000])
def test_classic_recovery_starts_at_the_checkpoint_after_a_crash(
    disk: OsDisk, seconds: int
) -> None:
    records = classic(disk, 40)
    stamp = 1_000_000 + seconds * 1000
    fields = CheckpointFields(physic_timestamp_ms=stamp, logics_timestamp_ms=stamp + 7)
    log = reopened(disk)
    firsts = {p: int.from_bytes(d[56:64], "big") for p, d in records if p % SIZE == 0}
    expected = max((p for p, ms in firsts.items() if ms <= stamp - 3000), default=0)
    assert recover_records(log, fields, clean=False) == expected
    assert log.max_offset == records[-1][0] + len(records[-1][1])


def test_classic_recovery_truncates_durable_damage_and_lowers_the_mark(disk: OsDisk) -> None:
    records = classic(disk, 5)
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    mark.raise_durable(records[-1][0])
    overwrite(disk, records[2][0] + 88, b"\xff")
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open()
    recover_records(log, mark.fields, clean=False)
    assert mark.durable_offset == log.max_offset == records[2][0]


# -- mending ---------------------------------------------------------------------------------------


class Mended:
    """A written log, damaged, and recovered with the frames that were written as the peer's."""

    def __init__(self, disk: OsDisk, count: int = 12) -> None:
        self.disk = disk
        self.writer = written(disk, count)
        self.frames = self.writer.frames
        self.whole = self.bytes()

    def bytes(self) -> dict[str, bytes]:
        return {
            name: self.disk.open(f"commitlog/{name}").pread(0, SIZE)
            for name in self.disk.listdir("commitlog")
        }

    def recover(self, per_patch: int, hint: int | None = None) -> tuple[FrameRecovery, int]:
        """(the recovery, how many patches it took)."""
        mark = Checkpoint(self.disk, "checkpoint")
        mark.open()
        mark.raise_durable(self.frames[-1].end if hint is None else hint)
        log = CommitLog(self.disk, "commitlog", SIZE, mark)
        log.open(restore=True)
        log.restore_front(0)
        self.seen: list[FrameHeader] = []
        recovery = FrameRecovery(log, 0, self.seen.append, first_index=1)
        damage = recovery.run()
        patches = 0
        while damage is not None:
            first = damage.last.index if damage.last else 0
            if damage.header is not None:
                assert damage.header.index == first + 1
            patches += 1
            damage = recovery.patch(self.frames[first : first + per_patch], proven=True)
        assert log.settled
        log.close()
        return recovery, patches

    def check(self) -> None:
        assert [h.index for h in self.seen] == [f.index for f in self.frames]
        assert self.bytes() == self.whole


def damage(disk: OsDisk, frames: list[Frame], victim: int, kind: str) -> None:
    frame = frames[victim]
    if kind == "payload":
        overwrite(disk, frame.end - 3, b"\xff\xfe")
    elif kind == "header":
        overwrite(disk, frame.position + 20, b"\xff\xfe")
    elif kind == "zeroed frame":
        overwrite(disk, frame.position, bytes(frame.size_bytes))
    elif kind == "garbage":
        overwrite(disk, frame.position, b"\xa5" * frame.size_bytes)
    elif kind == "lost segment":
        disk.remove(f"commitlog/{frame.position // SIZE * SIZE:020d}")
    else:
        file = disk.open(f"commitlog/{frame.position // SIZE * SIZE:020d}")
        file.truncate(frame.position % SIZE + 30)
        file.close()


@pytest.mark.parametrize("victim", range(12))
@pytest.mark.parametrize(
    "kind", ["payload", "header", "zeroed frame", "garbage", "lost segment", "truncated"]
)
@pytest.mark.parametrize("per_patch", [1, 5])
def test_every_kind_of_damage_is_repaired(
    disk: OsDisk, victim: int, kind: str, per_patch: int
) -> None:
    mended = Mended(disk)
    damage(disk, mended.frames, victim, kind)
    recovery, patches = mended.recover(per_patch)
    checked_from = sorted(mended.whole)[-3]
    if kind == "payload" and mended.frames[victim].position < int(checked_from):
        assert patches == 0  # not looked at: the scrubber's
        return
    assert patches > 0
    mended.check()
    assert recovery.damage is None and recovery.torn is None


def test_several_damaged_regions_and_blank_records_are_repaired(disk: OsDisk) -> None:
    mended = Mended(disk)
    frames = mended.frames
    for victim, kind in ((0, "header"), (3, "zeroed frame"), (7, "garbage"), (11, "header")):
        damage(disk, frames, victim, kind)
    for before, after in pairwise(frames):
        if after.position % SIZE == 0:
            overwrite(disk, before.end, b"\x80\x01")  # the blank record
    _, patches = mended.recover(1)
    assert patches >= 4
    mended.check()


def test_all_lost_segments_are_repaired(disk: OsDisk) -> None:
    mended = Mended(disk)
    for name in disk.listdir("commitlog"):
        disk.remove(f"commitlog/{name}")
    mended.recover(3)
    mended.check()


def test_unproven_patch_leaves_the_following_frame_damaged(disk: OsDisk) -> None:
    mended = Mended(disk)
    damage(disk, mended.frames, 4, "header")
    log = CommitLog(disk, "commitlog", SIZE)
    log.open(restore=True)
    recovery = FrameRecovery(log, mended.frames[-1].end)
    assert recovery.run() is not None
    result = recovery.patch(mended.frames[4:6], proven=False)
    assert result is not None and result.last is not None
    assert (result.position, result.last.index) == (mended.frames[5].end, 6)
    assert recovery.neighbour(result.position) is not None
    recovery.truncate()
    assert log.settled
    assert log.max_offset == mended.frames[5].end
    assert recovery.last is not None and recovery.last.index == 6


def test_repair_with_a_smaller_frame_may_fit_before_the_blank_record(disk: OsDisk) -> None:
    """Another leader's frame stood at the segment's start; the group's is smaller."""
    mended = Mended(disk)
    first = next(i for i, f in enumerate(mended.frames) if f.position == SIZE)
    before = mended.frames[first - 1]
    damage(disk, mended.frames, first, "header")
    log = CommitLog(disk, "commitlog", SIZE)
    log.open(restore=True)
    recovery = FrameRecovery(log, mended.frames[-1].end)
    result = recovery.run()
    assert result is not None
    assert (result.position, result.end) == (SIZE, before.end)
    assert SIZE - before.end >= HEADER_SIZE_BYTES + 8
    small = seal_frame(first + 1, 2, before.end, 0, FrameKind.NOOP, 0, b"")
    following = recovery.patch((small,), proven=False)
    assert following is not None
    assert following.end == small.end
    recovery.truncate()
    assert log.max_offset == small.end
    assert [h.term for h in FrameWalk(log, 0)] == [1] * first + [2]


def test_unproven_frames_above_the_mark_are_truncated(disk: OsDisk) -> None:
    mended = Mended(disk)
    damage(disk, mended.frames, 4, "header")
    damage(disk, mended.frames, 5, "header")
    log = CommitLog(disk, "commitlog", SIZE)
    log.open(restore=True)
    recovery = FrameRecovery(log, mended.frames[4].end)
    assert recovery.run() is not None
    assert recovery.patch(mended.frames[4:5], proven=False) is None
    assert log.max_offset == mended.frames[4].end


def marked(disk: OsDisk, hint: int | None = None) -> CommitLog:
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    if hint is not None:
        mark.raise_durable(hint)
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open(restore=True)
    return log


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("above", [False, True])
def test_frame_after_an_unproven_patch_stays_damaged_over_a_kill(
    disk: OsDisk, killed: bool, above: bool
) -> None:
    """A frame that fits behind it is neither taken for the next one, after a kill either, nor cut
    unasked: a power cut may have set the mark back, and it was acknowledged."""
    mended = Mended(disk)
    damage(disk, mended.frames, 4, "header")
    log = marked(disk, mended.frames[4 if above else -1].end)
    recovery = FrameRecovery(log)
    assert recovery.run() is not None
    result = recovery.patch(mended.frames[4:5], proven=False)
    if killed:
        log.close()
        log = marked(disk)
        recovery = FrameRecovery(log)
        result = recovery.run()
    assert result is not None
    assert result.last is not None
    assert (result.position, result.last.index) == (mended.frames[4].end, 5)
    result = recovery.patch(mended.frames[5:6], proven=True)
    assert result is None
    assert mended.bytes() == mended.whole


def test_log_ends_after_the_last_patch(disk: OsDisk) -> None:
    for frames in (2, 0):
        mended = Mended(disk)
        damage(disk, mended.frames, 4, "header")
        log = marked(disk, mended.frames[-1].end)
        recovery = FrameRecovery(log)
        assert recovery.run() is not None
        assert recovery.patch(mended.frames[4 : 4 + frames], False, last=True) is None
        assert log.max_offset == mended.frames[3 + frames].end
        log.close()
        assert recover_frames(marked(disk)).last is not None
        for name in disk.listdir("commitlog"):
            disk.remove(f"commitlog/{name}")


def test_lost_segment_is_damaged_to_its_end_after_a_kill(disk: OsDisk) -> None:
    """A power cut had set the mark back into it."""
    mended = Mended(disk)
    inside = next(f for f in mended.frames if f.position >= SIZE)
    disk.remove(f"commitlog/{SIZE:020d}")
    for hint in (inside.end, None):
        log = marked(disk, hint)
        recovery = FrameRecovery(log)
        result = recovery.run()
        assert recovery.hint >= 2 * SIZE
        log.close()
    log = marked(disk)
    recovery = FrameRecovery(log)
    result = recovery.run()
    while result is not None:
        assert result.last is not None
        result = recovery.patch(mended.frames[result.last.index :][:1], proven=True)
    assert mended.bytes() == mended.whole


def test_lost_mark_prevents_truncation_but_not_recovery(disk: OsDisk) -> None:
    mended = Mended(disk, 4)
    mark = Checkpoint(disk, "checkpoint")
    mark.open(verify=True)
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open(restore=True)
    assert recover_frames(log).torn is None
    assert not mark.lost
    log.close()
    overwrite(disk, mended.frames[3].position, b"\xff" * 70)
    mark = Checkpoint(disk, "other")
    mark.open(verify=True)
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open(restore=True)
    with pytest.raises(StoreDamaged):
        recover_frames(log)
    assert mark.lost


def test_prepared_segment_is_not_taken_for_a_lost_one(disk: OsDisk) -> None:
    mended = Mended(disk, 4)
    names = disk.listdir("commitlog")
    disk.open(f"commitlog/{int(names[-1]) + 2 * SIZE:020d}", allocate_bytes=SIZE).close()
    mended.recover(1)
    mended.check()


def test_impossible_durable_mark_is_rejected(disk: OsDisk) -> None:
    written(disk, 4)
    mark = Checkpoint(disk, "checkpoint")
    mark.open()
    mark.raise_durable(1 << 40)
    log = CommitLog(disk, "commitlog", SIZE, mark)
    with pytest.raises(StoreError):
        log.open(restore=True)
    log.close()


def test_recovery_with_a_lost_mark_searches_after_long_zeros(disk: OsDisk) -> None:
    """The first segment's file is gone, restored by a start that was killed; the next one's first
    page is zeros. Without a mark that must not pass for an empty log."""
    mended = Mended(disk)
    overwrite(disk, 0, bytes(SIZE))
    overwrite(disk, SIZE, bytes(SIZE // 4))
    mark = Checkpoint(disk, "other")
    mark.open(verify=True)
    log = CommitLog(disk, "commitlog", SIZE, mark)
    log.open(restore=True)
    recovery = FrameRecovery(log, first_index=1)
    result = recovery.run()
    assert result is not None
    assert (result.position, result.last) == (0, None)
    while result is not None:
        first = result.last.index if result.last else 0
        result = recovery.patch(mended.frames[first : first + 1], proven=True)
    assert mended.bytes() == mended.whole
