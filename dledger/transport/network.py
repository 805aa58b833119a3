"""The networks over which links are made. Plain TCP here; TLS is a further `Network`.

peer_auth.py can put a gate before any network. A link is an asyncio transport in any case, and its
data does not pass through here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from raftmq.ops.connect import dial
from raftmq.ops.keepalive import Keepalive
from raftmq.ops.listening import Listening, PlainListening, listen_plain

from ..raft.messages import NodeId

# Marks a log record that a peer can cause any number of times (ops.logs bounds those).
FROM_PEER = {"from_peer": True}

Factory = Callable[[], asyncio.Protocol]


class Network(Protocol):
    """Listens, dials, and checks the identity of peers."""

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> Listening:
        """Listen, on the socket `bound` if there is one. Raises OSError."""
        ...

    async def dial(
        self, factory: Factory, host: str, port: int, peer: NodeId
    ) -> asyncio.BaseProtocol:
        """Connect to `peer`; return the connected protocol. Raises OSError; cancellable."""
        ...

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        """Return why the other end of a connection cannot be the replica at `host`, or ""."""
        ...


class PlainNetwork:
    """Plain TCP, without checks."""

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> PlainListening:
        return await listen_plain(factory, host, port, bound)

    async def dial(
        self, factory: Factory, host: str, port: int, peer: NodeId
    ) -> asyncio.BaseProtocol:
        return await dial(factory, host, port)

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        return ""


def other_end(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of a connection's other end, as host:port, or "None"."""
    name = transport and transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple | list) else str(name)


def ip_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the IP address of a connection's other end, or ""."""
    return other_end(transport).rpartition(":")[0].removeprefix("::ffff:")


def tune(transport: asyncio.Transport, unacknowledged_ms_max: int) -> None:
    """Disable Nagle, and let TCP give up on a silent peer within seconds.

    After a partition TCP retries by its own back-off (up to minutes); a new connection is there
    within milliseconds."""
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Keepalive(idle_s=2, interval_s=1, probes=3, unacknowledged_ms_max=unacknowledged_ms_max).apply(
        raw
    )
