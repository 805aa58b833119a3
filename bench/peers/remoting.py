"""Loads over RocketMQ's protocol with sends, raw pulls of queues, and the kill of a leader."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

from bench.peers.system import (
    BATCH,
    BATCHES,
    BODY,
    LARGE,
    MANY,
    ONE,
    WARM_UP,
    WINDOWS,
    Failed,
    Load,
    PacedLoad,
    Stamps,
    body_of,
    sends_of,
)
from bench.wire import LoadResult, run_load, run_paced
from raftmq.client import ClientError, Message, MessageExt, Producer, PushConsumer
from raftmq.remoting.codec import FrameReader, decode_command, encode_command
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullHeader

TOPIC = "Bench"
QUEUES = 4
PULL_MESSAGES_MAX = 1024  # a broker may have a lower limit of its own
READ_BYTES = 1 << 18
KILL_TIMEOUT_S = 60.0
SETTLED_S = 1.0  # until a new consumer has its queues
RETRY_S = 0.01  # after a send that our Producer has tried for seconds already
SUBSCRIBED = 4  # sysFlag of requests with a subscription


def send_loads(address: str, scale: float, *, batches: bool = True) -> dict[str, Load]:
    def load(row: str) -> Load:
        async def run() -> LoadResult:
            return await run_load(
                *(address, TOPIC),
                queues=QUEUES,
                body=body_of(row),
                count=sends_of(row, scale),
                in_flight=WINDOWS[row],
                batch=BATCH if row == BATCHES else 0,
            )

        return run

    rows = (WARM_UP, ONE, MANY, LARGE, *([BATCHES] if batches else []))
    return {row: load(row) for row in rows}


def paced_load(address: str, namesrv: str) -> PacedLoad:
    """Return an open loop of the bare client, with our PushConsumer if arrivals count. Each has a
    topic of its own, because a new group may get all messages of a topic."""

    async def run(rate: float, seconds: float, arrivals: bool) -> LoadResult:
        topic = f"Paced-{time.time_ns()}"
        await run_load(address, topic, queues=QUEUES, body=BODY, count=2 * QUEUES, in_flight=1)
        paced = run_paced(address, topic, queues=QUEUES, body=BODY, rate=rate, seconds=seconds)
        if not arrivals:
            return await paced
        stamps = Stamps()

        def listener(messages: list[MessageExt]) -> None:
            for message in messages:
                stamps.see(message.body)

        consumer = PushConsumer(f"bench-{topic}", namesrv, listener)
        consumer.subscribe(topic)
        async with consumer:
            await asyncio.sleep(SETTLED_S)
            return await stamps.arrived(await paced)

    return run


async def pull_all(address: str) -> LoadResult:
    """Pull every queue of the topic from its beginning to its end, each over a connection of its
    own, and walk over every record."""
    return await _pulled(address, [0] * QUEUES, streamed=False)


async def stream_all(address: str, count: int) -> LoadResult:
    """Have the floor send `count` messages as they are pulled, and walk over every record."""
    return await _pulled(address, [count // QUEUES] * QUEUES, streamed=True)


async def _pulled(address: str, offsets: list[int], *, streamed: bool) -> LoadResult:
    latencies: array[int] = array("q")
    started = time.perf_counter()
    counts = await asyncio.gather(
        *(_pull(address, n, offset, latencies, streamed) for n, offset in enumerate(offsets))
    )
    return LoadResult(sum(counts), time.perf_counter() - started, latencies)


async def _pull(
    address: str, queue: int, offset: int, latencies: array[int], streamed: bool
) -> int:
    """Pull until nothing is left, or (`streamed`) once, which is answered until nothing is left."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frames = FrameReader()
    count = 0
    try:
        writer.write(_request(queue, offset))
        while True:
            started_ns = time.perf_counter_ns()
            while (raw := frames.next_frame()) is None:
                data = await reader.read(READ_BYTES)
                if not data:
                    raise Failed("the broker closed the connection of a pull")
                frames.receive_data(data)
            answer = decode_command(raw)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return count
            if answer.code != ResponseCode.SUCCESS or not answer.ext:
                raise Failed(f"a pull was answered with {answer.code}: {answer.remark}")
            latencies.append(time.perf_counter_ns() - started_ns)
            count += records_in(answer.body)
            later = int(answer.ext["nextBeginOffset"])
            if not streamed:
                if later <= offset:
                    raise Failed(f"a pull at offset {offset} was told to go on at {later}")
                offset = later
                writer.write(_request(queue, offset))
    finally:
        writer.close()


def _request(queue: int, offset: int) -> bytes:
    header = PullHeader(
        *("bench-peers", TOPIC, queue, offset, PULL_MESSAGES_MAX, SUBSCRIBED, 0, 0, "*", 0)
    )
    return encode_command(RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext()))


def records_in(body: bytes) -> int:
    """Return the number of records in a pull's response. Raises Failed for a damaged record."""
    at = count = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 4 or at + size > len(body):
            raise Failed(f"a record of {size} bytes at {at} of {len(body)}")
        at += size
        count += 1
    return count


async def next_ack(namesrv: str, kill: Callable[[], object]) -> LoadResult:
    """Kill the leader; return the time from then to the next acknowledged send of our Producer."""
    async with Producer("bench-peers", namesrv) as producer:
        await producer.send(Message(TOPIC, BODY))
        start_ns = time.perf_counter_ns()
        kill()
        async with asyncio.timeout(KILL_TIMEOUT_S):
            while True:
                try:
                    await producer.send(Message(TOPIC, BODY))
                    break
                except ClientError:
                    await asyncio.sleep(RETRY_S)
    took_ns = time.perf_counter_ns() - start_ns
    return LoadResult(1, took_ns / 1e9, array("q", [took_ns]))
