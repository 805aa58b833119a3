"""Tells why a replica takes no frames although it may hear its leader. Pure.

Such a replica hears heartbeats, but its log does not grow: who restarts the replicas one after the
other must not take it for a copy and go on. A leader sends again over its next connection what was
refused, so a refusal counts for STANDS_MS, and only until the log grows.
"""

from __future__ import annotations

from ..raft.core import RaftCore
from ..raft.messages import NodeId

STANDS_MS = 30_000  # a leader whose connection was closed comes back within a second


class Refusals:
    """The last refusal of one member."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._sender: NodeId | None = None
        self._reason = ""
        self._last_index = 0
        self._until_ms = 0.0

    def note(self, sender: NodeId, reason: str, now_ms: float) -> None:
        """Note that something of `sender` was refused."""
        self._sender, self._reason = sender, reason
        self._last_index, self._until_ms = self._core.last_index, now_ms + STANDS_MS

    def why(self, now_ms: float) -> str:
        """Return why this replica takes no frames; "" if it does."""
        core = self._core
        if not core.takes_frames:
            waits = core.election.founders_differ and not core.last_index
            return "its founders differ" if waits else "its disk is full"
        stands = now_ms < self._until_ms and core.last_index <= self._last_index
        if stands and core.leader in (None, self._sender):
            return f"it refuses those of {self._sender}: {self._reason}"
        return ""
