"""Lets a member lead only while its disk works.

A disk that stalls, is full or cannot be read makes the core give up leadership, and not take it
again before the disk works (health.py has the states, readtrial.py the reads).
"""

from __future__ import annotations

import logging

from raftmq.dledger.core import RaftCore
from raftmq.dledger.flusher import FlushMode, LogFlusher
from raftmq.dledger.health import DiskHealth
from raftmq.dledger.log import RaftLog
from raftmq.dledger.readtrial import ReadTrial
from raftmq.dledger.saver import HardStateSaver

log = logging.getLogger("raftmq.dledger.member")


class DiskWatch:
    """Tells one member's core how its disk is, and in ASYNC_FLUSH which frames are durable."""

    def __init__(
        self,
        core: RaftCore,
        raft_log: RaftLog,
        flusher: LogFlusher,
        saver: HardStateSaver,
        stall_ms: int,
        alone: bool,
    ) -> None:
        """`alone`: the group has no other member."""
        self.health = DiskHealth(stall_ms)
        self.trial = ReadTrial(core, raft_log, self.health, alone)
        self._core = core
        self._log = raft_log
        self._flusher = flusher
        self._saver = saver

    def written(self) -> None:
        """Note that frames were appended to the log."""
        self._flusher.written()
        if self._flusher.mode is FlushMode.ASYNC:
            self._core.durable(self._log.last_index)

    def full(self, error: OSError) -> None:
        """Note that there was no room for a frame."""
        log.warning("disk_full node=%s error=%s", self._core.node_id, error)
        self.health.full(f"no room for the next frame: {error}")
        self._core.disk_fails(self.health.reason, takes_frames=False)

    def has_room(self) -> None:
        """Note that the frames a full disk had no room for are written."""
        log.warning("disk_has_room node=%s", self._core.node_id)
        self.health.has_room()
        self._core.disk_works()
        self.written()

    def look(self, now_ms: float) -> None:
        """Give up leadership when an fdatasync hangs, and do not lead before it returns. `now_ms`
        is the core's time, so that a stall of this process does not count as a sync that hangs."""
        health = self.health
        under_way_ms = max(self._flusher.stalled_ms(now_ms), self._saver.stalled_ms(now_ms))
        if not health.synced(under_way_ms):
            return
        log.warning("disk node=%s state=%s %s", self._core.node_id, health.state, health.reason)
        if health.reason:
            self._core.disk_fails(health.reason)
        else:
            self._core.disk_works()
