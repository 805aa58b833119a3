"""Streams of all brokers' events, a stream per broker, resumed after a failure.

`text/event-stream` (WHATWG HTML, 9.2) has the lines `id:`, `event:` and `data:`. A blank line ends
an event, and lines that start with a colon are comments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import aiohttp
import orjson

from .broker_http import Nodes

LOG = logging.getLogger("raftmq.namesrv.http")

STREAMS_MAX = 128  # further brokers are not followed
RETRY_S_MIN, RETRY_S_MAX = 0.25, 5.0
EVENT_BYTES_MAX = 64 * 1024
PATH = "/api/v1/events"
FROM_THE_START = "0-0"  # an unused id, so a hub sends all stored events

Event = dict[str, Any]


class Streams:
    """Follows the brokers of `follow`; events are passed to `take(address, event)`."""

    def __init__(self, nodes: Nodes, take: Callable[[str, Event], None]) -> None:
        self._nodes = nodes
        self._take = take
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, http_addresses: Iterable[str]) -> None:
        """Follow exactly these brokers. Existing streams continue."""
        requested = sorted({address for address in http_addresses if address})[:STREAMS_MAX]
        for address in set(self._tasks).difference(requested):
            task = self._tasks.pop(address)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()
        for address in requested:
            if address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._keep(address))

    async def stop(self) -> None:
        self.follow(())
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _keep(self, address: str) -> None:
        last_id, retry_s = FROM_THE_START, RETRY_S_MIN
        while True:
            try:
                headers = {"Accept": "text/event-stream", "Last-Event-ID": last_id}
                async with self._nodes.stream(address, PATH, headers) as response:
                    if response.status != 200:
                        raise aiohttp.ClientPayloadError(f"it answers {response.status}")
                    async for event_id, event in events_of(_lines(response)):
                        last_id, retry_s = event_id or last_id, RETRY_S_MIN
                        self._take(address, event)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                LOG.debug("events_lost broker=%s error=%r", address, error)
            await asyncio.sleep(retry_s)
            retry_s = min(RETRY_S_MAX, retry_s * 2)


async def events_of(lines: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Event]]:
    """Yield (id, event) for each event with a JSON object as its data. Raises ValueError for an
    event above EVENT_BYTES_MAX."""
    event_id, size_bytes = "", 0
    data: list[bytes] = []
    async for raw in lines:
        line = raw.rstrip(b"\r\n")
        if not line:
            if data:
                event = _object(b"\n".join(data))
                if event is not None:
                    yield event_id, event
            data, size_bytes = [], 0
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
            size_bytes += len(value)
            if size_bytes > EVENT_BYTES_MAX:
                raise ValueError(f"an event of more than {EVENT_BYTES_MAX} bytes")
        elif name == b"id":
            event_id = value.decode("utf-8", "replace")


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in response.content:  # raises ValueError for a line above its buffer
        yield line


def _object(data: bytes) -> Event | None:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None  # not a broker's event
    return event if isinstance(event, dict) else None
