"""Retention of segments, and the count of messages deleted before they expire.

The wall clock is compared with the log's own time (store.retention) once per second. Messages do
not age by a doubted clock. The log's own time is written to the checkpoint every NOTE_MS, so that
it survives a restart.

The log *contradicts* a clock that is behind it, or so far ahead that a message stored just before
the last stop would count as expired. Such a replica should not lead (broker.leader_fitness), and
operators are warned.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from raftmq.store.checkpoint import LogTimes
from raftmq.store.consumequeue.consumequeue import FILLER_SIZE, ConsumeQueue, ConsumeQueueStore
from raftmq.store.message_store import MessageStore
from raftmq.store.retention import HOUR_MS, Expired, LogClock, LogNow

from .config import BrokerConfig
from .construction import retention_policy
from .events import NodeEvents
from .tables.offsets import OffsetTable

log = logging.getLogger("raftmq.broker.retention")

NOTE_MS = 60_000  # between two writes; well below log_clock.CLOCK_JUMP_MS
NOT_SETTLED = "what is not applied and durable yet"


@dataclass(frozen=True, slots=True)
class Retained:
    """The bytes that a retention pass deleted, and kept against the policy for a reason."""

    deleted: int
    kept: int = 0
    kept_for: str = ""


@dataclass(slots=True)
class Limit:
    """The offset up to which a pass deletes, and its reason, "" for the policy alone."""

    position: int
    reason: str = ""

    def lower(self, position: int, reason: str) -> None:
        """Lower the limit to `position`, for this reason."""
        if position < self.position:
            self.position, self.reason = position, reason

    def retained(self, expired: int, before: int, after: int) -> Retained:
        """Return the result of a pass up to `expired`, with the log's starts before and after."""
        kept = max(0, expired - after)
        return Retained(after - before, kept, (self.reason or NOT_SETTLED) if kept else "")


class Retention:
    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        wall_ms: Callable[[], int],
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._config = config
        self._wall_ms = wall_ms
        self._clock_ms = clock_ms
        self._clock: LogClock | None = None  # made at the first check, once the log is recovered
        self._now = LogNow(0, 0)
        self._note_due_ms = 0
        self._doubted_bytes = 0

    def poll(self) -> LogNow:
        """Compare the wall clock with the log's time, saved regularly. The first raises OSError."""
        return self._read_log(-1)

    def _read_log(self, log_start_ms: int) -> LogNow:
        wall_ms, clock_ms = self._wall_ms(), self._clock_ms()
        times, was, starting = self._store.checkpoint.times, self._now, self._clock is None
        if self._clock is None:
            own_ms = times.own_ms or self._store.expiry.log_end_time() or wall_ms
            self._clock = LogClock(clock_ms, own_ms, times.since_ms)
        self._now = now = self._clock.compare(wall_ms, clock_ms, log_start_ms)
        changed = bool(now.lead_ms) != bool(was.lead_ms)
        if changed and now.lead_ms:
            log.log(
                logging.INFO if starting and not self.contradiction else logging.WARNING,
                "clock_doubted seconds=%+.3f: messages from before do not age by it",
                now.lead_ms / 1000,
            )
        elif changed:
            log.info("clock_agrees")
        if changed or clock_ms >= self._note_due_ms:
            self._note_due_ms = clock_ms + NOTE_MS
            try:
                self.note()
            except OSError as error:  # retried; a restart would count the time as off
                log.warning("log_time_not_noted: %s", error)
        return now

    def note(self) -> None:
        """Write the log's own time to the checkpoint. Raises OSError."""
        if self._clock is not None:
            self._store.checkpoint.write_times(LogTimes(self._now.own_ms, self._now.since_ms))

    def trust_clock(self) -> None:
        """Accept the wall clock, because most replicas or an operator confirm it."""
        lead_ms = self.poll().lead_ms
        if self._clock is not None and lead_ms:
            log.warning("clock_trusted seconds=%+.3f", lead_ms / 1000)
            self._clock.trust(self._wall_ms(), self._clock_ms())
            self.poll()

    @property
    def contradiction(self) -> str:
        """How the log contradicts the wall clock at the last check, or ""."""
        lead_ms = self._now.lead_ms
        if 0 <= lead_ms < max(1, self._config.file_reserved_time * HOUR_MS):
            return ""
        days, hours = divmod(abs(lead_ms) // HOUR_MS, 24)
        minutes = abs(lead_ms) // 60_000 % 60
        by = f"{days} d {hours} h {minutes} min"
        if lead_ms < 0:
            return f"the clock is {by} behind the time when this store was last written"
        return (
            f"the clock is {by} ahead of the time when this store was last open: messages from"
            " before do not age by it. If the clock is right and the store was off for so long,"
            " mqadmin deleteExpiredCommitLog --trustClock confirms it"
        )

    def expired(self, *, at_once: bool = False) -> Expired:
        """Return the segments to delete; `at_once` ignores `deleteWhen`. Raises OSError."""
        policy, expiry = retention_policy(self._config), self._store.expiry
        now = self.poll()
        if now.since_ms:
            now = self._read_log(expiry.log_start_time())
        hour = policy.due_hour if at_once else None
        expired = expiry.expired(policy, now, self._store.disk.usage(), hour)
        self._doubted_bytes = expired.doubted_bytes
        return expired

    @property
    def crowded(self) -> bool:
        """True if the disk is too full to keep expired segments for readers. Raises OSError."""
        return retention_policy(self._config).crowded.is_reached(self._store.disk.usage())

    @property
    def forced(self) -> bool:
        """True if unexpired segments are deleted. Raises OSError."""
        return self._config.clean_file_forcibly_enable and self.crowded

    @property
    def clock_lead_ms(self) -> int:
        """Milliseconds by which the wall clock led the log's time at the last check, or 0."""
        return self._now.lead_ms

    def info(self) -> dict[str, str]:
        return {
            "clockAheadOfLogMs": str(self.clock_lead_ms),
            "clockContradiction": self.contradiction,
            "retentionDoubtedBytes": str(self._doubted_bytes),
        }


TOPICS_NAMED = 20  # in a log line and event


@dataclass(frozen=True, slots=True)
class Extent:
    """The CommitLog offset and the queue offsets at the start of an early deletion."""

    position: int
    offsets: dict[tuple[str, int], int]


@dataclass(slots=True)
class Unexpired:
    """Counts of unexpired messages deleted since the start. Every such pass is reported."""

    _queues: ConsumeQueueStore
    _table: OffsetTable
    _events: NodeEvents
    messages: int = field(default=0, init=False)
    unconsumed: int = field(default=0, init=False)  # by at least one group, or read by no group
    size_bytes: int = field(default=0, init=False)

    def start(self, position: int) -> Extent:
        """Record the queues' offsets before unexpired messages are deleted. Raises OSError."""
        return Extent(position, {_key(q): _first_at(q, position) for q in self._queues.queues()})

    def end(self, extent: Extent, log_start: int) -> None:
        """Count and report the deleted messages before `log_start`. Raises OSError."""
        size_bytes = log_start - extent.position
        if size_bytes <= 0:
            return
        slowest = self._slowest()
        messages, unconsumed = 0, defaultdict[str, int](int)
        for queue in self._queues.queues():
            key = _key(queue)
            end = _first_at(queue, log_start)
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
        self._events.publish("unexpiredDeleted", detail)

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
