"""The connections of clients, on their way to gRPC. Shell.

gRPC's port takes TLS or plain connections, not both, does not count them, and says nothing of a
client of the other kind. So `TlsListener` listens, as at every port of this project, and what
arrives passes through here to gRPC's own port, which is at a loopback address and plain. All calls
come to gRPC from there: `client_of` knows whose they are. A caller that connected to gRPC's own
port is nobody's.

Bounds: so many connections as descriptors allow, of which each takes three, and eight ninths of the
free ones to one address. Of each connection, HIGH_BYTES and one read of the loop wait in either
direction: what one side does not read is not read from the other, and a side that reads nothing for
STALL_S has gone. When one side has closed, the other has LINGER_S for what still waits.
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
STALL_S = 16.0  # gRPC's own patience for the answer to a ping
DESCRIPTORS = 3  # of a client: its own connection, and both ends of that to gRPC
CONNECTIONS_SHARE = 8.0  # of the free ones, one address has eight ninths: a load balancer, perhaps


class Passages:
    """The open connections; one per proxy. `grpc_port`: gRPC's own."""

    def __init__(self, connections_max: int, grpc_port: int) -> None:
        self._shared = SharedLimit(connections_max, CONNECTIONS_SHARE)
        self._grpc_port = grpc_port
        self._clients: dict[str, str] = {}  # the peer that gRPC sees → the client, in gRPC's form
        self._connecting: set[asyncio.Task[None]] = set()
        self.refused_count = 0

    @property
    def count(self) -> int:
        return self._shared.used

    def client_of(self, peer: str) -> str:
        """Return the client whose calls come from a peer of gRPC's; "" for a peer that did not come
        through here, or has gone."""
        return self._clients.get(peer, "")

    def new(self) -> asyncio.Protocol:
        """Return the protocol of a client's connection."""
        return _Side(self._arrived)

    def stop(self) -> None:
        """Begin nothing more."""
        for task in self._connecting:
            task.cancel()

    def _arrived(self, client: _Side) -> None:
        """Connect a client to gRPC, unless it is one too many."""
        address = client.transport.get_extra_info("peername")
        host, port = address[:2] if address else ("", 0)  # it has gone
        if not self._shared.take(host):
            self.refused_count += 1
            words = "connection_bound limit=%d total=%d peer=%s"
            log.warning(words, self._shared.limit, self.refused_count, host, extra=FROM_PEER)
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
    """One of the two connections of a passage. `lost` is done once it has ended."""

    def __init__(self, made: Callable[[_Side], None]) -> None:
        self._made = made
        self._transport: asyncio.Transport | None = None  # until it is connected
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._early = bytearray()  # what came before the other side was there
        self._other: asyncio.Transport | None = None
        self._stall: asyncio.TimerHandle | None = None  # while this side reads too slowly

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._made(self)

    def join(self, other: _Side) -> None:
        """Begin to pass on what arrives."""
        self._other = other.transport
        if self._early:
            self._other.write(bytes(self._early))
            self._early.clear()
        if self.lost.done():
            self._end_other()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)
        else:
            self._early += data
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading()
            self._watch()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._watch_no_more()
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        self._watch_no_more()
        self._end_other()

    def _watch(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self.transport.get_write_buffer_size()
        self._stall = loop.call_later(STALL_S, self._look, waiting)

    def _watch_no_more(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _look(self, waiting_before: int) -> None:
        if self.transport.get_write_buffer_size() == waiting_before:
            self.transport.abort()
        else:
            self._watch()

    def _end_other(self) -> None:
        if self._other is not None and not self._other.is_closing():
            self._other.close()
            asyncio.get_running_loop().call_later(LINGER_S, self._other.abort)
