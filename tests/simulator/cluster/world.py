"""One cluster from one seed: brokers, a name server, clients, faults, and the judges of all of it.

`ClusterWorld(seed).run()` plays it and returns what happened as numbers; it raises CheckFailed at
the first broken promise. The programs are the product's own (programs.py), the load and its judges
are the chaos harness's (load.py), what must hold between replicas is looked at as they apply
(invariants.py), and what clients read is compared with what was sent (contents.py).

The plan of a seed: the group elects a leader, the load begins, faults strike for some seconds. Then
in half of the worlds only a majority is healed, and the rest stays dead, frozen, deaf, mute or
without a working disk: the load must go on, end, and its consumers drain, within a bounded time
(liveness). Then everything is healed, and all replicas must become equal.

In a world that is `scaled` further broker groups join and leave meanwhile (scaling.py).
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from operator import lt
from random import Random
from typing import Any, NoReturn
from unittest.mock import patch
from zlib import crc32

import orjson

from raftmq.chaos.checks.suite import Suite
from raftmq.chaos.checks.verdict import Verdict
from raftmq.dledger.node import rollback_detection as oldstore
from raftmq.ops.options import ConfigError
from tests.simulator.cluster import programs
from tests.simulator.cluster.complaints import Complaints
from tests.simulator.cluster.contents import Contents
from tests.simulator.cluster.coverage import Coverage
from tests.simulator.cluster.faults import YEAR_MS, FaultPlan
from tests.simulator.cluster.filtered import FilteredWorkload
from tests.simulator.cluster.guests import SILENT_S, Guests
from tests.simulator.cluster.invariants import CheckFailed, Invariants
from tests.simulator.cluster.lateness import late
from tests.simulator.cluster.load import (
    DRAIN_WITHIN_S,
    DRAWN,
    FILLING,
    JOIN_WITHIN_S,
    SETTINGS,
    UNDATED,
    WAITING,
    WITHOUT_CLOCKS,
    Load,
    Manner,
)
from tests.simulator.cluster.loop import SimLoop, Stuck
from tests.simulator.cluster.machine import Machine
from tests.simulator.cluster.network import Network
from tests.simulator.cluster.operator import Operator
from tests.simulator.cluster.process import Process
from tests.simulator.cluster.recorder import Recorder
from tests.simulator.cluster.scaling import AGREED_WITHIN_S, EMPTY_WITHIN_S, MEMBERS_S, Scaling
from tests.simulator.cluster.schedule import Schedule
from tests.simulator.cluster.surroundings import simulated
from tests.simulator.cluster.trims import Trims
from tests.simulator.cluster.waits import Waits

DONE = ("ok", "fail", "unknown")  # records of an operation's outcome
RESTART_S_MAX = 1.0
EQUAL_WITHIN_S = 60.0
ACKNOWLEDGED_WITHIN_S = 10.0  # an election among those that are healed, and a client's next attempt
TRIMMED_WITHIN_S = 12.0  # two snapshots and a segment later
TIMELY_WITHIN_S = 10.0  # a few looks at clocks, and a transfer
CALM_S = 16.0  # twice as long as back-off takes to forget (dledger/raft/election_timeout.py)
FAILOVER_WITHIN_S = 3.0  # four of the longest configured time-outs: the votes may be split
CALLBACKS_MAX = 3_000_000  # a world that does not end is a failure, not a hang
LOOK_S = 0.05
POPPING = (2, 4)  # seeds that leave this remainder when divided by 6
FILLED, GUESTS, ASKED = 1, 4, 6  # seeds that leave these remainders when divided by 8
# By 16: a filled world in which messages wait (waits.py); filters and live settings (filtered.py).
WAITED_FOR, FILTERED = 9, 11
KEPT = 7  # by 32: as filled, but nothing may be taken, and clocks are a year off
SEGMENT_BYTES_MIN = 136 * 1024  # what a segment must hold (broker/config.py)
BODY_BYTES = (1024, 1536, 2048)
BESIDE = {1: ("transactions",), 4: ("pop",)}  # loads of scaled worlds, by 5
UNTOLD = ("asked", "filtered")  # workloads whose operations are not in the history
SPARES = 2  # machines that may join
SCALED_S = (5.0, 7.0, 9.0)  # how long faults strike in a scaled world
SECRET = "of this world, and long enough"
NOTES_MADE_MS = 200  # a world lasts some seconds
BROKEN = ("dead", "frozen", "deaf", "mute", "cut off", "stalled")


@dataclass(frozen=True, slots=True)
class Size:
    """The length of a world: how long faults strike, how often, and the load's pace."""

    faults_s: tuple[float, ...]
    every_s: tuple[float, ...]
    pace: float


SHORT = Size((4.0, 4.5, 5.0), (0.12, 0.18, 0.24), 0.5)
LONG = Size((8.0, 10.0, 12.0), (0.15, 0.25, 0.4), 1.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """The roughness of a seed's world."""

    replicas: int
    durable: bool  # SYNC_FLUSH: acknowledged means synced; power cuts of all happen only here
    delay_ms: float
    spike: float  # probability of a delay that is twenty times as long
    thread_ms: float
    faults_s: float
    segment_bytes: int
    frame_bytes_max: int
    half_healed: bool  # a majority has to go on alone before all are healed
    refilled: bool  # in the end the logs lose their beginning, and a replica everything
    operated: bool  # an operator changes members and leaders meanwhile
    timed: bool  # in the end a leader is cut off, and the next is there in the configured time
    secret: bool  # brokers prove to each other that they know it
    every_s: float  # a fault, about
    pace: float  # of the load
    filled: bool = False  # large messages, and retention takes all that it can (trims.py)
    guests: bool = False  # clients that die (guests.py)
    kept: bool = False  # large messages on crowded disks, and retention may take nothing
    scaled: bool = False  # broker groups join and leave (scaling.py); by wish only

    @staticmethod
    def draw(rng: Random, size: Size) -> Profile:
        return Profile(
            replicas=rng.choice((3, 3, 3, 5)),
            durable=rng.random() < 0.7,
            delay_ms=rng.choice((0.1, 0.5, 2.0, 8.0)),
            spike=rng.choice((0.0, 0.0, 0.01, 0.05)),
            thread_ms=rng.choice((0.1, 0.5, 5.0)),
            faults_s=rng.choice(size.faults_s),
            segment_bytes=rng.choice((192, 512)) * 1024,
            frame_bytes_max=rng.choice((16, 64)) * 1024,
            half_healed=rng.random() < 0.5,
            refilled=rng.random() < 0.3,
            operated=rng.random() < 0.25,
            timed=rng.random() < 0.1,
            secret=rng.random() < 0.8,
            every_s=rng.choice(size.every_s),
            pace=size.pace,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group and the names of its first replicas."""

    name: str
    founders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a world is to have, whatever its seed says. Empty: nothing in particular."""

    load: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)
    planted: Callable[[], AbstractContextManager[Any]] = nullcontext  # a break of the programs
    schedule: Schedule | None = None  # of faults; what the world cannot suffer is left out
    size: Size = SHORT


class ClusterWorld:
    """See the module's docstring."""

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        wish: Wish | None = None,
        covers: bool = False,  # whether the states that it reaches are wanted
    ) -> None:
        self.seed = seed
        self.wish = wish = wish or Wish()
        self.rng = rng = Random(seed)
        self.trace = trace
        self.context = copy_context()  # of no process
        self.profile = profile = self._draw_profile()
        self.loop = SimLoop()
        self.network = Network(self.loop, Random(rng.random()), profile.delay_ms, profile.spike)
        self.loop.network = self.network
        self._all_machines: list[Machine] = []
        names = [f"n{number}" for number in range(profile.replicas)]
        self.brokers = {name: self._machine(name) for name in names}
        self.groups = [Group(programs.GROUP, tuple(names))]
        spares = [self._machine(f"s{number}") for number in range(SPARES)]
        self.scaling = Scaling(self) if profile.scaled else None
        if self.scaling is not None:
            spares = [self._machine(name) for name in self.scaling.found()]
        self.numbers = {m.name: i for i, m in enumerate([*self.brokers.values(), *spares])}
        self.namesrv = self._machine("namesrv")
        self.second_namesrv = self._machine("namesrv2") if profile.scaled else self.namesrv
        self.client = self._machine("client")
        self.desk = self._machine("desk")
        self._lay_out_ports(spares)
        self.operator = Operator(self, spares, Random(rng.random()))
        self.waits = Waits(self._is_own, lambda names: self.load.give_up(names))
        self.trims = Trims(self._is_own, self._trimmed)
        self.load = self._draw_load()
        self.plan = FaultPlan(self)
        self.guests = Guests(self)
        self._all_machines.append(self.guests.machine)
        self.invariants = Invariants(self)
        self.contents = Contents(self.broken)
        self.complaints = Complaints(self)
        self.coverage = Coverage(self, covers)
        self.healed = False
        self.refills = 0
        self.emptied: set[str] = set()  # machines with a new disk
        self.set_back: set[str] = set()  # with an older one, which do not know it yet
        self.set_back_count = 0
        self.left_broken: set[str] = set()  # machines that stay so, until all are healed
        self.mistakes: list[Process] = []  # started as an operator should not
        self._misnamed: set[str] = set()  # machines with empty stores, now another's
        self.strangers: set[Process] = set()  # those that are of no group of this world
        self.failure: BaseException | None = None
        self.history: Recorder
        self.suite = Suite()
        self.waited_in_vain = 0  # messages that retention took first
        self.without_evidence = 0  # checks that had nothing to look at
        self._healed_ns: int | None = None  # a majority, or all

    def _machine(self, name: str) -> Machine:
        machine = Machine(name, self.loop, self.network, Random(self.rng.random()))
        machine.thread_s = self.profile.thread_ms / 1000
        machine.restart = self.restart_later
        self._all_machines.append(machine)
        return machine

    def _lay_out_ports(self, spares: list[Machine]) -> None:
        self.network.machines[programs.NAMESRV_PORT] = self.namesrv
        self.network.machines[programs.SECOND_NAMESRV_PORT] = self.second_namesrv
        self.network.machines[programs.NO_NAMESRV_PORT] = self.desk  # where nobody listens
        for number, machine in enumerate([*self.brokers.values(), *spares]):
            port = programs.client_port(number)
            for each in (port, port - 2, programs.raft_port(number)):
                self.network.machines[each] = machine

    def _draw_profile(self) -> Profile:
        """Draw it; if the load is not wished, every eighth world is filled, another has guests."""
        wish = self.wish
        profile = Profile.draw(self.rng, wish.size)
        if not wish.load:
            turn = self.seed % 8
            profile = replace(profile, filled=turn == FILLED, guests=turn == GUESTS)
            profile = replace(profile, kept=self.seed % 32 == KEPT)
        profile = replace(profile, **wish.profile)
        if profile.scaled:
            profile = replace(
                profile, replicas=self.rng.choice((1, 3)), half_healed=False, refilled=False,
                operated=False, timed=False, filled=False, guests=False, kept=False,
                faults_s=self.rng.choice(SCALED_S),
            )  # fmt: skip
        if profile.filled or profile.kept:
            profile = replace(profile, refilled=profile.filled, segment_bytes=SEGMENT_BYTES_MIN)
        return profile

    def _draw_load(self) -> Load:
        names, rng = self._draw_names(), Random(self.rng.random())
        if not (self.profile.filled or self.profile.kept):
            return Load(names, Manner(self.profile.pace), rng, self.note)
        if not self.wish.load:
            names = rng.sample(UNDATED if self.profile.kept else FILLING, 2)
            if self.seed % 16 == WAITED_FOR:
                names[1:] = WAITING
        body_bytes = rng.choice(BODY_BYTES)
        manner = Manner(self.profile.pace, body_bytes, body_bytes)
        return Load(names, manner, rng, self.note, self.trims if self.profile.filled else None)

    def _draw_names(self) -> Sequence[str]:
        kinds = WITHOUT_CLOCKS if self.rng.random() < 0.6 else DRAWN
        drawn = self.rng.sample(kinds, 2)
        # Every other world of retries pops instead: drawn with the rest, it would have made other
        # worlds of all seeds.
        if self.seed % 2:
            drawn = ["pop" if name == "retries" else name for name in drawn]
        # Retries are in too few worlds for that: a third of them pops, whatever it has drawn.
        if self.seed % 6 in POPPING and "pop" not in drawn:
            drawn[1] = "pop"
        if self.seed % 8 == ASKED:
            drawn[1] = "asked"
        if self.seed % 16 == FILTERED:
            drawn[1] = "filtered"
        if self.profile.scaled:
            drawn = ["scaled", *BESIDE.get(self.seed % 5, ())]
        return self.wish.load or drawn

    @property
    def load_needs_clocks(self) -> bool:
        """Whether what is promised depends on the time of day: no clock jumps then."""
        return not set(self.load.names) <= {*WITHOUT_CLOCKS, "asked", "filtered"}

    def _trimmed(self, start: int) -> None:
        self.waits.taken(start)
        if self.profile.kept:
            self.broken(f"the log before {start} is deleted, and has not expired")

    def _is_timely(self) -> bool:
        """Whether the leader's clock is right; or none is; or most are off, and the leader started
        on an empty disk, so that its log had no times that contradict its clock."""
        leader = self.leader()
        off = [one for one in self.brokers.values() if abs(one.wall_offset_ms) > YEAR_MS // 2]
        if leader is None or leader not in off:
            return leader is not None
        misled = leader.was_wiped and 2 * len(off) > len(self.brokers)
        return misled or len(off) == len(self.brokers)

    def _is_own(self, process: Process) -> bool:
        """Return whether a broker is of this world's group."""
        return process not in self.strangers

    def machine_named(self, name: str) -> Machine:
        return next(machine for machine in self._all_machines if machine.name == name)

    @property
    def machines(self) -> list[Machine]:
        further = [self.guests.machine] if self.profile.guests else []
        further += [self.second_namesrv] if self.profile.scaled else []
        return [*self.brokers.values(), self.namesrv, self.client, self.desk, *further]

    @property
    def name_servers(self) -> str:
        both = self.profile.scaled
        return f"{programs.NAMESRV};{programs.SECOND_NAMESRV}" if both else programs.NAMESRV

    def add_group(self, name: str, founders: tuple[str, ...]) -> Group:
        """Add a broker group, which is not there yet."""
        self.groups.append(Group(name, founders))
        return self.groups[-1]

    def group_of(self, name: str) -> Group:
        """Return the broker group of a machine; of those that join a group later, the first."""
        return next((group for group in self.groups if name in group.founders), self.groups[0])

    def machines_of(self, group: Group) -> list[Machine]:
        """Return the machines of a group that is there; of one that is not, nothing."""
        return [one for name, one in self.brokers.items() if self.group_of(name) is group]

    def leader(self, but: Machine | None = None, group: Group | None = None) -> Machine | None:
        """Return the machine of a broker that leads, if any does (in this group), but not this
        one."""
        for name, machine in self.brokers.items():
            if group is not None and self.group_of(name) is not group:
                continue
            broker = self.invariants.brokers.get(name)
            leads = machine.processes and broker is not None and broker.roles.leading
            if leads and machine is not but:
                return machine
        return None

    # -- running ----------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Play the seed. Raises CheckFailed at the first broken promise."""
        self.note(f"seed {self.seed} {self.profile} {self.load.names}")
        logging.disable(logging.INFO if self.trace is None else logging.NOTSET)
        try:
            with self.surrounded():
                self.history = Recorder(seed=self.seed, scenario="simulated")
                try:
                    with self.complaints.watching():
                        self.loop.run_until_complete(self._play())
                except Stuck:
                    self.fail("the world came to a standstill")
                finally:
                    logging.disable(logging.CRITICAL if self.trace is None else logging.NOTSET)
                    self._let_go()
        finally:
            logging.disable(logging.NOTSET)
        with self.wish.planted():  # a judge may be broken, too
            self._judge()
        return self._numbers()

    @contextmanager
    def surrounded(self) -> Iterator[None]:
        """Let everything that programs ask for come from this world, and look on."""
        with (
            simulated(self.loop, self.rng),
            patch.object(oldstore, "NOTE_INTERVAL_MS", NOTES_MADE_MS),
            self.wish.planted(),
            self.invariants.watching(),
            self.contents.watching(),
            self.trims.watching(),
            self.waits.watching() if self.profile.filled else nullcontext(),
            nullcontext() if self.scaling is None else self.scaling.watching(),
        ):
            yield

    async def _play(self) -> None:
        self.start_name_server()
        for machine in self.brokers.values():
            self.start_broker(machine)
        await self._until(lambda: self.leader() is not None, JOIN_WITHIN_S, "nobody leads")
        self.client.start("client", self._run_load, self.finished)
        await self._until(lambda: self.load.began, JOIN_WITHIN_S, "the load did not begin")
        self.plan.start()
        self._crowd(self.profile.filled or self.profile.kept)
        if self.profile.guests:
            self.guests.start()
        if self.profile.operated:
            self.desk.start("operator", self.operator.run, self.finished)
        if self.scaling is not None:
            self.desk.start("operator", self.scaling.run, self.finished)
        await self._wait(self.profile.faults_s)
        self.plan.stop()
        self.guests.end()
        self.operator.stop()
        if self.scaling is not None:
            self.scaling.stop()
        if self.profile.half_healed and not self.profile.operated:
            self._heal_majority()
            await self._end_load("with only a majority healthy")
        self._heal_all()
        await self._until(lambda: self.operator.idle, JOIN_WITHIN_S, "a change is never made")
        if self.scaling is not None:
            scaling = self.scaling
            await self._until(lambda: scaling.idle, EMPTY_WITHIN_S, "a group is never empty")
        if not self.load.over:
            await self._end_load("after healing")
        await self._until(self.invariants.all_equal, EQUAL_WITHIN_S, "replicas are not equal")
        self.invariants.at_end()
        if self.scaling is not None:
            await self._until(
                self.scaling.agrees, AGREED_WITHIN_S, "groups and name servers do not agree"
            )
        if self.profile.kept:
            await self._until(self._is_timely, TIMELY_WITHIN_S, "a clock leads that is a year off")
        if self.profile.refilled:
            await self._refill()
        if self.profile.timed:
            await self._fail_over()

    async def _refill(self) -> None:
        """Let retention take the log's beginning; then replace a machine by an empty one, which
        gets a snapshot of the group and the rest of the log."""
        self._crowd(True)
        await self._wait(5.0)
        self._crowd(False)
        if not self.invariants.trimmed():
            if self.profile.filled:
                self.fail("a log was not trimmed at leisure, though that was planned")
            return  # too short a log, or messages that wait stand in the way
        self.refills += 1
        machine = self.rng.choice(list(self.brokers.values()))
        machine.kill()
        machine.wipe()
        self.emptied.add(machine.name)
        self.note(f"{machine.name} is replaced by an empty one")
        self.restart_later(machine)
        await self._wait(1.0)
        await self._until(self.invariants.all_equal, EQUAL_WITHIN_S, "the empty one is not equal")
        self.invariants.at_end()

    def _crowd(self, crowded: bool) -> None:
        """Let disks have too little room, for all that retention may delete, or enough again."""
        for machine in self._all_machines:
            machine.crowded = crowded

    async def _fail_over(self) -> None:
        """Cut the leader off, after quiet times: whatever was slow before, the others have a new
        one within the time-outs that are configured."""
        await self._wait(CALM_S)
        await self._until(lambda: self.leader() is not None, JOIN_WITHIN_S, "nobody leads")
        before = self.leader()
        assert before is not None
        others = [machine.name for machine in self.machines if machine is not before]
        cut = {(before.name, name) for name in others}
        self.network.sever(cut | {(name, before.name) for name in others})
        self.note(f"{before.name} is cut off")
        await self._until(
            lambda: self.leader(before) is not None, FAILOVER_WITHIN_S, "no failover in time"
        )
        self.network.heal()

    def _heal_majority(self) -> None:
        """Heal a majority, the clients and the name server; break the rest for good, one by one."""
        rng, network = self.rng, self.network
        names = list(self.brokers)
        count = (len(names) - 1) // 2
        # What may have lost its memory is no part of a majority that has to go on without it.
        rest = self.plan.fragile or rng.sample(names, count)
        self.left_broken = set(rest)
        network.heal()
        for machine in self.brokers.values():  # one may have the address of a healed one
            self.undo(machine)
        self.plan.heal([m for name, m in self.brokers.items() if name not in rest])
        others = [machine.name for machine in self.machines]
        for name in rest:
            how = rng.choice(BROKEN)
            self.note(f"{name} stays {how}")
            machine = self.brokers[name]
            if how == "dead":
                machine.kill()
            elif how == "frozen":
                for process in machine.processes:
                    process.freeze()
            elif how == "stalled":
                machine.disk_stalled = True
            pairs = set()
            if how in ("deaf", "cut off"):
                pairs |= {(other, name) for other in others if other != name}
            if how in ("mute", "cut off"):
                pairs |= {(name, other) for other in others if other != name}
            network.sever(pairs)
        self.note("a majority is healed")
        self._note_healed()

    def _heal_all(self) -> None:
        self.healed = True
        self.left_broken = set()
        self.note("heal")
        self.network.heal()
        self.plan.heal(list(self.brokers.values()))
        self._note_healed()

    def _note_healed(self) -> None:
        if self._healed_ns is None:
            self._healed_ns = int(self.loop.now_s * 1e9)

    async def _end_load(self, when: str) -> None:
        before = self.load.acknowledged()
        await self._wait(2.0)
        await self._until(
            lambda: all(map(lt, before, self.load.acknowledged())),
            ACKNOWLEDGED_WITHIN_S,
            f"a load of {self.load.names} is not acknowledged {when}",
        )
        if self.profile.filled:
            await self._until(
                lambda: self.trims.count > 0,
                TRIMMED_WITHIN_S,
                f"no log is trimmed under load {when}",
            )
        self.load.stopping.set()
        await self._until(lambda: self.load.over, DRAIN_WITHIN_S + 30, f"no end of the load {when}")
        if self.load.late:
            self.fail(f"{', '.join(self.load.late)} not drained within {DRAIN_WITHIN_S} s {when}")

    async def _wait(self, seconds: float) -> None:
        deadline_s = self.loop.now_s + seconds
        await self._until(lambda: self.loop.now_s >= deadline_s, seconds + 1, "time stands still")

    async def _until(self, holds: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline_s = self.loop.now_s + seconds
        while not holds():
            self.coverage.poll()
            if self.failure is not None:
                raise self.failure
            if self.loop.now_s >= deadline_s:
                differ = "" if self.scaling is None else self.scaling.differences
                self.fail(f"{complaint}, after {seconds:g} s\n{differ}{self.invariants.states()}")
            if self.loop.callbacks > CALLBACKS_MAX:
                self.fail("the world does not come to an end")
            await asyncio.sleep(LOOK_S)
        if self.failure is not None:
            raise self.failure

    def _let_go(self) -> None:
        self.history.close()
        for machine in self._all_machines:
            machine.powered = False
            machine.kill()
        self.loop.close()
        for machine in self._all_machines:
            for process in machine.graveyard:
                process.retire()

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.loop.now_s - 1000:9.4f} {text}")

    def fail(self, reason: str) -> NoReturn:
        raise CheckFailed(
            f"seed {self.seed} at {self.loop.now_s - 1000:.4f} s: {reason}\n"
            f"replay: python -m tests.simulator --verbose {self.seed}"
        )

    def broken(self, reason: str) -> None:
        """Note a broken promise from within a program: the world ends at its next look."""
        if self.failure is None:
            try:
                self.fail(reason)
            except CheckFailed as failure:
                self.failure = failure

    # -- programs ---------------------------------------------------------------------------------

    def start_broker(self, machine: Machine) -> None:
        """Start its broker. While an operator's mistake on another machine has its address, which
        on real machines is never the same, its supervisor waits."""
        port = programs.raft_port(self.numbers[machine.name])
        holder = self.network.bound_by(port)
        if holder is not None and holder.machine is not machine:
            self.restart_later(machine)
        else:
            self._empty_misnamed(machine)
            self._start(machine, self.settings(machine.name), self._broker_ended)

    def start_wrong(self, machine: Machine, wrong: Mapping[str, str]) -> Process:
        """Start a broker as an operator should not; nobody starts it again when it ends."""

        def ended(process: Process) -> None:
            self.note(f"{process} ended")
            # Who was removed finds out only when it reads who is a member.
            self._check_end(process, (0, 1, 2), (ConfigError,))
            process.kill()

        machine.power_on()
        if "dLegerSelfId" in wrong and programs.is_empty(machine.disk):
            self._misnamed.add(machine.name)
        process = self._start(machine, {**self.settings(machine.name), **wrong}, ended)
        self.mistakes.append(process)
        return process

    def undo(self, machine: Machine) -> None:
        """End what an operator should not have started there. A store that was empty before has
        another's name now, and is emptied again (docs/errors.md)."""
        for process in list(machine.processes):
            if process in self.mistakes:
                process.kill()
        if not machine.processes:
            self._empty_misnamed(machine)

    def _empty_misnamed(self, machine: Machine) -> None:
        if machine.name in self._misnamed:
            self._misnamed.discard(machine.name)
            machine.wipe()

    def start_stranger(self, machine: Machine, wrong: Mapping[str, str]) -> Process:
        """Start a broker of another group there, beside its own, on a store of its own."""
        own = {"storePathRootDir": programs.STRANGE_STORE, "namesrvAddr": programs.NO_NAMESRV}
        process = self.start_wrong(machine, {**self.other_ports(machine), **own, **wrong})
        self.strangers.add(process)
        return process

    def other_ports(self, machine: Machine) -> dict[str, str]:
        """Return settings of a copied configuration: the same store and id, other ports."""
        number = len(self.numbers)
        for port in (programs.client_port(number), programs.raft_port(number)):
            self.network.machines[port] = machine
        own = self.numbers[machine.name]
        peers = self.settings(machine.name)["dLegerPeers"]
        moved = peers.replace(str(programs.raft_port(own)), str(programs.raft_port(number)))
        return {"listenPort": str(programs.client_port(number)), "dLegerPeers": moved}

    def _start(
        self, machine: Machine, settings: Mapping[str, str], ended: Callable[[Process], None]
    ) -> Process:
        async def main(process: Process) -> int:
            return await programs.broker(process, settings)

        process = machine.start("broker", main, ended)
        self.note(f"{process} starts")
        return process

    def start_name_server(self) -> None:
        if not self.namesrv.processes:
            self.namesrv.start("namesrv", programs.name_server, self._name_server_ended)
        if not self.second_namesrv.processes:
            main = partial(programs.name_server, port=programs.SECOND_NAMESRV_PORT)
            self.second_namesrv.start("namesrv", main, self._name_server_ended)

    def _broker_ended(self, process: Process) -> None:
        """A broker ended by itself: its supervisor starts it again."""
        machine = process.machine
        assert process.main is not None
        error = process.main.exception()
        self.note(f"{process} ended: {process.main.result() if error is None else repr(error)}")
        self._check_end(process, (0, 1) if self.plan.ends_brokers else (0,))
        process.kill()
        self.restart_later(machine)

    def _name_server_ended(self, process: Process) -> None:
        self._check_end(process, ())

    def finished(self, process: Process) -> None:
        """Note the end of a program that does its work and ends."""
        self._check_end(process, (None,))

    def _check_end(
        self,
        process: Process,
        statuses: Collection[int | None],
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        """Check that a program has ended with one of these statuses, or of one of these errors."""
        assert process.main is not None
        error = process.main.exception()
        if error is None:
            if process.main.result() not in statuses:
                self.broken(f"{process} ended with {process.main.result()}")
        elif not isinstance(error, errors):
            where = "".join(traceback.format_tb(error.__traceback__, -6))
            self.broken(f"{process} died of {error!r}\n{where}")

    def restart_later(self, machine: Machine) -> None:
        """Start the broker again a little later, if nobody else has by then."""
        delay_s = 0.01 if self.healed else RESTART_S_MAX * self.rng.random()

        def again() -> None:
            if machine.powered and not machine.processes and machine.name not in self.left_broken:
                self.start_broker(machine)

        self.loop.call_later(delay_s, again, context=self.context)

    def settings(self, name: str) -> dict[str, str]:
        """Return a broker's broker.conf."""
        profile = self.profile
        # Who joins, or begins with nothing, is told who is a member now; the others' files name
        # the founders still.
        group = self.group_of(name)
        joins = name not in group.founders or name in self.emptied
        names = [*(self.brokers if joins else group.founders)]
        known = {each: self.numbers[each] for each in dict.fromkeys([*names, name])}
        return {
            "brokerName": group.name,
            "brokerClusterName": "Simulated",
            "listenPort": str(programs.client_port(self.numbers[name])),
            "namesrvAddr": self.name_servers,
            "storePathRootDir": programs.STORE,
            "enableDLegerCommitLog": "true",
            "dLegerPeers": programs.peers_of(known),
            "raftJoin": str(joins).lower(),
            "dLegerSelfId": name,
            "httpEnable": "false",
            "flushDiskType": "SYNC_FLUSH" if profile.durable else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": str(profile.segment_bytes),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            "frameSizeMax": str(profile.frame_bytes_max),
            "maxMessageSize": "8192",
            "cleanFileForciblyEnable": str(not profile.kept).lower(),
            **({"peerSecret": SECRET} if profile.secret else {}),
            **SETTINGS,
            **({} if self.scaling is None else self.scaling.settings),
        }

    async def _run_load(self, process: Process) -> None:
        try:
            await self.load.run(self.name_servers, self.history)
        except CheckFailed as error:
            self.broken(str(error))
        except Exception as error:
            self.failure = self.failure or error

    # -- the judges -------------------------------------------------------------------------------

    def _judge(self) -> None:
        assert self._healed_ns is not None
        lost = self.waits.lost(self.history.records, self._healed_ns)
        self.waited_in_vain = len(lost)
        self._judge_history([one for one in self.history.records if one.get("id") not in lost])
        for check in self.suite.results():
            # UNKNOWN with a count: a judge gave up, or saw messages neither come nor be missed.
            if check.verdict is Verdict.FAIL or (check.verdict is Verdict.UNKNOWN and check.count):
                examples = "\n  ".join(check.examples[:3])
                self.fail(f"{check.name}: {check.count}: {check.detail}\n  {examples}")
            self.without_evidence += check.verdict is Verdict.UNKNOWN
        more_s = SILENT_S if self.guests.silent else 0.0
        if self.scaling is not None:
            more_s = MEMBERS_S
        if result := late(self.history.records, self._healed_ns, more_s):
            examples = "\n  ".join(result[:3])
            self.fail(f"delivered late: {len(result)}, though a majority was healed\n  {examples}")
        if kept := self.guests.kept(self.history.records, self._healed_ns):
            examples = "\n  ".join(kept[:3])
            self.fail(f"held by the dead: {len(kept)}\n  {examples}")
        latecomer = self.load.latecomer
        if latecomer is not None and (missed := latecomer.missed(self.history.records)):
            examples = "\n  ".join(missed[:3])
            self.fail(f"a latecomer missed {len(missed)} messages\n  {examples}")
        if self.scaling is not None and (wrong := self.scaling.wrong()):
            self.fail(f"{len(wrong)} messages in wrong groups or queues: {wrong[:3]}")

    def _judge_history(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Feed the suite. Retention may have taken messages before anybody could read them: they
        are promised no more, and only the copy of an earlier attempt may have been read."""
        taken = self.trims.unread(records)
        for one in records:
            is_taken = one["type"] == "ok" and one.get("op") in taken
            self.suite.feed({**one, "type": "unknown"} if is_taken else one)

    def digest(self) -> int:
        """Return a number of all that the load did and saw, and of every committed frame."""
        history = orjson.dumps(self.history.records, option=orjson.OPT_SORT_KEYS)
        return crc32(history, self.invariants.digest())

    def _numbers(self) -> Counter[str]:
        ledger, latecomer = self.suite.ledger, self.load.latecomer
        done = sum(1 for record in self.history.records if record["type"] in DONE)
        done += sum(one.tally.decided for one in self.load.workloads if one.name in UNTOLD)
        return Counter(
            {
                "worlds": 1,
                "callbacks": self.loop.callbacks,
                "operations": done,
                "acknowledged": ledger.acknowledged,
                "unknown": ledger.vague,
                "deliveries": ledger.deliveries,
                "contents compared": self.contents.compared,
                "errors explained": self.complaints.explained,
                "faults": self.plan.strikes,
                "healed by halves": int(self.profile.half_healed),
                "refills": self.refills,
                "filled": int(self.profile.filled),
                "guests": len(self.guests.deaths),
                "trimmed": self.trims.count,
                "taken while they waited": self.waited_in_vain,
                "read late": latecomer.read if latecomer else 0,
                "asked": int("asked" in self.load.names),
                "settings changed": sum(
                    one.changes for one in self.load.workloads if isinstance(one, FilteredWorkload)
                ),
                "popped": int("pop" in self.load.names),
                "checks without evidence": self.without_evidence,
                "set back": self.set_back_count,
                "files spoiled": self.plan.spoiled,
                "members replaced": self.operator.changes,
                **({} if self.scaling is None else self.scaling.numbers),
                **self.invariants.numbers(),
                **{f"fault {name}": count for name, count in self.plan.kinds.items()},
            }
        )
