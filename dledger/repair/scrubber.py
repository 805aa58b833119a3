"""The scrubber reads old frames again, slowly, to find bit rot while peers have intact copies.

A round covers the log's first frame to its last durable frame, at most `bytes_per_s`, in steps of
STEP_BYTES that a thread reads and checks, and starts again after a pause. Only the first round
after a start has that rate, since the disk may have been damaged before; later rounds are slower by
LATER_ROUNDS. The pause keeps short logs from being checked a dozen times per second. Each frame
costs FRAME_COST_BYTES besides its size. Without that, checks of many small frames took 6 % of a
processor (1 % with it). The blank records between segments are also checked. On a busy node only
one step in BUSY_STEPS is done, so that a disk under constant load is still checked.

Rot below pages in the kernel's memory stays invisible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from errno import EIO

from raftmq.store.commitlog.log_sync import SegmentHold
from raftmq.store.frame import is_valid_frame
from raftmq.store.record import BLANK, MAGIC_BLANK

from ..storage.log_storage import RaftLog

STEP_BYTES = 256 << 10  # some milliseconds of checks; a larger frame is a step
BUSY_STEPS = 10
LATER_ROUNDS = 4
FRAME_COST_BYTES = 2048  # a frame's own overhead, as bytes to check


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """Frames first.. of a segment, as (term, position, size) of each, and the blank record behind
    them (b"": none)."""

    first: int
    frames: tuple[tuple[int, int, int], ...]
    blank: bytes
    hold: SegmentHold

    @property
    def end(self) -> int:
        """The offset behind the last frame."""
        return self.frames[-1][1] + self.frames[-1][2]

    @property
    def start(self) -> int:
        return self.frames[0][1]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def cost_bytes(self) -> int:
        """The bytes that count against the scrubber's rate."""
        return self.size_bytes + len(self.frames) * FRAME_COST_BYTES


def next_step(log: RaftLog, first: int) -> ScrubStep | None:
    """Return the step that starts at frame `first`; None if that is not durable yet."""
    index, last = log.index, log.durable_index
    if first > last:
        return None
    start = index.position_of(first)
    last = min(last, index.last_within(first, STEP_BYTES))
    last = min(last, index.first_from(log.segment_end(start)) - 1)
    frames = index.spans(first, last)
    gap = index.position_of(last + 1) - index.end_of(last) if last < log.durable_index else 0
    blank = BLANK.pack(gap, MAGIC_BLANK) if gap else b""
    return ScrubStep(first, frames, blank, log.commitlog.hold(start))


def run_step(step: ScrubStep) -> tuple[list[int], bool]:
    """Check a step; return (indexes of damaged frames, whether the blank record is intact).
    Blocking, in a thread. An unreadable sector is damage. Raises OSError."""
    bad: list[int] = []
    start = step.start
    data = _read(step.hold, start, step.size_bytes)
    for index, (term, position, size) in enumerate(step.frames, step.first):
        if not is_valid_frame(
            data, position - start, size, (index, term, position)
        ) and not is_valid_frame(
            _read(step.hold, position, size), 0, size, (index, term, position)
        ):  # read alone, because a bad sector fails the read of all
            bad.append(index)
    return bad, _read(step.hold, step.end, len(step.blank)) == step.blank


def _read(hold: SegmentHold, position: int, size: int) -> bytes:
    try:
        return hold.read(position, size)
    except OSError as error:
        if error.errno != EIO:
            raise
        return b""


class Scrubber:
    """Scrubs a member's log. Runs on the loop, except `run_step`."""

    def __init__(
        self,
        log: RaftLog,
        bytes_per_s: int,
        pause_ms: int,
        on_failed: Callable[[BaseException], None],
        on_blank: Callable[[int], None],
    ) -> None:
        """`bytes_per_s` 0 disables it. `pause_ms` is the pause between rounds. The log reports
        damaged frames to its mender. `on_blank` gets the index of the frame before a damaged blank
        record, `on_failed` an error of the disk."""
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._pause_ms = pause_ms
        self._resume_ms = 0.0  # when the pause is over
        self._on_failed = on_failed
        self._on_blank = on_blank
        self._pool: Executor | None = None
        self._under_way: asyncio.Future[tuple[list[int], bool]] | None = None
        self._next = 1
        self._owed_bytes = 0.0  # bytes that may be read now
        self._now_ms: float | None = None
        self._end = 0  # of the log at the last tick
        self._passed = 0  # steps left out because the node was busy
        self.rounds = 0
        self.checked_bytes = 0
        self.damaged_count = 0

    def start(self, pool: Executor) -> None:
        self._pool = pool

    async def stop(self) -> None:
        """Start no more steps; wait for the step in flight."""
        self._pool = None
        if self._under_way is not None:
            await asyncio.wait([self._under_way])

    def tick(self, now_ms: float, busy: bool) -> None:
        """Start the next step if it is due. The disk is `busy`, or counts as busy after writes of
        more than STEP_BYTES since the last tick."""
        end = self._log.index.end_position
        busy = busy or end - self._end > STEP_BYTES
        self._end = end
        elapsed_ms = 0.0 if self._now_ms is None else now_ms - self._now_ms
        self._now_ms = now_ms
        # At most a second's worth is saved up, so that idle time causes no burst.
        rate = self._bytes_per_s / (LATER_ROUNDS if self.rounds else 1)
        self._owed_bytes = min(self._owed_bytes + elapsed_ms * rate / 1000, rate)
        if self._pool is None or self._under_way is not None or self._owed_bytes <= 0:
            return
        if not self.has_work(now_ms):
            return
        if busy and self._passed < BUSY_STEPS - 1:
            self._passed += 1
            self._owed_bytes = 0.0
            return
        self._passed = 0
        self._start(self._pool, now_ms)

    def has_work(self, now_ms: float) -> bool:
        """Return whether a round is under way or may start."""
        return self._bytes_per_s > 0 and now_ms >= self._resume_ms

    def _start(self, pool: Executor, now_ms: float) -> None:
        log = self._log
        first = max(self._next, log.index.first_index)
        if first > log.durable_index:
            if first > log.index.first_index:
                self.rounds += 1
            self._resume_ms = now_ms + self._pause_ms
            self._next = log.index.first_index
            self._owed_bytes = 0.0
            return
        step = next_step(log, first)
        assert step is not None
        self._owed_bytes -= step.cost_bytes
        self._next = first + len(step.frames)
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(pool, run_step, step)
        self._under_way.add_done_callback(lambda done: self._finished(step, done))

    def _finished(self, step: ScrubStep, done: asyncio.Future[tuple[list[int], bool]]) -> None:
        self._under_way = None
        self._log.commitlog.release(step.hold)
        error = done.exception()
        if error is not None:
            self._on_failed(error)
            return
        self.checked_bytes += step.size_bytes
        bad, blank_is_intact = done.result()
        for index in bad:
            # Check again, because it may have changed while the thread read it.
            if self._log.check(index) is not None:
                self.damaged_count += 1
        if not blank_is_intact and self._pool is not None:
            self._on_blank(step.first + len(step.frames) - 1)

    def status(self) -> dict[str, object]:
        """Return the scrubber's progress, for the member's status."""
        return {
            "bytes_per_s": self._bytes_per_s,
            "next_index": max(self._next, self._log.index.first_index),
            "rounds": self.rounds,
            "checked_bytes": self.checked_bytes,
            "found": self.damaged_count,
        }
