"""Bounds the clients' connections by the file descriptors that the store leaves for them.

The store's share grows with the log: its segments and the files of its index stay open. So the
bound is computed again while the broker runs. It never closes a connection that is open.
"""

from __future__ import annotations

from raftmq.ops.descriptors import Shares, warn_if_limited
from raftmq.remoting.server import RemotingServer, ServerLimits
from raftmq.store.message_store import MessageStore

from .scheduler import Chore

LOOK_MS = 5_000  # a log grows by few segments meanwhile


class ClientRoom:
    """Keeps the bound of `server`. One per broker."""

    def __init__(self, shares: Shares, store: MessageStore, server: RemotingServer) -> None:
        self._shares = shares
        self._store = store
        self._server = server
        self._wanted = ServerLimits().connections_max

    def start(self) -> None:
        """Set the bound, and log if it is lower than it would be with more descriptors."""
        self.look()
        warn_if_limited(self._server.connections_max, self._wanted, self._shares.limit)

    def chore(self) -> Chore:
        """Return the periodic work."""
        return Chore("client_room", LOOK_MS, self.look)

    def look(self) -> None:
        """Compute the bound from how many files the store holds open now."""
        files = self._shares.files_cached + self._store.files_held
        self._server.connections_max = min(self._wanted, self._shares.clients(files))
