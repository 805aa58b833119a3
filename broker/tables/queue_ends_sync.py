"""Ends of queues in a classic master's answer to its slaves (43), under a key of our own.

A slave's log may start after the last message of a queue, and then does not contain the queue's
next offset. As the master, the slave would restart such a queue at 0, below its consumers' offsets.
Only such ends are sent; all other queues are built from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.store.consumequeue.consumequeue import ConsumeQueueStore, check_name

KEY = "queueEnds"
_END_MAX = 1 << 58  # with 20 bytes per entry a file's name stays an int64

QueueEnd = tuple[str, int, int]  # topic, queue id, offset of the next message


def encode(queues: ConsumeQueueStore, last_segment: int) -> list[QueueEnd]:
    """Return the ends of the queues without a message in the log's last segment, which starts at
    `last_segment`. No slave's log starts later."""
    return [
        (queue.topic, queue.queue_id, queue.max_offset)
        for queue in queues.queues()
        if queue.max_offset and queue.last_position < last_segment
    ]


def decode(value: Mapping[str, Any]) -> list[QueueEnd]:
    """Check and return the master's ends; none of Apache's. Raises TypeError, ValueError."""
    ends = []
    for topic, queue_id, end in value.get(KEY) or []:
        check_name(topic, queue_id)
        if type(queue_id) is not int or type(end) is not int or not 0 < end < _END_MAX:
            raise ValueError(f"not the end of {topic}/{queue_id}: {end!r}")
        ends.append((topic, queue_id, end))
    return ends


async def apply_ends(queues: ConsumeQueueStore, ends: Sequence[QueueEnd]) -> None:
    """Create the missing queues at these ends, once this log has the master's log as of the answer.
    The loop runs in between, because a queue's first file may take a while. Raises OSError."""
    for topic, queue_id, end in ends:
        if queues.queue(topic, queue_id) is None:
            queues.start_at(topic, queue_id, end)
            await asyncio.sleep(0)
