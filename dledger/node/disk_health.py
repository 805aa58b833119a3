"""Disk health decides whether a member may lead.

ok          the disk lets the node lead
stalled     an fdatasync, of the log or of a vote, has been in flight for too long
full        there is no space for the next frame, or no descriptor or memory to write it: nothing is
            acknowledged until there is
unreadable  a read failed while this node led, and would fail again
failed      a write or an fdatasync failed: the member has ended
slow        the disk works, but writes wait for it (dledger/raft/pace.py): another replica should
            lead

A disk that stalls, is full or cannot be read makes the core give up leadership until the disk works
again. A leader that cannot read could still write and keep leadership, but serve no consumer.
Followers keep their role, because appends need no reads, and so does the only member of a group. A
lack of descriptors or memory is no failure of the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial

from raftmq.store.errors import StoreError
from raftmq.store.transient_errors import NO_RESOURCE

from ..raft.core import RaftCore
from ..raft.messages import Role
from ..storage.hard_state_writer import HardStateSaver
from ..storage.log_flusher import FlushMode, LogFlusher
from ..storage.log_storage import RaftLog

log = logging.getLogger("raftmq.dledger.node.node")


class DiskState(Enum):
    OK = "ok"
    STALLED = "stalled"
    FULL = "full"
    UNREADABLE = "unreadable"
    FAILED = "failed"
    SLOW = "slow"


class DiskHealth:
    """The state of a member's disk, and the reason for it. Reports changes to the core, and in
    ASYNC_FLUSH the durable frames.

    A disk has a single state. A full, unreadable or failed disk does not become stalled or
    unreadable, and a failed disk stays failed."""

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
        self.state = DiskState.OK
        self.reason = ""
        self._core = core
        self._log = raft_log
        self._flusher = flusher
        self._saver = saver
        self._stall_ms = stall_ms
        self._alone = alone
        self._again: Callable[[], object] = lambda: None  # the read that failed

    @property
    def is_full(self) -> bool:
        """True while there is no space for the next frame."""
        return self.state is DiskState.FULL

    def reported(self, slow: str) -> tuple[DiskState, str]:
        """Return state and reason for the status; `slow` is why the disk is slow, or ""."""
        if slow and self.state is DiskState.OK:
            return DiskState.SLOW, slow
        return self.state, self.reason

    def failed(self, reason: str) -> None:
        self.state, self.reason = DiskState.FAILED, reason

    # -- writes -------------------------------------------------------------------------------

    def written(self) -> None:
        """Note that frames were appended to the log."""
        self._flusher.written()
        if self._flusher.mode is FlushMode.ASYNC:
            self._core.durable(self._log.last_index)

    def full(self, error: OSError) -> None:
        """Note that there was no space for a frame."""
        log.warning("disk_full node=%s error=%s", self._core.node_id, error)
        if self.state is not DiskState.FAILED:
            self.state, self.reason = DiskState.FULL, f"no room for the next frame: {error}"
        self._core.disk_fails(self.reason, takes_frames=False)

    def has_room(self) -> None:
        """Note that the held frames are written."""
        log.warning("disk_has_space node=%s", self._core.node_id)
        self._end(DiskState.FULL)
        self.written()

    # -- flushes ------------------------------------------------------------------------------

    def poll(self, now_ms: float) -> None:
        """Give up leadership when an fdatasync hangs, until it returns. `now_ms` is the core's
        time, so that a stall of this process does not count as a hanging sync."""
        under_way_ms = max(self._flusher.stalled_ms(now_ms), self._saver.stalled_ms(now_ms))
        hangs = under_way_ms > self._stall_ms
        if hangs and self.state is DiskState.OK:
            self.state = DiskState.STALLED
            self.reason = f"fdatasync has not returned for {under_way_ms:.0f} ms"
            log.warning("disk node=%s state=stalled %s", self._core.node_id, self.reason)
            self._core.disk_fails(self.reason)
        elif not hangs and self.state is DiskState.STALLED:
            log.warning("disk node=%s state=ok", self._core.node_id)
            self._end(DiskState.STALLED)

    # -- reads --------------------------------------------------------------------------------

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Make a leader step down after a failed read; `again` repeats that read."""
        core = self._core
        if self._alone or error.errno in NO_RESOURCE or core.role is not Role.LEADER:
            return
        if self.state is DiskState.OK:
            log.warning("disk_unreadable node=%s error=%s", core.node_id, error)
            self.state, self.reason = DiskState.UNREADABLE, f"reading the log failed: {error}"
            self._again = again
            core.disk_fails(self.reason)

    def read_again(self) -> None:
        """Repeat an unreadable disk's failed read; success restores the state. Blocking."""
        if self.state is not DiskState.UNREADABLE:
            return
        node_id = self._core.node_id
        try:
            self._again()
        except OSError:
            return
        except StoreError as error:  # readable, or gone, so the disk is not at fault
            log.info("disk_reads node=%s with=%s", node_id, error)
        log.warning("disk_readable node=%s", node_id)
        self._end(DiskState.UNREADABLE)

    def check(self, index: int, failed: Callable[[OSError, Callable[[], object]], None]) -> None:
        """Call `failed` if the damaged frame `index` is unreadable."""
        frames = self._log.index
        position, size = frames.position_of(index), frames.size_of(index)
        again = partial(self._log.commitlog.read, position, size)
        try:
            again()
        except OSError as error:
            failed(error, again)

    def _end(self, state: DiskState) -> None:
        """Let the core lead again if the disk is in `state`."""
        if self.state is state:
            self.state, self.reason = DiskState.OK, ""
        self._core.disk_works()
