"""Common parts of a replica's links, such as settings, handlers, and the `Line`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ..raft.messages import NodeId
from .network import Network, PlainNetwork, other_end, tune
from .peer_auth import Gate
from .wire import PeerMessage


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address at which a replica listens. `host` is a name or address, unresolved."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Settings of the links: time-outs in milliseconds, limits in bytes."""

    backoff_ms_min: int = 20
    backoff_ms_max: int = 500
    connect_timeout_ms: int = 1_000  # resolve, connect and hello together
    unacknowledged_ms_max: int = 2_000  # then TCP gives up; its own back-off is far longer
    send_buffer_bytes_max: int = 32 << 20  # 4 times what the core keeps in flight to a peer
    listen_host: str | None = None  # None: the host of this node's own entry in the peers
    network: Network = field(default_factory=PlainNetwork)
    gate: Gate | None = None  # guards `network`; None: peers prove nothing
    strangers: bool = True  # admit some replicas that this replica does not dial


class LinkHandler(Protocol):
    """Receives the links' events. Called on the loop, directly from the connection's callbacks."""

    def on_messages(self, messages: list[PeerMessage]) -> None:
        """Handle all messages of a read, in order, all from the same peer."""

    def on_opened(self, peer: NodeId) -> None:
        """Note that messages to `peer` are sent from now on."""

    def on_closed(self, peer: NodeId) -> None:
        """Note that an established connection to or from `peer` was lost."""

    def on_failed(self, error: BaseException) -> None:
        """Note that a bug ended a link's task."""


class Reader(Protocol):
    """Splits the bytes of a peer's connection into messages, as `wire.MessageReader` does."""

    def receive_data(self, data: bytes) -> list[Any]:
        """Return all messages that `data` completes. After a WireError the connection is closed."""
        ...


class Line:
    """A connection's transport, and a future that is done when it is closed."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.group_id = b""  # of the other end; empty: unknown

    @property
    def where(self) -> str:
        return other_end(self.transport)

    def made(self, transport: asyncio.BaseTransport, config: LinkConfig) -> asyncio.Transport:
        self.transport = cast(asyncio.Transport, transport)
        tune(self.transport, config.unacknowledged_ms_max)
        return self.transport

    def ended(self) -> None:
        """Note that the connection is closed."""
        if not self.lost.done():
            self.lost.set_result(None)

    def close(self) -> None:
        # A second close of TLS in Python before 3.11.4 makes `abort` fail.
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
