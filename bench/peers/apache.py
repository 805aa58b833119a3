"""Apache RocketMQ 5.3.3, unmodified, as three brokers over DLedger or ASYNC_MASTER with a slave.

Jars and start are those of tests/interop, but with a server's sizes and heap. The bare client of
our broker's loads sends to them.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.remoting import QUEUES, TOPIC, next_ack, paced_load, pull_all, send_loads
from bench.peers.system import BODY, KILL, PULLS, Failed, Missing, Running
from bench.wire import run_load
from raftmq.chaos.cluster.ports import choose_ports

REPLICAS = 3
HEAP = "1g"
START_TIMEOUT_S = 120.0  # for DLedger's first leader
PACE_S = 0.5  # between two polls for the leader
SERVER = {
    "brokerName": "bench",
    "autoCreateTopicEnable": "true",
    "defaultTopicQueueNums": str(QUEUES),
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "maxMessageSize": str(4 << 20),
}


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's process; `kill` ends it at once."""

    address: str
    pid: int
    kill: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Started:
    """Brokers that accept sends, and their name server."""

    namesrv: str
    namesrv_pid: int
    brokers: Sequence[Broker]
    leader: Broker


class Apache:
    """Brokers that differ in a few settings each. With `elects`, the leader can be killed."""

    def __init__(self, name: str, members: Sequence[Mapping[str, str]], elects: bool) -> None:
        self.name = name
        self._members = members
        self._elects = elects

    @asynccontextmanager
    async def running(self, directory: Path, scale: float) -> AsyncIterator[Running]:
        async with self.started(directory) as result:
            address = result.leader.address
            loads = send_loads(address, scale)
            loads[PULLS] = lambda: pull_all(address)
            if self._elects:
                kill = result.leader.kill
                loads[KILL] = lambda: next_ack(result.namesrv, kill)
            servers = [*(b.pid for b in result.brokers), result.namesrv_pid]
            yield Running(loads, lambda: servers, paced_load(address, result.namesrv))

    @asynccontextmanager
    async def started(self, directory: Path) -> AsyncIterator[Started]:
        """Run the brokers while the block runs; TOPIC exists. Raises Missing or Failed."""
        try:
            from tests.interop import apache
        except ImportError as error:
            raise Missing(f"Apache's jars are fetched by Spark's Ivy: {error}") from error
        async with AsyncExitStack() as stack:
            try:
                await asyncio.to_thread(apache.jars, "5.3")
            except (AssertionError, OSError) as error:
                raise Missing(f"Apache's jars cannot be fetched: {error}") from error
            try:
                server = await asyncio.to_thread(
                    apache.ApacheNameServer, directory / "namesrv", "5.3"
                )
                stack.push_async_callback(asyncio.to_thread, server.kill)
                peers = self._peers()
                brokers = []
                for number, member in enumerate(self._members):
                    settings = {**SERVER, **peers, **member}
                    broker = apache.ApacheBroker(
                        directory / f"broker{number}", server.address, **settings
                    )
                    broker.heap = HEAP
                    stack.push_async_callback(asyncio.to_thread, broker.stop, signal.SIGKILL)
                    brokers.append(broker)
                await asyncio.gather(*(asyncio.to_thread(b.start) for b in brokers))
            except (AssertionError, OSError) as error:
                raise Failed(f"a broker did not start: {error}") from error
            processes = [b.jvm.process for b in brokers if b.jvm is not None]
            result = [
                Broker(broker.address, process.pid, process.kill)
                for broker, process in zip(brokers, processes, strict=True)
            ]
            leader = result[await _leading([b.address for b in brokers])]
            yield Started(server.address, server.jvm.process.pid, result, leader)

    def _peers(self) -> dict[str, str]:
        if not self._elects:
            return {}
        ports = choose_ports(REPLICAS, "127.0.0.1", random.Random())
        peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(ports))
        return {"enableDLegerCommitLog": "true", "dLegerGroup": "bench", "dLegerPeers": peers}


async def _leading(addresses: Sequence[str]) -> int:
    """Return the first broker that accepts a send. Raises Failed if none does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    error_text = ""
    while time.monotonic() < deadline:
        for number, address in enumerate(addresses):
            try:
                await run_load(
                    address, TOPIC, queues=QUEUES, body=BODY, count=2 * QUEUES, in_flight=1
                )
                return number
            except (OSError, RuntimeError) as error:
                error_text = str(error)
        await asyncio.sleep(PACE_S)
    raise Failed(f"no broker took a send within {START_TIMEOUT_S:.0f} s: {error_text}")


DLEDGER = Apache(
    "Apache RocketMQ, DLedger",
    [{"dLegerSelfId": f"n{n}"} for n in range(REPLICAS)],
    elects=True,
)
APACHE = (
    DLEDGER,
    Apache(
        "Apache RocketMQ, ASYNC_MASTER",
        [
            {"brokerRole": "ASYNC_MASTER", "brokerId": "0"},
            {"brokerRole": "SLAVE", "brokerId": "1"},
        ],
        elects=False,
    ),
)
