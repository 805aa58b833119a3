"""A leader whose disk does not read any more: it may write and be believed, but serves nobody.

A read for a peer or for a consumer that fails makes a leader give leadership up, and it does not
come back before the same read works (or finds nothing to read: retention, or a mended frame).
Followers go on: what they take and acknowledge needs no reading. In a group of one nobody else
could do better. A lack of descriptors or memory says nothing about the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from errno import EMFILE, ENFILE, ENOMEM
from functools import partial

from raftmq.dledger.core import RaftCore
from raftmq.dledger.health import DiskHealth
from raftmq.dledger.log import RaftLog
from raftmq.dledger.messages import Role
from raftmq.store.errors import StoreError

log = logging.getLogger("raftmq.dledger.readtrial")

SHORTAGES = frozenset({EMFILE, ENFILE, ENOMEM})


class ReadTrial:
    """One per member. Remembers the read that failed for as long as the disk is unreadable."""

    def __init__(self, raft_log: RaftLog, health: DiskHealth, alone: bool) -> None:
        """`alone`: the group has no other member."""
        self._log = raft_log
        self._health = health
        self._alone = alone
        self._again: Callable[[], object] = lambda: None

    def failed(self, core: RaftCore, error: OSError, again: Callable[[], object]) -> None:
        """A read raised `error`; `again` is the same read. Has a leader step down."""
        if self._alone or error.errno in SHORTAGES or core.role is not Role.LEADER:
            return
        if self._health.unreadable(f"reading the log failed: {error}"):
            log.warning("disk_unreadable node=%s error=%s", core.node_id, error)
            self._again = again
            core.disk_fails(self._health.reason)

    def try_again(self, core: RaftCore) -> None:
        """If the disk is unreadable: is it still? Blocks for as long as that read takes."""
        if not self._health.is_unreadable:
            return
        try:
            self._again()
        except OSError:
            return
        except StoreError as error:  # it was read, or is gone: nothing the disk is to blame for
            log.info("disk_reads node=%s with=%s", core.node_id, error)
        log.warning("disk_readable node=%s", core.node_id)
        self._health.readable()
        core.disk_works()

    def check(self, index: int, failed: Callable[[OSError, Callable[[], object]], None]) -> None:
        """Frame `index` is damaged: calls `failed` if that is because it cannot be read."""
        frames = self._log.index
        position, size = frames.position_of(index), frames.size_of(index)
        again = partial(self._log.commitlog.read, position, size)
        try:
            again()
        except OSError as error:
            failed(error, again)
