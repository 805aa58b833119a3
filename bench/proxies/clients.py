"""RocketMQ 5's clients for Python and Java before proxies.

With the addresses of several proxies, a client's channel connects to one of them. A client here has
a producer for each proxy instead, and its sends take turns, as behind a load balancer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from array import array
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.group import cpu_us
from bench.peers.remoting import TOPIC
from bench.peers.system import BODY, Failed, Missing
from bench.proxies.lanes import Timed, timed
from bench.wire import LoadResult

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
PATIENCE_S = 60.0  # beyond a load's own time
STOP_TIMEOUT_S = 5.0
LINE_BYTES_MAX = 1 << 26  # of one load's latencies

# in flight, seconds → what was measured
Client = Callable[[int, float], Awaitable[Timed]]


@asynccontextmanager
async def python_client(directory: Path, addresses: Sequence[str]) -> AsyncIterator[Client]:
    """Run Python's client, in a process of its own. Raises Missing or Failed."""
    try:
        from tests.interop import toolchain

        launch = await asyncio.to_thread(toolchain.python5)
    except (ImportError, AssertionError, OSError, RuntimeError) as error:
        raise Missing(f"RocketMQ 5's Python client cannot be had: {error}") from error
    await asyncio.to_thread(directory.mkdir, parents=True)
    said = directory / "client.err"
    command = [sys.executable, "-W", "ignore", "-m", "bench.proxies.worker"]
    with await asyncio.to_thread(open, said, "wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(*command, TOPIC, str(len(BODY)), *addresses),
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, **launch.environment, "HOME": str(directory)},  # its logs go there
            limit=LINE_BYTES_MAX,
        )
    assert process.stdin is not None and process.stdout is not None
    requests, answers = process.stdin, process.stdout

    async def line(timeout_s: float) -> bytes:
        found = await asyncio.wait_for(answers.readline(), timeout_s)
        if not found:
            tail = (await asyncio.to_thread(said.read_text))[-1000:]
            raise Failed(f"the client ended: {tail}")
        return found

    async def load(in_flight: int, seconds: float) -> Timed:
        requests.write(json.dumps([in_flight, seconds]).encode() + b"\n")
        answer = json.loads(await line(seconds + PATIENCE_S))
        latencies = array("q", answer["latencies_ns"])
        result = LoadResult(len(latencies), answer["seconds"], latencies, answer["refused"])
        return Timed(result, answer["client_us"])

    try:
        await line(START_TIMEOUT_S)
        yield load
    finally:
        requests.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def java_client(directory: Path, addresses: Sequence[str]) -> AsyncIterator[Client]:
    """Run Java's client in a JVM, whose blocking calls threads of this process make through Py4J.
    Raises Missing or Failed."""
    try:
        from tests.interop.java5 import Java5
    except ImportError as error:
        raise Missing(f"RocketMQ 5's Java client is fetched by Spark's Ivy: {error}") from error
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    try:
        java = await asyncio.to_thread(Java5, directory, *ports)
    except (AssertionError, OSError) as error:
        raise Missing(f"RocketMQ 5's Java client cannot be had: {error}") from error

    def sends() -> list[Callable[[], object]]:
        message = java.message(TOPIC, BODY.decode())
        producers = [java.producer(TOPIC, config=java.configured(port)) for port in ports]
        return [partial(producer.send, message) for producer in producers]

    try:
        made = await asyncio.to_thread(sends)

        async def load(in_flight: int, seconds: float) -> Timed:
            before_us = cpu_us(java.jvm.process.pid)
            found = await asyncio.to_thread(timed, made, in_flight, seconds)
            jvm_us = cpu_us(java.jvm.process.pid) - before_us
            return replace(found, client_us=found.client_us + jvm_us)

        yield load
    finally:
        await asyncio.to_thread(java.close)
