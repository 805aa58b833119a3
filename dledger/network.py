"""How links between replicas come about: plain TCP here; whoever wants more (TLS) brings a
`Network` of his own. Shell.

A link is an asyncio transport in any case: what is sent over it does not pass through here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

Factory = Callable[[], asyncio.Protocol]


class Listening(Protocol):
    """As asyncio.Server."""

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class Network(Protocol):
    """Listens, dials, and says who may not be believed."""

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> Listening:
        """On `bound` if there is one. Raises OSError."""
        ...

    async def dial(self, factory: Factory, host: str, port: int) -> asyncio.BaseProtocol:
        """The connected protocol. Raises OSError; may be cancelled."""
        ...

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        """Why the other end of an accepted connection is not to be believed that it is the replica
        at `host`; "" if it is."""
        ...


class PlainNetwork:
    """TCP. Everybody is believed."""

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> Listening:
        loop = asyncio.get_running_loop()
        if bound is not None:
            return await loop.create_server(factory, sock=bound)
        return await loop.create_server(factory, host, port)

    async def dial(self, factory: Factory, host: str, port: int) -> asyncio.BaseProtocol:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        return protocol

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        return ""
