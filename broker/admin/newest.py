"""The newest messages of a topic over all its queues, the newest first, perhaps filtered.

A group's log has one order, and each queue names its messages' places in the log. So the newest of
all queues are found by merging the queues from their ends. A filter looks at every message on the
way; after SCANNED_MAX of them the answer ends and says where to go on.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass

from raftmq.store.message_store import MessageStore
from raftmq.store.properties import KEYS, TAGS, decode_properties
from raftmq.store.record import MessageRecord, decode_record

from .message_text import text_of

SCANNED_MAX = 2_000  # messages that one request looks at
SCANNED_BYTES_MAX = 16 * 1024 * 1024
RECORDS_PER_TURN = 32  # looked at before the loop has another turn


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages are wanted; "" is any. `property`: a name, or name=value. `text`: a part of
    the body, in any case."""

    tag: str = ""
    key: str = ""
    property: str = ""
    text: str = ""

    def fits(self, record: MessageRecord) -> bool:
        """Return whether the message is wanted."""
        if self.tag or self.key or self.property:
            properties = decode_properties(record.properties)
            if self.tag and properties.get(TAGS) != self.tag:
                return False
            if self.key and self.key not in properties.get(KEYS, "").split():
                return False
            name, equals, value = self.property.partition("=")
            if name and (name not in properties or (equals and properties[name] != value)):
                return False
        return not self.text or self.text.lower() in (text_of(record) or "").lower()


@dataclass(frozen=True, slots=True)
class Newest:
    """A page of a search. `records`: (record, its size in bytes), newest first; `following`: the
    CommitLog offset before which the search goes on, None at its end; `scanned`: how many messages
    it looked at."""

    records: list[tuple[MessageRecord, int]]
    following: int | None
    scanned: int


class NewestMessages:
    """Finds them in a broker's store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def find(
        self,
        topic: str,
        queue_count: int,
        wanted: MessageFilter,
        *,
        limit: int,
        before: int | None = None,
        since_ms: int = 0,
    ) -> Newest:
        """Return up to `limit` messages that `wanted` fits, of those before the CommitLog offset
        `before` (None: of all) and not stored before `since_ms`."""
        ends = self._ends(topic, queue_count, before)
        found: list[tuple[MessageRecord, int]] = []
        scanned = size_bytes = 0
        position = before
        while ends and len(found) < limit:
            if scanned >= SCANNED_MAX or size_bytes >= SCANNED_BYTES_MAX:
                return Newest(found, position, scanned)
            position, queue_id, offset = -ends[0][0], ends[0][1], ends[0][2]
            self._step(ends, topic, queue_id, offset)
            data = self._store.reads.message_at(position)
            if data is None:  # retention has deleted it, and so all that is older
                return Newest(found, None, scanned)
            record = decode_record(data)
            if record.store_timestamp_ms < since_ms:
                return Newest(found, None, scanned)
            scanned += 1
            size_bytes += len(data)
            if wanted.fits(record):
                found.append((record, len(data)))
            if scanned % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return Newest(found, position if ends else None, scanned)

    def _ends(self, topic: str, queue_count: int, before: int | None) -> list[tuple[int, int, int]]:
        """Return the heap of (-CommitLog offset, queue id, queue offset): each queue's last message
        before the CommitLog offset `before`."""
        ends: list[tuple[int, int, int]] = []
        for queue_id in range(queue_count):
            queue = self._store.queues.queue(topic, queue_id)
            if queue is None:
                continue
            end = queue.max_offset
            if before is not None:
                end = queue.first_at(lambda at, _: at >= before)
            if end > queue.min_offset:
                ends.append((-queue.entry(end - 1)[0], queue_id, end - 1))
        heapq.heapify(ends)
        return ends

    def _step(self, ends: list[tuple[int, int, int]], topic: str, queue_id: int, at: int) -> None:
        """Replace the heap's first by the message before it in its queue, if there is one."""
        queue = self._store.queues.queue(topic, queue_id)
        if queue is None or at - 1 < queue.min_offset:
            heapq.heappop(ends)
        else:
            heapq.heapreplace(ends, (-queue.entry(at - 1)[0], queue_id, at - 1))
