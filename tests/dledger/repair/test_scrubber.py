"""Which old frames are read again, how fast, and what is found."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from raftmq.dledger.repair.scrubber import (
    FRAME_COST_BYTES,
    LATER_ROUNDS,
    STEP_BYTES,
    Scrubber,
    ScrubStep,
    next_step,
    run_step,
)
from raftmq.store.commitlog.log_sync import SegmentHold
from raftmq.store.frame import HEADER_SIZE_BYTES
from tests.dledger.storage.test_log_storage import Opened, append, flip, sync

RATE = 100_000  # bytes a second


def steps(life: Opened) -> list[ScrubStep]:
    result = []
    first = 1
    while (step := next_step(life.log, first)) is not None:
        result.append(step)
        first += len(step.frames)
    return result


def test_scrub_steps_cover_each_durable_frame_once_within_a_segment(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    log = life.open()
    written = append(log, 60) + append(log, 50, term=2) + append(log, 50, term=5)
    sync(log)
    append(log, 3, term=5)  # not durable yet
    seen = [frame for step in steps(life) for frame in step.frames]
    assert seen == [(frame.term, frame.position, len(frame.data)) for frame in written]
    for step in steps(life):
        assert step.start // 8192 == (step.end - 1) // 8192
        assert step.size_bytes == sum(size for _, _, size in step.frames) <= STEP_BYTES
        assert step.cost_bytes == step.size_bytes + len(step.frames) * FRAME_COST_BYTES
        assert run_step(step) == ([], True)
    life.close()


@pytest.mark.parametrize("at", [0, 3, 4, 9, 17, 25, 30, 40, 47, 52, 57, 60, 100, 159])
def test_scrubber_finds_a_flipped_byte_at_any_offset(tmp_path: Path, at: int) -> None:
    life = Opened(tmp_path)
    written = append(life.open(), 20)
    sync(life.log)
    flip(tmp_path, written[7].position + at)
    flip(tmp_path, written[19].position + at)
    (step,) = steps(life)
    assert run_step(step) == ([8, 20], True)
    life.close()


class Bad(SegmentHold):
    """Sectors of it cannot be read."""

    __slots__ = ("bad", "hold")

    def __init__(self, hold: SegmentHold, bad: range) -> None:
        self.hold, self.bad = hold, bad

    def read(self, offset: int, size: int) -> bytes:
        if size and offset < self.bad.stop and self.bad.start < offset + size:
            raise OSError(errno.EIO, "cannot read, says the test")
        return self.hold.read(offset, size)


def test_scrubber_marks_only_frames_in_an_unreadable_sector(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    append(life.open(), 40)
    sync(life.log)
    (step,) = steps(life)
    hold = Bad(step.hold, range(512, 1024))
    touched = [n for n, (_, at, size) in enumerate(step.frames, 1) if at < 1024 and at + size > 512]
    assert run_step(ScrubStep(1, step.frames, step.blank, hold)) == (touched, True)
    life.close()


def test_scrubber_raises_errors_that_are_no_damage(tmp_path: Path) -> None:
    life = Opened(tmp_path)
    append(life.open(), 4)
    sync(life.log)
    (step,) = steps(life)

    class Gone(Bad):
        def read(self, offset: int, size: int) -> bytes:
            raise OSError(errno.EBADF, "closed, says the test")

    with pytest.raises(OSError, match="closed"):
        run_step(ScrubStep(1, step.frames, step.blank, Gone(step.hold, range(0))))
    life.close()


class AtOnce(Executor):
    """Runs what it is given where it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


async def scrubbed(root: Path, seconds: int, *, count: int, size: int, pause_ms: int) -> Scrubber:
    """A scrubber that ran for so long over that many frames of that size."""
    life = Opened(root)
    append(life.open(), count, size=size)
    sync(life.log)
    scrubber = Scrubber(life.log, RATE, pause_ms, lambda error: None, lambda position: None)
    scrubber.start(AtOnce())
    for now_ms in range(0, seconds * 1_000, 50):
        scrubber.tick(float(now_ms), False)
        for _ in range(3):
            await asyncio.sleep(0)
    await scrubber.stop()
    life.close()
    return scrubber


@pytest.mark.parametrize("size", [10, 5000])
def test_scrub_rate_charges_small_frames_more_than_their_bytes(tmp_path: Path, size: int) -> None:
    count = 30 * RATE // (size + FRAME_COST_BYTES)  # more than a first round gets through
    scrubber = asyncio.run(scrubbed(tmp_path, 20, count=count, size=size, pause_ms=0))
    assert not scrubber.rounds
    frame = size + HEADER_SIZE_BYTES
    cost = scrubber.checked_bytes * (frame + FRAME_COST_BYTES) / frame
    assert 20 * RATE * 0.9 < cost < 20 * RATE * 1.2


def test_later_scrub_rounds_are_slower(tmp_path: Path) -> None:
    cost_s = 100 * (5000 + FRAME_COST_BYTES) / RATE
    seconds = int(cost_s * (1 + LATER_ROUNDS * 3.5))
    scrubber = asyncio.run(scrubbed(tmp_path, seconds, count=100, size=5000, pause_ms=0))
    assert scrubber.rounds == 1 + 3


def test_scrubber_pauses_between_rounds(tmp_path: Path) -> None:
    scrubber = asyncio.run(scrubbed(tmp_path, 35, count=3, size=10, pause_ms=10_000))
    assert scrubber.rounds == 4
