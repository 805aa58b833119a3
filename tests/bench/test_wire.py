"""bench.wire, the load generator's sends, topics and end."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.wire import run_load, run_paced

ANSWER = b'{"code":0,"flag":1,"opaque":%b}'


@asynccontextmanager
async def counting(seen: Counter[tuple[bytes, bytes]], hold: int = 1) -> AsyncIterator[str]:
    """The address of a server that counts (topic, queue) and answers every send with success, the
    first ones when it has `hold`."""

    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        answers = b""
        while head := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(head, "big"))
            match = re.search(rb'"b":"(.*?)".*"e":"(\d+)".*"opaque":(\d+)', frame, re.S)
            assert match is not None, frame
            seen[match[1], match[2]] += 1
            header = ANSWER % match[3]
            sizes = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
            answers += sizes + header
            if seen.total() >= hold:
                writer.write(answers)
                answers = b""
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*filter(None, served))


async def test_sends_alternate_between_topics_and_their_queues() -> None:
    seen: Counter[tuple[bytes, bytes]] = Counter()
    async with counting(seen) as address:
        result = await run_load(
            address, ["A", "B", "C"], queues=2, body=b"x", count=12, in_flight=5
        )
    assert result.messages == 12
    assert seen == {(topic, queue): 2 for topic in (b"A", b"B", b"C") for queue in (b"0", b"1")}


@pytest.mark.parametrize("in_flight", [1, 7])
async def test_load_ends_at_its_time(in_flight: int) -> None:
    seen: Counter[tuple[bytes, bytes]] = Counter()
    async with counting(seen) as address:
        result = await run_load(
            address, "A", queues=1, body=b"x", count=1 << 40, in_flight=in_flight, seconds=0.05
        )
    assert result.messages == len(result.latencies_ns) == seen.total() > 0
    assert result.seconds >= 0.05


async def test_paced_load_sends_its_rate_for_its_time() -> None:
    seen: Counter[tuple[bytes, bytes]] = Counter()
    async with counting(seen) as address:
        result = await run_paced(address, "A", queues=1, body=b"x" * 8, rate=2000, seconds=0.1)
    assert result.messages == len(result.latencies_ns) == seen.total() == 200
    assert result.seconds >= 0.1


async def test_paced_load_does_not_wait_for_answers() -> None:
    seen: Counter[tuple[bytes, bytes]] = Counter()
    async with counting(seen, hold=30) as address:
        result = await run_paced(address, "A", queues=1, body=b"x" * 8, rate=1000, seconds=0.03)
    assert result.messages == 30


async def test_paced_load_reports_a_lost_connection() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionError):
            await run_paced(address, "A", queues=1, body=b"x" * 8, rate=1000, seconds=60)
