"""Which faults a seed suffers, and when. Each heals by itself; the world heals all at the end.

All is drawn before the world begins (schedule.py); a wish may replace it.

Members of other groups are met only where no memory is lost and nobody joins: an empty replica may
join the first group that it meets (dledger.transport.group_id).

What loses memory (a wiped disk, one that is set back to an earlier image or replaced by another
replica's, rot, a power cut of a replica that acknowledges before it syncs) strikes a minority of
replicas, the same in all of a world: the promise covers no more.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.storage.two_slot_file import SLOT_SIZE_BYTES
from tests.simulator.cluster import programs
from tests.simulator.cluster.network import Flips
from tests.simulator.cluster.restorer import Restorer
from tests.simulator.cluster.schedule import Schedule, Strike, drawn, without
from tests.simulator.cluster.spoiling import spoil_snapshot

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine
    from tests.simulator.cluster.process import Process
    from tests.simulator.cluster.world import ClusterWorld
    from tests.simulator.disk import SimDisk

EVERYWHERE = (
    "kill", "kill_leader", "crash_in_operation", "isolate", "cut_one_way", "split", "cut_client",
    "reset_connection", "freeze", "stop_planned", "stall_disk", "slow_disk", "fill_disk",
    "fail_sync", "kill_name_server", "start_twice", "wrong_store", "wrong_secret",
    "rolling_restart", "stranger", "slow_network",
)  # fmt: skip
OF_DISKS = ("fail_sync", "fill_disk")  # so that brokers end
OF_STARTS = ("start_twice",)  # so that a broker cannot start
OF_CLOCKS = ("jump_clock",)
OF_WIRES = ("flip_bits",)  # by wish only, and by searches: seeds draw as they did without it
OF_PAST = ("set_back", "take_place")  # the same
OF_YEARS = ("lose_time",)  # the same
OF_POWER = ("power_cut", "power_cut_all")
OF_MEMORY = ("wipe", "rot", "rot_votes", "lose_queue_file", "power_cut_fragile")
OF_GROUPS = ("foreign_group", "restore_beside")
OF_SNAPSHOTS = ("spoil_snapshot",)  # of the tables (spoiling.py)
OF_SCALED = (
    "kill", "kill_leader", "crash_in_operation", "isolate", "cut_one_way", "split", "cut_client",
    "reset_connection", "freeze", "stop_planned", "stall_disk", "slow_disk", "kill_name_server",
    "rolling_restart", "slow_network",
)  # fmt: skip
SPOILED = (2, 4)  # seeds that leave these remainders when divided by 8 have it
MISNAMED = "misnamed"  # a wrong store that was empty, so that its replica promised under that name
IDENTITY = f"{programs.STORE}/identity"
YEAR_MS = 365 * 24 * 3_600_000
MARK = Struct(">24xq")  # the durable mark in a checkpoint
FOUNDED_S = 1.5  # by then a group of one has its id
FAULTS = (
    *(EVERYWHERE + OF_CLOCKS + OF_WIRES + OF_POWER),
    *(OF_MEMORY + OF_PAST + OF_YEARS + OF_GROUPS + OF_SNAPSHOTS),
)


class FaultPlan:
    """The world's schedule of faults (schedule.py), drawn or wished, and what each does. `kinds`
    counts what struck."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._rng = rng = Random(world.rng.random())  # then of the strike that is under way
        self.kinds: dict[str, int] = {}
        self.spoiled = 0  # files of snapshots
        self.over = False
        self._restored: set[str] = set()  # machines that have a restored store, too
        names = [*EVERYWHERE]
        if not world.profile.secret:
            names.remove("wrong_secret")
        if not world.load_needs_clocks:
            names += OF_CLOCKS
        if world.profile.durable:
            names += OF_POWER
        chosen = rng.sample(names, rng.randint(2, 6))
        names += OF_WIRES
        of_memory = rng.sample(OF_MEMORY, rng.randint(1, 2)) if rng.random() < 0.4 else []
        minority = rng.sample(sorted(world.brokers), (world.profile.replicas - 1) // 2)
        if not world.profile.operated:  # else who is a minority changes
            chosen += of_memory
            names += OF_MEMORY + OF_PAST
        if not world.profile.operated and not of_memory:
            chosen += OF_GROUPS if rng.random() < 0.15 else ()
            names += OF_GROUPS
        names += OF_SNAPSHOTS
        if world.profile.kept:
            chosen += OF_YEARS * 2
            names += OF_YEARS
        if world.seed % 8 in SPOILED:  # drawn with the rest, it would make other worlds of all
            chosen += OF_SNAPSHOTS * 2
        if world.profile.scaled:
            chosen = rng.sample(OF_SCALED, rng.randint(2, 6))
        faults = world.wish.faults or chosen
        self.schedule: Schedule = drawn(rng, faults, world.profile.every_s, world.profile.faults_s)
        if world.wish.schedule is not None:
            self.schedule = without(world.wish.schedule, set(FAULTS) - set(names))
        loses_memory = any(one.fault in OF_MEMORY + OF_PAST for one in self.schedule)
        if loses_memory:
            self.schedule = without(self.schedule, set(OF_GROUPS))
        self.fragile: list[str] = minority if loses_memory else []

    @property
    def strikes(self) -> int:
        return sum(self.kinds.values())

    @property
    def spoils_disks(self) -> bool:
        """Whether disks have failed or were full."""
        return not self.kinds.keys().isdisjoint(OF_DISKS)

    @property
    def ends_brokers(self) -> bool:
        """Whether brokers may have ended: of their disks, or a second start had the store."""
        return self.spoils_disks or not self.kinds.keys().isdisjoint(OF_STARTS)

    def start(self) -> None:
        for one in self.schedule:
            self._later(one.at_s, self._strike, one)

    def stop(self) -> None:
        """No fault from here on; what is broken stays so."""
        self.over = True

    def heal(self, machines: list[Machine]) -> None:
        """Let these run, and be connected to each other and to everything that is healed."""
        world = self._world
        for machine in machines:
            world.network.flips = None
            machine.disk_stalled = machine.disk.full = machine.disk.fails_sync = False
            machine.thread_s = world.profile.thread_ms / 1000
            world.network.slow_ms = 0.0
            machine.power_on()
            world.undo(machine)
            for process in machine.processes:
                process.thaw()
            world.restart_later(machine)

    def _later(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        world = self._world
        world.loop.call_later(delay_s, act, *arguments, context=world.context)

    def _strike(self, one: Strike) -> None:
        if self.over:
            return
        name = one.fault
        self._world.note(f"fault {name}")
        self.kinds[name] = self.kinds.get(name, 0) + 1
        self._rng = Random(one.seed)
        act: Callable[[], None] = getattr(self, f"_{name}")
        act()
        self._world.coverage.poll()

    def _soon_s(self) -> float:
        return self._rng.choice((0.02, 0.2, 0.8, 2.0)) * (0.5 + self._rng.random())

    # -- who --------------------------------------------------------------------------------------

    def _anybody(self) -> Machine:
        return self._rng.choice(list(self._world.brokers.values()))

    def _leader(self) -> Machine:
        groups = self._world.groups  # of one nothing is drawn
        group = groups[0] if len(groups) == 1 else self._rng.choice(groups)
        return self._world.leader(group=group) or self._anybody()

    def _victim(self) -> Machine:
        return self._leader() if self._rng.random() < 0.5 else self._anybody()

    def _of_fragile(self) -> Machine:
        return self._world.brokers[self._rng.choice(self.fragile)]

    # -- processes --------------------------------------------------------------------------------

    def _kill(self) -> None:
        self._end(self._victim())

    def _kill_leader(self) -> None:
        self._end(self._leader())

    def _end(self, machine: Machine) -> None:
        machine.kill()
        self._later(self._soon_s(), self._start, machine)

    def _start(self, machine: Machine) -> None:
        if not self.over and not machine.processes:
            machine.power_on()
            self._world.start_broker(machine)

    def _power_cut(self) -> None:
        self._cut_power(self._victim())

    def _power_cut_all(self) -> None:
        for machine in self._world.brokers.values():
            self._cut_power(machine)

    def _power_cut_fragile(self) -> None:
        self._cut_power(self._of_fragile())

    def _cut_power(self, machine: Machine) -> None:
        machine.cut_power()
        self._later(self._soon_s(), self._start, machine)

    def _crash_in_operation(self) -> None:
        self._victim().disk.crash_after(self._rng.randint(1, 12))

    def _stop_planned(self) -> None:
        for process in self._victim().processes:
            process.terminate()

    def _rolling_restart(self) -> None:
        for number, machine in enumerate(self._world.brokers.values()):
            for process in machine.processes:
                self._later(0.8 * number, process.terminate)

    def _freeze(self) -> None:
        for process in self._victim().processes:
            process.freeze()
            self._later(self._soon_s(), process.thaw)

    def _kill_name_server(self) -> None:
        machine = self._world.namesrv
        machine.kill()
        self._later(self._soon_s(), self._world.start_name_server)

    # -- operators --------------------------------------------------------------------------------

    def _start_twice(self) -> None:
        """The same command once more while it runs, or one that takes other ports."""
        machine = self._victim()
        if machine.processes:
            self._world.start_wrong(
                machine, self._rng.choice(({}, self._world.other_ports(machine)))
            )

    def _wrong_store(self) -> None:
        """A broker is started as another one of its group, which is down, on its own store. If that
        is empty nobody can tell: what the other one promises there is lost when it is corrected."""
        machine, others = self._victim(), list(self._world.brokers.values())
        if programs.is_empty(machine.disk):
            others = [one for one in others if one.name in self.fragile] or [machine]
            self.kinds[MISNAMED] = self.kinds.get(MISNAMED, 0) + 1
        other = self._rng.choice(others)
        other.kill()
        self._start_wrongly(machine, {"dLegerSelfId": other.name})
        self._later(self._soon_s(), self._start, other)

    def _wrong_secret(self) -> None:
        """A broker that is down is started with a secret that the others do not have."""
        wrong = {"peerSecret": "not what the others have, and long enough"}
        self._start_wrongly(self._victim(), wrong)

    def _start_wrongly(self, machine: Machine, wrong: dict[str, str]) -> None:
        machine.kill()
        self._world.start_wrong(machine, wrong)
        self._later(self._soon_s(), self._correct, machine)

    def _correct(self, machine: Machine) -> None:
        if not self.over:
            machine.kill()
            self._world.undo(machine)
            self._start(machine)

    def _stranger(self) -> None:
        """A broker of another group is given the addresses of this one's members."""
        stranger = self._world.start_stranger(self._victim(), {"brokerName": "another-group"})
        self._later(self._soon_s(), stranger.kill)

    def _foreign_group(self) -> None:
        """Another group of this name is founded, and then has the address of a member that is
        down."""
        world, machine = self._world, self._victim()
        own = {machine.name: world.numbers[machine.name]}
        alone = {machine.name: len(world.numbers)}  # at the ports that `start_stranger` gives it
        founder = world.start_stranger(machine, {"dLegerPeers": programs.peers_of(alone)})

        def move() -> None:
            founder.kill()
            self._take_address(machine, programs.peers_of(own))

        self._later(FOUNDED_S, move)

    def _take_address(self, machine: Machine, peers: str) -> None:
        """Let another group's replica, which knows of which it is, run where a member of this one
        should."""
        known = machine.disk.exists(f"{programs.STRANGE_STORE}/raft/group")
        if known and not self.over and machine.powered:
            machine.kill()
            self._world.start_stranger(machine, {"dLegerPeers": peers})
            self._later(self._soon_s(), self._correct, machine)

    def _restore_beside(self) -> None:
        """A replica is restored from a backup of the running group, and started in its original's
        place as if it belonged to the same group. Done once to a machine."""
        world, machine = self._world, self._anybody()
        if machine.name in self._restored or world.desk.processes:
            return
        self._restored.add(machine.name)
        restorer = Restorer(world, machine, self._begin_restored)

        def ended(process: Process) -> None:
            world.finished(process)
            process.kill()

        world.desk.start("restorer", restorer.run, ended)

    def _begin_restored(self, machine: Machine) -> None:
        self._take_address(machine, self._world.settings(machine.name)["dLegerPeers"])

    # -- disks and clocks -------------------------------------------------------------------------

    def _stall_disk(self) -> None:
        self._set_for_a_while(self._victim(), "disk_stalled", True, False)

    def _slow_disk(self) -> None:
        machine = self._victim()
        self._set_for_a_while(machine, "thread_s", 0.05, self._world.profile.thread_ms / 1000)

    def _fill_disk(self) -> None:
        disk = self._victim().disk
        disk.full = True
        self._later(self._soon_s(), setattr, disk, "full", False)

    def _fail_sync(self) -> None:
        self._victim().disk.fails_sync = True

    def _set_for_a_while(self, machine: Machine, name: str, value: object, usual: object) -> None:
        setattr(machine, name, value)
        self._later(self._soon_s(), setattr, machine, name, usual)

    def _lose_time(self) -> None:
        """Some machines or all start with a clock that is a year off, until the next such fault."""
        machines = list(self._world.brokers.values())
        for machine in machines:
            machine.wall_offset_ms = 0
        off_ms = self._rng.choice((-YEAR_MS, YEAR_MS, YEAR_MS))
        for machine in self._rng.sample(machines, self._rng.randint(1, len(machines))):
            machine.kill()
            machine.wall_offset_ms = off_ms
            self._later(self._soon_s(), self._start, machine)

    def _jump_clock(self) -> None:
        self._anybody().wall_offset_ms += self._rng.choice((-60_000, -500, 500, 60_000))

    def _wipe(self) -> None:
        """An empty disk under the same id."""
        machine = self._of_fragile()
        machine.kill()
        machine.wipe()
        self._later(self._soon_s(), self._start, machine)

    def _set_back(self) -> None:
        """An image of a disk is taken, and after a while put in its place. What was promised
        meanwhile is forgotten, and nothing on that disk says so."""
        machine = self._of_fragile()
        broker = self._world.invariants.brokers.get(machine.name)
        engine = None if broker is None else broker.engine
        if not machine.processes or not isinstance(engine, RaftMember) or not engine.has_core:
            return
        core = engine.core
        if core.recovered and machine.name not in self._world.set_back:
            taken = core.term, core.last_index
            after_s = self._rng.choice((0.5, 1.0, 2.0))
            self._later(after_s, self._put_back, machine, machine.disk.copied(), taken)

    def _put_back(self, machine: Machine, image: SimDisk, taken: tuple[int, int]) -> None:
        """Only if all the others have noted that it has held more since: else nobody can tell."""
        world = self._world
        others = [one for one in world.brokers.values() if one is not machine]
        known = [programs.notes_of(one.disk).get(machine.name) for one in others]
        if not self.over and all(
            held is not None and (held.term > taken[0] or held.index > taken[1]) for held in known
        ):
            machine.kill()
            machine.put_in(image)
            world.set_back.add(machine.name)
            world.set_back_count += 1
            world.note(f"{machine.name} is set back to term and frame {taken}")
            self._later(self._soon_s(), self._start, machine)

    def _take_place(self) -> None:
        """An older copy of another replica's store takes the place of this one's: without the file
        that says whose it is, or with that of the store before."""
        machine = self._of_fragile()
        others = [one for one in self._world.brokers.values() if one is not machine]
        image = self._rng.choice(others).disk.copied()
        known, identity = machine.disk.durable(IDENTITY), image.image(True).get(IDENTITY)
        if identity is None or not known:
            return
        image.lose_file(IDENTITY)
        if self._rng.random() < 0.5:
            file = image.open(IDENTITY)
            file.pwrite(0, known)
            file.sync()
            image.sync_directory(programs.STORE)
        self._later(self._rng.choice((0.3, 1.0, 2.0)), self._move_in, machine, image)

    def _move_in(self, machine: Machine, image: SimDisk) -> None:
        if not self.over:
            machine.kill()
            machine.put_in(image)
            self._later(self._soon_s(), self._start, machine)

    def _rot(self) -> None:
        """A bit of the log flips, where it lies: below the durable mark on the platter. Above it
        nobody can tell rot from a write that never happened (store/checkpoint.py). What a running
        replica wrote lately is in its memory, and in the kernel's."""
        machine = self._of_fragile()
        mark = MARK.unpack_from(machine.disk.durable(f"{programs.STORE}/checkpoint") or bytes(32))
        end = min(mark[0], self._read_from_disk(machine)) if machine.processes else mark[0]
        result = {}
        for path, data in machine.disk.image(True).items():
            if path.startswith(f"{programs.STORE}/commitlog/"):
                below = min(len(data), end - int(path.rpartition("/")[2]))
                if below > 0:
                    result[path] = below
        if result:
            path = self._rng.choice(list(result))
            offset = self._rng.randrange(result[path])
            machine.disk.rot(path, offset)
            disk = machine.disk
            rotted = disk.rotted if machine.processes else disk.rotted_at_rest
            rotted.add(int(path.rpartition("/")[2]) + offset)

    def _read_from_disk(self, machine: Machine) -> int:
        """Return the end of what a running replica has to read from its disk."""
        broker = self._world.invariants.brokers.get(machine.name)
        if broker is None or not isinstance(broker.engine, RaftMember):
            return 0
        return broker.engine.log.memory_start

    def _rot_votes(self) -> None:
        """A bit of the vote file flips, and its replica dies."""
        machine = self._of_fragile()
        machine.kill()
        path = f"{programs.STORE}/raft/hardstate"
        slot = self._rng.randrange(2)
        if path in machine.disk.image(True):
            machine.disk.rot(path, slot * SLOT_SIZE_BYTES + self._rng.randrange(32))
        self._later(self._soon_s(), self._start, machine)

    def _lose_queue_file(self) -> None:
        """A file that can be made anew from the log is gone when the broker starts."""
        machine = self._of_fragile()
        machine.kill()
        queues = [path for path in machine.disk.image(True) if "/consumequeue/" in path]
        if queues:
            machine.disk.lose_file(self._rng.choice(queues))
        self._later(self._soon_s(), self._start, machine)

    def _spoil_snapshot(self) -> None:
        """Files of a replica's snapshot are damaged or gone; while it is down, or before it is."""
        machine = self._victim()
        if self._rng.random() < 0.6:
            machine.kill()
            self._later(self._soon_s(), self._start, machine)
        for what in spoil_snapshot(machine.disk, self._rng, not machine.processes):
            self.spoiled += 1
            self._world.note(f"{machine.name}: {what}")

    # -- network ----------------------------------------------------------------------------------

    def _isolate(self) -> None:
        name = self._victim().name
        others = [m.name for m in self._world.machines if m.name != name]
        self._cut({(name, other) for other in others} | {(other, name) for other in others})

    def _cut_one_way(self) -> None:
        name = self._victim().name
        others = [n for n in self._world.brokers if n != name]
        if self._rng.random() < 0.5:
            self._cut({(name, other) for other in others})
        else:
            self._cut({(other, name) for other in others})

    def _split(self) -> None:
        names = list(self._world.brokers)
        self._rng.shuffle(names)
        at = self._rng.randrange(1, max(2, len(names)))  # of several groups one broker may be left
        near, far = names[:at], names[at:]
        self._cut({(a, b) for a in near for b in far} | {(b, a) for a in near for b in far})

    def _cut_client(self) -> None:
        name = self._victim().name
        self._cut({("client", name), (name, "client")})

    def _cut(self, pairs: set[tuple[str, str]]) -> None:
        network = self._world.network
        network.sever(pairs)
        self._later(self._soon_s(), self._reconnect, pairs)

    def _reconnect(self, pairs: set[tuple[str, str]]) -> None:
        if not self.over:
            self._world.network.heal(pairs)

    def _slow_network(self) -> None:
        """Messages take about as long as an election time-out."""
        network = self._world.network
        network.slow_ms = self._rng.choice((200.0, 400.0, 800.0))
        self._later(2.0 + self._rng.random(), setattr, network, "slow_ms", 0.0)

    def _flip_bits(self) -> None:
        """Between replicas TCP delivers wrong bits for a while."""
        network = self._world.network
        own = Random(self._rng.getrandbits(64))
        network.flips = Flips(own, self._rng.choice((0.01, 0.05, 0.2)), programs.RAFT_PORTS)
        self._later(2.0 + self._rng.random(), setattr, network, "flips", None)

    def _reset_connection(self) -> None:
        self._world.network.reset()
