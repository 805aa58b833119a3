"""Forwards clients' connections to gRPC's server.

gRPC's port can serve either TLS or plain connections, and it neither counts nor limits them. So a
`TlsListener` listens, as at all ports of this project, and connections are forwarded to gRPC's own
plain port on loopback. `client_of` maps gRPC's peers back to clients. Callers that connect to
gRPC's own port directly have no client.

Limits: three descriptors per connection, and eight ninths of the free connections per address. Each
direction buffers HIGH_BYTES and the loop's last read; then reading pauses. A side that reads
nothing for STALL_S is disconnected. After a side closes, the opposite side has LINGER_S for the
buffered data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from raftmq.ops.fairness import SharedLimit
from raftmq.remoting.connection import FROM_PEER

log = logging.getLogger("raftmq.proxy")

LOOPBACK = "127.0.0.1"
HIGH_BYTES = 64 << 10
LINGER_S = 5.0
STALL_S = 16.0  # gRPC's time limit for a ping's answer
DESCRIPTORS = 3  # per client, with both ends of the connection to gRPC
# An address may use eight ninths of the free connections, for load balancers
CONNECTIONS_SHARE = 8.0


class Forwarder:
    """A proxy's open connections. `grpc_port` is gRPC's own port."""

    def __init__(self, connections_max: int, grpc_port: int) -> None:
        self._shared = SharedLimit(connections_max, CONNECTIONS_SHARE)
        self._grpc_port = grpc_port
        self._clients: dict[str, str] = {}  # gRPC's peer → the client, in gRPC's form
        self._connecting: set[asyncio.Task[None]] = set()
        self.refused_count = 0

    @property
    def count(self) -> int:
        return self._shared.used

    def client_of(self, peer: str) -> str:
        """Return the client of a gRPC peer; "" for direct and closed connections."""
        return self._clients.get(peer, "")

    def new(self) -> asyncio.Protocol:
        return _Side(self._arrived)

    def stop(self) -> None:
        """Accept no further connections."""
        for task in self._connecting:
            task.cancel()

    def _arrived(self, client: _Side) -> None:
        """Connect a client to gRPC, unless the limit is reached."""
        address = client.transport.get_extra_info("peername")
        host, port = address[:2] if address else ("", 0)  # already disconnected
        if not self._shared.take(host):
            self.refused_count += 1
            text = "connection_bound limit=%d total=%d peer=%s"
            log.warning(text, self._shared.limit, self.refused_count, host, extra=FROM_PEER)
            client.transport.abort()
            return
        client.lost.add_done_callback(lambda _: self._shared.give_back(host))
        name = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        task = asyncio.get_running_loop().create_task(self._connect(client, name), name="passage")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: _Side, name: str) -> None:
        server: _Side | None = None
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(
                lambda: _Side(lambda _: None), LOOPBACK, self._grpc_port
            )
        except OSError as error:
            log.error("passage_failed peer=%s: %s", name, error)
            return
        finally:
            if server is None:
                client.transport.abort()
        peer = f"ipv4:{LOOPBACK}:{server.transport.get_extra_info('sockname')[1]}"
        self._clients[peer] = name
        server.lost.add_done_callback(lambda _: self._clients.pop(peer))
        server.join(client)
        client.join(server)


class _Side(asyncio.Protocol):
    """Either of the two connections of a client. `lost` completes at its end."""

    def __init__(self, connected: Callable[[_Side], None]) -> None:
        self._connected = connected
        self._transport: asyncio.Transport | None = None  # None before the connection
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._early = bytearray()  # data that arrived before the opposite side was connected
        self._peer: asyncio.Transport | None = None
        self._stall: asyncio.TimerHandle | None = None  # runs while this side reads too slowly

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._connected(self)

    def join(self, other: _Side) -> None:
        """Start forwarding."""
        self._peer = other.transport
        if self._early:
            self._peer.write(bytes(self._early))
            self._early.clear()
        if self.lost.done():
            self._close_peer()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._peer is not None:
            self._peer.write(data)
        else:
            self._early += data
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.pause_reading()
            self._watch()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._watch_no_more()
            self._peer.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        self._watch_no_more()
        self._close_peer()

    def _watch(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self.transport.get_write_buffer_size()
        self._stall = loop.call_later(STALL_S, self._check_stall, waiting)

    def _watch_no_more(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _check_stall(self, waiting_before: int) -> None:
        if self.transport.get_write_buffer_size() == waiting_before:
            self.transport.abort()
        else:
            self._watch()

    def _close_peer(self) -> None:
        if self._peer is not None and not self._peer.is_closing():
            self._peer.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._peer.abort)
