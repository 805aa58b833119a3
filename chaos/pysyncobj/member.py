"""PySyncMember, a replica over SyncObj with RaftMember's interface and the broker's application.

Everything runs on one loop. SyncObj runs only within `guarded`, for a message, a connection or a
tick. Afterwards `_observe` reports a new role to the application and `_apply` passes it the frames
that SyncObj has applied (for SyncObj entries are no-ops; the frames are read from the log).

Differences from RaftMember:
- leader ready: SyncObj has no such state. Here, once the leader's own no-op is applied, because
  without it a broker would not have the ends of its queues;
- read_barrier: SyncObj has none. A replica that takes itself for the leader waits until its known
  committed frames are applied, and answers. That proves nothing, and SyncObj lets a deposed leader
  continue for 30 seconds, so such reads are stale;
- delete_before does nothing (journal.py), so the log grows until the disk is full;
- the tables' snapshots are not loaded (broker.startup), because their frames may be truncated
  later; the log is replayed from its start;
- applied frames that SyncObj truncates are taken back. The index of the log is truncated; the
  tables keep the effects of the lost commands, and apply the commands in their places. That is
  logged as `applied_frames_truncated`.

SyncObj's exceptions are logged without further effect, as by its own tick thread; more than
FAILURES_MAX failed ticks in a row end the member. Exceptions of our journal, disk or application
end it at once, with the reason. SyncObj's first tick after a start scans the log and blocks the
loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node

from raftmq.broker.replication.engine import Replication
from raftmq.broker.tables.state import BrokerState
from raftmq.dledger.node.applier import Application, Applier
from raftmq.dledger.node.proposals import Proposals, command_bytes_max
from raftmq.dledger.node.reads import Reads
from raftmq.dledger.raft.config import Random
from raftmq.dledger.raft.configuration import Change
from raftmq.dledger.raft.errors import Busy, NotLeader, RaftError, UnknownTarget
from raftmq.dledger.raft.messages import NodeId, Role, RoleEvent
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.storage.log_reads import FrameReads
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.transport.transport import PeerLinks
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import Disk
from raftmq.store.errors import StoreError
from raftmq.store.frame import Frame, FrameKind, seal_frame
from raftmq.store.message_store import MessageStore

from .journal import FrameJournal, JournalError
from .meta import MetaFile
from .replica import Replica, configuration
from .transport import LinkTransport


def status_of(
    config: MemberConfig,
    sync: Replica,
    links: PeerLinks,
    event: RoleEvent,
    applied_index: int,
    commands_waiting: int,
    failure: str | None,
) -> dict[str, object]:
    """Return the view of a member. `match` and `next` of a peer are None on a node that does not
    lead; SyncObj has no append window, so `inflight` counts the entries it has sent without knowing
    that they arrived."""
    status = sync.getStatus()
    index = sync.journal.log.index
    leads = sync._isLeader()
    peers: dict[str, dict[str, object]] = {}
    for peer in config.peers:
        if peer == config.node_id:
            continue
        match = status.get(f"match_idx_server_{peer}") if leads else None
        following = status.get(f"next_node_idx_server_{peer}") if leads else None
        ahead = 0 if match is None or following is None else max(0, following - 1 - match)
        peers[peer] = {
            "connected": links.is_open(peer),
            "error": links.last_error(peer),
            "dropped": links.dropped(peer),
            "match": match,
            "next": following,
            "state": "replicate" if leads else None,
            "inflight": ahead,
        }
    return {
        "node_id": config.node_id,
        "group": config.group,
        "role": event.role.value,
        "term": event.term,
        "leader": event.leader,
        "leader_ready": event.leader_ready,
        "commit_index": sync.raftCommitIndex,
        "applied_index": applied_index,
        "first_index": index.first_index,
        "last_index": index.last_index,
        "durable_index": sync.journal.log.durable_index,
        "voted_for": sync.journal.voted_for,
        "flush": "NEVER_FLUSHED",
        "failure": failure,
        "commands_waiting": commands_waiting,
        "peers": peers,
    }


log = logging.getLogger("raftmq.chaos.pysyncobj")

TICK_MS = 10  # < a seventh of a heartbeat, as RaftMember's
HOUSEKEEPING_MS = 500
HAND_OVER_MS = 500  # short, because SyncObj does not report which follower could lead
FAILURES_MAX = 100  # failed ticks in a row, a second of them, after which it will not recover
NO_FUNCTION = "this broker runs over pysyncobj, which has no such function"
OURS = (AssertionError, JournalError, OSError, StoreError)  # errors of our code, not SyncObj's


class ForeignLog(RaftError):
    """The store is a Raft replica's, with incompatible terms and first entries."""

    code = "FOREIGN_LOG"
    retriable = False


class NotSupported(RaftError):
    """SyncObj has no such function, for example changes of members, or backups."""

    code = "NOT_SUPPORTED"
    retriable = False


class NoIdentity:
    group_id = b""

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Do nothing, because the id never changes."""

    def applied(self, before: bytes, now: bytes) -> None:
        """Do nothing, because links do not compare ids."""


class PySyncMember:
    """A replica over SyncObj. Call `start` first, and `stop` in the end, even after a failure."""

    def __init__(
        self,
        config: MemberConfig,
        disk: Disk,
        commitlog: CommitLog,
        application: Application,
        *,
        truncate: Callable[[int], bool],
        take_back: Callable[[int], None],
        rng: Random,
        clock_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        listen_socket: socket.socket | None = None,
    ) -> None:
        """Parameters as RaftMember's. `rng` only spreads the dialling, because SyncObj has its own
        randomness. `truncate(position)` truncates the index of the log at `position`, like SyncObj;
        it returns False if that is not possible now. `take_back(index)` informs the tables that
        frames behind `index` will be replaced."""
        self.config = config
        self.failure: str | None = None
        self.log = RaftLog(commitlog, None, config.log_cache_bytes_max)
        commitlog.served = FrameReads(self.log)
        self.frames_taken_back = 0  # applied here, then truncated by SyncObj
        self._disk = disk
        self._commitlog = commitlog
        self._application = application
        self._cut_back = truncate
        self._take_back = take_back
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._on_fatal = on_fatal
        self._proposals = Proposals(
            config.commands_waiting_max,
            config.commands_waiting_bytes_max,
            config.command_timeout_ms,
            command_bytes_max(commitlog.segment_size_bytes),
        )
        self._reads = Reads()
        self._applier = Applier(self.log, application, self._proposals, 0)
        self._transport = LinkTransport(config, rng, self, listen_socket)
        self._sync: Replica | None = None  # once the log is recovered
        self._running = False
        self._pumping = False
        self._pump_scheduled = False
        self._frame_due = False
        self._command_last = False  # the last frame was a command
        self._state = Role.FOLLOWER  # in SyncObj
        self._reported = RoleEvent(Role.FOLLOWER, 0, None, False, "start")
        self._cut_due: int | None = None  # the index still has frames from there on
        self._failures = 0  # ticks in a row
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeping_due_ms = 0.0
        self._role_waiters: list[asyncio.Future[None]] = []

    # SyncObj has nothing of this; the broker finds a Raft replica without it.
    recovering: str | None = None
    has_core = False
    successor_expected = False
    clock_is_wrong = False
    clock_is_confirmed = False
    slow_reason = ""
    identity = NoIdentity()

    @property
    def core(self) -> NoReturn:
        raise NotSupported(NO_FUNCTION)

    @property
    def links(self) -> NoReturn:
        raise NotSupported(NO_FUNCTION)

    def change_members(self, change: Change) -> NoReturn:
        raise NotSupported(NO_FUNCTION)

    @property
    def members(self) -> list[dict[str, object]]:
        return []

    @property
    def full_voters(self) -> list[NodeId]:
        return []

    def transfer_blocker(self, target: NodeId, *, force: bool = False) -> str:
        return ""

    def preferred_successor(self) -> NodeId | None:
        return None

    def willing_successor(self, needed: bool, *, faster: bool = False) -> NodeId | None:
        return None

    def set_willing(self, is_willing: bool) -> None:
        """Do nothing, because SyncObj has no condition for leading."""

    def doubt_clock(self, lead_ms: int) -> None:
        """Do nothing, because SyncObj compares no clocks."""

    @property
    def sync(self) -> Replica:
        """The SyncObj. Not to be asked for before the log is recovered."""
        assert self._sync is not None, "the log is not recovered yet"
        return self._sync

    @property
    def refilled(self) -> list[NodeId]:
        return []

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen, dial, take part. Raises StoreDamaged, ForeignLog, OSError."""
        config = self.config
        if self._disk.exists(f"{config.directory}/hardstate"):
            raise ForeignLog(f"{config.directory}/hardstate: this store is a Raft replica's")
        await asyncio.to_thread(self.log.open)
        meta = MetaFile(self._disk, f"{config.directory}/pysyncobj.meta")
        journal = FrameJournal(self.log, meta, wall_ms=self._wall_ms, on_cut=self._on_cut)
        self._applier.applied_index = self._application.applied_index
        self._applier.start(self._on_applied, self._on_apply_failed)
        conf = configuration(config, self._on_state)
        self._sync = Replica(config, conf, journal, self._transport)
        log.warning(
            "never_flushed node=%s flushDiskType=%s: has no effect, SyncObj never calls fsync",
            config.node_id,
            config.flush.value,
        )
        self._running = True
        await self._transport.links.start()
        self._tick()

    async def stop(self) -> None:
        """Transfer leadership if a follower can lead, then close everything."""
        if self._running and self.failure is None:
            await self.hand_over()
        was_running, self._running = self._running, False
        if self._timer is not None:
            self._timer.cancel()
        self._applier.stop()
        self._proposals.close("the node stops")
        self._reads.close()
        await self._transport.links.stop()
        if was_running:
            self.sync.destroy()
        self.log.close()

    async def hand_over(self) -> NodeId | None:
        """Transfer leadership to the longest log, and wait a while; return the new leader."""
        links = self._transport.links
        others = [peer for peer in self.config.peers if peer != self.config.node_id]
        if not self.sync._isLeader() or not any(links.is_open(peer) for peer in others):
            return None
        deadline_ms = self._clock_ms() + HAND_OVER_MS
        self.guarded(self.sync.transferLeadership)
        while self.sync._isLeader() and self.failure is None:
            left_ms = deadline_ms - self._clock_ms()
            if left_ms <= 0:
                log.warning("not_handed_over reason=nobody took over in time")
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._role_waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left_ms / 1000)
        return self.leader

    # -- for the broker -----------------------------------------------------------------------

    def request_cut(self, at_once: bool = False) -> None:
        """Schedule a frame of the application's data in this turn of the loop."""
        if self._running:
            self._frame_due = True
            self._schedule_pump()

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        """Replicate a command. Raises or gives NotLeader, Busy, CommandTooLarge, OutcomeUnknown."""
        if not self._running or not self.sync._isLeader():
            raise NotLeader(self.leader)
        future = self._proposals.submit(payload, self._clock_ms())
        self._schedule_pump()
        return future

    def read_barrier(self) -> asyncio.Future[int]:
        """Wait until this node's known committed frames are applied. That does not prove
        leadership, and a deposed leader may also answer. Raises, or the future fails with,
        NotLeader and Busy."""
        if not self._reported.leader_ready or not self._running:
            raise NotLeader(self.leader)
        return self._reads.add(self._confirm_read)

    def transfer(self, target: NodeId) -> None:
        """Start a transfer of leadership to `target`; a RoleEvent reports success.

        Raises NotLeader, UnknownTarget; Busy while the target lags behind."""
        if not self._running or not self.sync._isLeader():
            raise NotLeader(self.leader)
        if target not in self.config.peers or target == self.config.node_id:
            raise UnknownTarget(f"{target} cannot take leadership over from here")
        answers: list[int] = []
        self.guarded(
            lambda: self.sync.transferLeadership(Node(target), lambda _, why: answers.append(why))
        )
        if answers != [FAIL_REASON.SUCCESS]:
            raise Busy(f"{target} does not have the whole log yet")
        self.pump()

    def successor(self) -> NodeId | None:
        """Return the connected follower with the longest log, SyncObj's only condition."""
        status, links = self.sync.getStatus(), self._transport.links
        near = [peer for peer in self.config.peers if links.is_open(peer)]
        return max(near, key=lambda peer: status.get(f"match_idx_server_{peer}") or 0, default=None)

    def agree_expired(self, position: int) -> int:
        """Return the position, because replicas exchange nothing about it."""
        return position

    async def delete_before(self, position: int) -> int:
        """Delete nothing: SyncObj needs its log's beginning; return the first offset."""
        return self._commitlog.min_offset

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Do nothing, because SyncObj ignores unreadable disks."""

    def abandon(self, reason: str) -> None:
        """Stop sending and receiving at once; `stop` has to follow."""
        self._fail("abandoned", RuntimeError(reason))

    @property
    def leader(self) -> NodeId | None:
        return self._reported.leader if self._running else None

    @property
    def applied_index(self) -> int:
        return self._applier.applied_index

    def status(self) -> dict[str, object]:
        """Return this node's view, with RaftMember's keys."""
        return status_of(
            self.config,
            self.sync,
            self._transport.links,
            self._reported,
            self._applier.applied_index,
            self._proposals.waiting,
            self.failure,
        )

    # -- events -------------------------------------------------------------------------------

    def guarded(self, act: Callable[[], None]) -> None:
        """Call `act`, which changes SyncObj, and report a changed role to the application."""
        if not self._running:
            return
        try:
            act()
            self._observe()
        except OURS as error:
            self._fail("an entry could not be kept", error)
        except Exception:  # SyncObj's own, which its tick thread would also only log
            log.exception("syncobj_raised node=%s", self.config.node_id)

    def on_failed(self, error: BaseException) -> None:
        self._fail("a peer link's task ended", error)

    def _on_state(self, state: Role) -> None:
        self._state = state

    def _on_cut(self, from_index: int) -> None:
        """Take back applied frames after a truncation of the journal."""
        applied = self._applier.applied_index
        self._take_back(from_index - 1)
        self._applier.go_back(min(applied, from_index - 1))  # the next batch may also be gone
        if from_index > applied:
            return
        log.critical(
            "applied_frames_truncated node=%s from=%d applied=%d commit=%d leader=%s",
            self.config.node_id,
            from_index,
            applied,
            self.sync.raftCommitIndex,
            self.sync._getLeader(),
        )
        self.frames_taken_back += applied - from_index + 1
        position = self.log.index.end_position
        before = self._cut_due
        self._cut_due = position if before is None else min(before, position)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        now_ms = self._clock_ms()
        if now_ms >= self._housekeeping_due_ms:
            self._housekeeping_due_ms = now_ms + HOUSEKEEPING_MS
            self._proposals.expire(now_ms)
        self.pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._pump_scheduled = False
        self.pump()

    # -- the pump -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Tick SyncObj, propose waiting data, apply committed frames.

        A call from within leaves the work to the pump that is already running."""
        if self._pumping or not self._running:
            return
        self._pumping = True
        try:
            self._tick_syncobj()
            while self._running and self._propose_next():
                self._tick_syncobj()
            if self._running:
                self._apply()
        except Exception as error:  # the ring boundary; an error of our code
            self._fail("a committed frame could not be applied", error)
        finally:
            self._pumping = False

    def _tick_syncobj(self) -> None:
        self._failures += 1
        self.guarded(self._tick_once)
        if self._failures > FAILURES_MAX:
            self._fail("SyncObj", RuntimeError(f"{FAILURES_MAX} ticks in a row failed"))

    def _tick_once(self) -> None:
        self.sync.doTick(0.0)
        self._failures = 0

    def _propose_next(self) -> bool:
        """Add a frame to SyncObj's queue; the next tick writes and sends it."""
        if not self._reported.leader_ready or self.sync.journal.held is not None:
            return False
        in_flight = self.log.last_index - self.sync.raftCommitIndex
        if in_flight >= self.config.frames_in_flight_max:
            return False
        frame = self._next_frame(self.log.last_index + 1, self.sync.raftCurrentTerm)
        if frame is None:
            return False
        self._proposals.note(frame.index, frame.term)
        self.sync.journal.held = frame
        self.sync.frame()
        return True

    def _next_frame(self, index: int, term: int) -> Frame | None:
        """Return the next frame, a command's or the application's in turns; None if none waits."""
        command = None if self._command_last else self._command(index, term)
        self._command_last = command is not None
        if command is not None:
            return command
        if self._frame_due:
            frame = self._application.cut(term, index, self._commitlog.allocate)
            if frame is not None:
                return frame
            self._frame_due = False
        return self._command(index, term)

    def _command(self, index: int, term: int) -> Frame | None:
        payload = self._proposals.take(index, term)
        if payload is None:
            return None
        position = self.log.allocate(len(payload))
        return seal_frame(index, term, position, self._wall_ms(), FrameKind.COMMAND, 0, payload)

    def _apply(self) -> None:
        """Apply the frames that SyncObj has applied. Its commit index may be ahead of its log
        (after a crash), and its applied index ahead of both (after a truncation)."""
        if self._cut_due is not None:
            if not self._cut_back(self._cut_due):
                return  # a flush is under way; the next tick asks again
            self._cut_due = None
        sync = self.sync
        limit = min(sync.raftCommitIndex, sync.raftLastApplied, self.log.last_index)
        if limit > self._applier.applied_index:
            self._applier.advance(limit)

    def _on_applied(self) -> None:
        self._reads.applied(self._applier.applied_index)
        self._observe()
        self._schedule_pump()

    def _on_apply_failed(self, error: Exception) -> None:
        self._fail("committed frames could not be applied", error)

    def _confirm_read(self, token: int) -> None:
        """Confirm a read with this node's commit index, without proof, up to the log's end."""
        known = min(self.sync.raftCommitIndex, self.log.last_index)
        self._reads.confirmed(token, known, self._applier.applied_index)

    # -- role ---------------------------------------------------------------------------------

    def _observe(self) -> None:
        """Report SyncObj's role, term and leader to the application if they have changed."""
        sync, reported, state = self.sync, self._reported, self._state
        term = sync.raftCurrentTerm
        node = sync._getLeader()
        leader = None if node is None else node.id
        applied = self._applier.applied_index
        ready = state is Role.LEADER and applied >= sync.journal.opening_index
        if (state, term, leader, ready) == (
            reported.role,
            reported.term,
            reported.leader,
            reported.leader_ready,
        ):
            return
        event = RoleEvent(state, term, leader, ready, "SyncObj says so")
        self._reported = event
        log.info(
            "role_changed node=%s role=%s term=%s leader=%s ready=%s",
            self.config.node_id,
            state.value,
            term,
            leader,
            ready,
        )
        if reported.role is Role.LEADER and (state is not Role.LEADER or term != reported.term):
            self.sync.journal.held = (
                None  # never proposed; its outcome is found like that of the rest
            )
            self._proposals.leadership_lost(leader)
        for waiter in self._role_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._role_waiters.clear()
        if ready and not reported.leader_ready:
            self._frame_due = True
        self._application.role_changed(event)

    # -- the end ------------------------------------------------------------------------------

    def _fail(self, reason: str, error: BaseException) -> None:
        """End the member after an error in this code; stop sending, and report the reason."""
        if self.failure is not None:
            return
        self.failure = f"{reason}: {error!r}"
        log.critical("member_failed node=%s", self.config.node_id, exc_info=error)
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        self._applier.stop()
        self._transport.links.abort()
        term = self._reported.term
        self._reported = RoleEvent(Role.FOLLOWER, term, None, False, self.failure)
        try:
            self._application.role_changed(self._reported)
        finally:  # whatever state the rest is in, nobody may be left waiting
            self._proposals.close(self.failure)
            self._reads.close()
            self._on_fatal(self.failure)


def make_member(
    config: MemberConfig,
    disk: Disk,
    store: MessageStore,
    state: BrokerState,
    application: Application,
    *,
    source: object,
    settings: object,
    **given: Any,
) -> PySyncMember:
    """Make a replica in the place of a Raft replica (broker.replication.engine.raft_member)."""
    return PySyncMember(
        config,
        disk,
        store.commitlog,
        application,
        truncate=store.derived.truncate,
        take_back=state.take_back,
        rng=random.Random(),
        **given,
    )


PYSYNCOBJ = Replication(make_member, keeps_log=False)
