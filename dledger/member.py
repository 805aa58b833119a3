"""RaftMember: one running replica. Drives the pure core from asyncio; the broker's view of Raft.

Everything runs on one loop; only fdatasync (and allocating the next segment) runs in threads.
performing.py performs what the core wants, in the order persist → send → acknowledge.

A failed write or fdatasync, and any broken assertion, ends this member for good (`_fail`): the
connections are cut so that the peers elect another leader at once, and `on_fatal` is called. A
disk that fails a leader still lets it name its successor first. While the disk stalls or is full
this member neither leads nor tries to (`_look_at_disk`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from raftmq.dledger.applier import Application, Applier
from raftmq.dledger.attention import AttendedClock
from raftmq.dledger.configuration import Change
from raftmq.dledger.core import RaftCore
from raftmq.dledger.enforcement import ENFORCED_FILE, Enforcement
from raftmq.dledger.errors import MessageRefused, NotLeader, StateTooOld
from raftmq.dledger.flusher import FlushMode, LogFlusher
from raftmq.dledger.handover import Handover, able_successors, hindrance_of, with_room
from raftmq.dledger.healer import Healer
from raftmq.dledger.health import DiskHealth
from raftmq.dledger.identity import GroupIdentity, file_of
from raftmq.dledger.install import InstallChunk, InstallMessage, InstallOffer, InstallRequest
from raftmq.dledger.installation import pending
from raftmq.dledger.installer import InstallationSource, Installer
from raftmq.dledger.log import RaftLog
from raftmq.dledger.messages import (
    TERM_MAX,
    HardState,
    NodeId,
    Ready,
    Role,
    RoleEvent,
)
from raftmq.dledger.peers import PeerLinks
from raftmq.dledger.performing import Performing
from raftmq.dledger.preference import Preference, Seen
from raftmq.dledger.progress import Progress
from raftmq.dledger.promises import Promises
from raftmq.dledger.proposals import Proposals
from raftmq.dledger.proposer import Proposer
from raftmq.dledger.reads import Reads
from raftmq.dledger.readtrial import ReadTrial
from raftmq.dledger.relief import Relief
from raftmq.dledger.repair import RepairRequest, RepairResponse, Standing, standing_of
from raftmq.dledger.roster import Roster, members_of
from raftmq.dledger.saver import HardStateSaver
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.slots import SlotFile
from raftmq.dledger.state import Random
from raftmq.dledger.status import repairing_status, status_of
from raftmq.dledger.wire import GroupAnnounced, PeerMessage, encode_message
from raftmq.dledger.writer import FrameWriter
from raftmq.store.commitlog import CommitLog
from raftmq.store.disk import Disk
from raftmq.store.errors import StoreDamaged

log = logging.getLogger("raftmq.dledger.member")

TICK_MS = 10  # < a seventh of a heartbeat: how late a deadline may be noticed
HOUSEKEEPING_MS = 500
HEALING_MS = 50  # between ticks of healer (repair and scrubber) and installer
FRAMES_KEEP_BUSY = 2  # one being written by the peers, one on its way to them


class RaftMember(Performing):
    """One replica of a group. `start` before anything else; `stop` in the end, even after a
    failure."""

    _patience = 1  # the core's, as the log has it

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
        source: InstallationSource | None = None,
    ) -> None:
        """`clock_ms` never goes back; `wall_ms` stamps frames. `on_fatal(reason)` is called at
        most once; the process should end then. `listen_socket` is bound already (tests).
        Without a `source` no snapshot install is sent or taken."""
        assert not pending(disk, config.directory), "an installation is to be carried out first"
        self.config = config
        self.failure: str | None = None
        self._application = application
        self._commitlog = commitlog
        self._rng = rng
        self._clock_ms = clock_ms
        self._core_ms = AttendedClock(clock_ms, config.core.heartbeat_ms)
        self._wall_ms = wall_ms
        self._on_fatal = on_fatal
        asynchronous = config.flush is FlushMode.ASYNC
        self._promises = Promises(disk, config.directory, asynchronous)
        self._saver = HardStateSaver(self._promises.hard_state)
        self._unfinished: Ready | None = None  # its hard state is being saved; the rest waits
        self._health = DiskHealth(config.sync_stall_ms)
        trim = SlotFile(disk, f"{config.directory}/trim")
        self.log = RaftLog(commitlog, trim, config.log_cache_bytes_max)
        self._writer = FrameWriter(self.log)
        self._read_trial = ReadTrial(self.log, self._health, len(config.peers) == 1)
        self._healer = self._make_healer(disk)
        self._installer = Installer(
            config,
            disk,
            self.log,
            clock_ms,
            source,
            send=self._send_install,
            silence=self._fall_silent,
            on_failed=lambda reason, error: on_fatal(f"{reason}: {error!r}"),
        )
        self._healing_due_ms = 0.0
        self._flusher = LogFlusher(
            self.log, config.flush, config.flush_interval_ms, self._on_durable, self._on_sync_failed
        )
        self._proposals = Proposals(
            config.commands_waiting_max,
            config.commands_waiting_bytes_max,
            config.command_timeout_ms,
        )
        self._reads = Reads(self._ask_read)
        self._applier = Applier(
            self.log, application, self._proposals, self._on_applied, self._on_apply_failed
        )
        self.identity = self._make_identity(disk)
        self._enforcement = self._make_enforcement(disk)
        self._links = self._make_links(listen_socket)
        self._roster = Roster(
            config, disk, lambda reason, error: self._fail(reason, error, disk=True)
        )
        self._preference = Preference(config.preference)
        self._relief = Relief()
        self._linked = False  # listens and dials
        self._has_core = False  # the log is recovered
        self._running = self._pumping = False
        self._leaving = False  # hands over for a planned stop
        self._commit_due = 0  # committed, to be applied; 0: nothing
        self._cut_scheduled = self._was_leader = False
        self._serving = False  # the application knows that it leads
        self._ready_event: tuple[RoleEvent, int] | None = None  # to deliver once applied
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeping_due_ms = 0.0
        self._housekeeper: ThreadPoolExecutor | None = None
        self._preparing: asyncio.Future[None] | None = None

    def _make_identity(self, disk: Disk) -> GroupIdentity:
        return GroupIdentity(
            file_of(disk, self.config.directory),
            lambda: self._has_core and self.core.last_index == 0,
            lambda reason, error: self._fail(reason, error, disk=True),
        )

    def _make_enforcement(self, disk: Disk) -> Enforcement:
        return Enforcement(
            SlotFile(disk, f"{self.config.directory}/{ENFORCED_FILE}"),
            self.config.links.gate,
            lambda reason, error: self._fail(reason, error, disk=True),
        )

    def _make_links(self, listen_socket: socket.socket | None) -> PeerLinks:
        config = self.config
        return PeerLinks(
            config.node_id,
            config.group,
            config.peers,
            self,
            self._rng,
            config.links,
            listen_socket,
            identity=self.identity,
        )

    def _make_healer(self, disk: Disk) -> Healer:
        return Healer(
            self.config,
            disk,
            self.log,
            self._clock_ms,
            send=self._send_repair,
            standing=self._standing,
            on_mended=lambda: self._applier.resume(),
            on_failed=lambda reason, error: self._fail(reason, error, disk=True),
        )

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen, dial, and take part. While the log is damaged this waits for the peers
        (`status` says what for). Raises StoreDamaged, StateTooOld, OSError. Call `stop` also after
        it has raised or was cancelled."""
        loop = asyncio.get_running_loop()
        self._housekeeper = ThreadPoolExecutor(1, thread_name_prefix="raft-housekeeping")
        await loop.run_in_executor(self._housekeeper, self._roster.load)
        await loop.run_in_executor(self._housekeeper, self.identity.load)
        await loop.run_in_executor(self._housekeeper, self._enforcement.load)
        self.identity.start(self._housekeeper)
        self._roster.before_the_core(self._links, self._healer)
        hard_state = await self._recover(self._housekeeper)
        configurations = await loop.run_in_executor(
            self._housekeeper, self._roster.starting, self.log
        )
        if self.recovering is not None:
            log.warning("recovering node=%s reason=%s", self.config.node_id, self.recovering)
        await loop.run_in_executor(self._housekeeper, self._applier.start)
        first_index = self.log.index.first_index
        if self.log.index.last_term > TERM_MAX:
            raise StoreDamaged(self.log.index.end_position, f"a term above {TERM_MAX} in the log")
        if self._applier.applied_index < first_index - 1:
            raise StateTooOld(
                f"the state ends at frame {self._applier.applied_index}, "
                f"the log begins at {first_index}"
            )
        config = self.config
        self.core = RaftCore(
            config.node_id,
            configurations,
            config.core,
            self.log.index,
            hard_state,
            self._rng,
            self._core_ms(),
            self._applier.applied_index,
            incarnation=1 + secrets.randbelow(1 << 62),
            segment_end=self.log.segment_end,
        )
        self._proposer = Proposer(
            self.core,
            self.log,
            self._application,
            self._proposals,
            self._wall_ms,
            config.frames_in_flight_max,
        )
        self._running = self._has_core = True
        self._roster.follow(self.core, self._links, self._healer)
        self._flusher.start()
        self._healer.start(self._housekeeper)
        self._installer.start(self.core, self._housekeeper)
        await self._open_links()
        self._timer = loop.call_later(TICK_MS / 1000, self._tick)
        if self.core.commit_index > self._applier.applied_index:
            self._applier.advance(self.core.commit_index)
        self._pump()

    async def _recover(self, pool: ThreadPoolExecutor) -> HardState:
        """Open the log, mended if need be, and return the hard state to start from."""
        given_up: list[HardState] = []

        def give_up(reason: str) -> None:
            if not given_up:
                self.start_recovering(reason)
                given_up.append(self._promises.open(False))

        last_term = self._promises.last_term
        await self._healer.recover(pool, self._open_links, give_up, last_term)
        return given_up[0] if given_up else self._promises.open(self.log.last_index == 0)

    async def _open_links(self) -> None:
        if not self._linked:
            self._linked = True
            await self._links.start()

    async def stop(self) -> None:
        """Hand leadership over if a follower can take it, then close everything."""
        clean = self._running
        if self._running and self.failure is None:
            await self.hand_over()
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        self._applier.stop()
        if self._has_core:
            self._proposer.leadership_lost()
        self._proposals.close("the node stops")
        self._reads.close()
        await self._links.stop()
        await self._healer.stop()
        await self._installer.stop()
        await self._roster.stop()
        await self.identity.stop()
        await self._enforcement.stop()
        await self._saver.stop()
        await self._flusher.stop()
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        if self._housekeeper is not None:
            self._housekeeper.shutdown()
        self._promises.close(clean and self._flusher.all_durable)
        self.log.close()

    async def hand_over(self) -> NodeId | None:
        """Hand leadership over before a planned `stop`, as soon as a follower can take it, within
        `transfer_on_stop_ms`. Return the new leader, as handover.py says."""
        if not self._running:
            return None
        leaving = Handover(
            self.core,
            self._links.is_open,
            self.transfer,
            lambda: self._applier.applied_index,
            lambda: self._told_leader,
            lambda: self._running,
            self._clock_ms,
            self._core_ms,
        )
        self._leaving = True
        return await leaving.run(self.config.transfer_on_stop_ms)

    # -- for the broker -----------------------------------------------------------------------

    def request_cut(self, at_once: bool = False) -> None:
        """Note that the application has something to propose. Cheap: one `cut` per turn of the loop
        follows, with what other connections bring in the same turn. With `at_once` it follows at
        once if the peers have little to do (else more is gathered into a larger frame while they
        write what they have)."""
        if not self._running:
            return
        self._proposer.cut_wanted = True
        core = self.core
        idle = core.last_index - core.commit_index < FRAMES_KEEP_BUSY
        if at_once and idle and not self._pumping:
            self._pump()
        else:
            self._schedule_cut()

    def _schedule_cut(self) -> None:
        if not self._cut_scheduled:
            self._cut_scheduled = True
            asyncio.get_running_loop().call_soon(self._cut_now)

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        """Replicate a command frame; the future gives its index once it is applied here.

        Raises, or the future fails with: NotLeader, Busy, CommandTooLarge (certainly not stored),
        OutcomeUnknown (may be stored, now or later)."""
        if not self._running or self.core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        future = self._proposals.submit(payload, self._clock_ms())
        self._schedule_cut()
        return future

    async def read_barrier(self) -> int:
        """Return once this node is proven to lead and has applied all that was committed when
        it was asked: a read served now is linearizable. Raises NotLeader, Busy."""
        if not self._running or self.core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        return await self._reads.add()

    def transfer(self, target: NodeId) -> None:
        """Begin to hand leadership to `target`; a RoleEvent tells how it went.

        Raises NotLeader, UnknownTarget, Busy."""
        if not self._running:
            raise NotLeader(None)
        self._in_core(lambda: self.core.transfer(target, self._core_ms()))
        self._pump()

    def preferred_successor(self) -> NodeId | None:
        """Return the preferred leader if this leader should `transfer` to it now, else None. To be
        called a few times a second, on every replica (preference.py)."""
        if not self._running:
            return None
        core = self.core
        preferred = core.configurations.current.preferred or ""
        ready = core.role is Role.LEADER and self._serving
        hindrance, at_hand = "", False
        if ready and preferred not in ("", core.node_id):
            hindrance, at_hand = hindrance_of(preferred, core, self._links.is_open, self._core_ms())
        seen = Seen(
            core.node_id,
            core.term,
            core.leader,
            preferred,
            ready,
            core.transfer_target is not None,
            hindrance,
            self._busy() if ready else "",
            at_hand,
        )
        return self._preference.look(seen, self._clock_ms())

    def room_is(self, has_room: bool) -> None:
        """Note whether the disk has room for what a leader writes. A replica without room leads
        only if nobody else can, and tells its leader that it is short of room."""
        if self._running:
            self.core.has_room = has_room

    def successor_with_room(self, full: bool) -> NodeId | None:
        """Return the replica to which this leader should `transfer` now because its own disk is
        `full`, else None. To be called a few times a second, on every replica (relief.py)."""
        if not self._running:
            return None
        core = self.core
        roomy: list[NodeId] = []
        able: list[Progress] = []
        wanted = full and core.role is Role.LEADER and self._serving and not self._leaving
        if wanted:
            is_open = self._links.is_open
            roomy = with_room(core, is_open)
            able = [
                progress
                for progress in able_successors(core, is_open, self._core_ms())
                if progress.recovering is not None and progress.peer in roomy
            ]
            able.sort(key=lambda progress: (-progress.match_index, -progress.heard_ms))
        transferring = core.transfer_target is not None
        best = [progress.peer for progress in able]
        return self._relief.look(wanted, transferring, roomy, best, self._clock_ms())

    @property
    def hopes_for_room(self) -> bool:
        """True if a replica with room may take over soon, as of the last `successor_with_room`."""
        return self._relief.hoped

    def _busy(self) -> str:
        """Return what this leader is busy with that a successor would have to begin anew; "" if
        nothing."""
        core = self.core
        if core.configurations.index > core.commit_index or self._proposer.change_waits:
            return "the members are being changed"
        refilled = self._installer.refilled()
        if refilled:
            return f"{', '.join(refilled)} is being refilled"
        return f"{core.node_id} is leaving" if self._leaving else ""

    def delete_before(self, position: int) -> int:
        """Delete whole segments below the CommitLog offset `position`, applied frames only
        (retention). Return the new first offset. Raises OSError."""
        index = self.log.index
        settled = min(self._applier.applied_index, self.core.commit_index, self.log.durable_index)
        settled = self._roster.may_go(self.core, settled)
        if settled >= index.first_index:
            self.core.trim(self.log.trim(min(position, index.end_of(settled))))
        return self._commitlog.min_offset

    @property
    def refilled(self) -> list[NodeId]:
        """Followers being refilled from this log: retention should delete nothing of it."""
        return self._installer.refilled() if self._running else []

    def frame_is_damaged(self, position: int) -> bool:
        """Return whether the frame that holds this CommitLog offset is damaged; if so, it is
        fetched again from a peer."""
        index = self.log.index.last_ending_by(position) + 1
        return self._running and self.log.check(index) is not None

    @property
    def recovering(self) -> str | None:
        """Why this replica may have lost promises; None if it has recovered ("whole")."""
        return self._promises.recovering

    def start_recovering(self, reason: str) -> None:
        """Note that frames this replica once had durable are gone: it counts neither in elections
        nor for commit until it is whole again. Before `start`, or during it until the log is
        open."""
        self._promises.give_up(reason)

    def abandon(self, reason: str) -> None:
        """Stop sending and receiving at once, as after a failed disk; `stop` has to follow."""
        self._fail("abandoned", RuntimeError(reason))

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as this node knows."""
        return self.core.leader if self._running else None

    @property
    def applied_index(self) -> int:
        return self._applier.applied_index

    def status(self) -> dict[str, object]:
        """Return this node's own view, for the admin API and the runtime info."""
        config = self.config
        if not self._has_core:
            healing = self._healer.status()
            view = repairing_status(config, self.log, self._links, self.failure, healing)
            return view | self._links.group_status()
        return status_of(
            self.config.group,
            self.config.flush.value,
            self.core,
            self.log,
            self._links,
            self._applier.applied_index,
            self._proposals.waiting,
            self._serving,
            self.failure,
            self._promises.recovering,
            self._health,
            self._healer.status() | self._installer.status(),
            self._core_ms(),
        ) | {"preferred_standing": self._preference.standing, **self._links.group_status()}

    def change_members(self, change: Change) -> asyncio.Future[int]:
        """Change the group; the future gives the frame's index once it is committed and applied
        here. One change at a time; membership.py says what else is refused.

        Raises, or the future fails with: NotLeader, Busy, ChangeRefused (nothing has happened),
        OutcomeUnknown."""
        if not self._running or self.core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        future = self._proposer.ask_change(change)
        self._schedule_cut()
        return future

    @property
    def members(self) -> list[dict[str, object]]:
        """The members of the group, as this node knows them (roster.members_of)."""
        return members_of(self.core) if self._has_core else []

    # -- events (LinkHandler, timer, threads) -------------------------------------------------

    def on_messages(self, messages: list[PeerMessage]) -> None:
        if not self._running:
            if self.failure is None:
                self._on_early_messages(messages)
            return
        now_ms = self._core_ms()
        step = self.core.step
        try:
            for message in messages:
                if isinstance(message, RepairRequest | RepairResponse):
                    self._healer.on_message(message)
                elif isinstance(message, InstallOffer | InstallRequest | InstallChunk):
                    self._installer.on_message(message)
                elif isinstance(message, GroupAnnounced):
                    self._links.on_announced(message)
                else:
                    step(message, now_ms)
        except MessageRefused as refused:
            self._links.refuse(refused.sender, refused.reason)
        except Exception as error:  # ring boundary: a broken promise stops the node
            self._fail("a message broke an invariant", error)
            return
        self._pump()

    def _on_early_messages(self, messages: list[PeerMessage]) -> None:
        """Take messages while the log is mended: this node neither votes nor acknowledges."""
        try:
            for message in messages:
                if isinstance(message, RepairRequest | RepairResponse):
                    self._healer.on_message(message)
                elif isinstance(message, GroupAnnounced):
                    self._links.on_announced(message)
        except Exception as error:  # ring boundary: a broken promise stops the node
            self._fail("a message broke an invariant", error)

    def _send_repair(self, message: RepairRequest | RepairResponse) -> None:
        self._links.send(message.to, encode_message(message), droppable=True)

    def _send_install(self, message: InstallMessage) -> None:
        self._links.send(message.to, encode_message(message), droppable=True)

    def _fall_silent(self, reason: str) -> None:
        """Stop sending and receiving for good: an installation takes the place of this log."""
        self.failure = reason
        self._running = self._serving = False
        if self._timer is not None:
            self._timer.cancel()
        self._applier.stop()
        self._links.abort()
        self._proposals.close(reason)
        self._reads.close()

    def _standing(self) -> tuple[Standing, int, int]:
        core = self.core
        standing = standing_of(core.role, core.leader_ready, core.whole)
        return standing, core.commit_index, core.term

    def on_opened(self, peer: NodeId) -> None:
        log.info("peer_opened node=%s peer=%s", self.config.node_id, peer)
        self._drive(lambda: self.core.peer_opened(peer))

    def on_closed(self, peer: NodeId) -> None:
        log.info("peer_closed node=%s peer=%s", self.config.node_id, peer)
        self._drive(lambda: self.core.peer_closed(peer, self._core_ms()))

    def on_failed(self, error: BaseException) -> None:
        self._fail("a peer link's task ended", error)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        self._drive(self._do_what_is_due)

    def _do_what_is_due(self) -> None:
        now_ms, core_ms = self._clock_ms(), self._core_ms.turn()
        core = self.core
        self._flusher.tick(now_ms)
        self._look_at_disk(core_ms)
        if core_ms >= core.next_deadline_ms:
            core.tick(core_ms)
        if core.patience != self._patience:
            self._tell_patience()
        if now_ms >= self._healing_due_ms:
            self._healing_due_ms = now_ms + HEALING_MS
            self._healer.tick(now_ms, busy=self._flusher.stalled_ms(core_ms) > 2 * TICK_MS)
            self._installer.tick(now_ms)
        if now_ms >= self._housekeeping_due_ms:
            self._housekeeping_due_ms = now_ms + HOUSEKEEPING_MS
            self._keep_house(now_ms)

    def _look_at_disk(self, now_ms: float) -> None:
        """Give up leadership when an fdatasync hangs, and do not lead before it returns. `now_ms`
        is the core's time, so that a stall of this process does not count as a sync that hangs."""
        health = self._health
        under_way_ms = max(self._flusher.stalled_ms(now_ms), self._saver.stalled_ms(now_ms))
        if not health.synced(under_way_ms):
            return
        log.warning("disk node=%s state=%s %s", self.config.node_id, health.state, health.reason)
        if health.reason:
            self.core.disk_fails(health.reason)
        else:
            self.core.disk_works()

    def _tell_patience(self) -> None:
        self._patience = self.core.patience
        log.warning("patience_changed node=%s factor=%d", self.config.node_id, self._patience)

    def _try_to_write(self) -> None:
        """Write the frames that a full disk had no room for, if there is room by now."""
        if not self._writer.retry():
            return
        log.warning("disk_has_room node=%s", self.config.node_id)
        self._health.has_room()
        self.core.disk_works()
        self._frames_written()
        self._commit_due = self.core.commit_index

    def _keep_house(self, now_ms: float) -> None:
        self._proposals.expire(now_ms)
        assert self._housekeeper is not None
        self._roster.save(self.core, self._housekeeper)
        self._enforcement.look(self.core.voters, self.core.node_id, self._housekeeper)
        if self._health.is_full:
            self._try_to_write()
        self._read_trial.try_again(self.core)
        if self._preparing is None and self.log.wants_next_segment:
            assert self._housekeeper is not None
            loop = asyncio.get_running_loop()
            self._preparing = loop.run_in_executor(self._housekeeper, self._commitlog.prepare_next)
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, done: asyncio.Future[None]) -> None:
        self._preparing = None
        error = done.exception()
        if error is not None:  # not fatal: the roll tries again, and there it is
            log.warning("prepare_next failed=%s", error)

    def _on_durable(self, index: int) -> None:
        self._drive(lambda: self.core.durable(index))

    def _on_sync_failed(self, error: Exception) -> None:
        self._fail("fdatasync of the log failed", error, disk=True)

    def _on_apply_failed(self, error: Exception) -> None:
        self._fail("committed frames could not be applied", error)

    def _ask_read(self, token: int) -> None:
        if not self._running:
            raise NotLeader(None)
        self._in_core(lambda: self.core.read_index(token))
        self._pump()

    def _in_core(self, act: Callable[[], None]) -> None:
        """Do what a client asks of the core. A failed assertion there stops the node, and is raised
        to the caller, who would handle it as any error of a request."""
        try:
            act()
        except AssertionError as error:
            self._fail("an invariant is broken", error)
            raise

    def _cut_now(self) -> None:
        self._cut_scheduled = False
        if self._running:
            self._pump()
