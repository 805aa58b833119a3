"""Streams of all brokers' events, and the recent events of each group.

`text/event-stream` (WHATWG HTML, 9.2) has the lines `id:`, `event:` and `data:`. A blank line ends
an event, and lines that start with a colon are comments. A broken stream is resumed.

Failovers are derived from the remembered events, at most EVENTS_MAX per group and `bytes_max` of
JSON in total. Above `bytes_max` the largest group loses its oldest events, so a stranger's brokers
displace only their own events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from .broker_http import Nodes

LOG = logging.getLogger("raftmq.namesrv.http")

RETRY_S_MIN, RETRY_S_MAX = 0.25, 5.0
EVENT_BYTES_MAX = 64 * 1024
EVENTS_MAX = 400  # remembered per group
BYTES_MAX = 16 * 1024 * 1024  # remembered in total
PATH = "/api/v1/events"
FROM_THE_START = "0-0"  # an unused id, so a hub sends all stored events

Event = dict[str, Any]


class Streams:
    """Follows the brokers of `follow`, at most `streams_max`; events are passed to
    `take(address, event)`."""

    def __init__(self, nodes: Nodes, take: Callable[[str, Event], None], streams_max: int) -> None:
        self._streams_max = streams_max
        self._nodes = nodes
        self._take = take
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, http_addresses: Iterable[str]) -> None:
        """Follow exactly these brokers. Existing streams continue."""
        requested = sorted({address for address in http_addresses if address})[: self._streams_max]
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


@dataclass(slots=True)
class _Kept:
    events: deque[tuple[Event, int]] = field(default_factory=deque)  # with their sizes
    size_bytes: int = 0


class RememberedEvents:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._groups: dict[str, _Kept] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def of(self, group: str) -> Iterator[Event]:
        retained = self._groups.get(group)
        return iter(()) if retained is None else (event for event, _ in retained.events)

    def add(self, group: str, event: Event) -> None:
        size = len(orjson.dumps(event))
        retained = self._groups.setdefault(group, _Kept())
        retained.events.append((event, size))
        retained.size_bytes += size
        self.size_bytes += size
        if len(retained.events) > EVENTS_MAX:
            self._drop_oldest(retained)
        while self.size_bytes > self._bytes_max:
            self._drop_oldest(max(self._groups.values(), key=lambda item: item.size_bytes))

    def keep_only(self, groups: Set[str]) -> None:
        for name in self._groups.keys() - groups:
            self.size_bytes -= self._groups.pop(name).size_bytes

    def _drop_oldest(self, retained: _Kept) -> None:
        _, size = retained.events.popleft()
        retained.size_bytes -= size
        self.size_bytes -= size
