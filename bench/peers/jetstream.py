"""NATS JetStream with three servers, built from their Go module, and clients in Python and Go.

The stream has three replicas in files. It acknowledges when a quorum has a message, before a flush,
like ASYNC_FLUSH. The clients have no batches with a single acknowledgement. Consumers run without
acknowledgements, their fastest mode.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from bench.group import output_of
from bench.peers.system import (
    BODY,
    KILL,
    LARGE,
    MANY,
    ONE,
    PULLS,
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
from tests.interop.toolchain import TOOLCHAINS, ToolMissing, build_go, made

HOST = "127.0.0.1"
PACKAGE = "github.com/nats-io/nats-server/v2"
STREAM, SUBJECT = "Bench", "bench"
REPLICAS = 3
START_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 60.0
PACE_S = 0.2  # between two tries to make the stream
RETRY_S = 0.25  # a publish that nobody answers is tried again after that


class JetStream:
    def __init__(self, client: str) -> None:
        self.name = f"JetStream R3, {client} client"
        self._is_go = client == "Go"

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        if importlib.util.find_spec("nats") is None:
            raise Missing("nats-py is not installed: bench/peers/requirements.txt has it")
        import nats  # of requirements that only this needs

        command = await asyncio.to_thread(build, "nats-server", PACKAGE)
        async with AsyncExitStack() as stack:
            ports = choose_ports(2 * REPLICAS, HOST, random.Random())
            clients, routes = ports[:REPLICAS], ports[REPLICAS:]
            servers = [
                await stack.enter_async_context(_server(command, directory, n, clients[n], routes))
                for n in range(REPLICAS)
            ]
            client = await _connected(nats, clients)
            stack.push_async_callback(client.close)
            stream = _Stream(client, servers, scale)
            await stream.make()
            loads, paced = stream.loads(), stream.paced
            if self._is_go:
                go = await asyncio.to_thread(GoClient, clients)
                loads, paced = go.loads(scale), go.paced
            yield Running(loads, lambda: [server.pid for server in servers], paced)


JETSTREAM = (JetStream("Python"), JetStream("Go"))


@asynccontextmanager
async def _server(
    command: Path, directory: Path, number: int, port: int, routes: Sequence[int]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a replica while the block runs."""
    others = ",".join(f"nats://{HOST}:{route}" for route in routes)
    arguments = (
        *("-a", HOST, "-p", str(port), "-n", f"n{number}"),
        *("-js", "-sd", str(directory / f"n{number}"), "-l", str(directory / f"n{number}.log")),
        *("--cluster_name", "bench", "--cluster", f"nats://{HOST}:{routes[number]}"),
        *("--routes", others),
    )
    server = await asyncio.create_subprocess_exec(
        str(command),
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def _connected(nats: Any, ports: Sequence[int]) -> Any:
    """Return a client with the addresses of all replicas. Raises Failed."""
    try:
        return await nats.connect(
            [f"nats://{HOST}:{port}" for port in ports],
            connect_timeout=START_TIMEOUT_S,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=int(START_TIMEOUT_S / 0.05),
            error_cb=_ignore,  # serious errors fail their own call
        )
    except (OSError, nats.errors.Error) as error:
        raise Failed(f"no connection: {error}") from error


async def _ignore(_: Exception) -> None:
    pass


class _Stream:
    def __init__(
        self, client: Any, servers: Sequence[asyncio.subprocess.Process], scale: float
    ) -> None:
        from nats.errors import Error

        self._errors = Error
        self._servers = servers
        self._scale = scale
        self._contexts = {
            window: client.jetstream(timeout=5.0, publish_async_max_pending=window)
            for window in {WINDOWS[MANY], WINDOWS[LARGE]}
        }
        self._context = self._contexts[WINDOWS[MANY]]

    async def make(self) -> None:
        """Make the stream as soon as the replicas have a leader. Raises Failed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                await self._context.add_stream(
                    name=STREAM, subjects=[SUBJECT], num_replicas=REPLICAS
                )
                return
            except self._errors as error:
                if time.monotonic() > deadline:
                    raise Failed(f"no stream: {error}") from error
            await asyncio.sleep(PACE_S)

    def loads(self) -> dict[str, Load]:
        return {
            WARM_UP: lambda: self._many(WARM_UP),
            ONE: lambda: self._one(sends_of(ONE, self._scale)),
            MANY: lambda: self._many(MANY),
            LARGE: lambda: self._many(LARGE),
            PUSH: lambda: self._consume(sends_of(MANY, self._scale)),
            KILL: self._kill,
        }

    async def _one(self, count: int) -> LoadResult:
        latencies: array[int] = array("q")
        started = time.perf_counter()
        for _ in range(count):
            started_ns = time.perf_counter_ns()
            try:
                await self._context.publish(SUBJECT, BODY)
            except self._errors as error:
                raise Failed(f"a publish failed: {error}") from error
            latencies.append(time.perf_counter_ns() - started_ns)
        return LoadResult(count, time.perf_counter() - started, latencies)

    async def _many(self, row: str) -> LoadResult:
        """Publish with the client's pipelining, which limits the unacknowledged messages."""
        answers, body, context = _Answers(), body_of(row), self._contexts[WINDOWS[row]]
        started = time.perf_counter()
        try:
            for _ in range(sends_of(row, self._scale)):
                started_ns = time.perf_counter_ns()
                answers.watch(await context.publish_async(SUBJECT, body), started_ns)
            await context.publish_async_completed()
        except self._errors as error:
            raise Failed(f"a publish failed: {error}") from error
        return answers.result(time.perf_counter() - started)

    async def paced(self, rate: float, seconds: float, arrivals: bool) -> LoadResult:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        stamps = Stamps()

        async def see(message: Any) -> None:
            stamps.see(message.data)

        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)
        try:
            if not arrivals:
                return await self._paced(Pace(rate, seconds))
            subscription = await self._context.subscribe(
                SUBJECT, cb=see, manual_ack=True, config=config
            )
            result = await stamps.arrived(await self._paced(Pace(rate, seconds)))
            await subscription.unsubscribe()
        except self._errors as error:
            raise Failed(f"a paced load failed: {error}") from error
        return result

    async def _paced(self, pace: Pace) -> LoadResult:
        answers = _Answers()
        started = time.perf_counter()
        async for due in pace.ticks():
            for due_ns in due:
                publish = self._context.publish_async(SUBJECT, stamped(BODY, due_ns))
                answers.watch(await publish, due_ns)
        await self._context.publish_async_completed()
        return answers.result(time.perf_counter() - started)

    async def _consume(self, count: int) -> LoadResult:
        from nats.js.api import AckPolicy, ConsumerConfig

        arrivals = Arrivals(count)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        try:
            subscription = await self._context.subscribe(
                SUBJECT, cb=arrivals.see, manual_ack=True, config=config
            )
            result = await arrivals.all_seen()
            await subscription.unsubscribe()
        except self._errors as error:
            raise Failed(f"consumption failed: {error}") from error
        return result

    async def _kill(self) -> LoadResult:
        """Kill the stream's leader; return the time until a publish is acknowledged."""
        cluster = (await self._context.stream_info(STREAM)).cluster
        if cluster is None or not cluster.leader:
            raise Failed("the stream has no leader")
        start_ns = time.perf_counter_ns()
        self._servers[int(cluster.leader.removeprefix("n"))].kill()
        async with asyncio.timeout(KILL_TIMEOUT_S):
            while True:
                try:
                    await self._context.publish(SUBJECT, BODY, timeout=RETRY_S)
                    break
                except self._errors:
                    await asyncio.sleep(0.01)  # nobody leads yet
        took_ns = time.perf_counter_ns() - start_ns
        return LoadResult(1, took_ns / 1e9, array("q", [took_ns]))


class _Answers:
    """Latencies of pipelined publishes."""

    def __init__(self) -> None:
        self._latencies: array[int] = array("q")
        self._failed: list[BaseException] = []

    def watch(self, future: asyncio.Future[Any], started_ns: int) -> None:
        def settled(done: asyncio.Future[Any]) -> None:
            self._latencies.append(time.perf_counter_ns() - started_ns)
            if (error := done.exception()) is not None:
                self._failed.append(error)

        future.add_done_callback(settled)

    def result(self, seconds: float) -> LoadResult:
        """Return the latencies. Raises Failed if a publish failed."""
        if self._failed:
            raise Failed(f"{len(self._failed)} publishes failed, the first: {self._failed[0]!r}")
        return LoadResult(len(self._latencies), seconds, self._latencies)


LOAD_PACKAGE = "./load"
LOADS = {WARM_UP: "many", ONE: "one", MANY: "many", LARGE: "large", PULLS: "pull", PUSH: "push"}


class GoClient:
    """The command `load`, which is built once. Raises Missing. Blocking."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._command = str(build("natsload", LOAD_PACKAGE))
        self._urls = ",".join(f"nats://{HOST}:{port}" for port in ports)

    def loads(self, scale: float) -> dict[str, Load]:
        """Return the loads by row."""

        def load(row: str) -> Load:
            count = sends_of(MANY if row in (PULLS, PUSH) else row, scale)
            return lambda: self._run(LOADS[row], count)

        return {row: load(row) for row in LOADS}

    async def paced(self, rate: float, seconds: float, arrivals: bool) -> LoadResult:
        load = "arrivals" if arrivals else "paced"
        return await self._run(load, max(1, int(rate * seconds)), str(rate))

    async def _run(self, load: str, count: int, *arguments: str) -> LoadResult:
        try:
            printed = await output_of(self._command, self._urls, load, str(count), *arguments)
        except RuntimeError as error:
            raise Failed(f"the Go client: {error}") from error
        result = orjson.loads(printed)
        latencies = array("q", result["latencies_ns"] or ())
        return LoadResult(count, result["seconds"], latencies)


MODULE = Path(__file__).with_name("go")
INPUTS = [MODULE / name for name in ("go.mod", "go.sum", "tools.go", "load/main.go")]


def build(name: str, package: str) -> Path:
    """Return the path of the command `name`, built from `package` once. Raises Missing."""

    def make(directory: Path) -> None:
        build_go(directory / name, package, MODULE)

    try:
        return made(name, [*INPUTS, TOOLCHAINS], make) / name
    except ToolMissing as error:
        raise Missing(str(error)) from error
