"""Planted breaks of the shell and of the broker: each takes one rule out of the real programs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from raftmq.broker.consume.offset_commits import CommitService
from raftmq.broker.consume.queue_locks import LockService
from raftmq.broker.delayed.delay_levels import DelayService
from raftmq.broker.delayed.send_back import SendBack
from raftmq.broker.replication.log import ReplicatedLog
from raftmq.broker.send.idempotency import Repeats
from raftmq.broker.tables import snapshot
from raftmq.broker.tables import snapshot_install as snapshotinstall
from raftmq.broker.tables.idempotent_sends import SentOnce
from raftmq.broker.tables.snapshot import Snapshot
from raftmq.broker.tables.timer_wheel import TimerWheel
from raftmq.broker.tables.topics import TopicTable
from raftmq.broker.transactions.book import HalfBook
from raftmq.broker.transactions.service import Transactions
from raftmq.client.consumer.process_queue import ProcessQueue
from raftmq.client.consumer.remote_offset_store import OffsetStore
from raftmq.dledger.node.ready_loop import Pump
from raftmq.dledger.node.rollback_detection import RollbackDetection
from raftmq.dledger.raft.snapshot_install import Receiver
from raftmq.dledger.storage.hard_state import Owner
from raftmq.dledger.storage.hard_state_writer import HardStateSaver
from raftmq.dledger.storage.log_flusher import FlushMode, LogFlusher
from raftmq.dledger.storage.startup_state import Promises
from raftmq.dledger.transport import peer_info_message
from raftmq.dledger.transport.group_id import GroupIdentity
from raftmq.dledger.transport.inbound import Incoming
from raftmq.dledger.transport.peer_info_message import Held
from raftmq.dledger.transport.wire import Hello
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import EndTransactionHeader
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.log_sync import SyncTicket
from raftmq.store.derived_files import DerivedFiles
from tests.simulator.cluster.planting import instead, replaced
from tests.simulator.cluster.surroundings import SimLock
from tests.simulator.disk import SimDisk

# -- Raft's shell ----------------------------------------------------------------------------------


def message_before_durable_vote() -> AbstractContextManager[Any]:
    """Votes and terms are sent while they are being saved."""

    def broken(save: Any) -> Any:
        def saves(self: HardStateSaver, state: Any, then: Any) -> None:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(self._pool, self._file.save, state)
            loop.call_soon(then, None)

        return saves

    return replaced(HardStateSaver, "save", broken)


def sync_counted_as_async() -> AbstractContextManager[Any]:
    """SYNC_FLUSH is taken for ASYNC_FLUSH: what is written counts as durable."""

    def broken(start: Any) -> Any:
        def starts(self: LogFlusher, *callbacks: Any) -> None:
            self.mode = FlushMode.ASYNC
            start(self, *callbacks)

        return starts

    return replaced(LogFlusher, "start", broken)


def acknowledged_when_the_sync_begins() -> AbstractContextManager[Any]:
    """A sync that is under way counts as done."""

    def broken(begin: Any) -> Any:
        def begins(self: LogFlusher) -> bool:
            started: bool = begin(self)
            if started and self.mode is FlushMode.SYNC and self._on_durable is not None:
                asyncio.get_running_loop().call_soon(self._on_durable, self._log.last_index)
            return started

        return begins

    return replaced(LogFlusher, "_start", broken)


def sync_skipped() -> AbstractContextManager[Any]:
    """fdatasync of the log returns without doing anything."""

    def skips(self: SyncTicket) -> None:
        self.ran = True

    return instead(SyncTicket, "run", skips)


def failed_sync_ignored() -> AbstractContextManager[Any]:
    """A failed fdatasync is tried once more, and then believed."""

    def broken(run: Any) -> Any:
        def runs(self: SyncTicket) -> None:
            try:
                run(self)
            except OSError:
                self.error = None
                run(self)

        return runs

    return replaced(SyncTicket, "run", broken)


def failed_sync_forgotten_by_a_restart() -> AbstractContextManager[Any]:
    """The next process believes what a failed sync left in the page cache."""
    return instead(CommitLog, "_write_again", lambda *_: None)


def names_unsynced() -> AbstractContextManager[Any]:
    """Directories are not synced: a new segment may be gone with the power."""
    return instead(SimDisk, "sync_directory", lambda *_: None)


def applies_uncommitted() -> AbstractContextManager[Any]:
    """Frames are applied, and their senders answered, as soon as they are written."""

    def broken(finish: Any) -> Any:
        def finishes(self: Pump, ready: Any) -> None:
            finish(self, ready)
            if ready.append:
                self._commit_due = self.log.last_index

        return finishes

    return replaced(Pump, "_finish", broken)


def reads_without_a_round() -> AbstractContextManager[Any]:
    """A linearizable read asks nobody whether this replica still leads."""

    async def at_once(self: ReplicatedLog) -> None:
        return None

    return instead(ReplicatedLog, "barrier", at_once)


def old_stores_believed() -> AbstractContextManager[Any]:
    """Whatever others remember of a replica, its store is right."""
    return instead(Held, "exceeds", lambda self, term, index: False)


def owners_believed() -> AbstractContextManager[Any]:
    """Whoever made the promises in a vote file, they are this replica's."""
    return instead(Owner, "differs", lambda self, own: "")


def notes_taken_unchecked() -> AbstractContextManager[Any]:
    """The notes in a message need not be what was written."""

    return instead(peer_info_message, "_checked", lambda data, what: data[:-4])


def notes_told_late() -> AbstractContextManager[Any]:
    """A link does not begin with what is known of the other end."""
    return instead(RollbackDetection, "for_new_link", lambda self: None)


def notes_forgotten_by_a_restart() -> AbstractContextManager[Any]:
    """The file of notes is written, and not read."""

    def broken(load: Any) -> Any:
        def loads(self: RollbackDetection) -> None:
            load(self)
            self._memory.notes.clear()

        return loads

    return replaced(RollbackDetection, "load", broken)


def promises_never_lost() -> AbstractContextManager[Any]:
    """A replica that lost its disk believes that it has all it promised."""

    def broken(opened: Any) -> Any:
        def opens(self: Promises, log_is_empty: bool) -> Any:
            state = opened(self, log_is_empty)
            self.recovering = None
            return type(state)(state.term, state.voted_for, recovered=True)

        return opens

    return replaced(Promises, "open", broken)


def installer_skips_a_chunk() -> AbstractContextManager[Any]:
    """One byte too many of a snapshot is left out between two chunks."""

    def broken(step: Any) -> Any:
        def steps(self: Receiver, chunk: Any, now_ms: float) -> Any:
            data = step(self, chunk, now_ms)
            return None if data is None else data[: len(data) // 2] + data[len(data) // 2 + 1 :]

        return steps

    return replaced(Receiver, "step", broken)


def install_without_topics() -> AbstractContextManager[Any]:
    """A refilled replica gets the log, but not the topics that its beginning made."""

    def broken(decode: Any) -> Any:
        def decodes(data: bytes) -> Any:
            taken, queues = decode(data)
            for _, table in taken.tables:
                if isinstance(table, TopicTable):
                    table.load(TopicTable().to_json(), table.applied_index)
            return taken, queues

        return decodes

    return replaced(snapshotinstall, "decode_state", broken)


# -- operators -------------------------------------------------------------------------------------


def stranger_taken() -> AbstractContextManager[Any]:
    """Whoever says hello is let in, whatever group it names."""

    def broken(refusal: Any) -> Any:
        def refuses(self: Incoming, hello: Hello, transport: Any) -> str:
            result: str = refusal(self, replace(hello, group=self._local.group), transport)
            return result

        return refuses

    return replaced(Incoming, "refusal", broken)


def group_id_unchecked() -> AbstractContextManager[Any]:
    """Replicas of two groups of one name talk to each other."""
    return instead(GroupIdentity, "judge", lambda self, meeting, now_ms: "")


def store_not_locked() -> AbstractContextManager[Any]:
    """A second process may open a store."""
    return patch("raftmq.broker.startup.lock_store", lambda root, what: SimLock(root, {}))


# -- tables and snapshots --------------------------------------------------------------------------


def snapshot_ahead_of_the_log() -> AbstractContextManager[Any]:
    """A snapshot of the tables says that it reflects three frames more than it does."""

    def broken(capture: Any) -> Any:
        def captures(state: Any) -> Snapshot:
            taken: Snapshot = capture(state)
            for _, table in taken.tables:
                table.applied_index += 3
            return taken

        return captures

    return replaced(snapshot, "capture", broken)


def frames_not_dispatched() -> AbstractContextManager[Any]:
    """One frame in forty is not put into the queues."""

    def broken(dispatch: Any) -> Any:
        def dispatches(self: DerivedFiles, frame: Any) -> Any:
            return [] if frame.index % 40 == 0 else dispatch(self, frame)

        return dispatches

    return replaced(DerivedFiles, "dispatch_frame", broken)


def once_forgotten() -> AbstractContextManager[Any]:
    """Idempotent sends are not remembered."""
    return instead(SentOnce, "take", lambda *_: None)


def once_in_flight_unchecked() -> AbstractContextManager[Any]:
    """An idempotent send that is repeated while the first is in flight is another one."""
    return instead(Repeats, "join", lambda *_: False)


def metadata_answered_at_once() -> AbstractContextManager[Any]:
    """A change of topics and groups is answered when it is proposed."""

    async def proposes(self: ReplicatedLog, payload: bytes) -> int:
        self.propose_command(payload).add_done_callback(seen)
        return 0

    return instead(ReplicatedLog, "propose", proposes)


# -- consumers -------------------------------------------------------------------------------------


def commits_answered_at_once() -> AbstractContextManager[Any]:
    """An offset commit is answered when it is gathered."""

    async def commits(self: CommitService, *commit: Any) -> None:
        self._gather(*commit)

    return instead(CommitService, "commit_and_wait", commits)


def offsets_read_beside_commits() -> AbstractContextManager[Any]:
    """A query of an offset does not wait for a commit in flight, nor for proof of leadership."""

    async def passes(self: Any, *_: Any) -> None:
        return None

    @contextmanager
    def both() -> Iterator[None]:
        with instead(CommitService, "settle", passes), instead(ReplicatedLog, "barrier", passes):
            yield

    return both()


def commits_of_a_queue_overtake_each_other() -> AbstractContextManager[Any]:
    """The client repeats an old commit after a newer one was answered."""
    return instead(OffsetStore, "_commit_one", OffsetStore._write_one)


def commits_before_it_is_done() -> AbstractContextManager[Any]:
    """The client commits what it has pulled, not what its listener has finished."""
    return instead(ProcessQueue, "committable", property(lambda self: self.next_pull))


def locks_not_logged() -> AbstractContextManager[Any]:
    """A queue's lock is granted when it is proposed."""

    def broken(init: Any) -> Any:
        def inits(self: LockService, table: Any, **given: Any) -> None:
            propose = given["propose"]

            async def proposes(payload: bytes) -> int:
                asyncio.ensure_future(propose(payload)).add_done_callback(seen)
                return 0

            given["propose"] = proposes
            init(self, table, **given)

        return inits

    return replaced(LockService, "__init__", broken)


def locks_forgotten() -> AbstractContextManager[Any]:
    """A new leader knows nobody's locks."""

    def broken(changed: Any) -> Any:
        def changes(self: LockService) -> None:
            self._table().owners.clear()
            changed(self)

        return changes

    return replaced(LockService, "leadership_changed", broken)


def lock_ends_with_the_connection() -> AbstractContextManager[Any]:
    """A lock is over as soon as its owner is not connected, however young it is."""

    def over(self: LockService, key: Any, now_ms: int) -> bool:
        owner = self._table().owner(key)
        return owner is None or not self._present(key[1], owner)

    return instead(LockService, "_is_over", over)


def lock_ages_ten_times_as_fast() -> AbstractContextManager[Any]:
    """A lock's lease is counted more than once."""

    def broken(age: Any) -> Any:
        return lambda self, key, now_ms: 40 * age(self, key, now_ms)

    return replaced(LockService, "_age_ms", broken)


# -- transactions, delays, retries -----------------------------------------------------------------


def transaction_ended_twice() -> AbstractContextManager[Any]:
    """A half message that has ended stays open, and its producer is asked for it again."""

    def keeps(close: Any) -> Any:
        def closes(self: HalfBook, offset: int, decision: int | None = None) -> None:
            if decision is None:
                close(self, offset, decision)

        return closes

    def takes(self: HalfBook, op_offset: int, halves: list[int]) -> None:
        self.skip_ops(op_offset)
        self.op_next = op_offset + 1
        self._ops.append(max(halves, default=-1))

    @contextmanager
    def both() -> Iterator[None]:
        with replaced(HalfBook, "close", keeps), instead(HalfBook, "add_op", takes):
            yield

    return both()


def halves_forgotten() -> AbstractContextManager[Any]:
    """A new leader begins to read half messages at the end."""

    def broken(changed: Any) -> Any:
        def changes(self: Transactions) -> None:
            changed(self)
            if self._halves.book is not None:
                self._halves.book = HalfBook(*self._targets)

        return changes

    return replaced(Transactions, "leadership_changed", broken)


def rollback_delivers() -> AbstractContextManager[Any]:
    """A rollback is taken for a commit."""

    def broken(parse: Any) -> Any:
        def parses(ext: Any) -> Any:
            return parse({**ext, "commitOrRollback": "8"})

        return staticmethod(parses)

    return replaced(EndTransactionHeader, "parse", broken)


def delayed_early() -> AbstractContextManager[Any]:
    """Delayed messages are delivered when most of their time is over."""

    def broken(init: Any) -> Any:
        def inits(self: DelayService, *given: Any, **more: Any) -> None:
            init(self, *given, **more)
            wall_ms = self._wall_ms
            self._wall_ms = lambda: wall_ms() + 400

        return inits

    return replaced(DelayService, "__init__", broken)


def delayed_again_after_a_failover() -> AbstractContextManager[Any]:
    """How far delayed messages were delivered is not in the log."""
    return patch("raftmq.broker.delayed.delay_levels.delay_progress", lambda level, end: b"")


def timers_lost() -> AbstractContextManager[Any]:
    """One timer message in seven is not put into the wheel."""

    def broken(take: Any) -> Any:
        def takes(self: TimerWheel, offset: int, due_ms: int) -> bool:
            if offset % 7 == 3:
                due_ms += 1 << 40
            return bool(take(self, offset, due_ms))

        return takes

    return replaced(TimerWheel, "take", broken)


def retries_lost() -> AbstractContextManager[Any]:
    """A message that a consumer gives back is taken, and not stored."""

    async def takes(self: SendBack, connection: Any, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request)

    return instead(SendBack, "send_back", takes)


def seen(future: asyncio.Future[Any]) -> None:
    """Look at a future's error, so that nobody complains that nobody did."""
    if not future.cancelled():
        future.exception()
