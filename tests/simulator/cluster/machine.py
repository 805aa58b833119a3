"""A simulated machine: its disk, its clocks, its power, and the processes on it.

A killed process leaves its page cache; a machine that loses power loses what was not synced, and
tells nobody that its connections are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any

from raftmq.store.disk import DiskUsage
from tests.simulator.cluster.loop import SimLoop
from tests.simulator.cluster.network import Network
from tests.simulator.cluster.process import Process
from tests.simulator.disk import SimCrash, SimDisk, SimFile

WALL_MS = 1_790_000_000_000  # the time of day when the simulated clock is at 0
GIB = 1 << 30


class Machine:
    """See the module's docstring."""

    def __init__(self, name: str, loop: SimLoop, network: Network, rng: Random) -> None:
        self.name = name
        self.loop = loop
        self.network = network
        self.rng = rng
        self.disk = SimDisk(rng)
        self.disk.on_crash = self._crash
        self.restart: Callable[[Machine], None] = lambda machine: None  # after a crash in there
        self.powered = True
        self.wall_offset_ms = 0
        self.thread_s = 0.0002  # how long work in a thread takes, about
        self.was_wiped = False  # its disk was replaced by an empty one
        self.disk_stalled = False
        self.crowded = False  # its disk is so full that retention deletes what it can
        self.processes: list[Process] = []
        self.context = copy_context()  # of no process: the world's
        self.graveyard: list[Process] = []  # kept, so that no dead task is collected
        self._pids = 0

    def wall_ms(self) -> int:
        return WALL_MS + self.wall_offset_ms + int(self.loop.now_s * 1000)

    def thread_delay_s(self) -> float:
        return self.thread_s * (0.5 + self.rng.random())

    def start(
        self,
        name: str,
        main: Callable[[Process], Coroutine[Any, Any, Any]],
        ended: Callable[[Process], None],
    ) -> Process:
        """Start a program; `ended` is called when it ends by itself."""
        assert self.powered
        self._pids += 1
        process = Process(self, name, self._pids)
        self.processes.append(process)
        process.start(process.context.run(main, process), ended)
        return process

    def died(self, process: Process) -> None:
        """Note the end of a process that was killed: its connections are closed."""
        self.processes.remove(process)
        self.graveyard.append(process)
        if not self.processes:
            self.disk.kill_process()
        self.network.process_died(process, told=self.powered)

    def kill(self) -> None:
        """Kill every process here."""
        for process in list(self.processes):
            process.kill()

    def _crash(self) -> None:
        self.kill()
        self.restart(self)

    def cut_power(self) -> None:
        """Lose power: processes, and what was not synced."""
        self.powered = False
        self.kill()
        self.disk.lose_power()

    def wipe(self) -> None:
        """Put an empty disk in."""
        self.was_wiped = True
        self.put_in(SimDisk(self.rng))

    def put_in(self, disk: SimDisk) -> None:
        """Put another disk in."""
        assert not self.processes
        self.disk = disk
        self.disk.on_crash = self._crash

    def power_on(self) -> None:
        self.powered = True


class DiskOfProcess:
    """A directory of a machine's disk as one process sees it: gone with the process."""

    def __init__(self, process: Process, directory: str, machine: Machine | None = None) -> None:
        """`machine`: whose disk it is, if not the process's own."""
        machine = machine or process.machine
        self.root = f"/{machine.name}/{directory}"
        self._process = process
        self._disk = machine.disk
        self._at = directory
        self.makedirs("")

    def _use(self, path: str) -> str:
        if not self._process.alive:
            raise SimCrash
        return f"{self._at}/{path}" if path else self._at

    def open(self, path: str, *, allocate_bytes: int | None = None) -> SimFile:
        return self._disk.open(self._use(path), allocate_bytes=allocate_bytes)

    def exists(self, path: str) -> bool:
        return self._disk.exists(self._use(path))

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(self._use(path))

    def makedirs(self, path: str) -> None:
        self._disk.makedirs(self._use(path))

    def remove(self, path: str) -> None:
        self._disk.remove(self._use(path))

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(self._use(source), self._use(target))

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(self._use(path))

    def sync_tree(self, path: str) -> bool:
        self._use(path)
        return False

    def usage(self) -> DiskUsage:
        self._use("")
        used = self._disk.usage().used_bytes
        if self._process.machine.crowded:
            return DiskUsage(88 * GIB, 12 * GIB)
        return DiskUsage(used, 0 if self._disk.full else 64 * GIB)

    def boot_id(self) -> str:
        self._use("")
        return self._disk.boot_id()
