"""`python -m bench.pops`: what popping costs, beside pulling, in one run.

A Raft group of three is filled; then one bare client reads all of it, round after round: by pulls
of up to 1,024 messages, by pulls of 32, and by pops of 32, each batch acknowledged by one request
as soon as it is there. `--lanes` pops are under way at a time. The client counts the records and
decodes nothing else. What is shown are medians of the rounds, shares of the same round too: the
machine may be slower in one round than in another.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import click
import uvloop
from rich.console import Console
from rich.table import Table

from bench.group import RaftGroup, raft_group
from bench.peers.remoting import QUEUES, TOPIC, pull_all, records_in
from bench.rounds import share
from bench.wire import run_load
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.headers import PULL_SUBSCRIPTION, PullHeader, PullResponseHeader
from raftmq.remoting.pop_headers import BatchAck, PopHeader, PopResponseHeader, by_queue

BODY = b"x" * 128
COUNT_MAX = 32
TIMEOUT_MS = 30_000
BROKERS = ("leader", "follower")


class Figure(NamedTuple):
    """Messages a second, and CPU microseconds a message: leader, a follower, the client."""

    rate: float
    leader_us: float
    follower_us: float
    client_us: float


async def pulled(address: str) -> int:
    """Pull in lots of 32, one lane for each queue."""
    client = RemotingClient()

    async def lane(queue: int) -> int:
        offset = found = 0
        while True:
            header = PullHeader(
                "bench-32", TOPIC, queue, offset, COUNT_MAX, PULL_SUBSCRIPTION, 0, 0, "*", 0
            )
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
            answer = await client.invoke(address, request, TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += records_in(answer.body)
            offset = PullResponseHeader.parse(answer.ext).next_offset

    try:
        return sum(await asyncio.gather(*(lane(queue) for queue in range(QUEUES))))
    finally:
        await client.close()


async def popped(address: str, group: str, lanes: int) -> int:
    """Pop in lots of 32 and acknowledge each."""
    client = RemotingClient()
    total = 0

    async def lane(number: int) -> None:
        nonlocal total
        header = PopHeader(group, TOPIC, number % QUEUES, COUNT_MAX, 60_000, 0)
        while True:
            request = RemotingCommand.request(RequestCode.POP_MESSAGE, header.to_ext())
            answer = await client.invoke(address, request, TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                return  # all of its queue was popped
            total += records_in(answer.body)
            told = PopResponseHeader.parse(answer.ext)
            acks = []
            offsets = by_queue(told.offsets)
            for (_, queue), (start,) in by_queue(told.starts).items():
                bits = 0
                for offset in offsets["0", queue]:
                    bits |= 1 << (offset - start)
                one = BatchAck(group, TOPIC, queue, start, told.pop_ms, told.invisible_ms, 0, bits)
                acks.append(one.to_json(TOPIC))
            body = dumps({"brokerName": "b", "acks": acks})
            request = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, {}, body)
            answer = await client.invoke(address, request, TIMEOUT_MS)
            assert answer.code == ResponseCode.SUCCESS, answer

    try:
        await asyncio.gather(*(lane(number) for number in range(lanes)))
        return total
    finally:
        await client.close()


async def figure(group: RaftGroup, count: int, read: Callable[[], Awaitable[int]]) -> Figure:
    """Read everything once; return what it took."""
    before, client, begun = group.usage().cpu_us, time.process_time(), time.perf_counter()
    assert await read() >= count
    took_s, after = time.perf_counter() - begun, group.usage().cpu_us
    client_us = (time.process_time() - client) * 1_000_000 / count
    leader_us, follower_us = ((after[role] - before[role]) / count for role in BROKERS)
    return Figure(count / took_s, leader_us, follower_us, client_us)


async def measure(count: int, lanes: int, rounds: int) -> dict[str, list[Figure]]:
    """Return each way's figures, round by round."""
    ways: dict[str, Callable[[str, int], Awaitable[int]]] = {
        "pulls of 1,024": lambda address, number: pulled_whole(address, count),
        f"pulls of {COUNT_MAX}": lambda address, number: pulled(address),
        f"pops of {COUNT_MAX}, acked": lambda address, number: popped(
            address, f"bench-pop-{number}", lanes
        ),
    }
    figures: dict[str, list[Figure]] = {name: [] for name in ways}
    async with raft_group() as group:
        await run_load(
            group.address,
            TOPIC,
            queues=QUEUES,
            body=BODY,
            count=count // 100,
            in_flight=4,
            batch=100,
        )
        await group.whole()
        for number in range(rounds):
            for name, way in ways.items():
                read = partial(way, group.address, number)
                figures[name].append(await figure(group, count, read))
    return figures


async def pulled_whole(address: str, count: int) -> int:
    """Pull in lots as large as the broker gives."""
    await pull_all(address)
    return count


@click.command()
@click.option("--messages", default=100_000, show_default=True)
@click.option("--lanes", default=32, show_default=True, help="Pops under way at a time.")
@click.option("--rounds", default=5, show_default=True)
def main(messages: int, lanes: int, rounds: int) -> None:
    """Measure pops beside pulls."""
    figures = uvloop.run(measure(messages // 100 * 100, lanes, rounds))
    first, second, *_ = figures
    titles = f"beside {first}", f"beside {second}", "leader us", "follower us", "client us"
    table = Table("", "messages/s", *titles)
    for name, found in figures.items():
        shares = [f"{share(found, figures[other]):.0%}" for other in (first, second)]
        rate, *costs_us = (statistics.median(values) for values in zip(*found, strict=True))
        table.add_row(name, f"{rate:,.0f}", *shares, *(f"{cost_us:.2f}" for cost_us in costs_us))
    Console().print(table)


if __name__ == "__main__":
    main()
