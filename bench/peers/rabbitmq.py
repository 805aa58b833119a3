"""RabbitMQ from Debian's packages, three nodes, a quorum queue of three replicas, a Python client.

A quorum queue confirms a message when a majority of its replicas has written it to disk, with an
fsync, like SYNC_FLUSH. The packages are unpacked beside the virtual environment and not installed.
Consumption is measured without acknowledgements.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import random
import signal
import subprocess
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.system import (
    BODY,
    CONSUME_TIMEOUT_S,
    KILL,
    LARGE,
    MANY,
    ONE,
    PUSH,
    WARM_UP,
    WINDOWS,
    Arrivals,
    Failed,
    Load,
    Missing,
    Running,
    Stamps,
    body_of,
    sends_of,
)
from bench.wire import LoadResult, Pace, stamped
from raftmq.chaos.cluster.ports import choose_ports
from tests.interop.toolchain import made

HOST = "127.0.0.1"
QUEUE = "bench"
REPLICAS = 3
ERLANG = (
    *("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "ssl", "syntax-tools", "tools", "xmerl"),
)
PACKAGES = ("rabbitmq-server", *(f"erlang-{name}" for name in ERLANG))
FETCH_TIMEOUT_S = 300.0
START_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 60.0
PACE_S = 0.2
# The packages' usual directory; the command finds the rest relative to itself.
ROOT_LINE = "ROOTDIR=/usr/lib/erlang"
SET_ROOT = 'ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")'


class RabbitMq:
    """Three nodes that form a cluster by themselves."""

    name = "RabbitMQ quorum queue, Python client"

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        if importlib.util.find_spec("aiormq") is None:
            raise Missing("aiormq is not installed: bench/peers/requirements.txt has it")
        root = await asyncio.to_thread(_unpacked)
        async with AsyncExitStack() as stack:
            epmd, *ports = choose_ports(1 + 2 * REPLICAS, HOST, random.Random())
            commands = root / "usr" / "lib" / "erlang" / "bin"
            environment = {
                "HOME": str(directory),  # the nodes' common cookie
                "PATH": f"{commands}:/usr/bin:/bin",
                "ERL_EPMD_PORT": str(epmd),
            }
            command = (str(commands / "epmd"), "-address", HOST)
            names = await stack.enter_async_context(_process(command, environment, directory))
            own, others = ports[:REPLICAS], ports[REPLICAS:]
            nodes = []
            for number, pair in enumerate(zip(own, others, strict=True)):
                home = directory / f"n{number}"
                settings = await asyncio.to_thread(_prepared, home, number, *pair)
                (scripts,) = await asyncio.to_thread(list, root.glob("usr/lib/rabbitmq/lib/*/sbin"))
                server = [str(scripts / "rabbitmq-server")]
                node = _process(server, {**environment, **settings}, home)
                nodes.append(await stack.enter_async_context(node))
            queue = _Queue(own, nodes, scale)
            stack.push_async_callback(queue.close)
            await queue.make()
            sessions = [names.pid, *(node.pid for node in nodes)]
            yield Running(queue.loads(), lambda: members(sessions), queue.paced)


def _unpacked() -> Path:
    """Return the directory that the packages are unpacked in. Blocking. Raises Missing."""

    def make(directory: Path) -> None:
        fetched = directory / "fetched"
        fetched.mkdir()
        try:
            _run(["apt-get", "download", "-q", *PACKAGES], fetched)
            for package in fetched.glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), str(directory)], directory)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"Debian's packages cannot be had: {error}") from error
        erl = directory / "usr" / "lib" / "erlang" / "bin" / "erl"
        erl.write_text(erl.read_text().replace(ROOT_LINE, SET_ROOT))

    return made("rabbitmq", [Path(__file__)], make)


def _run(command: Sequence[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)


@asynccontextmanager
async def _process(
    command: Sequence[str], environment: Mapping[str, str], directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command in its own session while the block runs, because a script starts further
    processes. Files such as dumps stay in `directory`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        cwd=directory,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill([process.pid])
        await process.wait()


def members(sessions: Sequence[int]) -> list[int]:
    """Return the living processes of these sessions, which are named by their first process."""
    result = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(fields[3]) in sessions and fields[0] != "Z":
                result.append(int(path.name))
    return result


def _kill(sessions: Sequence[int]) -> None:
    for pid in members(sessions):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _prepared(home: Path, number: int, port: int, node_port: int) -> dict[str, str]:
    """Create a node's directory; return its environment. Blocking. `node_port` is for nodes."""
    home.mkdir()
    members = [
        f"cluster_formation.classic_config.nodes.{n + 1} = n{n}@localhost" for n in range(REPLICAS)
    ]
    settings = (
        f"listeners.tcp.1 = {HOST}:{port}",
        "cluster_formation.peer_discovery_backend = classic_config",
        *members,
    )
    (home / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in settings))
    (home / "enabled_plugins").write_text("[].\n")
    return {
        "RABBITMQ_NODENAME": f"n{number}@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_SERVER_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


class _Queue:
    def __init__(
        self, ports: Sequence[int], servers: Sequence[asyncio.subprocess.Process], scale: float
    ) -> None:
        import aiormq  # of requirements that only this needs

        logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # nodes that do not answer yet
        self._aiormq = aiormq
        self._errors = (aiormq.exceptions.AMQPError, ConnectionError, OSError)
        self._ports = ports
        self._servers = servers
        self._scale = scale
        self._open: list[Any] = []

    async def close(self) -> None:
        for connection in self._open:
            with suppress(*self._errors):  # its node may have been killed
                await connection.close()

    async def make(self) -> None:
        """Declare the queue once every node is in the cluster. Raises Failed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                channels = [await self._channel(port) for port in self._ports]
                await channels[0].queue_declare(
                    QUEUE,
                    durable=True,
                    arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": REPLICAS},
                )
                return
            except self._errors as error:
                await self.close()
                self._open.clear()
                if time.monotonic() > deadline:
                    raise Failed(f"no queue: {error!r}") from error
            await asyncio.sleep(PACE_S)

    def loads(self) -> dict[str, Load]:
        return {
            **{row: partial(self._sent, row) for row in (WARM_UP, ONE, MANY, LARGE)},
            PUSH: lambda: self._consumed(sends_of(MANY, self._scale)),
            KILL: self._killed,
        }

    async def _channel(self, port: int) -> Any:
        connection = await self._aiormq.connect(f"amqp://guest:guest@{HOST}:{port}/")
        self._open.append(connection)
        return await connection.channel(publisher_confirms=True)

    async def _sent(self, row: str) -> LoadResult:
        """Publish over a channel, with a window of unconfirmed messages."""
        count, body = sends_of(row, self._scale), body_of(row)
        channel = await self._channel(self._ports[0])
        latencies: array[int] = array("q")
        left = count

        async def one_after_the_other() -> None:
            nonlocal left
            while left:
                left -= 1
                started_ns = time.perf_counter_ns()
                await channel.basic_publish(body, routing_key=QUEUE)
                latencies.append(time.perf_counter_ns() - started_ns)

        started = time.perf_counter()
        try:
            await asyncio.gather(*(one_after_the_other() for _ in range(WINDOWS[row])))
        except self._errors as error:
            raise Failed(f"a publish failed: {error!r}") from error
        return LoadResult(count, time.perf_counter() - started, latencies)

    async def paced(self, rate: float, seconds: float, arrivals: bool) -> LoadResult:
        stamps = Stamps()

        async def see(message: Any) -> None:
            stamps.see(message.body)

        try:
            if not arrivals:
                return await self._paced(Pace(rate, seconds))
            channel = await self._channel(self._ports[0])
            await channel.basic_consume(QUEUE, see, no_ack=True)
            await self._emptied(channel)
            result = await stamps.arrived(await self._paced(Pace(rate, seconds)))
            await channel.close()
        except self._errors as error:
            raise Failed(f"a paced load failed: {error!r}") from error
        return result

    async def _emptied(self, channel: Any) -> None:
        """Wait until the messages of earlier rows are consumed."""
        deadline = time.monotonic() + CONSUME_TIMEOUT_S
        while True:
            if not (await channel.queue_declare(QUEUE, passive=True)).message_count:
                return
            if time.monotonic() > deadline:
                raise Failed("messages of earlier rows are left")
            await asyncio.sleep(PACE_S)

    async def _paced(self, pace: Pace) -> LoadResult:
        channel = await self._channel(self._ports[0])
        latencies: array[int] = array("q")

        async def publish(due_ns: int) -> None:
            await channel.basic_publish(stamped(BODY, due_ns), routing_key=QUEUE)
            latencies.append(time.perf_counter_ns() - due_ns)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as publishes:
            async for due in pace.ticks():
                for due_ns in due:
                    publishes.create_task(publish(due_ns))
        return LoadResult(len(latencies), time.perf_counter() - started, latencies)

    async def _consumed(self, count: int) -> LoadResult:
        channel = await self._channel(self._ports[0])
        arrivals = Arrivals(count)
        try:
            await channel.basic_consume(QUEUE, arrivals.see, no_ack=True)
            result = await arrivals.all_seen()
            await channel.close()
        except self._errors as error:
            raise Failed(f"consumption failed: {error!r}") from error
        return result

    async def _killed(self) -> LoadResult:
        """Kill the queue's leader; return the time until a node confirms a publish."""
        channel = await self._channel(self._ports[1])
        await channel.basic_publish(BODY, routing_key=QUEUE)
        start_ns = time.perf_counter_ns()
        _kill([self._servers[0].pid])
        async with asyncio.timeout(KILL_TIMEOUT_S):
            while True:
                try:
                    await channel.basic_publish(BODY, routing_key=QUEUE)
                    break
                except self._errors:  # refused without a leader
                    await asyncio.sleep(0.01)
        took_ns = time.perf_counter_ns() - start_ns
        return LoadResult(1, took_ns / 1e9, array("q", [took_ns]))
