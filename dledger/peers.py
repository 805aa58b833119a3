"""The links between the replicas of a group, over asyncio's Protocol classes.

Each node dials every other member of its group; the members may change (`set_peers`). The
connection a node dialled carries its messages to that peer and nothing else but the answer to its
hello; so a directed link is one TCP connection, and losing either direction is noticed at once on
both ends. Names are resolved anew at each dial. Replicas of different groups disconnect, even if
the groups have one name (identity.py).

Limits: the bytes waiting for a peer that does not read are bounded (beyond it messages are
dropped: Raft sends again); the size of a received message is bounded by `wire`; connections that
have not said hello are bounded in number and in time. Malformed input closes that one connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from raftmq.dledger.connections import (
    Accepted,
    Connection,
    Dialer,
    Dialled,
    LinkConfig,
    LinkHandler,
    PeerAddress,
    Reader,
    now_ms,
)
from raftmq.dledger.identity import GroupIdentity, Meeting
from raftmq.dledger.messages import NodeId
from raftmq.dledger.network import FROM_PEER, Listening
from raftmq.dledger.state import Random
from raftmq.dledger.wire import (
    GROUP_ID_VERSION,
    MESSAGE_SIZE_BYTES_MAX,
    GroupAnnounced,
    Hello,
    MessageReader,
    encode_message,
)

__all__ = ["LinkConfig", "LinkHandler", "PeerAddress", "PeerLinks", "Reader"]

log = logging.getLogger("raftmq.dledger.peers")

HANDSHAKING_MAX = 64  # accepted connections that have not said hello
# Room for votes and heartbeats behind a full buffer of frames and the one largest message.
CONTROL_RESERVE_BYTES = MESSAGE_SIZE_BYTES_MAX + (1 << 20)
WAS_REMOVED = "was removed from group"  # in the refusal that a removed replica gets


class PeerLinks:
    """All links of one node. `start` listens and dials; `stop` closes everything it opened."""

    def __init__(
        self,
        node_id: NodeId,
        group: str,
        peers: Mapping[NodeId, PeerAddress],
        handler: LinkHandler,
        rng: Random,
        config: LinkConfig | None = None,
        listen_socket: socket.socket | None = None,
        make_reader: Callable[[NodeId, NodeId], Reader] = MessageReader,
        identity: GroupIdentity | None = None,
    ) -> None:
        """`peers` includes this node itself: it listens at that address, unless a bound socket is
        given. `make_reader(sender, this node)` makes the reader of a peer's messages. Without an
        `identity` this node's group id is never known."""
        assert node_id in peers, (node_id, list(peers))
        self.node_id = node_id
        self.make_reader = make_reader
        self.group = group
        self.handler = handler
        self.config = config or LinkConfig()
        self.identity = identity or GroupIdentity()
        self.identity.known = self._group_known
        self._rng = rng
        self._listen_socket = listen_socket
        self._address = peers[node_id]
        self._dialers = {
            peer: Dialer(self, address, rng) for peer, address in peers.items() if peer != node_id
        }
        self._retired: list[Dialer] = []
        self._removed: frozenset[NodeId] = frozenset()
        self.started = False  # listens and dials
        self._server: Listening | None = None
        self._accepted: set[Accepted] = set()
        self._incoming: dict[NodeId, Accepted] = {}
        self._stopping = False
        self.refused = 0  # connections refused, or closed for malformed or illegal messages

    async def start(self) -> None:
        """Listen, then dial. Raises OSError if the port is taken."""
        self._server = await self.config.network.listen(
            lambda: Accepted(self),
            self.config.listen_host or self._address.host,
            self._address.port,
            self._listen_socket,
        )
        self.started = True
        for dialer in self._dialers.values():
            dialer.start()

    def set_peers(
        self, peers: Mapping[NodeId, PeerAddress], removed: Collection[NodeId] = ()
    ) -> None:
        """Dial these peers, and nobody else, from now on; what waits for the others is still sent.
        A `removed` replica is told so when it dials."""
        self._removed = frozenset(removed)
        self._retired = [dialer for dialer in self._retired if not dialer.is_over]
        for peer, dialer in list(self._dialers.items()):
            if peers.get(peer) != dialer.address:
                dialer.retire()
                self._retired.append(dialer)
                del self._dialers[peer]
        for peer, address in peers.items():
            if peer != self.node_id and peer not in self._dialers:
                dialer = self._dialers[peer] = Dialer(self, address, self._rng)
                if self.started and not self._stopping:
                    dialer.start()
        for peer in self._removed & self._incoming.keys():
            self._incoming[peer].abort()

    async def stop(self, linger_ms: int = 200) -> None:
        """Close all links and stop reporting; buffered data gets `linger_ms` to be sent."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        dialers = [*self._dialers.values(), *self._retired]
        for dialer in dialers:
            await dialer.stop()
        connections: list[Connection] = list(self._accepted)
        connections += [d.connection for d in dialers if d.connection is not None]
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([c.lost for c in connections], timeout=linger_ms / 1000)
            for connection in connections:
                connection.abort()
            await asyncio.wait([c.lost for c in connections])
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def abort(self) -> None:
        """Abort every connection now, so that the peers notice at once that this node is gone.

        Stops reporting; `stop` is still to be called."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for dialer in (*self._dialers.values(), *self._retired):
            dialer.cut()
        for accepted in list(self._accepted):
            accepted.abort()

    def send(self, peer: NodeId, buffers: Sequence[bytes], *, droppable: bool) -> bool:
        """Write buffers to `peer` in one call; return False if they were dropped.

        They are dropped without an open link, for a stranger, and when too much is waiting;
        `droppable` says that the buffers carry frames, which are dropped first."""
        dialer = self._dialers.get(peer)
        transport = None if dialer is None else dialer.transport
        if dialer is None or transport is None:
            return False
        limit = self.config.send_buffer_bytes_max
        if transport.get_write_buffer_size() >= (
            limit if droppable else limit + CONTROL_RESERVE_BYTES
        ):
            dialer.dropped += 1
            return False
        transport.writelines(buffers)
        return True

    def is_open(self, peer: NodeId) -> bool:
        """Return whether the link to `peer` is open, so that messages go out."""
        dialer = self._dialers.get(peer)
        return dialer is not None and dialer.transport is not None

    def dropped(self, peer: NodeId) -> int:
        """Return how many writes to `peer` were dropped at the buffer's limit."""
        dialer = self._dialers.get(peer)
        return 0 if dialer is None else dialer.dropped

    def last_error(self, peer: NodeId) -> str:
        """Return why the last attempt to reach `peer` failed; empty if it did not."""
        dialer = self._dialers.get(peer)
        return "" if dialer is None else dialer.error

    def version(self, peer: NodeId) -> int:
        """Return the protocol version spoken on the last connection to `peer`; 0: there was
        none."""
        dialer = self._dialers.get(peer)
        return 0 if dialer is None else dialer.version

    def refuse(self, peer: NodeId, reason: str) -> None:
        """Close the connection over which `peer` sent a message that breaks Raft's rules. It may
        dial again."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # 1, 2, 4, 8, ...: no flood
            words = "peer_breaks_rules peer=%s total=%d %s"
            log.error(words, peer, self.refused, reason, extra=FROM_PEER)
        accepted = self._incoming.get(peer)
        if accepted is not None:
            accepted.abort()

    @property
    def told_removed(self) -> bool:
        """True if a peer refuses this node because it was removed. For operators only: the core
        relies on its log alone."""
        return any(WAS_REMOVED in dialer.error for dialer in self._dialers.values())

    # -- the group's id (identity.py) --

    def on_announced(self, message: GroupAnnounced) -> None:
        """Note the group id of a peer that learned it after it had connected."""
        accepted = self._incoming.get(message.sender)
        if accepted is None:
            return
        accepted.group_id = message.group_id
        if self.identity.group_id and self.judge(accepted, message.sender, False):
            self._part(message.sender)

    def _group_known(self) -> None:
        """Act on this node's group id, which has just become known: close the links to peers of
        another group, announce the id to the others, and dial the rest without delay."""
        if self._stopping:
            return
        for peer, accepted in list(self._incoming.items()):
            if self.judge(accepted, peer, False):
                self._part(peer)
        for peer, dialer in self._dialers.items():
            opened = dialer.connection if dialer.transport is not None else None
            if opened is not None and self.judge(opened, peer, True):
                self._part(peer)
            elif opened is not None:
                self.announce(opened, peer)
            dialer.hurry()

    def announce(self, connection: Dialled, peer: NodeId) -> None:
        """Tell a peer this end's group id if that changed since the connection's handshake."""
        known = self.identity.group_id
        if connection.version >= GROUP_ID_VERSION and connection.said != known:
            connection.said = known
            message = GroupAnnounced(self.node_id, peer, known)
            self.send(peer, encode_message(message), droppable=False)

    def judge(self, connection: Connection, peer: NodeId, dialled: bool) -> str:
        """Return why the two replicas' groups forbid them to talk; empty if they may."""
        own, dialer = self._address, self._dialers.get(peer)
        where = connection.where
        if dialled and dialer is not None:
            where = f"{dialer.address.host}:{dialer.address.port}"
        meeting = Meeting(
            self.node_id,
            f"{own.host}:{own.port}",
            peer,
            where,
            connection.group_id,
            dialled,
            alone=not self._dialers,
        )
        reason = self.identity.judge(meeting, now_ms())
        if reason and not self.identity.group_id and dialer is not None:
            dialer.ask_again()  # its id is taken from a connection dialled from here
        return reason

    def group_status(self) -> dict[str, object]:
        return self.identity.status(now_ms())

    def _part(self, peer: NodeId) -> None:
        dialer, accepted = self._dialers.get(peer), self._incoming.get(peer)
        if accepted is not None:
            accepted.abort()
        if dialer is not None and dialer.connection is not None:
            dialer.connection.abort()

    # -- for the connections below --

    def refusal(self, hello: Hello, transport: asyncio.BaseTransport) -> str:
        """Return why a dialler is not welcome; empty if it is. A stranger is welcome: it may be a
        member that this node has not heard of yet, and must hear (RaftCore.step)."""
        if hello.group != self.group:
            return f"this is group {self.group}, not {hello.group}"
        if hello.receiver != self.node_id:
            return f"this is {self.node_id}, not {hello.receiver}"
        if hello.sender == self.node_id:
            return f"this is {self.node_id} itself"
        if hello.sender in self._removed:
            return f"{hello.sender} {WAS_REMOVED} {self.group}"
        dialer = self._dialers.get(hello.sender)
        return self.config.network.doubt(transport, dialer.address.host) if dialer else ""

    def accepted_opened(self, connection: Accepted) -> bool:
        """Count a new connection; return False if too many have not said hello, or the links are
        stopping."""
        self._accepted.add(connection)
        silent = len(self._accepted) - len(self._incoming)
        return silent <= HANDSHAKING_MAX and not self._stopping

    def accepted_welcome(self, connection: Accepted, peer: NodeId) -> None:
        old = self._incoming.get(peer)
        self._incoming[peer] = connection
        if old is not None:
            old.abort()  # the peer dialled again: it gave the old one up
        dialer = self._dialers.get(peer)
        if dialer is not None:
            dialer.hurry()  # it lives: no need to wait out the back-off

    def accepted_lost(self, connection: Accepted) -> None:
        self._accepted.discard(connection)
        peer = connection.peer
        if peer is not None and self._incoming.get(peer) is connection:
            del self._incoming[peer]
            self.report_closed(peer)

    def report_closed(self, peer: NodeId) -> None:
        if not self._stopping:
            self.handler.on_closed(peer)
