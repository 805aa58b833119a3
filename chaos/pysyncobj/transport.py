"""LinkTransport, pysyncobj's Transport over the links of dledger.transport.transport.

Each node dials every peer at the address in its own table; the dialled connection carries its
messages to that peer only. A peer counts as connected while the connection to it is open.

    off size field
    0   4    length   bytes of the pickle, big-endian, at most MESSAGE_SIZE_BYTES_MAX
    4   n    pickle   of the message, a dict, by pysyncobj's own dumps

pysyncobj's TCPTransport sends the same, compressed. It is a pickle, so anybody who reaches the port
can run code in this process. Links reject a hello of a foreign group or engine, or of a replica
outside dLegerPeers, but that is no authentication. This engine belongs on a closed network only.

`LinkConfig` bounds the bytes that wait for a slow peer. Further messages are dropped, and SyncObj
ignores the return value.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from pysyncobj.node import Node
from pysyncobj.pickle import dumps, loads
from pysyncobj.transport import Transport

from raftmq.dledger.raft.config import Random
from raftmq.dledger.raft.messages import NodeId
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.transport.transport import PeerLinks
from raftmq.dledger.transport.wire import WireError

log = logging.getLogger("raftmq.chaos.pysyncobj")

# Two entries of the largest size, each twice, because pysyncobj's pickles write most bytes as two.
MESSAGE_SIZE_BYTES_MAX = 80 << 20
_LENGTH = struct.Struct(">I")

Received = tuple[NodeId, dict[str, Any]]


class PickleReader:
    """Splits a connection's bytes into messages; holds at most one incomplete message."""

    def __init__(self, sender: NodeId, to: NodeId) -> None:
        self._sender = sender
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    def receive_data(self, data: bytes) -> list[Received]:
        """Return all messages that `data` completes. Raises WireError; the reader is then dead."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        data = b"".join(self._parts)
        at, end = 0, len(data)
        result: list[Received] = []
        self._need = _LENGTH.size
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > MESSAGE_SIZE_BYTES_MAX:
                raise WireError(f"a message of {length} bytes")
            if end - at < _LENGTH.size + length:
                self._need = _LENGTH.size + length
                break
            at += _LENGTH.size
            result.append((self._sender, _unpickled(data[at : at + length])))
            at += length
        self._parts = [data[at:]]
        self._have = end - at
        return result


class Driver(Protocol):
    """The owner of the SyncObj."""

    def guarded(self, act: Callable[[], None]) -> None:
        """Call `act`, which changes SyncObj, and handle its exceptions."""
        ...

    def pump(self) -> None:
        """Perform the consequences of the change."""
        ...

    def on_failed(self, error: BaseException) -> None:
        """Note that a bug ended the task that keeps a link up."""
        ...


class LinkTransport(Transport):  # type: ignore[misc]  # the package has no types
    """pysyncobj's Transport over the links of dledger.transport.transport."""

    def __init__(
        self,
        config: MemberConfig,
        rng: Random,
        driver: Driver,
        listen_socket: socket.socket | None = None,
    ) -> None:
        node = Node(config.node_id)
        super().__init__(None, node, [])
        self._nodes = {peer: Node(peer) for peer in config.peers if peer != config.node_id}
        self._driver = driver
        self.links = PeerLinks(
            config.node_id,
            f"{config.group}/pysyncobj",
            config.peers,
            self,
            rng,
            replace(config.links, strangers=False),
            listen_socket,
            PickleReader,
        )

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Send a message; return False if it was dropped."""
        data = dumps(message)
        if len(data) > MESSAGE_SIZE_BYTES_MAX:
            log.error("message_too_large to=%s size_bytes=%d", node.id, len(data))
            return False
        droppable = bool(message.get("entries"))
        return self.links.send(node.id, [_LENGTH.pack(len(data)), data], droppable=droppable)

    def destroy(self) -> None:
        """Stop reporting; the owner of the links stops them."""
        self.setOnMessageReceivedCallback(None)
        self.setOnNodeConnectedCallback(None)
        self.setOnNodeDisconnectedCallback(None)

    def on_messages(self, messages: list[Any]) -> None:
        received: list[Received] = messages
        for sender, message in received:
            self._driver.guarded(partial(self._onMessageReceived, self._nodes[sender], message))
        self._driver.pump()

    def on_opened(self, peer: NodeId) -> None:
        log.info("peer_opened peer=%s", peer)
        self._driver.guarded(partial(self._onNodeConnected, self._nodes[peer]))
        self._driver.pump()

    def on_closed(self, peer: NodeId) -> None:
        """Report a lost connection, of either direction, if messages no longer leave."""
        if not self.links.is_open(peer):
            log.info("peer_closed peer=%s", peer)
            self._driver.guarded(partial(self._onNodeDisconnected, self._nodes[peer]))
            self._driver.pump()

    def on_failed(self, error: BaseException) -> None:
        self._driver.on_failed(error)


def _unpickled(data: bytes) -> dict[str, Any]:
    try:
        message = loads(data)
    except Exception as error:  # a pickle can raise anything
        raise WireError(f"not a pickle: {error!r}") from error
    if not isinstance(message, dict) or "type" not in message:
        raise WireError("a pickle, but not a message")
    return message
