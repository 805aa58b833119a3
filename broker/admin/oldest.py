"""The messages of a time of a topic over all its queues, the oldest first.

A group's log has one order, and each queue names its messages' places in the log. So the oldest of
all queues are found by merging the queues from where the time begins. An answer ends where it is
full and says where to go on: up to there it has every message, of whichever queue.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass

from raftmq.store.message_store import MessageStore
from raftmq.store.record import MessageRecord, decode_record

SIZE_BYTES_MAX = 1024 * 1024  # of an answer; a single message may have more
RECORDS_PER_TURN = 32  # looked at before the loop has another turn


@dataclass(frozen=True, slots=True)
class Oldest:
    """A page of a search. `records`: (record, its size in bytes), oldest first; `following`: the
    CommitLog offset at which the search goes on, None at its end."""

    records: list[tuple[MessageRecord, int]]
    following: int | None


class OldestMessages:
    """Finds them in a broker's store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def find(
        self,
        topic: str,
        queue_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        limit: int,
        start: int = 0,
    ) -> Oldest:
        """Return up to `limit` messages that were stored from `begin_ms` to `end_ms`, of those from
        the CommitLog offset `start` on."""
        starts = await self._starts(topic, queue_count, begin_ms, start)
        found: list[tuple[MessageRecord, int]] = []
        size_bytes = 0
        while starts:
            position, queue_id, offset = starts[0]
            data = self._store.reads.message_at(position)
            if data is None:  # retention has deleted it meanwhile: the next page begins anew
                return Oldest(found, position)
            record = decode_record(data)
            if record.store_timestamp_ms > end_ms:
                heapq.heappop(starts)  # and so is all that follows in this queue
                continue
            size_bytes += len(data)
            if found and (len(found) >= limit or size_bytes > SIZE_BYTES_MAX):
                return Oldest(found, position)
            found.append((record, len(data)))
            self._step(starts, topic, queue_id, offset)
            if len(found) % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return Oldest(found, None)

    async def _starts(
        self, topic: str, queue_count: int, begin_ms: int, start: int
    ) -> list[tuple[int, int, int]]:
        """Return the heap of (CommitLog offset, queue id, queue offset): each queue's first message
        of the time from `start` on."""
        starts: list[tuple[int, int, int]] = []
        for queue_id in range(queue_count):
            queue = self._store.queues.queue(topic, queue_id)
            if queue is None:
                continue
            first = self._store.reads.offset_by_time(topic, queue_id, begin_ms)
            first = queue.first_at(lambda at, _: at >= start, first)
            if first < queue.max_offset:
                starts.append((queue.entry(first)[0], queue_id, first))
            await asyncio.sleep(0)
        heapq.heapify(starts)
        return starts

    def _step(self, starts: list[tuple[int, int, int]], topic: str, queue_id: int, at: int) -> None:
        """Replace the heap's first by the message behind it in its queue, if there is one."""
        queue = self._store.queues.queue(topic, queue_id)
        following = at + 1 if queue is None else max(at + 1, queue.min_offset)
        if queue is None or following >= queue.max_offset:
            heapq.heappop(starts)
        else:
            heapq.heapreplace(starts, (queue.entry(following)[0], queue_id, following))
