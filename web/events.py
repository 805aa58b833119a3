"""Server-sent events from a hub to many readers, without waiting for slow readers.

The hub keeps the last RING_SIZE events. A reader that reconnects with Last-Event-ID (or
?lastEventId=) gets the events it missed. If some of them are gone, or the server was restarted, it
first gets an event of kind `gap`, then the kept events. A reader more than BEHIND_MAX events behind
is disconnected; it may reconnect and resume.

    id: <start of the hub, ms>-<number>
    data: {"kind":…,"node":…,"group":…,"term":…,"at":ms,"detail":{…}}
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from .operation import EVENT_STREAM, Call, Operation
from .problem import unavailable
from .schema import Input, View, to_json

if TYPE_CHECKING:
    from aiohttp import web

RING_SIZE = 1_000
BEHIND_MAX = 256  # events, besides those in the socket's buffer
HEARTBEAT_S = 15.0  # between comments, which detect a lost reader
GAP = "gap"


class EventView(View, frozen=True, kw_only=True):
    """An event. `term` is 0 if there is none; `detail` depends on the kind."""

    kind: str
    node: str = ""
    group: str = ""
    term: int = 0
    at: int
    detail: dict[str, Any] = {}  # noqa: RUF012 (msgspec copies it)


class EventsQuery(Input, frozen=True):
    last_event_id: Annotated[str, Meta(max_length=64)] = ""


class EventHub:
    """Streams events to its readers, on a single loop."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        ring_size: int = RING_SIZE,
        behind_max: int = BEHIND_MAX,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.wall_ms = wall_ms
        self.cut_off = 0  # slow readers that were disconnected
        self._epoch = wall_ms()
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring_size)
        self._number = 0
        self._readers: set[_Reader] = set()
        self._behind_max = behind_max
        self._heartbeat_s = heartbeat_s
        self._closed = False

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def publish(
        self,
        kind: str,
        *,
        node: str = "",
        group: str = "",
        term: int = 0,
        detail: dict[str, Any] | None = None,
        at: int | None = None,
    ) -> None:
        """Send an event to all readers, without waiting, by default with the present time."""
        when = self.wall_ms() if at is None else at
        self._number += 1
        event = EventView(
            kind=kind, node=node, group=group, term=term, at=when, detail=detail or {}
        )
        text = self._text(self._number, event)
        self._ring.append((self._number, text))
        for reader in list(self._readers):
            if len(reader.waiting) >= self._behind_max:
                self.cut_off += 1
                self._readers.discard(reader)
                reader.cut()
            else:
                reader.waiting.append(text)
                reader.wake()

    def operation(self, path: str = "/api/v1/events") -> Operation:
        """Return the operation that streams this hub."""
        return Operation(
            "GET",
            path,
            "streamEvents",
            "What happens, as it happens (server-sent events; Last-Event-ID resumes).",
            self.stream,
            query=EventsQuery,
            media=EVENT_STREAM,
            problems=(503,),
        )

    async def stream(self, call: Call) -> web.StreamResponse:
        """Serve a reader until it leaves, is disconnected, or the hub closes."""
        from aiohttp import web  # here, since hubs also exist in brokers without HTTP

        if self._closed:
            raise unavailable("the server stops")
        request = call.request
        seen = request.headers.get("Last-Event-ID") or call.query.last_event_id
        reader = _Reader(request.transport)
        self._readers.add(reader)
        try:
            response = web.StreamResponse(
                headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"}
            )
            missed = b"".join(self._missed(seen)) if seen else b""
            await response.prepare(request)
            await response.write(b"retry: 2000\n\n" + missed)
            while not self._closed and not reader.is_cut:
                await response.write(await reader.take(self._heartbeat_s))
        except ConnectionError:
            pass  # the reader is gone
        finally:
            self._readers.discard(reader)
        return response

    def close(self) -> None:
        """End all streams permanently."""
        self._closed = True
        for reader in self._readers:
            reader.wake()

    def _missed(self, seen: str) -> Iterable[bytes]:
        """Yield the events after the one with id `seen`."""
        epoch, _, number = seen.partition("-")
        known = epoch == str(self._epoch) and number.isascii() and number.isdigit()
        last = int(number) if known else 0
        oldest = self._ring[0][0] if self._ring else self._number + 1
        if not known or last + 1 < oldest or last > self._number:
            detail = {"after": seen[:64]}
            yield self._text(oldest - 1, EventView(kind=GAP, at=self.wall_ms(), detail=detail))
        for numbered, text in self._ring:
            if numbered > last or last > self._number:
                yield text

    def _text(self, number: int, event: EventView) -> bytes:
        return b"id: %d-%d\ndata: %s\n\n" % (self._epoch, number, to_json(event))


class _Reader:
    """A reader and its unsent events."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self.waiting: deque[bytes] = deque()
        self.is_cut = False
        self._transport = transport
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def cut(self) -> None:
        """Disconnect a slow reader by aborting its handler's write."""
        self.is_cut = True
        self.waiting.clear()
        self._woken.set()
        if self._transport is not None:
            self._transport.abort()

    async def take(self, heartbeat_s: float) -> bytes:
        """Return the waiting events, or a comment after `heartbeat_s` without events."""
        if not self.waiting:
            self._woken.clear()
            try:
                async with asyncio.timeout(heartbeat_s):
                    await self._woken.wait()
            except TimeoutError:
                return b":\n\n"
        text = b"".join(self.waiting)
        self.waiting.clear()
        return text
