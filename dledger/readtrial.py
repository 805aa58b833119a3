"""Makes a leader step down if its disk cannot be read. Such a leader could still write, and so keep
its leadership, but serve nobody.

A leader gives up leadership when a read for a peer or a consumer fails, and does not lead again
before the same read works (or finds nothing to read, because retention deleted it or a frame was
mended). Followers go on, because taking and acknowledging frames needs no reading. A group of one
goes on, since nobody else could do better. A lack of descriptors or memory says nothing about the
disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from raftmq.dledger.core import RaftCore
from raftmq.dledger.health import DiskHealth
from raftmq.dledger.log import RaftLog
from raftmq.dledger.messages import Role
from raftmq.store.errors import StoreError
from raftmq.store.shortage import NO_RESOURCE

log = logging.getLogger("raftmq.dledger.readtrial")


class ReadTrial:
    """Watches one member's reads. Remembers the read that failed for as long as the disk is
    unreadable."""

    def __init__(self, core: RaftCore, raft_log: RaftLog, health: DiskHealth, alone: bool) -> None:
        """`alone`: the group has no other member."""
        self._core = core
        self._log = raft_log
        self._health = health
        self._alone = alone
        self._again: Callable[[], object] = lambda: None

    def failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Make a leader step down because a read raised `error`; `again` repeats that read."""
        core = self._core
        if self._alone or error.errno in NO_RESOURCE or core.role is not Role.LEADER:
            return
        if self._health.unreadable(f"reading the log failed: {error}"):
            log.warning("disk_unreadable node=%s error=%s", core.node_id, error)
            self._again = again
            core.disk_fails(self._health.reason)

    def try_again(self) -> None:
        """If the disk is unreadable, repeat the failed read to see whether it still is. Blocks for
        as long as that read takes."""
        core = self._core
        if not self._health.is_unreadable:
            return
        try:
            self._again()
        except OSError:
            return
        except StoreError as error:  # it was read, or is gone: not the disk's fault
            log.info("disk_reads node=%s with=%s", core.node_id, error)
        log.warning("disk_readable node=%s", core.node_id)
        self._health.readable()
        core.disk_works()

    def check(self, index: int, failed: Callable[[OSError, Callable[[], object]], None]) -> None:
        """Call `failed` if the damaged frame `index` is damaged because it cannot be read."""
        frames = self._log.index
        position, size = frames.position_of(index), frames.size_of(index)
        again = partial(self._log.commitlog.read, position, size)
        try:
            again()
        except OSError as error:
            failed(error, again)
