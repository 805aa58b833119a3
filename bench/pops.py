"""Pops and pulls of the same messages, 32 at a time, by a client that only counts records, and
pulls that wait for a message."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence

from bench.group import PATIENT, RaftGroup, raft_group
from bench.peers.remoting import QUEUES, TOPIC, records_in
from bench.peers.system import BODY
from bench.wire import LoadResult, run_load
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.headers import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    PullResponseHeader,
)
from raftmq.remoting.pop_headers import BatchAck, PopHeader, PopResponseHeader, by_queue

GROUP = "bench-pop"
MESSAGES_PER_S = 20_000  # messages to read for each second of load
BATCH_SIZE = 32
TIMEOUT_MS = 30_000
INVISIBLE_MS = 60_000
HELD_TOPIC = "Held"
HELD_MS = 120_000  # longer than the load beside held pulls


async def pops(value: int, seconds: float) -> dict[str, float]:
    """Read all messages by pulls, one per queue at a time, and by `value` concurrent pops."""
    count = int(MESSAGES_PER_S * seconds) // 100 * 100
    async with raft_group() as group:
        await run_load(
            *(group.address, TOPIC),
            queues=QUEUES,
            body=BODY,
            count=count // 100,
            in_flight=4,
            batch=100,
        )
        await group.wait_recovered()
        client = RemotingClient()
        try:
            pulls = [_pull(client, group.address, queue) for queue in range(QUEUES)]
            figures = await _measured(group, "pull", count, pulls)
            popping = [_pop(client, group.address, number) for number in range(value)]
            return figures | await _measured(group, "pop", count, popping)
        finally:
            await client.close()


async def held_pulls(value: int, seconds: float) -> dict[str, float]:
    """Send beside `value` pulls that wait for messages of another topic, each over a connection of
    its own and for a group of its own; then send a message to each queue of that topic."""

    async def sent(topic: str, count: int, seconds: float = math.inf) -> LoadResult:
        return await run_load(
            *(group.address, topic),
            queues=QUEUES,
            body=BODY,
            count=count,
            in_flight=min(count, 256),
            seconds=seconds,
        )

    async with raft_group(PATIENT | {"defaultTopicQueueNums": str(QUEUES)}) as group:
        await sent(TOPIC, 10_000)
        await sent(HELD_TOPIC, QUEUES)
        clients = [RemotingClient() for _ in range(value)]
        try:
            pulls = [
                asyncio.create_task(_held(client, group.address, number))
                for number, client in enumerate(clients)
            ]
            await asyncio.sleep(1)
            before = group.usage()
            load = await sent(TOPIC, 1 << 40, seconds)
            after = group.usage()
            await asyncio.sleep(1)  # for work that the load has left
            started_s = time.perf_counter()
            await sent(HELD_TOPIC, QUEUES)
            await asyncio.gather(*pulls)
            took_s = time.perf_counter() - started_s
            return {
                "rate": load.rate,
                "p99_ms": load.percentile_ms(0.99),
                "leader_us": (after.cpu_us["leader"] - before.cpu_us["leader"]) / load.messages,
                "leader_mib": after.memory_mib["leader"],
                "answered_ms": took_s * 1e3,
            }
        finally:
            await asyncio.gather(*(client.close() for client in clients))


async def _held(client: RemotingClient, address: str, number: int) -> None:
    """Wait for the second message of a queue."""
    flags = PULL_SUBSCRIPTION | PULL_SUSPEND
    header = PullHeader(
        f"held-{number}", HELD_TOPIC, number % QUEUES, 1, 1, flags, 0, HELD_MS, "*", 0
    )
    request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
    response = await client.invoke(address, request, HELD_MS + TIMEOUT_MS)
    assert response.code == ResponseCode.SUCCESS, response


async def _measured(
    group: RaftGroup, name: str, count: int, readers: Sequence[Awaitable[int]]
) -> dict[str, float]:
    before, started_s = group.usage().cpu_us, time.perf_counter()
    assert sum(await asyncio.gather(*readers)) >= count
    took_s, after = time.perf_counter() - started_s, group.usage().cpu_us
    return {f"{name}_rate": count / took_s} | {
        f"{name}_{role}_us": (after[role] - before[role]) / count for role in ("leader", "follower")
    }


async def _pull(client: RemotingClient, address: str, queue: int) -> int:
    offset = result = 0
    while True:
        header = PullHeader(
            "bench-pull", TOPIC, queue, offset, BATCH_SIZE, PULL_SUBSCRIPTION, 0, 0, "*", 0
        )
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
        response = await client.invoke(address, request, TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            return result
        result += records_in(response.body)
        offset = PullResponseHeader.parse(response.ext).next_offset


async def _pop(client: RemotingClient, address: str, number: int) -> int:
    """Pop from one queue until it is empty, and acknowledge each batch by one request."""
    header = PopHeader(GROUP, TOPIC, number % QUEUES, BATCH_SIZE, INVISIBLE_MS, 0)
    result = 0
    while True:
        request = RemotingCommand.request(RequestCode.POP_MESSAGE, header.to_ext())
        response = await client.invoke(address, request, TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            return result
        result += records_in(response.body)
        popped = PopResponseHeader.parse(response.ext)
        offsets = by_queue(popped.offsets)
        acks = []
        for (_, queue), (start,) in by_queue(popped.starts).items():
            bits = sum(1 << (offset - start) for offset in offsets["0", queue])
            ack = BatchAck(GROUP, TOPIC, queue, start, popped.pop_ms, popped.invisible_ms, 0, bits)
            acks.append(ack.to_json(TOPIC))
        body = dumps({"brokerName": "b", "acks": acks})
        request = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, {}, body)
        response = await client.invoke(address, request, TIMEOUT_MS)
        assert response.code == ResponseCode.SUCCESS, response
