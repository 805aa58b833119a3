"""A Raft group of this checkout's processes, and the cost of those processes.

`RaftGroup` starts the group in a directory of its own and removes it afterwards. A replica that
waits for its processor keeps its leadership for some seconds, since a busy machine's elections are
not measured here.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import Node
from raftmq.chaos.cluster.topology import RAFT, Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered

HERE = Path(__file__).resolve().parent
PATIENT = {
    "flushDiskType": "ASYNC_FLUSH",
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "8000",
}
PROMPT = {"flushDiskType": "ASYNC_FLUSH"}  # as a real group elects
RECOVERY_TIMEOUT_S = 600.0
CPUCLOCK_SCHED = 2  # Linux' scheduler clock, in nanoseconds
SLOW_STOP_S = 300.0


def cpu_us(pid: int) -> float:
    """Return the CPU time that a process has had, in microseconds, that of its ended threads
    included. Raises OSError if it has ended."""
    clock = (~pid << 3) | CPUCLOCK_SCHED  # as clock_getcpuclockid(3) makes it
    return time.clock_gettime(clock) * 1e6


def resident_mib(pid: int) -> float:
    """Return a process's resident MiB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0.0
    return pages * resource.getpagesize() / (1 << 20)


def raise_file_limit() -> None:
    """Let this process, and those it starts, open as many files as the system permits."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass(frozen=True, slots=True)
class Usage:
    """The CPU time, in microseconds, and the resident MiB of processes, by role."""

    cpu_us: Mapping[str, float]
    memory_mib: Mapping[str, float]


class RaftGroup:
    def __init__(self, cluster: Cluster, namesrv: str) -> None:
        self.cluster = cluster
        self.namesrv = namesrv
        self.leader: Node
        self.followers: list[Node] = []

    async def find_leader(self) -> None:
        self.leader = await self.cluster.find("leader")
        self.followers = [n for n in self.cluster.state().brokers if n.name != self.leader.name]

    @property
    def address(self) -> str:
        return self.leader.address

    def usage(self) -> Usage:
        """Return the cost of leader, a follower (if there is one) and name server."""
        (namesrv,) = self.cluster.state().name_servers
        nodes = {"leader": self.leader, "namesrv": namesrv}
        if self.followers:
            nodes["follower"] = self.followers[0]
        pids = {role: node.process.pid for role, node in nodes.items() if node.process}
        return Usage(
            {role: cpu_us(pid) for role, pid in pids.items()},
            {role: resident_mib(pid) for role, pid in pids.items()},
        )

    async def leaders(self) -> list[Node]:
        return [await self.cluster.find(f"leader:{name}") for name in self.cluster.state().groups]

    def all_replicas(self) -> tuple[float, float]:
        """Return the CPU microseconds and the resident MiB of all brokers together."""
        pids = [node.process.pid for node in self.cluster.state().brokers if node.process]
        return sum(map(cpu_us, pids)), sum(map(resident_mib, pids))

    async def empty(self, node: Node) -> None:
        """Kill a broker, remove its store and start it again; return without waiting."""
        await self.kill(node)
        await asyncio.to_thread(shutil.rmtree, self.cluster.store_of(node))
        self.cluster.start(node.name)

    async def kill(self, node: Node) -> None:
        """End a process with SIGKILL; return when it is gone."""
        await self.cluster.wait_dead(self.cluster.signal(node.name, signal.SIGKILL))

    async def wait_recovered(self) -> None:
        """Return once every replica has the committed log; find the leader again."""
        await wait_recovered(self.cluster, RECOVERY_TIMEOUT_S)
        await self.find_leader()


@asynccontextmanager
async def raft_group(
    settings: Mapping[str, str] = PATIENT,
    replicas: int | None = None,
    groups: int = 1,
) -> AsyncIterator[RaftGroup]:
    """Run a cluster of `groups` broker groups; yield the first group."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    cluster = Cluster(directory)
    try:
        state = await cluster.up(Shape(RAFT, groups=groups, replicas=replicas), dict(settings))
        group = RaftGroup(cluster, state.namesrv)
        await group.find_leader()
        yield group
    finally:
        await cluster.down(SLOW_STOP_S)
        await cluster.close()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def output_of(*command: str) -> bytes:
    """Run a command in this checkout and return its standard output; end it if this is cancelled.
    Raises RuntimeError with its errors if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=HERE.parent,
    )
    try:
        printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(errors.decode(errors="replace").strip())
    return printed


@asynccontextmanager
async def floor_server() -> AsyncIterator[str]:
    """Run bench.floor while the block runs; yield its address."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.floor"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=HERE.parent,
    )
    assert server.stdout is not None
    try:
        yield f"127.0.0.1:{int(await server.stdout.readline())}"
    finally:
        server.kill()
        await server.wait()
