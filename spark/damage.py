"""Reads around damaged messages.

A block with a damaged message is read again in halves, until each damaged message stands alone.
Then every replica of the group is asked for the message. If none has it whole, the option
`onDamage` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from .cluster import Block, Cluster, named
from .offset_ranges import Queue, QueueRange
from .options import FAIL, SKIP, ReadOptions
from .rows import DamagedMessages, damaged_row, rows

log = logging.getLogger("raftmq.spark")

SEARCHES_MAX = 100  # without success, of a task; then no further copies are asked for


class Repair:
    """The repairs of a task."""

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._searches = 0  # without success

    def batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block with damage, in order. Raises DamagedMessages, DataLost."""
        if block.end - block.start == 1:
            yield from self._message(block.queue, block.start, block.records)
            return
        middle = (block.start + block.end) // 2
        for low, high in ((block.start, middle), (middle, block.end)):
            half = QueueRange(block.queue, low, high, block.strict)
            for part in self._cluster.blocks([half], self._options.fail_on_data_loss):
                try:
                    batch = self._rows(part.records, block.queue, part.start, part.end)
                except DamagedMessages:
                    yield from self.batches(part)
                else:
                    part.check(len(batch))
                    yield batch

    def _rows(self, data: bytes, queue: Queue, start: int, end: int) -> pa.RecordBatch:
        return rows(memoryview(data), queue.broker, start, end, self._options.columns)

    def _message(self, queue: Queue, offset: int, data: bytes) -> Iterator[pa.RecordBatch]:
        why = ""
        for copy in [data, *self._copies(queue, offset)]:
            try:
                batch = self._rows(copy, queue, offset, offset + 1)
            except DamagedMessages as error:
                why = why or str(error)
            else:
                if len(batch):
                    yield batch
                    return
        self._searches += 1
        problem = f"{named(queue)}, offset {offset}: {why}, and no other replica has it whole"
        if self._options.on_damage == FAIL:
            raise DamagedMessages(f"{problem}; onDamage=null or onDamage=skip passes it")
        if self._options.on_damage == SKIP:
            log.warning("damaged_message_skipped %s", problem)
        else:
            yield damaged_row(data, queue, offset, self._options.columns, problem)

    def _copies(self, queue: Queue, offset: int) -> Iterator[bytes]:
        if self._searches < SEARCHES_MAX:
            yield from self._cluster.copies(queue, offset)
