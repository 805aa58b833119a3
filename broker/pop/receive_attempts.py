"""What a repeated receive attempt gets: the same messages, under the same handles.

A consumer whose answer was lost, because a leader, a proxy or a connection died, asks again with
the same `attempt_id`. If its heartbeats renew what it pops, the messages of the lost answer would
otherwise stay in flight for as long as it lives. They are in flight as the log says, so nothing is
changed: they are read and told once more. A pop in order has its own rule (broker.pop.selection).
"""

from __future__ import annotations

import logging
from itertools import islice

from raftmq.remoting.names import pop_retry_topic
from raftmq.remoting.pop_headers import PopHeader
from raftmq.store.commitlog.commitlog import ReadBudget
from raftmq.store.errors import StoreError

from ..context import Context
from ..tables.pops import Batch, BatchKey, Place
from .selection import Taken

log = logging.getLogger("raftmq.broker.pops")

LOOK_MAX = 1_000  # the newest batches of each queue; an attempt is repeated soon


class Repeats:
    """Finds what an attempt got before; one per broker."""

    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._table = context.state.pops
        self._reads = context.store.reads

    def of(self, header: PopHeader) -> tuple[list[Taken], int]:
        """Return what the attempt got and has not acknowledged, and the time of that pop."""
        if not header.renewed_by or not header.attempt_id or header.order:
            return [], 0
        group = header.consumer_group
        found: list[tuple[Place, BatchKey, Batch]] = []
        for topic in dict.fromkeys((header.topic, pop_retry_topic(header.topic, group))):
            for queue_id, queue in self._table.queues.get((topic, group), {}).items():
                for key in islice(reversed(queue.batches), LOOK_MAX):
                    batch = queue.batches[key]
                    if batch.attempt == header.attempt_id and batch.client == header.renewed_by:
                        found.append(((topic, group, queue_id), key, batch))
        pop_ms = max((key[1] for _, key, _ in found), default=0)
        budget = ReadBudget()
        try:
            again = [self._read(*one, budget) for one in found if one[1][1] == pop_ms]
        except (OSError, StoreError) as error:
            log.error("read_failed topic=%s error=%s", header.topic, error)
            return [], 0
        return [taken for taken in again if taken.offsets], pop_ms

    def _read(self, place: Place, key: BatchKey, batch: Batch, budget: ReadBudget) -> Taken:
        """Return the messages of a batch that the budget allows to read."""
        offsets: list[int] = []
        buffers: list[bytes] = []
        size = 0
        bytes_max = self._config.max_transfer_bytes_on_message_in_memory
        for offset in batch.pending_offsets:
            if budget.spent:
                break
            one = self._reads.get_messages(place[0], place[2], offset, 1, bytes_max, budget=budget)
            if one.message_count and one.next_offset == offset + 1:  # else retention deleted it
                offsets.append(offset)
                buffers += one.buffers
                size += one.size_bytes
        return Taken(place, key[0], key[0], key[0], offsets, buffers, size, None, key[0])
