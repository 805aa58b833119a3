"""Worlds with retention: logs lose their beginning, and replicas that need it are refilled.

`RefillWorld(seed)` is the world of that seed with more in it, all of it drawn from a generator of
its own: replicas write snapshots of what they applied and let covered segments go; now and then one
is away for long, with or without its disk. Who is stranded then is refilled by the real code
(dledger.snapshotinstall, dledger.snapshotmarker), and dies in the middle of it more often than not.

`Machine` stands for the broker's state: tables (a digest over all that was applied), and queues,
whose numbers have to go on although their messages are gone.
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import orjson
from google_crc32c import value as crc32c

from raftmq.dledger import snapshotmarker
from raftmq.dledger.log import RaftLog
from raftmq.dledger.messages import Role
from raftmq.dledger.progress import PeerState
from raftmq.dledger.slots import SlotFile
from raftmq.dledger.snapshotinstall import (
    Donor,
    GroupSnapshot,
    InstallChunk,
    InstallMessage,
    InstallOffer,
    InstallRequest,
    InstallTiming,
    Receiver,
    configuration_part,
    decode_group_snapshot,
    lacks,
)
from raftmq.dledger.wire import PeerMessage
from raftmq.store.frame import Frame, FrameKind
from tests.simulator.checks import Checker
from tests.simulator.disk import SimCrash, SimDisk
from tests.simulator.node import SimNode
from tests.simulator.world import World

RAFT = "raft"
STATE = "state/machine"
QUEUES = 3
TEND_BEATS = 2.0
AWAY_BEATS = (10, 45)


class Machine:
    """The state that a replica applied. Tables and queues may be of different ages."""

    def __init__(self) -> None:
        self.tables_index = 0
        self.digest = b""
        self.dispatched_index = 0
        self.begins = [0] * QUEUES  # number of the first message that the log still has
        self.positions: list[list[int]] = [[] for _ in range(QUEUES)]

    def apply(self, frame: Frame) -> tuple[int, int] | None:
        """Returns (queue, number) of a message."""
        if frame.index > self.tables_index:
            content = self.digest + b"%d %d" % (frame.index, crc32c(frame.data))
            self.digest = hashlib.blake2b(content, digest_size=8).digest()
            self.tables_index = frame.index
        assert frame.index == self.dispatched_index + 1, (frame, self.dispatched_index)
        self.dispatched_index = frame.index
        if frame.kind != FrameKind.COMMAND:
            return None
        queue = crc32c(bytes(frame.payload)) % QUEUES
        self.positions[queue].append(frame.position)
        return queue, self.begins[queue] + len(self.positions[queue]) - 1

    def let_go(self, position: int) -> None:
        """The log begins there now."""
        for queue, positions in enumerate(self.positions):
            kept = [at for at in positions if at >= position]
            self.begins[queue] += len(positions) - len(kept)
            self.positions[queue] = kept

    def cut(self, last_index: int, end: int) -> None:
        """The log lost what stood behind."""
        if self.dispatched_index > last_index:
            self.dispatched_index = last_index
            self.positions = [[at for at in row if at < end] for row in self.positions]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "digest": self.digest.hex()}

    @staticmethod
    def load(value: dict[str, Any]) -> Machine:
        machine = Machine()
        vars(machine).update(value)
        machine.digest = bytes.fromhex(value["digest"])
        return machine

    # what the application's part of a group snapshot does

    def capture(self) -> bytes:
        value = {"digest": self.digest.hex(), "begins": self.begins}
        return orjson.dumps(value)

    @staticmethod
    def installed(noted: GroupSnapshot) -> Machine:
        machine = Machine.load(orjson.loads(noted.state))
        machine.tables_index = noted.applied_index
        machine.dispatched_index = noted.first_index - 1
        return machine


def write_machine(disk: SimDisk, machine: Machine) -> None:
    """Durable on return. Raises SimCrash."""
    disk.makedirs("state")
    file = disk.open(STATE + ".new")
    file.truncate(0)
    file.pwrite(0, orjson.dumps(machine.to_json()))
    file.sync()
    disk.rename(STATE + ".new", STATE)
    disk.sync_directory("state")


def read_machine(disk: SimDisk) -> Machine:
    if not disk.exists(STATE):
        return Machine()
    file = disk.open(STATE)
    return Machine.load(orjson.loads(file.pread(0, file.size_bytes)))


class Refiller:
    """Does the work of snapshotinstaller.py, without asyncio."""

    def __init__(self, node: RefilledNode) -> None:
        self.node = node
        self.world = node.refill_world
        beat = self.world.unit_ms
        timing = InstallTiming(2 * beat, 6 * beat, 5, 100 * beat, 60 * beat)
        self.donor = Donor(node.name, timing, (node.incarnation << 32) + 1)
        self.receiver = Receiver(node.name, timing)
        self._incarnation = node.incarnation
        self._later()

    def _later(self) -> None:
        self.world.after(TEND_BEATS * self.world.unit_ms, self._tend)

    def _tend(self) -> None:
        node = self.node
        if node.incarnation != self._incarnation:
            return
        self._later()
        if not node.up or node.paused:
            return
        core, now_ms = node.core, self.world.now_ms
        if core.role is Role.LEADER:
            stranded = self.stranded()
            for offer in self.donor.offers(stranded, core.term, node.log.index, now_ms):
                self.world.send(offer)
            if self.donor.wants_parcel and node.machine.tables_index >= node.applied:
                self._make_parcel()
        else:
            self.donor.drop()
        follows = core.role is Role.FOLLOWER and core.unfit is None
        self.receiver.follow(core.leader if follows else None, core.term)
        self.receiver.tick(now_ms)
        self._send_requests()

    def stranded(self) -> list[str]:
        progress = self.node.core.progress.values()
        return [p.peer for p in progress if p.state is PeerState.STRANDED]

    def refilled(self) -> bool:
        peers = {p.peer: (p.match_index, p.heard_ms) for p in self.node.core.progress.values()}
        return bool(self.donor.still_refilled(peers, self.world.now_ms))

    def _make_parcel(self) -> None:
        node = self.node
        index, commitlog = node.log.index, node.commitlog
        parcel = GroupSnapshot(
            index.first_index,
            index.previous_term,
            commitlog.min_offset,
            node.machine.tables_index,
            commitlog.segment_size_bytes,
            configuration_part(*node.core.membership.configurations.settled),
            node.machine.capture(),
        )
        for chunk in self.donor.made(parcel.encode(), index, index.first_index, self.world.now_ms):
            self.world.send(chunk)

    def on_message(self, message: InstallMessage) -> None:
        node, core, now_ms = self.node, self.node.core, self.world.now_ms
        if message.term != core.term:
            return
        if isinstance(message, InstallRequest):
            if core.role is Role.LEADER:
                chunk = self.donor.step(message, node.log.index, now_ms)
                if chunk is not None:
                    self.world.send(chunk)
        elif core.role is Role.FOLLOWER and message.sender == core.leader:
            if isinstance(message, InstallOffer):
                if self.is_wanted(message.first_index, message.previous_term):
                    self.receiver.offered(message, now_ms)
            else:
                self._take(message)
            if node.up:
                self._send_requests()

    def is_wanted(self, first_index: int, previous_term: int) -> bool:
        core, index = self.node.core, self.node.log.index
        if core.unfit is not None:
            return False
        return lacks(index, core.commit_index, first_index, previous_term)

    def _send_requests(self) -> None:
        for request in self.receiver.requests():
            self.world.send(request)

    def _take(self, chunk: InstallChunk) -> None:
        data = self.receiver.step(chunk, self.world.now_ms)
        if data is not None:
            noted = decode_group_snapshot(data)
            if self.is_wanted(noted.first_index, noted.previous_term):
                self.node.install(noted, data)


class RefilledNode(SimNode):
    """A replica with a beginning, snapshots, and an Installer."""

    refiller_class = Refiller
    machine_class = Machine

    @property
    def refill_world(self) -> RefillWorld:
        assert isinstance(self.world, RefillWorld)
        return self.world

    def before_open(self) -> None:
        """Carry out what is noted; it may die in the middle."""
        world = self.refill_world
        if not snapshotmarker.pending(self.disk, RAFT):
            return
        if not world.healed and world.own.random() < 0.6:
            self.disk.crash_after(world.own.randint(1, 25))
        try:
            self.carry_out()
        except SimCrash:
            world.torn += 1
            if world.profile.durable and world.own.random() < 0.5:
                self.disk.lose_power()
            raise
        world.installed += 1
        world.note(f"{self.name} is installed")

    def carry_out(self) -> None:
        """Raises SimCrash."""
        disk = self.disk
        noted = snapshotmarker.read(disk, RAFT)
        if disk.exists(STATE):
            disk.remove(STATE)
            disk.sync_directory("state")
        snapshotmarker.begin_log(disk, RAFT, noted, "commitlog", "checkpoint")
        write_machine(disk, self.machine_class.installed(noted))
        snapshotmarker.done(disk, RAFT)

    def make_log(self, cache_bytes_max: int) -> RaftLog:
        return RaftLog(self.commitlog, SlotFile(self.disk, f"{RAFT}/trim"), cache_bytes_max)

    def recovered_index(self) -> int:
        """Tables and queues of the last snapshot, as far as the log still has what they say."""
        index = self.log.index
        machine = self.machine = read_machine(self.disk)
        ahead = machine.tables_index > index.last_index
        if ahead and not self.lost:
            if machine.tables_index > snapshotmarker.installed_index(self.disk, RAFT):
                self.world.checker.fail(f"{self.name} has tables of frame {machine.tables_index}")
        machine.cut(index.last_index, index.end_position)
        machine.let_go(self.commitlog.min_offset)
        if machine.dispatched_index < index.first_index - 1:
            self.world.checker.fail(f"{self.name} starts with {vars(machine)} before {index}")
        self.snapshot_index = machine.dispatched_index
        return machine.dispatched_index

    def take_part(self, hard_state: Any) -> None:
        self.refiller = self.refiller_class(self)
        super().take_part(hard_state)

    def receive(self, message: PeerMessage) -> None:
        if not isinstance(message, InstallOffer | InstallRequest | InstallChunk):
            super().receive(message)
        elif self.paused:
            self._waiting.append(("receive", message))
        elif self.up:
            self.refiller.on_message(message)

    def install(self, noted: GroupSnapshot, data: bytes) -> None:
        """Fall silent, note it, end; the next start carries it out."""
        world = self.refill_world
        world.note(f"{self.name} {self.log.index} takes {noted.first_index} at {noted.position}")
        world.refill_checker.installing(self, noted)
        if not world.healed and world.own.random() < 0.3:
            self.disk.crash_after(world.own.randint(1, 8))
        try:
            snapshotmarker.note(self.disk, RAFT, data)
        except SimCrash:
            world.torn += 1
        self.crash(power=world.profile.durable and world.own.random() < 0.3)
        world.plan.restart_later(self)

    def snapshot(self) -> None:
        """Save what is applied, once the log has it durably. Raises SimCrash."""
        ticket = self.log.begin_sync()
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)
        if self.machine.tables_index <= self.log.durable_index:
            write_machine(self.disk, self.machine)
            self.snapshot_index = self.machine.dispatched_index

    def trim(self, share: float) -> None:
        """Let old segments go. Raises SimCrash."""
        index = self.log.index
        settled = min(self.snapshot_index, self.core.commit_index, self.log.durable_index)
        configured = self.core.membership.configurations.settled[0]
        if configured > self.configuration_file.saved_index:
            settled = min(settled, configured - 1)  # its frame is all that says who the members are
        if settled < index.first_index:
            return
        start, end = self.commitlog.min_offset, index.end_of(settled)
        self.core.trim(self.log.trim(start + int((end - start) * share)))
        self.machine.let_go(self.commitlog.min_offset)
        if self.commitlog.min_offset > start:
            self.refill_world.trimmed += 1
            self.world.note(f"{self.name} lets go what was before {self.log.index}")

    def has_let_go(self, frame: Frame) -> bool:
        return frame.index < self.log.index.first_index


class RefillChecker(Checker):
    """Checks besides that the state is that of the frames, whoever installed it, and nothing
    is thrown away that counts.

    - whoever applied the same frames has the same tables, and gives a message the same number;
    - a log that goes away for a group snapshot has no committed frame that this does not cover."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._digests: dict[int, bytes] = {}
        self._numbers: dict[int, tuple[int, int] | None] = {}

    def applied(self, node: SimNode, frame: Frame) -> None:
        super().applied(node, frame)
        assert isinstance(node, RefilledNode)
        number = node.machine.apply(frame)
        if self._numbers.setdefault(frame.index, number) != number:
            self.fail(f"{node.name} numbers {frame} {number}: {self._numbers[frame.index]}")
        machine = node.machine
        known = self._digests.setdefault(machine.tables_index, machine.digest)
        if known != machine.digest:
            self.fail(f"{node.name} has other tables as of frame {machine.tables_index}")

    def installing(self, node: SimNode, noted: GroupSnapshot) -> None:
        for frame in self.log_of(node):
            if frame.index >= noted.first_index and self.is_committed(frame):
                self.fail(f"{node.name} throws {frame} away for {noted.first_index}")


class RefillWorld(World):
    """See the module."""

    checker_class = RefillChecker
    flags = " --refill"

    def __init__(self, seed: int, node_class: type[SimNode] = RefilledNode, **more: Any) -> None:
        super().__init__(seed, node_class=node_class, **more)
        self.own = Random(seed * 104_729 + 3)
        self.installed = self.torn = self.trimmed = 0
        self._beats = self.own.choice((2.0, 4.0, 8.0))
        self._away = ""
        self.after(6 * self.unit_ms, self._retain)
        self.after(self._soon(), self._leave)

    @property
    def refill_checker(self) -> RefillChecker:
        assert isinstance(self.checker, RefillChecker)
        return self.checker

    def _soon(self) -> float:
        return self.unit_ms * self.own.uniform(4, 16)

    def _retain(self) -> None:
        """Snapshots and retention, at whoever is up; in the end only where a damaged frame is that
        nobody else may have any more."""
        self.after(self._beats * self.unit_ms * self.own.uniform(0.5, 1.5), self._retain)
        for node in self.nodes.values():
            assert isinstance(node, RefilledNode)
            if self.healed and not (node.up and len(node.mender.frames)):
                continue
            if node.up and not node.paused and not node.stalled and self.own.random() < 0.8:
                node.may_die(node.snapshot)
            if node.up and not node.paused and not node.stalled and self.own.random() < 0.6:
                if not node.refiller.refilled() or self.own.random() < 0.2:  # the disk is full
                    share = self.own.choice((0.3, 1.0, 1.0))
                    node.may_die(lambda node=node, share=share: node.trim(share))  # type: ignore[misc]

    def _leave(self) -> None:
        """Somebody is away until the others have let go what he would need."""
        if self.healed:
            return
        away_ms = self.unit_ms * self.own.uniform(*AWAY_BEATS)
        node = self.own.choice(list(self.nodes.values()))
        if node.alive and self._others_are_up(node):
            self.note(f"{node.name} leaves")
            node.crash(power=False)
            if self.own.random() < 0.5 and self.plan._may_lose(node):
                node.wipe()
            self.after(away_ms, self.plan._restart, node)
        self.after(away_ms + self._soon(), self._leave)

    def _others_are_up(self, node: SimNode) -> bool:
        return all(other.alive for other in self.nodes.values() if other is not node)

    def run(self) -> dict[str, int]:
        numbers = super().run()
        mine = {"installed": self.installed, "torn": self.torn, "trimmed": self.trimmed}
        return numbers | mine
