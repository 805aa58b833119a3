"""Listening for plain connections, without losing one at a close.

Before Python 3.12, asyncio leaks a connection if its server closes after the accept and before the
protocol exists.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .keepalive import CLIENT_KEEPALIVE


class Listening(Protocol):
    """A listener, as asyncio.Server."""

    @property
    def sockets(self) -> Sequence[Any]: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class PlainListening:
    def __init__(self, server: asyncio.Server) -> None:
        self.sockets = server.sockets
        self._server = server
        self._closing: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop accepting. The next two turns of the loop still make accepted connections, which the
        protocols' owner also closes."""
        if self._closing is None:
            loop = asyncio.get_running_loop()
            for listener in self.sockets:
                loop.remove_reader(listener.fileno())
            self._closing = loop.create_task(self._close())

    async def wait_closed(self) -> None:
        """After `close`, wait until the port is free and no accepted connection is pending."""
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for _ in range(3):  # makes the transport, notifies its protocol, and lets it abort
            await asyncio.sleep(0)
        self._server.close()


async def listen_plain(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str | None,
    port: int,
    bound: socket.socket | None = None,
    backlog: int = 100,
) -> PlainListening:
    """Listen, on the socket `bound` if it is given. Raises OSError."""
    loop = asyncio.get_running_loop()
    if bound is not None:
        server = await loop.create_server(factory, sock=bound, backlog=backlog)
    else:
        server = await loop.create_server(factory, host, port, backlog=backlog, reuse_address=True)
    for listener in server.sockets:
        CLIENT_KEEPALIVE.apply(listener)
    return PlainListening(server)
