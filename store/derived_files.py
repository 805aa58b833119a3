"""The files derived from the CommitLog (its ConsumeQueues and its index), and how much of the log
they cover.

`dispatched_offset` is how far the ConsumeQueues go; only what lies below it is visible to readers.
After a restart it is how far the last flush made them durable: the part of the log behind it must
be dispatched again (units already there are skipped). If the ConsumeQueues are gone it is the log's
beginning. The index follows later, in steps.

In Raft mode committed frames come here through `dispatch_frame`, in log order. In classic mode
store.commitlog.classic_log hands over what it has written.

One caller (the loop). `open`, `log_recovered`, `cut_back` and `index_all` block.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from .checkpoint import Checkpoint
from .commitlog.commitlog import CommitLog
from .consumequeue.consumequeue import ConsumeQueueStore
from .consumequeue.repair import QueueRepairs, mend_queues
from .dispatch import Dispatcher, Units
from .errors import QueuesLost
from .frame import Frame, FrameKind
from .index.message_index import STEP_BYTES, KeyQuery, MessageIndex


class DerivedFiles:
    """ConsumeQueues and index of one CommitLog."""

    def __init__(
        self,
        commitlog: CommitLog,
        checkpoint: Checkpoint,
        queues: ConsumeQueueStore,
        index: MessageIndex | None,
        repairs: QueueRepairs,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        self._commitlog = commitlog
        self._checkpoint = checkpoint
        self.queues = queues
        self.index = index  # None: it is not kept
        self._repairs = repairs
        self.dispatcher = Dispatcher(delay_levels_ms)
        self.dispatched_offset = 0
        self.newest_ms = 0  # store time of the newest record dispatched
        self._kept_to = 0  # up to this CommitLog offset `open` kept the queues' units

    def open(self, confirmed: int, *, clean: bool, foreign: bool = False) -> None:
        """Open the files and keep what points below CommitLog offset `confirmed`, or below the
        log's beginning: that cannot be made again. `clean`: the last stop was. `foreign`: another
        program may have deleted queues since. Raises OSError."""
        fields = self._checkpoint.fields
        self.newest_ms = fields.logics_timestamp_ms
        self._kept_to = max(confirmed, self._commitlog.min_offset)
        begin = self._commitlog.min_offset
        self.queues.open(self._kept_to, clean=clean, log_begin=begin, foreign=foreign)
        if self.index is not None:
            self.index.open(confirmed, clean=clean, full_until_ms=fields.index_timestamp_ms)
        if not self.queues.topics() and not self.queues.damaged:
            confirmed = 0  # never written, or deleted: then they are made from the log again
        # The log may begin before or after that once it is mended: see `log_recovered`.
        self.dispatched_offset = confirmed

    def log_recovered(self) -> None:
        """Fit the queues to the recovered log, in Raft mode, before anything is dispatched: drop
        units of lost frames, and rebuild damaged queues (that reads the whole log). Raises
        QueuesLost if that is not enough."""
        begin, end = self._commitlog.min_offset, self._commitlog.max_offset
        if begin and self.queues.unknown:
            raise QueuesLost(begin)
        if end < self.dispatched_offset:
            self.cut_back(end)
        self.queues.correct_min_offset(begin)
        self.dispatched_offset = max(self.dispatched_offset, begin)  # not known before
        if self._kept_to > self.dispatched_offset:  # lost segments are back: the log begins earlier
            self.queues.truncate_to_commitlog(self.dispatched_offset)
        if not mend_queues(self.queues, self._repairs, self.dispatcher, self.dispatched_offset):
            self.dispatched_offset = begin
        self.queues.begin_where_noted(begin)

    def dispatch_frame(self, frame: Frame, units: Sequence[Units] | None = None) -> Sequence[Units]:
        """Make a committed frame's messages visible. Return the units by queue (topic, queue id,
        first queue offset, units); `units` are the same, if the leader has computed them already.

        A frame dispatched before is skipped (returns []). Raises DispatchError; OSError, after
        which the same call may be repeated."""
        if frame.end <= self.dispatched_offset:
            return []
        if frame.position != self.dispatched_offset:  # then it begins the next segment
            following = self._commitlog.segment_end(self.dispatched_offset)
            assert frame.position == following, (frame.position, self.dispatched_offset)
        if frame.kind != FrameKind.MESSAGES:
            units = []
        elif units is None:
            units = self.dispatcher.index_frame(frame)
        self.append(units, frame.end, frame.timestamp_ms)
        return units

    def make_room(self) -> None:
        """Write what the queues keep in memory above their bounds, after a shortage. To be called
        before more is dispatched. Raises OSError, having changed nothing that is read."""
        self.queues.make_room()

    def append(self, units: Sequence[Units], end: int, newest_ms: int) -> None:
        """Append the units of a part of the log that ends at `end`. Raises OSError."""
        append = self.queues.append
        for topic, queue_id, first, packed in units:
            append(topic, queue_id, first, packed)
        if self.index is not None:
            self.index.notes.add(self.dispatched_offset, end, units)
        self.dispatched_offset = end
        self.newest_ms = newest_ms

    def cut_back(self, offset: int) -> bool:
        """Raft mode, for an engine that breaks Raft's promise: drop the units from `offset` on,
        because the log lost dispatched frames and ends there now. They may be dispatched anew.

        Returns False, having done nothing, while a flush is in flight. Blocking. Raises OSError."""
        if self.queues.flushing:
            return False
        if offset < self.dispatched_offset:
            fields = self._checkpoint.fields
            if fields.confirm_offset > offset:  # first, or a kill leaves a hole in the queues
                self._checkpoint.note(fields._replace(confirm_offset=offset))
                self._checkpoint.sync()
            self.queues.truncate_to_commitlog(offset)
            if self.index is not None:
                self.index.truncate(offset)
            self.dispatched_offset = offset
        return True

    def correct_min_offset(self) -> None:
        """Move the queues' min_offset up to the log's after segments were removed, and remove index
        files wholly below it."""
        self.queues.correct_min_offset(self._commitlog.min_offset)
        if self.index is not None:
            self.index.delete_before(self._commitlog.min_offset)

    @property
    def indexed_offset(self) -> int:
        """The CommitLog offset up to which the index goes."""
        return self.dispatched_offset if self.index is None else self.index.position

    def index_step(self, budget_bytes: int = STEP_BYTES) -> int:
        """Index about `budget_bytes` more of the dispatched part; return how many are left. Called
        when there is time for it (store.index.message_index). Raises StoreDamaged; OSError; then
        call again."""
        return 0 if self.index is None else self.index.step(self.dispatched_offset, budget_bytes)

    def pass_damage(self, position: int) -> None:
        """Have `index_step` go on behind the damage that it met at `position`."""
        if self.index is not None:
            self.index.pass_damage(position)

    def index_all(self) -> None:
        """Index everything dispatched. Blocking. Raises StoreDamaged, OSError."""
        while self.index_step():
            pass

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> KeyQuery:
        """Find messages by key, as far as the index goes (MessageIndex.query). Raises OSError."""
        if self.index is None:
            return KeyQuery([], 0, 0)
        return self.index.query(topic, key, max_count, begin_ms, end_ms)

    def query_in_steps(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, KeyQuery]:
        """Do as `query`, in steps."""
        if self.index is None:
            return KeyQuery([], 0, 0)
        return (yield from self.index.query_in_steps(topic, key, max_count, begin_ms, end_ms))

    def close(self) -> None:
        """Close the files as they are."""
        self.queues.close()
        if self.index is not None:
            self.index.close()
