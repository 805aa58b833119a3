"""Copies where queues end from a classic master to its slaves: `tell` makes the list that goes into
the answer to request 43 under KEY, which Apache's slaves leave alone, `told` checks it, and `take`
lets the slave's queues begin there.

A slave's log may begin after the last message of a queue. Then nothing in it says where that queue
goes on, and as the master the slave would begin it at 0, below what consumers have read. Only such
queues are told, and taken: all others are made from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore, check_name

KEY = "queueEnds"
_END_MAX = 1 << 58  # 20 bytes a unit: a file's name stays an int64

QueueEnd = tuple[str, int, int]  # topic, queue id, the offset that its next message gets


def tell(queues: ConsumeQueueStore, last_segment: int) -> list[QueueEnd]:
    """Return the ends of the queues without a message in the log's last segment, which begins at
    `last_segment`: no slave's log begins later."""
    return [
        (queue.topic, queue.queue_id, queue.max_offset)
        for queue in queues.queues()
        if queue.max_offset and queue.last_position < last_segment
    ]


def told(value: Mapping[str, Any]) -> list[QueueEnd]:
    """Return what the master tells; nothing of an Apache broker, or an older one. Raises TypeError,
    ValueError."""
    ends = []
    for topic, queue_id, end in value.get(KEY) or []:
        check_name(topic, queue_id)
        if type(queue_id) is not int or type(end) is not int or not 0 < end < _END_MAX:
            raise ValueError(f"not the end of {topic}/{queue_id}: {end!r}")
        ends.append((topic, queue_id, end))
    return ends


async def take(queues: ConsumeQueueStore, ends: Sequence[QueueEnd]) -> None:
    """Let the queues that are not here begin at these ends, once the log here has what the master's
    had when it told them. Others run in between: a queue's first file may take a while. Raises
    OSError."""
    for topic, queue_id, end in ends:
        if queues.queue(topic, queue_id) is None:
            queues.start_at(topic, queue_id, end)
            await asyncio.sleep(0)
