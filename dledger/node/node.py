"""A running replica, `RaftMember`, which drives the pure core from asyncio.

Everything runs on a single loop; only fdatasync and the allocation of segments run in threads.
Parts that recover and repair the log are made at once, parts that need the core after the log is
recovered (`_build`). dispatcher.py handles messages, ready_loop.py performs the core's output in
the order persist → send → acknowledge, ticker.py watches the clock, and leadership_transfer.py
chooses successors.

A failed write or fdatasync, and any broken assertion, ends this member for good (`Pump.fail`): the
connections are aborted so that the peers elect a leader at once, and `on_fatal` is called. After a
disk failure a leader first asks a follower to start an election. While the disk stalls or is full
this member neither leads nor campaigns (disk_health.py).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import Disk
from raftmq.store.errors import StoreDamaged

from ..raft.clock import StallAwareClock
from ..raft.config import Random
from ..raft.configuration import Change, Configurations
from ..raft.core import RaftCore
from ..raft.errors import NotLeader, StateTooOld
from ..raft.leader_placement import PreferredLeader
from ..raft.messages import TERM_MAX, HardState, NodeId, Role
from ..raft.pace import Pace, Paces
from ..raft.repair import RepairRequest, RepairResponse
from ..raft.snapshot_install import (
    InstallChunk,
    InstallMessage,
    InstallOffer,
    InstallRequest,
)
from ..repair.repairer import Healer
from ..settings import MemberConfig
from ..snapshot.marker import pending
from ..snapshot.transfer import Installer, SnapshotSource
from ..storage.durations import Durations
from ..storage.hard_state import Owner
from ..storage.hard_state_writer import HardStateSaver
from ..storage.log_flusher import FlushMode, LogFlusher
from ..storage.log_reads import FrameReads
from ..storage.log_storage import RaftLog
from ..storage.log_writer import FrameWriter
from ..storage.startup_state import Promises
from ..storage.two_slot_file import SlotFile
from ..transport.group_id import GroupIdentity, file_of
from ..transport.outbound import now_ms
from ..transport.peer_info_message import PeerInfo, Settings
from ..transport.transport import PeerLinks
from ..transport.wire import encode_message
from .applier import Application, Applier
from .disk_health import DiskHealth
from .dispatcher import Inbox
from .leadership_transfer import LeadershipTransfer
from .peer_addresses import Roster, members_of
from .peer_info import PeerInfoExchange
from .proposals import Proposals, command_bytes_max
from .proposer import Proposer
from .reads import Reads
from .ready_loop import Life, Pump
from .refusals import Refusals
from .roles import Roles
from .rollback_detection import NOTES_FILE, RollbackDetection
from .standstill import Extent, Standstill, compared
from .status import repairing_status, status_of
from .ticker import Chores

log = logging.getLogger("raftmq.dledger.node.node")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a member that exist once its log is recovered."""

    pump: Pump
    flusher: LogFlusher
    installer: Installer
    chores: Chores
    leadership: LeadershipTransfer
    refusals: Refusals


class RaftMember:
    """A replica of a group. Call `start` first and `stop` in the end, even after a failure."""

    def __init__(
        self,
        config: MemberConfig,
        disk: Disk,
        commitlog: CommitLog,
        application: Application,
        *,
        rng: Random,
        clock_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        listen_socket: socket.socket | None = None,
        source: SnapshotSource | None = None,
        settings: Callable[[], Settings] = dict,
    ) -> None:
        """`clock_ms` never goes back; `wall_ms` stamps frames. `on_fatal(reason)` is called at most
        once, and the process should end then. `listen_socket` is already bound (tests). Without a
        `source` there are no snapshot installs. `settings()` returns those that should be equal on
        all replicas (peer_info.py)."""
        assert not pending(disk, config.directory), "a snapshot install is to be carried out first"
        directory = config.directory
        disk_failed = partial(self._fail, disk=True)
        self.config = config
        self.life = Life()
        self._disk = disk
        self._application = application
        self._rng = rng
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._on_fatal = on_fatal
        self._source = source
        self._settings = settings
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raft-housekeeping")
        self._trimming = asyncio.Lock()
        self._promises = Promises(
            disk,
            directory,
            config.flush is FlushMode.ASYNC,
            lambda: Owner(config.node_id, self.identity.group_id),
        )
        trim = SlotFile(disk, f"{directory}/trim")
        self.log = RaftLog(commitlog, trim, config.log_cache_bytes_max)
        commitlog.served = FrameReads(self.log)
        self.identity = GroupIdentity(file_of(disk, directory), self._is_empty, disk_failed)
        self.identity.subscribe(self._promises.note_owner)
        self._roster = Roster(config, disk, disk_failed)
        self.healer = Healer(
            config, disk, self.log, clock_ms, send=self._send, on_failed=disk_failed
        )
        notes = SlotFile(disk, f"{directory}/{NOTES_FILE}")
        self.rollback = RollbackDetection(notes, send=self._send_fact, on_failed=disk_failed)
        self.inbox = Inbox(
            config.node_id,
            self.life,
            {
                RepairRequest: self.healer.on_message,
                RepairResponse: self.healer.on_message,
                PeerInfo: self._take_peer_info,
            },
            opened=self._opened,
            refuse=self._refuse,
            disconnect=self._other_history,
            fail=self._fail,
            disk_failed=disk_failed,
        )
        self.links = PeerLinks(
            config.node_id,
            config.group,
            config.peers,
            self.inbox,
            rng,
            config.links,
            listen_socket,
            identity=self.identity,
        )
        self._parts: Parts | None = None

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen, dial, and participate. A damaged log waits for the peers (see `status`).
        Raises StoreDamaged, StateTooOld, OSError. Call `stop` also after an error or a
        cancellation."""
        loop = asyncio.get_running_loop()
        loads = (self._roster, self.identity, self.rollback)
        for load in [node_load.load for node_load in loads]:
            await loop.run_in_executor(self._pool, load)
        self.identity.start(self._pool)
        self._roster.before_the_core(self.links, self.healer)
        hard_state = await self._recover()
        starting = partial(self._roster.starting, self.log)
        configurations = await loop.run_in_executor(self._pool, starting)
        if self.recovering is not None:
            log.warning("recovering node=%s reason=%s", self.config.node_id, self.recovering)
        application = self._application
        applied = await loop.run_in_executor(self._pool, lambda: application.applied_index)
        index = self.log.index
        if index.last_term > TERM_MAX:
            raise StoreDamaged(index.end_position, f"a term above {TERM_MAX} in the log")
        if applied < index.first_index - 1:
            raise StateTooOld(
                f"the state ends at frame {applied}, the log begins at {index.first_index}"
            )
        self._parts = self._build(configurations, hard_state, applied)
        await self._participate(self._parts)

    async def _participate(self, parts: Parts) -> None:
        """Start the parts that need the core, and open it to the peers."""
        pump, take = parts.pump, parts.installer.on_message
        core, applier = pump.core, pump.applier
        sync_failed = partial(pump.fail, "fdatasync of the log failed", disk=True)
        applier.start(pump.applied, pump.apply_failed)
        self.inbox.open(
            pump,
            {
                InstallOffer: take,
                InstallRequest: take,
                InstallChunk: take,
                Pace: parts.chores.paces.take,
            },
        )
        self.life.running = True
        self._roster.follow(core, self.links, self.healer)
        self.rollback.open(core, self._lose_promises)
        parts.flusher.start(pump.durable, sync_failed)
        self.healer.start(self._pool, core, lambda: applier.commit_index, applier.resume)
        await self._open_links()
        parts.chores.start()
        if core.commit_index > applier.applied_index:
            applier.advance(core.commit_index)
        pump.run()

    async def _recover(self) -> HardState:
        """Open the log, repaired if needed, and return the initial hard state."""
        given_up: list[HardState] = []

        def give_up(reason: str) -> None:
            if not given_up:
                self.start_recovering(reason)
                given_up.append(self._promises.open(False))

        last_term = self._promises.last_term
        await self.healer.recover(self._pool, self._open_links, give_up, last_term)
        return given_up[0] if given_up else self._promises.open(self.log.last_index == 0)

    async def _open_links(self) -> None:
        if not self.links.started:
            await self.links.start()

    def _build(
        self, configurations: Configurations, hard_state: HardState, applied_index: int
    ) -> Parts:
        """Return the parts that need the core, for a recovered log."""
        config, clock_ms = self.config, self._clock_ms
        core_ms = StallAwareClock(clock_ms, config.core.heartbeat_ms)
        core = RaftCore(
            config.node_id,
            configurations,
            config.core,
            self.log.index,
            hard_state,
            self._rng,
            core_ms(),
            applied_index,
            incarnation=_new_incarnation(),
            segment_end=self.log.segment_end,
            crc_of=self.log.header_crc,
        )
        flushes = Durations(clock_ms, lambda: 0.0)  # the wait for the loop is part of a flush
        flusher = LogFlusher(self.log, config.flush, config.flush_interval_ms, flushes)
        pump = self._make_pump(core, core_ms, flusher, applied_index)
        refusals = Refusals(core)
        installer = Installer(
            config,
            self._disk,
            self.log,
            core,
            self._pool,
            clock_ms,
            self._source,
            send=self._send,
            silence=pump.silence,
            refuse=lambda peer, reason: refusals.note(peer, reason, clock_ms()),
            # Not `_fail`: this member is silent by then, and the process has to restart.
            on_failed=lambda reason, error: self._on_fatal(f"{reason}: {error!r}"),
        )
        paces = Paces(
            config.node_id,
            core.membership,
            pump.writer.durations.period,
            flushes.period if config.flush is FlushMode.SYNC else None,
            clock_ms,
            self._send_fact,
        )
        chores = Chores(
            pump,
            flusher,
            self.healer,
            installer,
            self._roster,
            self.rollback,
            PeerInfoExchange(
                core,
                self.log,
                self._settings,
                self._wall_ms,
                lambda: pump.applier.commit_index,
                self._send_fact,
                self._founders_differ,
            ),
            paces,
            Standstill(core, self._extents, self._is_there),
            self._pool,
            clock_ms,
        )
        preferred_leader = PreferredLeader(config.preference)
        leadership = LeadershipTransfer(pump, installer, preferred_leader, paces, clock_ms)
        return Parts(pump, flusher, installer, chores, leadership, refusals)

    def _make_pump(
        self, core: RaftCore, core_ms: StallAwareClock, flusher: LogFlusher, applied_index: int
    ) -> Pump:
        """Return the pump with the parts that perform the core's output."""
        config, application = self.config, self._application
        saver = HardStateSaver(self._promises.hard_state)
        proposals = Proposals(
            config.commands_waiting_max,
            config.commands_waiting_bytes_max,
            config.command_timeout_ms,
            command_bytes_max(self.log.commitlog.segment_size_bytes),
        )
        proposer = Proposer(
            core,
            self.log,
            application,
            proposals,
            self._clock_ms,
            self._wall_ms,
            config.frames_in_flight_max,
            self.links.is_at,
        )
        alone = len(config.peers) == 1
        return Pump(
            life=self.life,
            core=core,
            core_ms=core_ms,
            log=self.log,
            writer=FrameWriter(self.log, Durations(self._clock_ms)),
            promises=self._promises,
            saver=saver,
            disk=DiskHealth(core, self.log, flusher, saver, config.sync_stall_ms, alone),
            links=self.links,
            applier=Applier(self.log, application, proposals, applied_index),
            proposer=proposer,
            reads=Reads(),
            roles=Roles(config.node_id, application, proposer),
            on_members=self._members_changed,
            on_fatal=self._on_fatal,
        )

    async def stop(self) -> None:
        """Transfer leadership if a follower is able, then close everything."""
        clean, parts = self.life.running, self._parts
        if self.life.failure is None:
            await self.hand_over()
        self.life.running = False
        if parts is not None:
            parts.chores.cancel()
            parts.pump.stop()
        await self.links.stop()
        await self.healer.stop()
        if parts is not None:
            await parts.installer.stop()
        await self._roster.stop()
        await self.identity.stop()
        await self.rollback.stop()
        if parts is not None:
            await parts.pump.saver.stop()
            await parts.flusher.stop()
            await parts.chores.stop()
        self._pool.shutdown()
        self._promises.close(clean and parts is not None and parts.flusher.all_durable)
        self.log.close()

    def abandon(self, reason: str) -> None:
        """Stop sending and receiving at once, as after a failed disk; `stop` has to follow."""
        self._fail("abandoned", RuntimeError(reason))

    def _fail(self, reason: str, error: BaseException, disk: bool = False) -> None:
        """End this member for good, as `Pump.fail` does; before that, end its recovery."""
        if self._parts is not None:
            self._parts.pump.fail(reason, error, disk)
        elif self.life.failure is None:
            self.life.failure = f"{reason}: {error!r}"
            self.healer.abandon(error)  # `start` then raises it

    # -- for the broker -----------------------------------------------------------------------

    @property
    def parts(self) -> Parts:
        """The parts that need the core. Only after the log is recovered."""
        assert self._parts is not None, "the log is not recovered yet"
        return self._parts

    @property
    def has_core(self) -> bool:
        """True once the log is recovered."""
        return self._parts is not None

    @property
    def core(self) -> RaftCore:
        """The core. Only after the log is recovered."""
        return self.parts.pump.core

    @property
    def failure(self) -> str | None:
        """The error that ended this member, or None."""
        return self.life.failure

    def request_cut(self, at_once: bool = False) -> None:
        """Note that the application has something to propose. A single `cut` per turn of the loop
        follows. With `at_once` it follows immediately if the peers have little to do; otherwise a
        larger frame is gathered while they write."""
        if self._parts is not None:
            self._parts.pump.request_cut(at_once)

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        """Replicate a command frame; the future gives its index once it is applied here.

        Raises, or the future fails with: NotLeader, Busy, CommandTooLarge (certainly not stored),
        OutcomeUnknown (may be stored, now or later)."""
        pump = self._leading()
        future = pump.proposer.submit(payload)
        pump.run_soon()
        return future

    def read_barrier(self) -> asyncio.Future[int]:
        """Start a linearizable read. The future is done once this node has proven that it leads,
        and has applied everything that was committed at the call. Raises, or the future fails with,
        NotLeader and Busy."""
        return self._leading().read()

    def transfer(self, target: NodeId) -> None:
        """Start a leadership transfer to `target`; a RoleEvent reports the outcome. Raises
        NotLeader, UnknownTarget, Busy."""
        if self._parts is None:
            raise NotLeader(None)
        self._parts.leadership.transfer(target)

    def transfer_blocker(self, target: NodeId, *, force: bool = False) -> str:
        """Return the reason why `target` would immediately give up leadership, or "". With `force`,
        object only to a wrong clock, because messages delivered at the wrong time cannot be
        recalled."""
        if not self.life.running:
            return ""
        if self.parts.chores.peer_info.is_wrong_at(target):
            return (
                f"{target} should not lead: its clock is wrong, and timer messages would come early"
                " or late; correct the clock"
            )
        return "" if force else self.parts.leadership.blocker(target)

    def successor(self) -> NodeId | None:
        """Return the best follower for an unnamed `transfer`; None if none is able."""
        return self.parts.leadership.successor() if self.life.running else None

    def preferred_successor(self) -> NodeId | None:
        """Return the preferred leader if this leader should `transfer` to it now, else None. Call
        it a few times per second on every replica (dledger/raft/leader_placement.py)."""
        return self.parts.leadership.preferred_successor() if self.life.running else None

    def set_willing(self, is_willing: bool) -> None:
        """Set whether this replica should lead, because its disk has space and is fast, and its
        clock is right. An unwilling replica leads only if no other can, and reports that to its
        leader."""
        if self.life.running:
            self.core.election.is_willing = is_willing

    def willing_successor(self, needed: bool, *, faster: bool = False) -> NodeId | None:
        """Return the replica to which this unwilling leader should `transfer` now (`needed`), else
        None. With `faster`, only a replica under which commits are faster (dledger/raft/pace.py).
        Call it a few times per second on every replica (dledger/raft/leader_placement.py)."""
        return (
            self.parts.leadership.willing_successor(needed, faster) if self.life.running else None
        )

    @property
    def clock_is_wrong(self) -> bool:
        """True if this replica's clock differs from those of a majority (peer_info.py)."""
        return self.life.running and self.parts.chores.peer_info.clock_is_wrong

    @property
    def clock_is_confirmed(self) -> bool:
        """True if a majority of other voters agrees with this replica's clock (peer_info.py)."""
        return self.life.running and self.parts.chores.peer_info.clock_is_confirmed

    def doubt_clock(self, lead_ms: int) -> None:
        """Set the lead of this replica's clock over the time of its log; 0 if they agree."""
        if self.life.running:
            self.parts.chores.peer_info.doubt_clock(lead_ms)

    @property
    def slow_reason(self) -> str:
        """Why commits are slower under this leader than under others, or ""; see
        dledger/raft/pace.py."""
        return self.parts.chores.paces.reason if self.life.running else ""

    @property
    def successor_expected(self) -> bool:
        """True if the last `willing_successor` found a replica that may soon lead."""
        return self._parts is not None and self._parts.leadership.search.successor_expected

    @property
    def full_voters(self) -> list[NodeId]:
        """The replicas with full disks, if this leader cannot commit because of them."""
        return self.core.full_voters(self.parts.pump.core_ms()) if self.life.running else []

    async def hand_over(self) -> NodeId | None:
        """Transfer leadership before a planned `stop`, within `transfer_on_stop_ms`. Return the new
        leader (leadership_transfer.py)."""
        if not self.life.running:
            return None
        return await self.parts.leadership.hand_over(self.config.transfer_on_stop_ms)

    def agree_expired(self, position: int) -> int:
        """Set the CommitLog offset up to which this log has expired here, or 0; return the offset
        up to which a majority of voters agrees (peer_info.py)."""
        return self.parts.chores.peer_info.agree(position) if self.life.running else 0

    async def delete_before(self, position: int) -> int:
        """Delete the segments below the CommitLog offset `position`, applied frames only
        (retention). Return the new first offset. Raises OSError."""
        async with self._trimming:
            if self.life.running:
                await self._trim(position)
        return self.log.commitlog.min_offset

    async def _trim(self, position: int) -> None:
        core, index = self.core, self.log.index
        settled = min(self.applied_index, core.commit_index, self.log.durable_index)
        settled = self._roster.may_go(core, settled)
        if settled < index.first_index:
            return
        trim = self.log.plan_trim(min(position, index.end_of(settled)))
        if trim is None:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self.log.note_trim, trim)
        if self.life.running:  # otherwise the next start removes it
            try:
                self.log.trim(trim)
            finally:  # forgotten frames are not sent, even if their file remains
                core.trim(index.first_index)

    @property
    def refilled(self) -> list[NodeId]:
        """Followers with a snapshot install from this log; retention should delete nothing."""
        return self.parts.installer.refilled() if self.life.running else []

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Report a failed read for a consumer; `again` repeats the read (disk_health.py)."""
        if self._parts is not None:
            self._parts.pump.read_failed(error, again)

    @property
    def recovering(self) -> str | None:
        """The reason why this replica may have lost promises; None if it has recovered."""
        return self._promises.recovering

    def start_recovering(self, reason: str) -> None:
        """Note that durable frames of this replica are gone. It counts neither in elections nor for
        commit until it is recovered. Only until the log is open."""
        self._promises.give_up(reason)

    @property
    def leader(self) -> NodeId | None:
        """The leader, or None if unknown."""
        return self.core.leader if self.life.running else None

    @property
    def applied_index(self) -> int:
        """The last applied frame; 0 before the log is recovered."""
        return 0 if self._parts is None else self._parts.pump.applier.applied_index

    def status(self) -> dict[str, object]:
        """Return this node's view of the group, for the admin API and the runtime info."""
        config, parts, group = self.config, self._parts, self.links.group_status()
        healing = self.healer.status()
        if parts is None:
            view = repairing_status(config, self.log, self.links, self.life.failure, healing)
            return view | group
        peer_info = parts.chores.peer_info
        healing |= parts.installer.status()
        view = status_of(config, parts.pump, peer_info, parts.chores.paces, healing)
        takes_none = parts.refusals.why(self._clock_ms())
        reason = parts.leadership.preferred_leader.reason
        view |= {"preferred_reason": reason, "takes_no_frames": takes_none}
        return view | {"standstill": parts.chores.standstill.reason} | group

    def change_members(self, change: Change) -> asyncio.Future[int]:
        """Change the group; the future gives the frame's index once it is committed and applied
        here. Changes are made one at a time; dledger/raft/membership.py has the other rules.

        Raises, or the future fails with: NotLeader, Busy, ChangeRefused (nothing has happened),
        OutcomeUnknown."""
        pump = self._leading()
        future = pump.proposer.ask_change(change)
        pump.run_soon()
        return future

    @property
    def members(self) -> list[dict[str, object]]:
        """The group's members, with their progress where this replica leads (`members_of`)."""
        return [] if self._parts is None else members_of(self._parts.pump.core)

    def _leading(self) -> Pump:
        """Return a leader's pump. Raises NotLeader."""
        if not self.life.running or self.core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        return self.parts.pump

    # -- for the parts ------------------------------------------------------------------------

    def _is_empty(self) -> bool:
        return self._parts is not None and self.core.last_index == 0

    def _members_changed(self) -> None:
        core = self.core
        configurations = core.membership.configurations
        log.warning(
            "members_changed node=%s index=%d committed=%s voters=%s members=%s",
            core.node_id,
            configurations.index,
            configurations.index <= core.commit_index,
            ",".join(sorted(core.membership.voters)),
            ",".join(sorted(configurations.current.ids)),
        )
        self._roster.follow(self.core, self.links, self.healer)

    def _take_peer_info(self, info: PeerInfo) -> None:
        """Handle a peer's report; before the log is recovered, only the parts that need no core."""
        if info.group_id:
            self.links.take_group_id(info.sender, info.group_id)
        if info.address is not None and self._roster.introduced(info.sender, *info.address):
            # Dial an unknown peer, which may be the leader and needs every answer.
            if self.has_core:
                self._roster.follow(self.core, self.links, self.healer)
        self.rollback.take(info)
        if self.life.running:
            self.parts.chores.peer_info.take(info)

    def _opened(self, peer: NodeId) -> None:
        """Report this replica's facts, before any other message on a new link."""
        own, node_id = self.links.local.address, self.config.node_id
        address = (own.host, own.port) if own.host else None
        info = PeerInfo(node_id, peer, address=address, notes=self.rollback.for_new_link())
        if self._parts is not None:
            info = self._parts.chores.peer_info.completed(info)
        self._send_fact(info)

    def _lose_promises(self, reason: str) -> None:
        self.parts.pump.lose_promises(_new_incarnation(), reason)

    def _send_fact(self, message: PeerInfo | Pace) -> None:
        self.links.send(message.to, encode_message(message), droppable=False)

    def _refuse(self, peer: NodeId, reason: str) -> None:
        self.parts.refusals.note(peer, reason, self._clock_ms())
        self.links.refuse(peer, reason)

    def _other_history(self, peer: NodeId, reason: str) -> None:
        extents = self._extents()
        of_two = {node: extents[node] for node in (self.config.node_id, peer) if node in extents}
        self.links.disconnect(peer, f"{reason}; {compared(of_two)}")

    def _extents(self) -> dict[NodeId, Extent]:
        peer_info = self.parts.chores.peer_info
        return peer_info.extents | {self.config.node_id: peer_info.own_extent}

    def _is_there(self, peer: NodeId) -> bool:
        return self.links.is_open(peer) or peer in self.links.parted

    def _founders_differ(self, peer: NodeId, text: str) -> None:
        self.identity.founders_differ(peer, text, now_ms())

    def _send(self, message: RepairRequest | RepairResponse | InstallMessage) -> None:
        self.links.send(message.to, encode_message(message), droppable=True)


def _new_incarnation() -> int:
    return 1 + secrets.randbelow(1 << 62)
