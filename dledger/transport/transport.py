"""The links between the replicas of a group, over asyncio's Protocol classes.

Each node dials every other member of its group; the members may change (`set_peers`). A connection
carries its dialler's messages, and in return only the answer to the hello. So a directed link is a
TCP connection, and both ends notice the loss of either direction at once. Names are resolved at
each dial. Replicas of different groups disconnect (group_id.py).

Limits: bytes waiting for a slow peer are bounded (then messages are dropped, since Raft sends them
again); `wire` bounds the size of a received message; connections without a hello are bounded in
number and in time. Malformed input closes only its connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from raftmq.ops.listening import Listening

from ..raft.config import Random
from ..raft.configuration import host_and_port
from ..raft.errors import ONE_ID
from ..raft.messages import NodeId
from .group_id import GroupIdentity
from .inbound import WAS_REMOVED, Accepted, Incoming
from .link import LinkConfig, LinkHandler, PeerAddress, Reader
from .network import FROM_PEER
from .outbound import Dialer, Local, now_ms, why_not_at
from .wire import (
    MESSAGE_SIZE_BYTES_MAX,
    MessageReader,
)

__all__ = ["LinkConfig", "LinkHandler", "PeerAddress", "PeerLinks", "Reader"]

log = logging.getLogger("raftmq.dledger.transport.transport")

# Space for votes and heartbeats behind a full buffer of frames and the largest message.
CONTROL_RESERVE_BYTES = MESSAGE_SIZE_BYTES_MAX + (1 << 20)


class PeerLinks:
    """All links of a node. `start` listens and dials; `stop` closes everything."""

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
        """`peers` includes this node, which listens at that address, unless a bound socket is
        given. `make_reader(sender, this node)` makes the reader of a peer's messages. Without an
        `identity` this node's group id stays unknown."""
        assert node_id in peers, (node_id, list(peers))
        identity, config = identity or GroupIdentity(), config or LinkConfig()
        local = self.local = Local(node_id, group, peers[node_id], config, identity)
        identity.subscribe(self._group_known)
        self._handler = handler
        self._rng = rng
        self._listen_socket = listen_socket
        self._dialers = local.dialers
        for peer, address in peers.items():
            if peer != node_id:
                self._dial(address)
        self._retired: list[Dialer] = []
        self._reached_itself: PeerAddress | None = None  # an address that leads to this node
        self._incoming = Incoming(local, handler, make_reader)
        self.started = False  # listens and dials
        self._server: Listening | None = None

    def _dial(self, address: PeerAddress) -> Dialer:
        dialer = Dialer(self.local, address, self._rng, self._handler)
        self._dialers[address.node_id] = dialer
        return dialer

    async def start(self) -> None:
        """Listen, then dial; also after a `stop`. Raises OSError if the port is in use."""
        bound, self._listen_socket = self._listen_socket, None
        config, address = self.local.config, self.local.address
        self._incoming.is_shut = False
        self._server = await config.network.listen(
            lambda: Accepted(self.local, self._incoming),
            config.listen_host or address.host,
            address.port,
            bound,
        )
        self.started = True
        for dialer in self._dialers.values():
            dialer.start()

    def set_peers(
        self, peers: Mapping[NodeId, PeerAddress], removed: Collection[NodeId] = ()
    ) -> None:
        """Dial exactly these peers from now on; buffered data for former peers is still sent. A
        `removed` replica is informed when it dials."""
        self._retired = [dialer for dialer in self._retired if not dialer.is_over]
        for peer, dialer in list(self._dialers.items()):
            if peers.get(peer) != dialer.address:
                dialer.retire()
                self._retired.append(dialer)
                del self._dialers[peer]
        for peer, address in peers.items():
            if peer != self.local.node_id and peer not in self._dialers:
                dialer = self._dial(address)
                if self.started and not self._incoming.is_shut:
                    dialer.start()
        self._incoming.remove(removed)

    def set_spares(self, spares: Mapping[NodeId, PeerAddress]) -> None:
        """Also dial unreachable peers at these addresses."""
        for peer, dialer in self._dialers.items():
            spare = spares.get(peer)
            dialer.spare = None if spare == dialer.address else spare

    async def stop(self, linger_ms: int = 200) -> None:
        """Close all links and stop reporting; buffered data gets `linger_ms` to be sent."""
        self._incoming.is_shut = True
        if self._server is not None:
            self._server.close()
        dialers = [*self._dialers.values(), *self._retired]
        for dialer in dialers:
            await dialer.stop()
        lines = self._incoming.lines()
        lines += [d.connection.line for d in dialers if d.connection is not None]
        for line in lines:
            line.close()
        if lines:
            await asyncio.wait([line.lost for line in lines], timeout=linger_ms / 1000)
            for line in lines:
                line.abort()
            await asyncio.wait([line.lost for line in lines])
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def abort(self) -> None:
        """Abort every connection, so that peers notice at once. `stop` has to follow."""
        self._incoming.is_shut = True
        if self._server is not None:
            self._server.close()
        for dialer in (*self._dialers.values(), *self._retired):
            dialer.cut()
        for line in self._incoming.lines():
            line.abort()

    def send(self, peer: NodeId, buffers: Sequence[bytes], *, droppable: bool) -> bool:
        """Write buffers to `peer` in a single call; return False if they were dropped.

        They are dropped without an open link, for a stranger, and when too many bytes are waiting.
        `droppable` buffers carry frames, and are dropped first."""
        dialer = self._dialers.get(peer)
        transport = None if dialer is None else dialer.transport
        if dialer is None or transport is None:
            return False
        limit = self.local.config.send_buffer_bytes_max
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

    def is_at(self, node_id: NodeId, address: str) -> bool:
        """Return whether that replica is reached at this address (host:port) now. This replica is
        reached where it listens, or where it has reached itself (`why_not_at`)."""
        known = [self.local.address, self._reached_itself]
        if node_id != self.local.node_id:
            known = [self._dialers[node_id].at] if self.is_open(node_id) else []
        return host_and_port(address) in [
            host_and_port(f"{at.host}:{at.port}") for at in known if at
        ]

    async def why_not_at(self, node_id: NodeId, address: str) -> str:
        """Return the reason why that replica is not reached at this address (host:port), or ""."""
        host, port = host_and_port(address)
        at = PeerAddress(node_id, host, int(port))
        if node_id != self.local.node_id:
            return "" if self.is_at(node_id, address) else await why_not_at(self.local, at)
        met = self._incoming.met_itself
        why = await why_not_at(self.local, at)  # this replica refuses itself (`Incoming.refusal`)
        if self._incoming.met_itself == met:
            return why or "another process answers there"
        self._reached_itself = at
        return ""

    def dropped(self, peer: NodeId) -> int:
        """Return the number of writes to `peer` that were dropped at the buffer's limit."""
        dialer = self._dialers.get(peer)
        return 0 if dialer is None else dialer.dropped

    def last_error(self, peer: NodeId) -> str:
        """Return the error of the last attempt to reach `peer`, or ""."""
        dialer = self._dialers.get(peer)
        return "" if dialer is None else dialer.error

    def refuse(self, peer: NodeId, reason: str) -> None:
        """Close the connection of a `peer` whose message breaks Raft's rules. It may redial."""
        self._incoming.refused()
        total = self.refused
        if total & (total - 1) == 0:  # 1, 2, 4, 8, ...: no flood
            template = "peer_breaks_rules peer=%s total=%d %s"
            log.error(template, peer, total, reason, extra=FROM_PEER)
        self._incoming.abort(peer)

    def disconnect(self, peer: NodeId, reason: str) -> None:
        """Disconnect a peer of another history for a while (GroupIdentity.part)."""
        self.local.identity.disconnect(peer, reason, now_ms())
        self._disconnect(peer)

    @property
    def refused(self) -> int:
        """The number of connections refused, or closed for malformed or illegal messages."""
        return self._incoming.refusals

    @property
    def refused_as_removed(self) -> bool:
        """True if a peer refuses this node because it was removed. For operators only, since the
        core relies on its log."""
        return any(WAS_REMOVED in dialer.error for dialer in self._dialers.values())

    @property
    def parted(self) -> set[NodeId]:
        """The peers that are disconnected for their other history, on either side."""
        refused = {peer for peer, dialer in self._dialers.items() if ONE_ID in dialer.error}
        return refused | self.local.identity.parted(now_ms())

    def take_group_id(self, peer: NodeId, group_id: bytes) -> None:
        """Note the group id of a peer that learned it after it had connected."""
        line = self._incoming.line(peer)
        if line is None:
            return
        line.group_id = group_id
        if self.local.identity.group_id and self.local.judge(line, peer, False):
            self._disconnect(peer)

    def group_status(self) -> dict[str, object]:
        """Return the group's id and the disconnected peers, for the status."""
        return self.local.identity.status(now_ms()) | {"parted": sorted(self.parted)}

    def _group_known(self) -> None:
        """Act on this node's group id, which has just become known. Close links to other groups,
        announce the id, and dial the remaining peers at once."""
        if self._incoming.is_shut:
            return
        for peer, line in self._incoming.by_peer():
            if self.local.judge(line, peer, False):
                self._disconnect(peer)
        for peer, dialer in self._dialers.items():
            opened = dialer.connection if dialer.transport is not None else None
            if opened is not None and self.local.judge(opened.line, peer, True):
                self._disconnect(peer)
            elif opened is not None:
                dialer.announce()
            dialer.hurry()

    def _disconnect(self, peer: NodeId) -> None:
        dialer = self._dialers.get(peer)
        self._incoming.abort(peer)
        if dialer is not None and dialer.connection is not None:
            dialer.connection.line.abort()
