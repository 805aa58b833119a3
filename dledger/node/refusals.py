"""Reasons why a replica accepts no frames although its leader is connected.

Such a replica answers heartbeats, but its log does not grow, so it must not count as a copy during
a rolling restart. A leader sends refused frames again over its next connection, so a refusal counts
for STANDS_MS, and only until the log grows.
"""

from __future__ import annotations

from ..raft.core import RaftCore
from ..raft.messages import NodeId

STANDS_MS = 30_000  # a leader reconnects within a second


class Refusals:
    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._sender: NodeId | None = None
        self._reason = ""
        self._last_index = 0
        self._until_ms = 0.0

    def note(self, sender: NodeId, reason: str, now_ms: float) -> None:
        """Note a refused message of `sender`."""
        self._sender, self._reason = sender, reason
        self._last_index, self._until_ms = self._core.last_index, now_ms + STANDS_MS

    def why(self, now_ms: float) -> str:
        """Return the reason why this replica accepts no frames, or ""."""
        core = self._core
        if not core.takes_frames:
            waits = core.election.founders_differ and not core.last_index
            return "its founders differ" if waits else "its disk is full"
        stands = now_ms < self._until_ms and core.last_index <= self._last_index
        if stands and core.leader in (None, self._sender):
            return f"it refuses those of {self._sender}: {self._reason}"
        return ""
