"""The limit of client connections, derived from free file descriptors.

The store's share grows with its segments and index files, so the limit is computed again while the
broker runs. Open connections are never closed.
"""

from __future__ import annotations

from raftmq.ops.descriptors import Shares, warn_if_limited
from raftmq.remoting.server import RemotingServer, ServerLimits
from raftmq.store.message_store import MessageStore

from .scheduler import Chore

CHECK_PERIOD_MS = 5_000  # the log grows by few segments in that time


class ClientRoom:
    """Maintains the limit of `server`."""

    def __init__(self, shares: Shares, store: MessageStore, server: RemotingServer) -> None:
        self._shares = shares
        self._store = store
        self._server = server
        self._desired = ServerLimits().connections_max

    def start(self) -> None:
        """Set the limit; log if more descriptors would raise it."""
        self.poll()
        warn_if_limited(self._server.connections_max, self._desired, self._shares.limit)

    def chore(self) -> Chore:
        return Chore("client_room", CHECK_PERIOD_MS, self.poll)

    def poll(self) -> None:
        """Compute the limit from the store's open files."""
        files = self._shares.files_cached + self._store.files_held
        self._server.connections_max = min(self._desired, self._shares.clients(files))
