"""Inbound links, of which `Incoming` admits the diallers, and `Accepted` is a connection.

Limits: connections without a hello are bounded in number and in time, a hello in size. Beyond the
number an older connection of the address with the most is closed, so no client shuts out a replica.
The number of connections from unknown replicas is bounded, because any client can claim an id.
Malformed data closes only its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection

from raftmq.ops.fairness import Evictor

from ..raft.messages import NodeId
from .link import Line, LinkHandler, Reader
from .network import FROM_PEER, ip_of
from .outbound import Local, now_ms
from .wire import (
    Hello,
    HelloAnswer,
    WireError,
    decode_hello,
    decode_identity,
    encode_answer,
    encode_identity,
    spoken,
)

log = logging.getLogger("raftmq.dledger.transport.transport")

HANDSHAKING_MAX = 64  # accepted connections that have not said hello
STRANGERS_MAX = 16  # connections of replicas that this replica does not dial
HELLO_SIZE_BYTES_MAX = 1024  # more than the longest hello: 8 + 3 * 255 + 4
TAKEOVERS_MAX = 8  # of a peer's live connection, in TAKEOVERS_MS; more are no coincidence
TAKEOVERS_MS = 10_000
WAS_REMOVED = "was removed from group"  # in the refusal that a removed replica gets


class Incoming:
    """The connections that peers dialled; at most one per peer brings messages."""

    def __init__(
        self, local: Local, handler: LinkHandler, make_reader: Callable[[NodeId, NodeId], Reader]
    ) -> None:
        """`make_reader(sender, this node)` makes the reader of a peer's messages."""
        self.handler = handler
        self.refusals = 0
        self.met_itself = 0  # connections that this replica dialled to itself
        self.is_shut = False  # no dialler is admitted any more
        self._local = local
        self._make_reader = make_reader
        self._removed: frozenset[NodeId] = frozenset()
        self._accepted: set[Accepted] = set()
        self._silent: Evictor[Accepted] = Evictor(with_accounts=True)  # without a hello
        self._by_peer: dict[NodeId, Accepted] = {}
        self._takeovers: dict[NodeId, deque[float]] = {}  # when the last ones were

    def lines(self) -> list[Line]:
        """Return all accepted connections, including those without a hello."""
        return [accepted.line for accepted in self._accepted]

    def by_peer(self) -> list[tuple[NodeId, Line]]:
        """Return the connections that bring messages, each with its peer."""
        return [(peer, accepted.line) for peer, accepted in self._by_peer.items()]

    def line(self, peer: NodeId) -> Line | None:
        """Return the connection that brings messages of `peer`, or None."""
        accepted = self._by_peer.get(peer)
        return None if accepted is None else accepted.line

    def abort(self, peer: NodeId) -> None:
        """Abort the connection that brings messages of `peer`, if it exists."""
        line = self.line(peer)
        if line is not None:
            line.abort()

    def remove(self, removed: Collection[NodeId]) -> None:
        """Answer dials of exactly these replicas with the news of their removal."""
        self._removed = frozenset(removed)
        for peer in self._removed:
            self.abort(peer)

    def refusal(self, hello: Hello, transport: asyncio.BaseTransport) -> str:
        """Return the reason to refuse a dialler, or "". A stranger is admitted with `strangers`,
        because it may be a new member (RaftCore.step)."""
        group, node_id = self._local.group, self._local.node_id
        if hello.group != group:
            return f"this is group {group}, not {hello.group}"
        if hello.receiver != node_id:
            return f"this is {node_id}, not {hello.receiver}"
        if hello.sender == node_id:
            self.met_itself += 1
            return f"this is {node_id} itself"
        if hello.sender in self._removed:
            return f"{hello.sender} {WAS_REMOVED} {group}"
        dialer = self._local.dialers.get(hello.sender)
        if dialer is not None:
            doubt = self._local.config.network.doubt
            doubts = [doubt(transport, host) for host in dialer.hosts]
            return doubts[0] if all(doubts) else self._usurps(hello.sender, transport)
        if not self._local.config.strangers:
            return f"{hello.sender} is no member of group {group}"
        strangers = self._by_peer.keys() - self._local.dialers.keys() - {hello.sender}
        return "too many strangers are connected" if len(strangers) >= STRANGERS_MAX else ""

    def refused(self) -> None:
        """Count a connection that is closed because of its data, or without data."""
        self.refusals += 1

    def opened(self, connection: Accepted) -> bool:
        """Count a new connection, and close an older connection if too many have sent no hello.
        Return False when the port is shut."""
        if not self.is_shut and len(self._silent) >= HANDSHAKING_MAX:
            evicted = self._silent.choose(HANDSHAKING_MAX)
            if evicted is not None:
                self.refused()
                evicted.line.abort()
        self._accepted.add(connection)
        self._silent.added(connection)
        return not self.is_shut

    def welcome(self, connection: Accepted, peer: NodeId) -> Reader:
        """Note that the connection brings messages of `peer` from now on; return their reader."""
        old = self.line(peer)
        self._silent.removed(connection)
        self._by_peer[peer] = connection
        if old is not None:
            self._took_over(peer, old, connection.line)
            old.abort()  # the peer dialled again, so it gave up the old connection
        dialer = self._local.dialers.get(peer)
        if dialer is not None:
            dialer.hurry()  # skip the back-off, because the peer is alive
        return self._make_reader(peer, self._local.node_id)

    def _took_over(self, peer: NodeId, old: Line, new: Line) -> None:
        """Detect two processes with the same id, which replace each other's connections forever."""
        if peer not in self._local.dialers:
            return  # anybody can claim to be a stranger
        if self._is_contested(peer):
            self._local.identity.doubled(peer, (old.where, new.where), now_ms())
        self._tried(peer)

    def _usurps(self, peer: NodeId, transport: asyncio.BaseTransport) -> str:
        """Return the reason why a connection does not replace the peer's present connection, or "".
        Of two processes with the same id, the process at the dialled address wins."""
        old, dialled = self.line(peer), self._local.dialers[peer].transport
        if old is None or dialled is None or not self._is_contested(peer):
            return ""
        own, here = ip_of(dialled), ip_of(transport)
        if own == here or own != ip_of(old.transport):
            return ""
        self._tried(peer)
        self._local.identity.doubled(peer, (old.where, here), now_ms())
        return f"{peer} is at {own}: {here} has another process with its dLegerSelfId"

    def _is_contested(self, peer: NodeId) -> bool:
        """Return whether a peer's connection was replaced too often of late to be by chance."""
        last = self._takeovers.get(peer, deque())
        return len(last) == TAKEOVERS_MAX and now_ms() - last[0] < TAKEOVERS_MS

    def _tried(self, peer: NodeId) -> None:
        self._takeovers.setdefault(peer, deque(maxlen=TAKEOVERS_MAX)).append(now_ms())

    def lost(self, connection: Accepted) -> None:
        """Handle a closed connection; report it if it brought messages."""
        self._accepted.discard(connection)
        self._silent.removed(connection)
        peer = connection.peer
        if peer is not None and self._by_peer.get(peer) is connection:
            del self._by_peer[peer]
            self._takeovers.pop(peer, None)
            if not self.is_shut:
                self.handler.on_closed(peer)


class Accepted(asyncio.Protocol):
    """A connection that a peer dialled. It brings the peer's hello, then its messages."""

    def __init__(self, local: Local, door: Incoming) -> None:
        self.line = Line()
        self.peer: NodeId | None = None
        self._local = local
        self._door = door
        self._hello: Hello | None = None
        self._reader: Reader | None = None
        self._opening = b""
        self._timer: asyncio.TimerHandle | None = None
        # For the eviction of connections without a hello (ops.fairness).
        self.is_open, self.is_busy, self.has_account = True, False, False
        self.holder, self.last_active_s = "", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        config = self._local.config
        self.holder = ip_of(self.line.made(transport, config))
        if not self._door.opened(self):
            self._door.refused()
            self.line.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(config.connect_timeout_ms / 1000, self.line.abort)

    def data_received(self, data: bytes) -> None:
        try:
            if self._reader is None:
                data = self._receive_hello(data)
            if self._reader is not None and data:
                messages = self._reader.receive_data(data)
                if messages:
                    self._door.handler.on_messages(messages)
        except WireError as error:
            self._door.refused()
            where = self.peer or self.line.where
            log.warning("peer_refused from=%s reason=%s", where, error.reason, extra=FROM_PEER)
            self.line.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.line.ended()
        self._stop_timer()
        self._door.lost(self)

    def _receive_hello(self, data: bytes) -> bytes:
        """Consume hello and dialler's group id; return the bytes behind. Raises WireError."""
        self._opening += data
        transport = self.line.transport
        assert transport is not None
        if self._hello is None:
            decoded = decode_hello(self._opening)
            if decoded is None:
                if len(self._opening) > HELLO_SIZE_BYTES_MAX:
                    raise WireError("a hello that does not end")
                return b""
            hello, size = decoded
            self._opening = self._opening[size:]
            if not self._answer(hello, self._door.refusal(hello, transport)):
                return b""
            self._hello = hello
            transport.write(encode_identity(self._local.identity.group_id))
        said = decode_identity(self._opening)
        if said is None:
            return b""
        self.line.group_id, size = said
        self._opening = self._opening[size:]
        if not self._answer(self._hello, self._local.judge(self.line, self._hello.sender, False)):
            return b""
        return self._welcome(self._hello)

    def _answer(self, hello: Hello, reason: str) -> bool:
        """Answer the hello, refused for a `reason`. Return whether the dialler is admitted."""
        transport = self.line.transport
        assert transport is not None
        transport.write(encode_answer(HelloAnswer(reason, spoken(hello))))
        if reason:
            self._door.refused()
            if not self.line.group_id:  # otherwise `judge` has logged it if that was due
                where = self.line.where
                log.warning("peer_refused from=%s reason=%s", where, reason, extra=FROM_PEER)
            transport.close()  # not abort, because the reason has to arrive
        return not reason

    def _welcome(self, hello: Hello) -> bytes:
        self._stop_timer()
        rest, self._opening = self._opening, b""
        self.peer = hello.sender
        self._reader = self._door.welcome(self, hello.sender)
        return rest

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
