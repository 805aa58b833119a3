"""Retention of a RaftLog without a member."""

from __future__ import annotations

from raftmq.dledger.storage.log_storage import RaftLog


def trimmed(log: RaftLog, position: int) -> int:
    """Remove whole segments that end at or below `position`; return the first index left."""
    trim = log.plan_trim(position)
    if trim is not None:
        log.note_trim(trim)
        log.trim(trim)
    return log.index.first_index
