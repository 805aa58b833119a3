"""The waiting messages of the timer topic's queue, in the order in which they are due. Pure.

The wheel is fed with the units of the queue in their order (`take`), asked for what is due (`pop`),
and told the progress of the deliveries (`settle`). The `Progress` is part of the log: together with
the queue it says which messages wait, so the wheel can be rebuilt from the two at any time, and
every replica keeps one.

A delivery advances the key (TIMER_OUT_MS, queue offset) up to which everything is delivered that
the queue had when the delivery was begun, which is up to `end`. A message that was committed in the
meantime with a lower key is *late*: late ones come next, in the queue's order, before the key
advances further; then `end` advances. Before `floor` everything was delivered, or stored again
further on (retention). The key never says what is due, only what was delivered: after a leader
whose clock was ahead a late message may have to wait, and then all wait that come behind it.

Memory: messages far ahead stand in buckets of BUCKET_MS, as 8 bytes each: the time within the
bucket and the offset. When a bucket's time comes its messages become a heap of Python integers (48
bytes each with their places). The waiting messages of each block of offsets are counted, which
tells where the first one is, at most BLOCK offsets too early. Measured, a million messages: 10 MB
if they are spread over a day, 14 MB over three, 8 MB if all are due in the same second, and 50 MB
when that has come.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

BUCKET_BITS = 13  # a bucket holds 8,192 ms
BUCKET_MS = 1 << BUCKET_BITS
_OFFSET_BITS = 51
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_BLOCK_BITS = 12
BLOCK = 1 << _BLOCK_BITS  # offsets that are counted together


class Progress(NamedTuple):
    """The progress of the deliveries. Delivered are all messages before `floor` and, of those
    before `end`, all with a key up to (due_ms, offset)."""

    due_ms: int = 0
    offset: int = -1
    end: int = 0
    floor: int = 0

    def passed(self, due_ms: int, offset: int) -> bool:
        """Return whether the key has reached this message, delivered or late."""
        return (due_ms, offset) <= (self.due_ms, self.offset)

    def lets_wait(self, due_ms: int, offset: int) -> bool:
        """Return whether this message of the queue is neither delivered nor stored again."""
        return offset >= self.floor and (offset >= self.end or not self.passed(due_ms, offset))


def progress_from_json(value: Mapping[str, Any]) -> Progress:
    """Read a Progress. Raises KeyError, TypeError, ValueError."""
    return Progress(*(int(value[name]) for name in Progress._fields))


NOTHING = Progress()


class Waiting(NamedTuple):
    """One message that waits. `due_ms`: TIMER_OUT_MS; deliverable once it has passed."""

    due_ms: int
    offset: int


class TimerWheel:
    """The waiting messages that one replica knows, in memory."""

    def __init__(self, progress: Progress = NOTHING) -> None:
        self.progress = progress
        self.next_offset = progress.floor  # offset of the queue's next unit to take
        self.count = 0  # messages that wait; fewer than BLOCK stored again may count twice
        self._far: dict[int, array[int]] = {}  # bucket number → times within it and offsets
        self._buckets: list[int] = []  # heap of the far ones' numbers
        self._near_below = 0  # buckets below this number are in `_near`
        self._near: list[int] = []  # heap of keys
        self._late: list[tuple[int, int]] = []  # heap of (offset, due_ms)
        self._blocks: dict[int, int] = {}  # number of a block → waiting messages in it, ascending

    def clear(self, progress: Progress) -> None:
        """Forget all messages, and begin anew as of `progress`."""
        self.progress = progress
        self.next_offset = progress.floor
        self.count = 0
        self._far.clear()
        self._buckets.clear()
        self._near_below = 0
        self._near.clear()
        self._late.clear()
        self._blocks.clear()

    @property
    def first_offset(self) -> int:
        """The offset before which no message waits, as far as the queue was taken."""
        first = next(iter(self._blocks), None)
        begin = self.next_offset if first is None else first << _BLOCK_BITS
        return max(self.progress.floor, begin)

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the next message is due, in ms; None if none waits."""
        if self._late:
            return self._late[0][1]
        if self._near:
            return self._near[0] >> _OFFSET_BITS
        if not self._buckets:
            return None
        bucket = self._buckets[0]
        return (bucket << BUCKET_BITS) + (min(self._far[bucket]) >> _OFFSET_BITS)

    def take(self, offset: int, due_ms: int) -> bool:
        """Take the queue's unit at `offset`; each once, ascending. True if it waits."""
        assert offset >= self.next_offset, (offset, self.next_offset)
        self.next_offset = offset + 1
        if not self.progress.lets_wait(due_ms, offset):
            return False
        block = offset >> _BLOCK_BITS
        self._blocks[block] = self._blocks.get(block, 0) + 1
        self.count += 1
        self._put(due_ms, offset)
        return True

    def skip_to(self, offset: int) -> None:
        """Skip the queue's offsets before `offset`, which are not there."""
        self.next_offset = max(self.next_offset, offset)

    @property
    def waits_late(self) -> bool:
        """Whether messages wait that came after deliveries had passed their due time."""
        return bool(self._late)

    def ahead_ms(self, before_ms: int) -> int:
        """Return for how long the late messages have to wait for one that is not due before
        `before_ms`; 0 if they do not."""
        return max(0, self._late[0][1] + 1 - before_ms) if self._late else 0

    def pop(self, before_ms: int, count_max: int) -> list[Waiting]:
        """Return the next ones to deliver, in order, all due before `before_ms`: late ones, if
        there are any. They count as waiting until they are put back and `settle` takes them."""
        found: list[Waiting] = []
        if self._late:
            while self._late and self._late[0][1] < before_ms and len(found) < count_max:
                offset, due_ms = heappop(self._late)
                found.append(Waiting(due_ms, offset))
            return found
        while len(found) < count_max:
            self._open(before_ms)
            if not self._near or self._near[0] >> _OFFSET_BITS >= before_ms:
                break
            key = heappop(self._near)
            found.append(Waiting(key >> _OFFSET_BITS, key & _OFFSET_MASK))
        return found

    def after(self, popped: Sequence[Waiting]) -> Progress:
        """Return the progress once these are delivered, the first of what `pop` returned. The
        others must have been put back, and nothing taken since."""
        last, progress = popped[-1], self.progress
        if progress.passed(*last):
            return progress._replace(end=last.offset + 1, floor=self.first_offset)
        return Progress(*last, self.next_offset, self.first_offset)

    def put_back(self, popped: Sequence[Waiting]) -> None:
        """Put messages back once their delivery's outcome is known, but before `settle`."""
        for waiting in popped:
            self._put(*waiting)

    def settle(self, progress: Progress) -> None:
        """Take over the progress of the deliveries."""
        if progress == self.progress:
            return
        if progress.floor > self.progress.floor:
            gone = progress.floor >> _BLOCK_BITS
            for block in [block for block in self._blocks if block < gone]:
                self.count -= self._blocks.pop(block)
        self.progress = progress
        while self._late and self._late[0][0] < max(progress.end, progress.floor):
            self._uncount(heappop(self._late)[0])
        while True:
            self._open(progress.due_ms)
            if not self._near:
                break
            due_ms, offset = self._near[0] >> _OFFSET_BITS, self._near[0] & _OFFSET_MASK
            if not progress.passed(due_ms, offset):
                break
            heappop(self._near)
            if offset < progress.end:
                self._uncount(offset)
            else:
                heappush(self._late, (offset, due_ms))

    def _put(self, due_ms: int, offset: int) -> None:
        if offset < self.progress.floor:
            self._uncount(offset)  # stored again further on, it waits there
            return
        if offset >= self.progress.end and self.progress.passed(due_ms, offset):
            heappush(self._late, (offset, due_ms))
            return
        bucket = due_ms >> BUCKET_BITS
        if bucket < self._near_below:
            heappush(self._near, (due_ms << _OFFSET_BITS) | offset)
            return
        far = self._far.get(bucket)
        if far is None:
            far = self._far[bucket] = array("Q")
            heappush(self._buckets, bucket)
        far.append(((due_ms & (BUCKET_MS - 1)) << _OFFSET_BITS) | offset)

    def _uncount(self, offset: int) -> None:
        block = offset >> _BLOCK_BITS
        left = self._blocks.get(block)
        if left is None:
            return  # below the floor: all of the block was subtracted
        self.count -= 1
        if left > 1:
            self._blocks[block] = left - 1
        else:
            del self._blocks[block]

    def _open(self, now_ms: int) -> None:
        """Move the next bucket into the heap of near ones, if its time has come."""
        floor = self.progress.floor
        while True:
            near = self._near
            while near and near[0] & _OFFSET_MASK < floor:
                self._uncount(heappop(near) & _OFFSET_MASK)  # it waits further on, stored again
            if near or not self._buckets or self._buckets[0] << BUCKET_BITS > now_ms:
                return
            bucket = heappop(self._buckets)
            begin = bucket << (BUCKET_BITS + _OFFSET_BITS)
            self._near = [begin + packed for packed in self._far.pop(bucket)]
            heapify(self._near)
            self._near_below = bucket + 1
