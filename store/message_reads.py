"""Reads messages by queue offset, by CommitLog offset and by store time.

Only dispatched messages are readable. `CheckedReads` checks that each record matches its queue
entry.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from .commitlog.commitlog import CommitLog, ReadBudget
from .config import StoreConfig
from .consumequeue.checked_reads import CheckedReads
from .derived_files import DerivedFiles
from .get_message import GetStatus, Limits, offset_status, scan_count, select
from .record import HEAD_WITH_HOSTS_BYTES, store_timestamp_at


@dataclass(frozen=True, slots=True)
class GetResult:
    """The result of a pull. The buffers are `message_count` consecutive records. `cold` data is far
    behind the log's end, so a slave may serve it better."""

    status: GetStatus
    buffers: list[bytes]
    next_offset: int
    min_offset: int
    max_offset: int
    message_count: int = 0
    size_bytes: int = 0
    cold: bool = False


class MessageReads:
    """Reads the messages of a store. For the loop only."""

    def __init__(
        self,
        commitlog: CommitLog,
        derived: DerivedFiles,
        checked: CheckedReads,
        config: StoreConfig,
    ) -> None:
        """`config` has the limits for cold data."""
        self._commitlog = commitlog
        self._derived = derived
        self._queues = derived.queues
        self._checked = checked
        self._config = config

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: Set[int] | None = None,
        budget: ReadBudget | None = None,
    ) -> GetResult:
        """Return messages of a queue from `offset` on (DefaultMessageStore.getMessage). `max_count`
        and `max_bytes` limit hot data; the configuration also limits cold data. The next pull gets
        messages beyond `budget`. Raises OSError; StoreDamaged if an entry does not point at a
        record."""
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, [], 0, 0, 0)
        minimum, maximum = queue.min_offset, queue.max_offset
        refused = offset_status(offset, minimum, maximum)
        if refused is not None:
            return GetResult(refused[0], [], refused[1], minimum, maximum)
        count = max_count if tag_codes is None else scan_count(max_count)
        entries = queue.entries(offset, max(1, count))
        limits = self._limits(max_count, max_bytes)
        chosen = select(entries, offset, limits, tag_codes)
        next_offset = offset + chosen.scanned
        if not chosen.positions:
            return GetResult(GetStatus.NO_MATCHED_MESSAGE, [], next_offset, minimum, maximum)
        first = self._commitlog.min_offset
        if chosen.positions[0] < first:
            self._checked.check_removed(queue, offset)
            chosen = chosen.from_position(first)
            if not chosen.positions:
                return GetResult(GetStatus.MESSAGE_WAS_REMOVING, [], next_offset, minimum, maximum)
        cold = chosen.positions[0] < limits.hot_from
        read, data = self._checked.read(chosen, queue, cold, budget or ReadBudget())
        count = len(read.positions)
        if count < len(chosen.positions):
            next_offset = chosen.offsets[count]
            if not count:
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, [], next_offset, minimum, maximum)
        return GetResult(
            GetStatus.FOUND, [data], next_offset, minimum, maximum, count, len(data), cold
        )

    def _limits(self, max_count: int, max_bytes: int) -> Limits:
        config = self._config
        hot_from = self._commitlog.max_offset - config.hot_span_bytes
        cold_count_max, cold_bytes_max = config.cold_count_max, config.cold_bytes_max
        return Limits(max_count, max_bytes, cold_count_max, cold_bytes_max, hot_from)

    def message_at(self, offset: int, budget: ReadBudget | None = None) -> bytes | None:
        """Return the record at this CommitLog offset; None if none is visible or the budget is used
        up. Raises StoreDamaged, OSError."""
        if offset >= self._derived.dispatched_offset:
            return None
        return self._commitlog.served.record_at(offset, budget)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the first queue offset of a message stored at `timestamp_ms` or later; max_offset
        if none was; 0 for an unknown queue."""
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return 0
        return queue.first_at(lambda at, _: self._store_time(at) >= timestamp_ms)

    def last_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the last queue offset of a message stored at `timestamp_ms` or earlier; 0 if none
        was, as Apache's brokers answer (ConsumeQueue.binarySearchInQueueByTime, UPPER)."""
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return 0
        after = queue.first_at(lambda at, _: self._store_time(at) > timestamp_ms)
        return after - 1 if after > queue.min_offset else 0

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time in ms of a queue's oldest message; -1 if it has none."""
        queue = self._queues.queue(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._store_time(queue.entry(queue.min_offset)[0])

    def _store_time(self, position: int) -> int:
        """Return a record's store time in ms; -1 if the log has deleted it."""
        log = self._commitlog
        if not log.min_offset <= position < log.max_offset:
            return -1
        return store_timestamp_at(log.read(position, HEAD_WITH_HOSTS_BYTES), 0)
