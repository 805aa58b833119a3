"""`python -m bench.catchup`: how long an empty replica takes to catch up, and what it costs.

A Raft group of three processes is filled with a number of MiB. Then, all under the same load (a
fixed number of sends in flight to the leader): with all three; with one killed and its store
removed; while that one is refilled, until it has recovered (`raftRecovered`) and is no further
behind than what may be in flight; and with all three again. The phases of one run are measured one
after the other on one machine: compare the rates with each other, and with nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.wire import run_load
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_whole
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

TOPIC = "CatchUp"
QUEUES = 4
SEGMENT_BYTES = 64 << 20
ROUND = 1_000  # sends between looks at whether it is over
CAUGHT_UP_BYTES = 8 << 20  # the core's append window: bytes in flight to one peer
POLL_S = 0.1
TIMEOUT_S = 3_600.0


@dataclass(slots=True)
class Phase:
    """The load of one phase."""

    name: str
    messages: int = 0
    seconds: float = 0.0
    latencies_ns: array[int] = field(default_factory=lambda: array("q"))

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ns)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6 if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """The same sends in every phase."""

    address: str
    body: bytes
    in_flight: int

    async def run(self, phase: Phase, done: Callable[[], bool]) -> None:
        """Send in rounds until `done`. Raises RuntimeError if a send is refused."""
        while not done():
            result = await run_load(
                self.address,
                TOPIC,
                queues=QUEUES,
                body=self.body,
                count=ROUND,
                in_flight=self.in_flight,
            )
            phase.messages += result.messages
            phase.seconds += result.seconds
            phase.latencies_ns.extend(result.latencies_ns)

    async def for_seconds(self, name: str, seconds: float) -> Phase:
        phase, end = Phase(name), time.monotonic() + seconds
        await self.run(phase, lambda: time.monotonic() >= end)
        return phase


async def info(client: RemotingClient, address: str) -> dict[str, str]:
    """Return a broker's runtime info; empty while it cannot be asked."""
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        answer = await client.invoke(address, request, 5_000)
    except RemotingError:  # it is starting, or restarting: ask again
        return {}
    table = orjson.loads(answer.body)["table"]
    assert isinstance(table, dict)
    return table


async def caught_up(client: RemotingClient, leader: str, follower: str) -> bool:
    behind, ahead = await info(client, follower), await info(client, leader)
    if not behind or not ahead or behind.get("raftRecovered", behind.get("raftWhole")) != "true":
        return False
    return int(ahead["commitLogMaxOffset"]) - int(behind["commitLogMaxOffset"]) < CAUGHT_UP_BYTES


async def measure(
    mib: int, seconds: float, load_options: tuple[bytes, int], settings: dict[str, str]
) -> tuple[list[Phase], int, float]:
    """Return phases, bytes of log when the replica came back, seconds to catch up."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    cluster, client = Cluster(directory), RemotingClient()
    try:
        state = await cluster.up(Shape(), settings)
        await wait_whole(cluster)
        leader = await cluster.leader()
        assert leader is not None
        away = next(node for node in state.brokers if node.name != leader.name)
        load = Load(leader.address, *load_options)
        fill = Phase("fill")
        full = (mib << 20) // len(load.body)
        await load.run(fill, lambda: fill.messages >= full)
        phases = [await load.for_seconds("all three", seconds)]
        process = cluster.signal(away.name, signal.SIGKILL)
        await cluster.wait_dead(process)
        shutil.rmtree(cluster.store_of(away))
        phases.append(await load.for_seconds("one away", seconds))
        size = int((await info(client, leader.address))["commitLogMaxOffset"])
        refill, begun = Phase("one is refilled"), time.monotonic()
        cluster.start(away.name)
        over = asyncio.ensure_future(_until_caught_up(client, leader.address, away.address))
        await load.run(refill, over.done)
        took_s = await over - begun
        phases += [refill, await load.for_seconds("all three again", seconds)]
        return phases, size, took_s
    finally:
        await client.close()
        await cluster.down()
        await cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


async def _until_caught_up(client: RemotingClient, leader: str, follower: str) -> float:
    async with asyncio.timeout(TIMEOUT_S):
        while not await caught_up(client, leader, follower):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(POLL_S)
    return time.monotonic()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--mib", default=200, type=click.IntRange(1), help="Log to be caught up with.")
@click.option("--seconds", default=5.0, help="Of load in each of the other phases.")
@click.option("--size", default=1024, type=click.IntRange(1), help="Bytes of a message's body.")
@click.option("--in-flight", default=64, type=click.IntRange(1), help="Sends.")
@click.option("--limit", default=64, type=click.IntRange(0), help="raftCatchUpBytesPerS, in MiB.")
@click.option("--flush", default="ASYNC_FLUSH", type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH"]))
def main(mib: int, seconds: float, size: int, in_flight: int, limit: int, flush: str) -> None:
    """Measure how an empty replica catches up under load."""
    settings = {
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "raftCatchUpBytesPerS": str(limit << 20),
        "electionTimeoutMinMs": "2000",  # a busy machine shall not end the run
        "electionTimeoutMaxMs": "4000",
    }
    options = (bytes(size), in_flight)
    phases, log_bytes, took_s = uvloop.run(measure(mib, seconds, options, settings))
    table = Table("phase", "sends /s", "p50 ms", "p99 ms", "of the first")
    for phase in phases:
        table.add_row(
            phase.name,
            f"{phase.rate:,.0f}",
            f"{phase.percentile_ms(0.5):.1f}",
            f"{phase.percentile_ms(0.99):.1f}",
            f"{phase.rate / phases[0].rate:.0%}",
        )
    Console().print(table)
    rate = log_bytes / took_s / (1 << 20)
    print(f"{log_bytes / (1 << 20):.0f} MiB of log, caught up in {took_s:.1f} s: {rate:.0f} MiB/s")


if __name__ == "__main__":
    main()
