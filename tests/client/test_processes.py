"""Name server and a group of three brokers, each a process of its own; the leader is killed."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.client import (
    Admin,
    BrokerUnreachable,
    ClientError,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
)
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240  # a bound against hanging


class Processes:
    """A running cluster. `brokers` maps a replica's client address to its process."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.brokers: dict[str, asyncio.subprocess.Process] = {}

    async def leader(self, admin: Admin) -> str:
        """The address of the replica that says it leads and is ready."""
        while True:
            for address, process in self.brokers.items():
                if process.returncode is not None:
                    continue
                try:
                    info = await admin.broker.runtime_info(address)
                except (BrokerUnreachable, ClientError):
                    continue
                if info.get("raftRole", "").lower() == "leader":
                    return address
            await asyncio.sleep(0.05)


async def spawn(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, cwd=ROOT, stdout=output, stderr=output
        )


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Processes]:
    held = HeldPorts("127.0.0.1")
    name_port, *ports = held.choose(7, random.Random())
    listen, peer = ports[:3], ports[3:]
    running = Processes(f"127.0.0.1:{name_port}")
    peers = ";".join(f"n{i}=127.0.0.1:{port}" for i, port in enumerate(peer))
    started: list[asyncio.subprocess.Process] = []
    try:
        name_arguments = ("--set", f"listenPort={name_port}", "--set", "httpEnable=false")
        started.append(await spawn(directory / "ns.txt", "raftmq.namesrv.cli", *name_arguments))
        for i in range(3):
            settings = {
                "brokerName": "g0",
                "listenPort": str(listen[i]),
                "storePathRootDir": str(directory / f"n{i}"),
                "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "g0",
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{i}",
                "httpEnable": "false",
            }
            options = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
            process = await spawn(
                directory / f"n{i}.txt", "raftmq.broker.cli", "-n", running.namesrv, *options
            )
            started.append(process)
            running.brokers[f"127.0.0.1:{listen[i]}"] = process
        yield running
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()
        held.close()


@pytest.mark.timeout(1200)
async def test_killed_leader_loses_no_acknowledged_message(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as running,
        Admin(running.namesrv) as admin,
        Producer("p", running.namesrv) as producer,
    ):
        async with asyncio.timeout(PATIENCE_S):
            await running.leader(admin)
        results: dict[bytes, SendResult] = {}
        sent = 0

        async def send_for_ever() -> None:
            nonlocal sent
            while True:
                sent += 1
                body = b"%d" % sent
                results[body] = await producer.send(
                    Message("T", body), timeout_ms=PATIENCE_S * 1000
                )

        senders = [asyncio.create_task(send_for_ever()) for _ in range(8)]
        await until(lambda: len(results) > 200, patience_s=PATIENCE_S)
        seen: list[bytes] = []

        def listen(messages: list[MessageExt]) -> None:
            seen.extend(message.body for message in messages)

        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_interval_ms=2000)
        consumer = PushConsumer("c", running.namesrv, listen, config=config)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: len(set(seen)) > 100, patience_s=PATIENCE_S)
            leader = await running.leader(admin)
            running.brokers[leader].kill()
            loop = asyncio.get_running_loop()
            killed = loop.time()
            old = f"{int(leader.rpartition(':')[2]):08X}"
            await until(
                lambda: results[max(results, key=int)].offset_msg_id[8:16] != old,
                patience_s=PATIENCE_S,
            )
            print(f"kill -9 of the leader to an acknowledgement: {loop.time() - killed:.3f} s")
            after = len(results)
            await until(lambda: len(results) > after + 200, patience_s=PATIENCE_S)
            for task in senders:
                task.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
            acknowledged = set(results)
            await until(lambda: acknowledged <= set(seen), patience_s=PATIENCE_S)
        assert await running.leader(admin) != leader
