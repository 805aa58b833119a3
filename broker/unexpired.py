"""Counts the messages that retention deletes before they have expired (cleanFileForciblyEnable)."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field

from raftmq.store.consumequeue.consumequeue import FILLER_SIZE, ConsumeQueue, ConsumeQueueStore

from .events import NodeEvents
from .tables.offsets import OffsetTable

log = logging.getLogger("raftmq.broker.retention")

TOPICS_NAMED = 20  # in one log line and event


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the early deletion of a pass begins: its CommitLog offset, and its queue offsets."""

    position: int
    offsets: dict[tuple[str, int], int]


@dataclass(slots=True)
class Unexpired:
    """The counts since the start, one object per broker. Each pass that deletes any is reported."""

    _queues: ConsumeQueueStore
    _table: OffsetTable
    _events: NodeEvents
    messages: int = field(default=0, init=False)
    unconsumed: int = field(default=0, init=False)  # by at least one group, or nobody reads them
    size_bytes: int = field(default=0, init=False)

    def begin(self, position: int) -> Extent:
        """Note the queues' offsets before a pass deletes unexpired messages from `position` on.
        Raises OSError."""
        return Extent(position, {_key(q): _first_at(q, position) for q in self._queues.queues()})

    def end(self, extent: Extent, log_begins: int) -> None:
        """Count and report what the pass deleted; the log begins at `log_begins` now. Raises
        OSError."""
        size_bytes = log_begins - extent.position
        if size_bytes <= 0:
            return
        slowest = self._slowest()
        messages, unconsumed = 0, defaultdict[str, int](int)
        for queue in self._queues.queues():
            key = _key(queue)
            end = _first_at(queue, log_begins)
            first = min(extent.offsets.get(key, end), end)
            messages += end - first
            missed = end - max(first, slowest.get(key, 0))
            if missed > 0:
                unconsumed[queue.topic] += missed
        total = sum(unconsumed.values())
        self.messages += messages
        self.unconsumed += total
        self.size_bytes += size_bytes
        topics = dict(sorted(unconsumed.items(), key=lambda item: -item[1])[:TOPICS_NAMED])
        log.warning(
            "unexpired_deleted messages=%d bytes=%d unconsumed=%d topics=%s:"
            " the disk is full and cleanFileForciblyEnable=true",
            messages,
            size_bytes,
            total,
            ",".join(f"{topic}:{count}" for topic, count in topics.items()) or "-",
        )
        detail = {"messages": messages, "bytes": size_bytes, "unconsumed": total, "topics": topics}
        self._events.tell("unexpiredDeleted", detail)

    def _slowest(self) -> dict[tuple[str, int], int]:
        """Return the lowest offset that any group has committed, by topic and queue."""
        lowest: dict[tuple[str, int], int] = {}
        for (topic, _), queues in self._table.offsets.items():
            for queue_id, offset in queues.items():
                key = topic, queue_id
                lowest[key] = min(offset, lowest.get(key, offset))
        return lowest


def _key(queue: ConsumeQueue) -> tuple[str, int]:
    return queue.topic, queue.queue_id


def _first_at(queue: ConsumeQueue, position: int) -> int:
    """Return the offset of the queue's first message at or behind a CommitLog offset."""
    return queue.first_at(lambda at, size: at >= position and size != FILLER_SIZE)
