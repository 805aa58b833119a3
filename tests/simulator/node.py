"""One simulated node: what member.py does, without asyncio, over a disk that forgets.

The disk outlives the process. `_perform` is the one place where the order persist, send,
acknowledge is visible; it is the order of `Ready`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from raftmq.dledger.configuration import Change, Configuration, encode_configuration
from raftmq.dledger.configurationfile import ConfigurationFile, starting_configurations
from raftmq.dledger.core import RaftCore
from raftmq.dledger.errors import Busy, ChangeRefused, FrameDamaged, NotLeader, UnknownTarget
from raftmq.dledger.log import LogSyncTicket, RaftLog
from raftmq.dledger.messages import (
    AppendOrder,
    AppendRequest,
    HardState,
    Outgoing,
    Ready,
    Role,
    VoteResponse,
)
from raftmq.dledger.promises import Promises
from raftmq.dledger.repair import RepairRequest, RepairResponse
from raftmq.dledger.slots import SLOT_SIZE_BYTES
from raftmq.dledger.snapshotinstall import InstallMessage
from raftmq.dledger.wire import GroupAnnounced, PeerMessage
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog import CommitLog
from raftmq.store.frame import Frame, FrameKind, seal_frame
from tests.simulator.disk import SimCrash, SimDisk
from tests.simulator.mender import Mender

if TYPE_CHECKING:
    from tests.simulator.world import World

VOTES = "raft/hardstate"
SEGMENT_SIZE_BYTES = 4096  # small, so that frames roll over segments all the time


class SimNode:
    """A replica and its disk. `up` is whether its process lives and takes part; while it mends
    its log it is `alive` only."""

    mender_class = Mender
    segment_size_bytes = SEGMENT_SIZE_BYTES

    def __init__(
        self, world: World, name: str, names: frozenset[str], founding: Configuration
    ) -> None:
        """`names`: of all nodes, members or not. `founding`: empty for one that is to join."""
        self.world = world
        self.name = name
        self.founding = founding
        self.peers = sorted(names - {name})  # in an order that no hash decides
        self.disk = SimDisk(world.rng)
        self.up = False
        self.paused = False  # SIGSTOP: it neither hears nor ticks, its connections stay open
        self.slow_sync = 1.0
        self.stalled = False  # its syncs do not return
        self.full = False
        self.lost = True  # whether it may have lost promises, as the simulator knows it
        self.made_good = False  # it may note that it is recovered, and may have done so
        self.started = False  # at least once
        self.blank = True  # nothing is on its disk
        self.votes_lost = False  # and its votes among them, since its last start
        self.before_loss: dict[str, bytes] = {}  # what its disk held when it lost that
        self.incarnation = 0
        self.applied = 0
        self.core: RaftCore
        self.log: RaftLog
        self.mender: Mender
        self.mending = False
        self._waiting: list[tuple[str, object]] = []  # what arrived while paused
        self._proposals: dict[int, Frame] = {}  # proposed by this leadership, not yet committed
        self._reads: dict[int, int] = {}  # token -> what had been acknowledged when it was asked
        self._confirmed: list[tuple[int, int]] = []
        self._token = 0
        self._tick_at = 0.0
        self._syncing = False

    # -- life -------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.up or self.mending

    def start(self) -> None:
        """Boot: recover the log, which may take a while (mender.py), then take part."""
        self.incarnation += 1
        try:
            self.before_open()
            self.checkpoint = Checkpoint(self.disk, "checkpoint")
            self.checkpoint.open(verify=True)
            self.commitlog = CommitLog(self.disk, "commitlog", SEGMENT_SIZE_BYTES, self.checkpoint)
            self.commitlog.open(restore=True)
            cache_bytes_max = 2_000 if self.world.rots else 1 << 20  # damage is met in the file
            self.log = self.make_log(cache_bytes_max)
            self.promises = self.make_promises()
            self.configuration_file = ConfigurationFile(self.disk, "raft")
            self.saved = self.configuration_file.load()
            self.mending = True
            self.mender = self.mender_class(self)
            self.mender.recover()
        except SimCrash:
            self.crash(power=False)

    def take_part(self, hard_state: HardState) -> None:
        """The log is open: build the core."""
        world = self.world
        self.mending = False
        file = self.configuration_file
        configurations = starting_configurations(self.saved, file.damaged, self.founding, self.log)
        self.core = world.core_class(
            self.name,
            configurations,
            world.config,
            self.log.index,
            hard_state,
            world.rng,
            self.core_ms(),
            self.recovered_index(),
            incarnation=self.incarnation,
        )
        self.up = self.started = True
        self.blank = False
        self.paused = False
        self.stalled = self.full = False
        self.applied = self.recovered_index()
        self._proposals = {}
        self._reads = {}
        self._confirmed = []
        self._waiting = []
        self._tick_at = 0.0
        self._syncing = False
        world.note(f"{self.name} starts, {self.log.index}, {hard_state}")
        self._note_recovered()  # it died just behind noting it
        world.checker.started(self)
        self.votes_lost = False
        self._work()

    @property
    def known_voters(self) -> frozenset[str]:
        """As far as it knows while its log is not open; if it knows none, everybody."""
        voters = (self.saved[1] if self.saved else self.founding).voters or set(self.peers)
        return frozenset(voters | {self.name})

    @property
    def known_members(self) -> frozenset[str]:
        """Return the members that it asks about damage meanwhile."""
        saved = self.saved[1].ids if self.saved else frozenset()
        return self.known_voters | saved | self.founding.ids

    def before_open(self) -> None:
        """Do what a start does first. Raises SimCrash."""

    def make_log(self, cache_bytes_max: int) -> RaftLog:
        return RaftLog(self.commitlog, cache_bytes_max=cache_bytes_max)

    def recovered_index(self) -> int:
        """Where applying starts: here nothing is kept of what was applied."""
        return 0

    def make_promises(self) -> Promises:
        return Promises(self.disk, "raft", unsynced=not self.world.profile.durable)

    def crash(self, power: bool) -> None:
        """The process dies; with `power`, the page cache goes with it."""
        if power and not self.world.profile.durable:
            self._lose_promises()
        self.world.note(f"{self.name} {'loses power' if power else 'is killed'}")
        self.up = self.mending = False
        self.paused = False
        self.incarnation += 1
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill_process()
            for peer in self.peers:  # the kernel closes its connections
                self.world.after(
                    self.world.profile.delay_ms, self.world.tell_closed, self.name, peer
                )

    def may_die(self, action: Callable[[], None]) -> None:
        """Do what may end in the middle of an operation of the disk."""
        try:
            action()
        except SimCrash:
            self.crash(power=self.world.profile.durable and self.world.rng.random() < 0.5)
            self.world.plan.restart_later(self)

    def _lose_promises(self) -> None:
        self.lost, self.made_good = True, False
        self.world.losses += 1
        self.before_loss = self.disk.image(self.world.profile.durable)

    def wipe(self) -> None:
        """The disk is lost with the process, and replaced by a blank one."""
        if self.alive:
            self.crash(power=self.world.profile.durable)
        self.world.note(f"{self.name} loses its disk")
        self._lose_promises()
        self.world.damage.wiped(self)
        self.votes_lost = self.blank = True
        self.disk = SimDisk(self.world.rng)

    def gives_up(self) -> None:
        """It may have lost promises, and has noted that."""
        if not self.lost:
            self._lose_promises()

    def rot_votes(self, slots: tuple[int, ...]) -> None:
        """Bits flip in the vote file: in one of its two slots, or in both."""
        if not self.disk.exists(VOTES):
            return
        self.world.note(f"{self.name} {VOTES} rots in {slots}")
        if len(slots) == 2:
            self._lose_promises()
            self.votes_lost = True
        for slot in slots:
            self.disk.rot(VOTES, slot * SLOT_SIZE_BYTES + self.world.rng.randrange(28))

    def stall(self) -> None:
        """fdatasync does not return any more, and the shell has noticed."""
        if self.up and not self.paused:
            self.stalled = True
            self.core.disk_fails("fdatasync hangs")
            self._work()

    def fill(self) -> None:
        if self.up and not self.paused:
            self.full = True
            self.core.disk_fails("no room", takes_frames=False)
            self._work()

    def disk_works(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.up:
            self.stalled = self.full = False
            self.core.disk_works()
            if not self.paused:
                self._work()

    def heal(self) -> None:
        self.slow_sync = 1.0
        self.disk_works(self.incarnation)
        if not self.alive:
            self.start()
        self.resume()
        for peer in self.peers:
            self.world.tell_opened(peer, self.name)
            self.world.tell_opened(self.name, peer)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        waiting, self._waiting = self._waiting, []
        self._tick()
        for kind, what in waiting:
            if self.up:
                getattr(self, kind)(what)

    def core_ms(self) -> float:
        """The time as the core is told it."""
        return self.world.now_ms

    # -- events -----------------------------------------------------------------------------------

    @property
    def repair_wants(self) -> int | None:
        """Index of the damaged frame at which the node's start stands; None if it does not."""
        repairing = self.mender.repairing
        if repairing is None or repairing.asker.wanted is None:
            return None
        return repairing.asker.wanted.index

    def receive(self, message: PeerMessage) -> None:
        if self.paused:
            self._waiting.append(("receive", message))
            return
        if isinstance(message, RepairRequest | RepairResponse):
            self.may_die(lambda: self.mender.on_message(message))
            return
        if not self.up:
            self.mender.hears(message.sender)
            return
        # What installs is a RefillNode's, and no group introduces itself here.
        assert not isinstance(message, InstallMessage | GroupAnnounced)
        self.core.step(message, self.core_ms())
        self._work()

    def peer_closed(self, peer: str) -> None:
        if self.paused:
            self._waiting.append(("peer_closed", peer))
            return
        self.core.peer_closed(peer, self.core_ms())
        self._work()

    def peer_opened(self, peer: str) -> None:
        if self.paused:
            self._waiting.append(("peer_opened", peer))
            return
        self.core.peer_opened(peer)
        self._work()

    def transfer(self, target: str) -> None:
        if self.up and not self.paused and self.core.role is Role.LEADER:
            with suppress(Busy, UnknownTarget):  # another is under way; it is no voter
                self.core.transfer(target, self.core_ms())
            self._work()

    def step_down(self) -> None:
        if self.up and not self.paused:
            self.core.step_down("the simulator says so")
            self._work()

    def _schedule_tick(self) -> None:
        now_ms = self.core_ms()
        due_ms = max(self.core.next_deadline_ms, now_ms) + (self.world.now_ms - now_ms)
        if self._tick_at <= self.world.now_ms or due_ms < self._tick_at:
            self._tick_at = due_ms
            self.world.at(due_ms, self._tick_if_due, self.incarnation, due_ms)

    def _tick_if_due(self, incarnation: int, when_ms: float) -> None:
        if incarnation == self.incarnation and when_ms == self._tick_at and not self.paused:
            self._tick()

    def _tick(self) -> None:
        self._tick_at = 0.0
        self.core.tick(self.core_ms())
        self._work()

    # -- clients ----------------------------------------------------------------------------------

    def propose(self, payload: bytes) -> None:
        core = self.core
        if not self.up or not core.can_propose:
            return
        frame = self._seal(FrameKind.COMMAND, payload)
        try:
            core.propose(frame)
        except (Busy, NotLeader):
            return
        self._proposals[frame.index] = frame
        self._work()

    def offer(self, payload: bytes) -> None:
        """`propose`, if this node can be asked at all."""
        if self.up and not self.paused:
            self.propose(payload)

    def change(self, change: Change) -> None:
        """Do what an operator asks of it."""
        try:
            configuration = self.core.configuration_after(change)
            payload = encode_configuration(configuration)
            frame = self._seal(FrameKind.CONFIGURATION, payload)
            self.core.propose(frame)
        except (Busy, ChangeRefused) as error:
            self.world.note(f"{self.name} {change}: {error}")
            return
        self.world.note(f"{self.name} {change}: {frame}")
        self._proposals[frame.index] = frame
        self._work()

    def _seal(self, kind: FrameKind, payload: bytes) -> Frame:
        core = self.core
        position = self.log.place(len(payload))
        now_ms = int(self.world.now_ms)
        return seal_frame(core.last_index + 1, core.term, position, now_ms, kind, 0, payload)

    def read(self) -> None:
        if self.core.role is not Role.LEADER:
            return
        self._token += 1
        self._reads[self._token] = self.world.checker.acked_max
        self.core.read_index(self._token)
        self._work()

    # -- the shell --------------------------------------------------------------------------------

    def _work(self) -> None:
        """Perform everything that is ready; die here if the disk says so."""
        try:
            while True:
                ready = self.core.ready()
                if ready is not None:
                    self._perform(ready)
                elif self.core.wants_noop:
                    self.core.propose(self._seal(FrameKind.NOOP, b""))
                else:
                    break
            self._start_sync()
        except SimCrash:
            self.crash(power=self.world.profile.durable and self.world.rng.random() < 0.5)
            self.world.plan.restart_later(self)
            return
        self.world.checker.after_event(self)
        self._schedule_tick()

    def _perform(self, ready: Ready) -> None:
        checker = self.world.checker
        if ready.truncate_from is not None:
            checker.truncating(self, ready.truncate_from)
            self.log.truncate(ready.truncate_from)
        if ready.append:
            checker.appending(self, ready.append)
            self.log.append(ready.append)
            if self.log.wants_next_segment and self.world.rng.random() < 0.3:
                self.commitlog.prepare_next()
        if ready.configuration_changed:
            self._save_configuration()
        if ready.hard_state is not None:
            self._save_hard_state(ready)
        for message in ready.messages:
            self._send(message)
        if ready.commit_index is not None:
            self._apply(ready.commit_index)
        for token, index in ready.reads:
            self._confirmed.append((token, index))
        self._serve_reads()
        for token in ready.failed_reads:
            del self._reads[token]
        if ready.role is not None:
            self.world.note(f"{self.name} {ready.role}")
            checker.role_changed(self, ready.role)
            if ready.role.role is not Role.LEADER:
                self._proposals = {}

    def _save_configuration(self) -> None:
        self.mender.frames.asker.set_members(self.core.membership.configurations.current.ids)
        index, configuration = self.core.membership.configurations.settled
        if index > self.configuration_file.saved_index and self.core.recovered:
            self.configuration_file.save(index, configuration)

    def _save_hard_state(self, ready: Ready) -> None:
        assert ready.hard_state is not None
        self.made_good = self.made_good or ready.hard_state.recovered
        self.promises.hard_state.save(ready.hard_state)
        self._note_recovered()

    def _note_recovered(self) -> None:
        if self.lost and self.made_good and self.core.recovered:
            self.world.recoveries += 1
            self.world.note(f"{self.name} is recovered")
            self.world.checker.recovered(self)
            self.lost = False
            self._save_configuration()

    def _send(self, message: Outgoing) -> None:
        if isinstance(message, AppendOrder):
            try:
                frames = self.log.frames(message.first_index, message.last_index)
            except FrameDamaged:
                return  # it is sent again
            message = AppendRequest(
                self.name,
                message.to,
                message.term,
                message.prev_index,
                message.prev_term,
                message.commit_index,
                frames,
            )
        if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
            self.world.checker.voted(self, message)
            if self.world.plan.voted(self, message):
                return
        self.world.send(message)

    def _apply(self, commit_index: int) -> None:
        if self.applied >= commit_index:
            return
        try:
            frames = self.log.frames(self.applied + 1, commit_index)
        except FrameDamaged:
            return  # `mended` goes on
        for frame in frames:
            self.applied = frame.index
            self.world.checker.applied(self, frame)
            mine = self._proposals.pop(frame.index, None)
            if mine is not None and mine.term == frame.term:
                self.world.acknowledged += 1
                self.world.checker.acknowledged(self, frame)
        if self.applied < commit_index:
            self._apply(commit_index)

    def mended(self) -> None:
        """A damaged frame can be read again."""
        self._apply(self.core.commit_index)
        self._serve_reads()

    def _serve_reads(self) -> None:
        if not self._confirmed:
            return
        still = []
        for token, index in self._confirmed:
            if index <= self.applied:
                self.world.reads += 1
                self.world.checker.read(self, self._reads.pop(token), self.applied)
            else:
                still.append((token, index))
        self._confirmed = still

    # -- durability -------------------------------------------------------------------------------

    def _start_sync(self) -> None:
        if not self.world.profile.durable:
            if self.core.durable_index < self.log.index.last_index:
                self.core.durable(self.log.index.last_index)
                self._work()
            return
        if self._syncing:
            return
        ticket = self.log.begin_sync()
        if ticket is None:
            return
        self._syncing = True
        world = self.world
        delay_ms = world.profile.sync_ms * self.slow_sync * (0.5 + world.rng.random())
        world.after(delay_ms, self._end_sync, self.incarnation, ticket, self.disk.operations)

    def _end_sync(self, incarnation: int, ticket: LogSyncTicket, horizon: int) -> None:
        if incarnation != self.incarnation or not self.up:
            return
        if self.paused or self.stalled:
            self.world.after(5.0, self._end_sync, incarnation, ticket, horizon)
            return
        self._syncing = False
        self.disk.sync_horizon = horizon  # what was written since is not covered
        try:
            ticket.run()
            self.disk.sync_horizon = None
            index = self.log.finish_sync(ticket)
            if self.world.rots and self.world.damage.rng.random() < 0.7:
                self.checkpoint.sync()  # as the store's flush does every few seconds
        except SimCrash:
            self.crash(power=self.world.rng.random() < 0.5)
            self.world.plan.restart_later(self)
            return
        finally:
            self.disk.sync_horizon = None
        if index is not None:
            self.core.durable(index)
        self._work()

    def has_let_go(self, frame: Frame) -> bool:
        """Whether retention took it: then it was committed."""
        return False

    def holds(self, frame: Frame, durable: bool) -> bool:
        """Whether the frame's bytes stand in the file, read past everything of ours."""
        at = frame.position % SEGMENT_SIZE_BYTES
        path = f"commitlog/{frame.position - at:020d}"
        if self.disk.holds(path, at, frame.data, durable):
            return True
        # An acknowledgement that was on its way when it was lost is worth what it was.
        before = self.before_loss.get(path, b"")
        return self.lost and before[at : at + len(frame.data)] == frame.data

    def holds_for_good(self, frame: Frame) -> bool:
        """In the page cache; and on the platter, where that is promised."""
        promised = self.world.profile.durable and frame.index <= self.log.durable_index
        return self.holds(frame, False) and (not promised or self.holds(frame, True))

    def is_whole(self) -> bool:
        """Whether every frame of its log stands where it should, and nothing is damaged still."""
        return (
            self.up
            and not len(self.mender.frames)
            and all(map(self.holds_for_good, self.world.checker.log_of(self)))
        )

    def __str__(self) -> str:
        if not self.up:
            return f"{self.name} {'mends its log' if self.mending else 'is down'}"
        core = self.core
        return (
            f"{self.name} {core.role.value} term {core.term} leader {core.leader} "
            f"last {core.last_index} durable {core.durable_index} commit {core.commit_index} "
            f"{list(core.progress.values())}"
        )
