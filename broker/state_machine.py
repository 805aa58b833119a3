"""The application that the Raft member drives (dledger's `Application`).

It builds frames, applies committed frames and gets role changes. Only `apply` changes this replica
by committed frames. Message frames go to the ConsumeQueues, command frames to the tables. Then
senders are answered and held pulls woken, which cannot make `apply` fail (broker.error_isolation).
Everything but the answers is deterministic on every replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from raftmq.dledger.raft.errors import ApplyLater
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import RoleEvent
from raftmq.store.derived_files import DerivedFiles
from raftmq.store.frame import EntryBatch, Frame, FrameKind
from raftmq.store.transient_errors import passes

from .error_isolation import Contained
from .errors import StateError
from .scheduler import Activity
from .send.queue import Pending
from .send.service import SendPath
from .tables.snapshot import behind
from .tables.state import BrokerState

log = logging.getLogger("raftmq.broker.state_machine")


class BrokerApplication:
    """The broker's side of the Raft member. `log_index` is called after its recovery."""

    def __init__(
        self,
        state: BrokerState,
        sends: SendPath,
        store: DerivedFiles,
        *,
        log_index: Callable[[], LogIndex],
        on_entries: Callable[[Sequence[EntryBatch]], None],
        on_topics: Callable[[Sequence[str]], None],
        on_role: Callable[[RoleEvent], None],
        recovering: Callable[[], bool] = lambda: False,
        installed_index: int = 0,
        contained: Contained | None = None,
        activity: Activity | None = None,
    ) -> None:
        """`recovering` means that the log may have lost frames that this replica had applied. The
        tables may reflect frames up to `installed_index` that the log does not have yet
        (dledger.raft.snapshot_install)."""
        self._contained = contained or Contained()
        self._activity = activity or Activity()
        self._recovering = recovering
        self._installed_index = installed_index
        self._state = state
        self._sends = sends
        self._store = store
        self._log_index = log_index
        self._on_entries = on_entries
        self._on_topics = on_topics
        self._on_role = on_role
        self.applied_position = 0  # end of the last applied frame
        self.recovered_index: int | None = None

    @property
    def applied_index(self) -> int:
        """The index up to which tables and ConsumeQueues both reflect the log; applying starts
        behind it. The first call blocks, so the engine makes it in a thread.

        Raises StateError if the tables are ahead of the log, because its tail was lost, or config/
        belongs to a different log. Raises it also for damaged or missing tables that the log cannot
        rebuild."""
        if self.recovered_index is None:
            self.recovered_index = self._recover(self._log_index())
        return self.recovered_index

    def _recover(self, index: LogIndex) -> int:
        self._store.log_recovered()
        tables = self._state.applied_index
        if index.last_index < tables <= self._installed_index:
            log.info("tables_installed tables=%d last=%d", tables, index.last_index)
            tables = index.last_index
        elif tables > index.last_index and self._recovering():
            tables = self._forget_what_the_log_lost(index)
        elif tables > index.last_index:
            raise StateError(
                f"config/ reflects frame {tables}, but the log ends at {index.last_index}: "
                "the log lost its tail, or config/ is not this log's"
            )
        start = min(tables, index.last_ending_by(self._store.dispatched_offset))
        oldest = index.first_index - 1
        if tables < oldest:
            raise StateError(
                f"{', '.join(behind(self._state, oldest))} under config/ cannot be read or are "
                f"gone, what is there is of frame {tables}, and the log begins at frame "
                f"{index.first_index}: put a copy of another replica's config/ there, or start "
                "this one with an empty directory"
            )
        log.info("replay from=%d last=%d tables=%d", start, index.last_index, tables)
        self.applied_position = index.end_of(start)
        return start

    def _forget_what_the_log_lost(self, index: LogIndex) -> int:
        """Clear the tables for a rebuild if the log starts at index 1; return their index.

        The tables reflect damaged frames that were dropped. Either the leader sends them again, or
        the group has lost them and their indexes will be reused."""
        tables = self._state.applied_index
        if index.first_index == 1:
            self._state.clear()
        log.error(
            "tables_ahead tables=%d last=%d: %s",
            tables,
            index.last_index,
            "made anew" if index.first_index == 1 else "kept, the log begins too late",
        )
        return min(self._state.applied_index, index.last_index)

    def cut(self, term: int, index: int, allocate: Callable[[int], int]) -> Frame | None:
        return self._sends.next_frame(term, index, allocate)

    def apply(self, frames: Sequence[Frame]) -> None:
        self._activity.note()
        self._make_room()
        answers: list[Pending] = []
        touched: list[EntryBatch] = []
        topics: list[str] = []
        for frame in frames:
            if frame.kind == FrameKind.MESSAGES:
                pending = self._sends.applied(frame)
                if pending is not None:
                    answers.append(pending)
            touched += self._store.dispatch_frame(frame)
            command = frame.command
            if len(command):
                at = frame.position + frame.records_at
                change = self._state.apply(frame.index, frame.timestamp_ms, command, at)
                topics += change.topics
            self._state.advance(frame.index)
            if frame.timestamp_ms > self._sends.stamp_ms:
                self._sends.stamp_ms = frame.timestamp_ms
        self.applied_position = frames[-1].end
        for name in topics:
            exists = self._state.topics.get(name) is not None
            self._store.queues.topic_changed(name, exists=exists)
            self._sends.topic_changed(name)
        # Log and tables have changed. The rest must not fail this replica.
        if topics:
            self._contained.run("topics_told", lambda: self._on_topics(topics))
        if answers:
            self._sends.answer(answers)
        self._on_entries(touched)

    def _make_room(self) -> None:
        """Write the ConsumeQueue entries kept in memory during a disk shortage. Raises ApplyLater
        if that still fails; OSError."""
        try:
            self._store.write_full_tails()
        except OSError as error:
            if not passes(error):
                raise
            raise ApplyLater(str(error)) from error

    def truncated(self, from_index: int) -> None:
        self._sends.truncated(from_index)

    def role_changed(self, event: RoleEvent) -> None:
        self._on_role(event)
