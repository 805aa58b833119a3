"""SHA-256 of ranges of a running replica's log and ConsumeQueues, made at low priority.

A range is read and hashed in steps of STEP_BYTES in a thread, one range at a time for all requests.
The pause after each step keeps the digests within CPU_SHARE of a processor, and `Pace` keeps a
session within its rate. The undefined bytes behind a segment's blank record are left out, so equal
logs have equal digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from raftmq.dledger.raft.log_index import LogIndex
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.log_sync import SegmentHold
from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC, TIMER_TOPIC
from raftmq.store.record import BLANK_SIZE_BYTES

from ..checkpointer import finished
from .protocol import UnitRun

STEP_BYTES = 1 << 20
CPU_SHARE = 0.25  # of a processor
_TIMED, _TAGS_CODE_AT = (SCHEDULE_TOPIC, TIMER_TOPIC), 12


class Pace:
    """Spaces reads of `bytes_per_s` (0: no limit). Times are in ms."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_ms = 0.0

    def reserve(self, size: int, now_ms: float, wait_ms_max: float) -> float | None:
        """Return the wait before `size` bytes may be read, which counts as reserved; None if it is
        longer than `wait_ms_max`."""
        start_ms = max(self._due_ms, now_ms)
        if start_ms - now_ms > wait_ms_max:
            return None
        if self._bytes_per_s:
            self._due_ms = start_ms + size * 1000 / self._bytes_per_s
        return start_ms - now_ms


class Digester:
    """Digests ranges of a log and its queues, each in turn. For the loop."""

    def __init__(self, commitlog: CommitLog, queues: ConsumeQueueStore) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._turn = asyncio.Lock()

    async def digest(self, pieces: Iterable[tuple[int, int]]) -> bytes:
        """Return the digest of these pieces [start, end), each within a segment. Raises
        OffsetOutOfRange, OSError."""
        sha256, loop = hashlib.sha256(), asyncio.get_running_loop()
        async with self._turn:
            for start, end in pieces:
                hold = self._commitlog.hold(start)
                try:
                    for at in range(start, end, STEP_BYTES):
                        size = min(STEP_BYTES, end - at)
                        step = loop.run_in_executor(None, _add, sha256, hold, at, size)
                        spent_s = await finished(step)
                        await asyncio.sleep(spent_s * (1 / CPU_SHARE - 1))
                finally:
                    self._commitlog.release(hold)
        return sha256.digest()

    async def units(self, runs: Sequence[UnitRun], *, content: bool) -> bytes:
        """Return the entries of the runs, or their digest. Entries of timed topics have tags code
        0, because their times are no part of the message. Raises OSError."""
        async with self._turn:
            step = asyncio.get_running_loop().run_in_executor(None, _units, self._queues, runs)
            data, spent_s = await finished(step)
            await asyncio.sleep(spent_s * (1 / CPU_SHARE - 1))
        return data if content else hashlib.sha256(data).digest()


def frames_within(index: LogIndex, start: int, end: int) -> tuple[int, int]:
    """Return the bounds of the frames that start in [start, end) of a segment, with the blank
    record behind them, if any; twice the same position without frames."""
    first, behind = index.first_from(start), index.first_from(end)
    if first == behind:
        return start, start
    return index.position_of(first), _content_end(index, behind)


def pieces_of(
    index: LogIndex, segment_end_of: Callable[[int], int], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield [start, end) by segment, without the bytes behind blank records."""
    while start < end:
        segment_end = segment_end_of(start)
        content_end = _content_end(index, index.first_from(segment_end))
        if start < min(end, content_end):
            yield start, min(end, content_end)
        start = segment_end


def _content_end(index: LogIndex, behind: int) -> int:
    """Return the end of the frame before frame `behind`, with the blank record between them."""
    end = index.end_of(behind - 1)
    gap = index.position_of(behind) - end if behind <= index.last_index else 0
    return end + min(gap, BLANK_SIZE_BYTES)


def _add(sha256: hashlib._Hash, hold: SegmentHold, at: int, size: int) -> float:
    """Add bytes to a digest; return the processor time in s."""
    start_s = time.thread_time()
    sha256.update(hold.read(at, size))
    return time.thread_time() - start_s


def _units(queues: ConsumeQueueStore, runs: Sequence[UnitRun]) -> tuple[bytes, float]:
    """Return the entries, and the processor time in s."""
    start_s, parts = time.thread_time(), []
    for run in runs:
        queue = queues.queue(run.topic, run.queue_id)
        size = run.count * QUEUE_ENTRY_BYTES
        data = bytearray(size) if queue is None else bytearray(queue.stored(run.first, run.count))
        if run.topic in _TIMED:
            for at in range(_TAGS_CODE_AT, QUEUE_ENTRY_BYTES):
                data[at::QUEUE_ENTRY_BYTES] = bytes(run.count)
        parts.append(data)
    return b"".join(parts), time.thread_time() - start_s
