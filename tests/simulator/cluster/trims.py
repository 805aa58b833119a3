"""What retention takes of the brokers' logs while a world is under load, and who may miss it.

Some worlds are `filled`: their messages are large, segments as small as they may be, and disks so
crowded that retention deletes what it can, all the time. A message is taken once any replica has
noted that it removes the segment in which it begins: that replica may lead, or refill another. Who
has not read it by then may miss it; nobody may miss anything else.

A latecomer reads from offset 0, from the first trim on until the load has ended.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from raftmq.client import ClientError, MessageQueue, PullConsumer, PullStatus
from raftmq.dledger.storage.log_storage import RaftLog, Trim
from tests.simulator.cluster.process import Process, here

HANDED_NS = 1_000_000_000  # so long may a message be in a consumer's hands that is passed already
LOOK_S = 0.2
READ_WITHIN_S = 60.0

Record = Mapping[str, Any]
GroupMembership = tuple[str, int]  # topic and queue


class Trims:
    """See the module's docstring. `count`: segments' ends noted so far, by all replicas."""

    def __init__(self, own: Callable[[Process], bool], taken: Callable[[int], None]) -> None:
        """`own(process)`: whether that is a broker of this world's group. `taken(position)` is told
        where a log begins now."""
        self.count = 0
        self._own = own
        self._reported = taken
        self._taken: list[tuple[int, int]] = []  # (position, ns), both rise

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while brokers note what they remove."""
        note = RaftLog.note_trim
        trims = self

        def on_note(log: RaftLog, trim: Trim) -> None:
            if trims._own(here()):
                trims._note(trim.start)
            note(log, trim)

        with patch.object(RaftLog, "note_trim", on_note):
            yield

    def _note(self, start: int) -> None:
        self.count += 1
        if not self._taken or start > self._taken[-1][0]:
            self._taken.append((start, time.monotonic_ns()))
            self._reported(start)

    def taken_ns(self, position: int) -> int | None:
        """Return when the message at this position of the log was taken; None if it was not."""
        at = bisect_right(self._taken, (position, 1 << 63))
        return self._taken[at][1] if at < len(self._taken) else None

    def unread(self, records: Sequence[Record]) -> set[int]:
        """Return the sends whose messages retention took before a consumer passed them, and that
        nobody read where they were acknowledged."""
        if not self._taken:
            return set()
        read: set[tuple[str, int, int]] = set()
        passes: dict[GroupMembership, list[tuple[int, int]]] = defaultdict(
            list
        )  # (highest offset, ns)
        for record in records:
            if record["type"] == "ok" and record.get("f") == "consume":
                position = record["topic"], record["queue"]
                passes[position].append((max(record["offsets"]), record["t_ns"]))
                read.update((*position, offset) for offset in record["offsets"])

        def is_taken(one: Stored) -> bool:
            taken_ns = self.taken_ns(one.position)
            passed_ns = min(
                (ns for offset, ns in passes[one.topic, one.queue] if offset > one.offset),
                default=None,
            )
            return taken_ns is not None and (passed_ns is None or taken_ns <= passed_ns + HANDED_NS)

        return {
            op
            for op, one in stored(records).items()
            if (one.topic, one.queue, one.offset) not in read and is_taken(one)
        }


class Stored(NamedTuple):
    """A message that was acknowledged, and where: in its queue, and in the log."""

    id: str
    topic: str
    queue: int
    offset: int
    position: int


def stored(records: Iterable[Record]) -> dict[int, Stored]:
    """Return all messages that were acknowledged, by the operations that sent them."""
    sent: dict[int, tuple[str, str]] = {}
    result = {}
    for record in records:
        if record.get("f") != "send":
            continue
        op = record["op"]
        if record["type"] == "invoke":
            sent[op] = record["id"], record["topic"]
        elif record["type"] == "ok":
            position = int(record["msg_id"][-16:], 16)
            result[op] = Stored(*sent[op], record["queue"], record["offset"], position)
    return result


class Gap(NamedTuple):
    """Offsets that a reader was led past, `first` to before `end`, and when."""

    first: int
    end: int
    ns: int


class Latecomer:
    """See the module's docstring."""

    def __init__(self, topics: Sequence[str], trims: Trims) -> None:
        self.read = 0
        self._topics = topics
        self._trims = trims
        self._next: dict[MessageQueue, int] = {}
        self._ids: dict[tuple[str, int, int], str] = {}
        self._gaps: dict[GroupMembership, list[Gap]] = defaultdict(list)
        self._ending = asyncio.Event()

    async def run(self, namesrv: str) -> None:
        """Read until told to `end`, and then to the end of all queues. Raises TimeoutError."""
        while not (self._trims.count or self._ending.is_set()):  # noqa: ASYNC110 - the world's
            await asyncio.sleep(LOOK_S)
        async with PullConsumer("late", namesrv) as consumer:
            while not self._ending.is_set():
                await self._round(consumer)
                await asyncio.sleep(LOOK_S)
            async with asyncio.timeout(READ_WITHIN_S):
                while not await self._round(consumer):  # noqa: ASYNC110 - it reads
                    await asyncio.sleep(LOOK_S)

    def end(self) -> None:
        self._ending.set()

    async def _round(self, consumer: PullConsumer) -> bool:
        """Read what there is; return whether that was all."""
        complete = True
        try:
            for topic in self._topics:
                for queue in await consumer.queues(topic):
                    complete &= await self._read(consumer, queue)
        except ClientError:
            return False
        return complete

    async def _read(self, consumer: PullConsumer, queue: MessageQueue) -> bool:
        offset = self._next.get(queue, 0)
        result = await consumer.pull(queue, offset)
        actual = result.messages
        first = actual[0].queue_offset if actual else result.next_offset
        if (actual or result.status is PullStatus.OFFSET_ILLEGAL) and first > offset:
            gap = Gap(offset, first, time.monotonic_ns())
            self._gaps[queue.topic, queue.queue_id].append(gap)
        for message in actual:
            self._ids[queue.topic, queue.queue_id, message.queue_offset] = message.msg_id
        self.read += len(actual)
        self._next[queue] = max(offset, result.next_offset)
        return self._next[queue] >= result.max_offset

    def missed(self, records: Sequence[Record]) -> list[str]:
        """Return in words what it should have read."""
        result = []
        for one in stored(records).values():
            read = self._ids.get((one.topic, one.queue, one.offset))
            if one.topic not in self._topics or read == one.id:
                continue
            where = f"{one.id} at {one.topic}-{one.queue}@{one.offset}"
            if read is not None:
                result.append(f"{where}, where it found {read}")
            elif not self._excused(one):
                result.append(where)
        return result

    def _excused(self, one: Stored) -> bool:
        taken_ns = self._trims.taken_ns(one.position)
        return taken_ns is not None and any(
            gap.first <= one.offset < gap.end and taken_ns <= gap.ns
            for gap in self._gaps[one.topic, one.queue]
        )
