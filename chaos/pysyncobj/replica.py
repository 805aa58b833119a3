"""Replica, a SyncObj with our journal. No code of pysyncobj is changed.

SyncObj has a parameter for a transport, but none for a journal, because its constructor makes one
from a file name. So this module uses a private attribute, the only one. The attribute to which the
constructor assigns the journal is a property of this subclass, which keeps ours. The constructor
reads term, vote and commit index from it; all else is as shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node

from raftmq.dledger.raft.messages import Role
from raftmq.dledger.settings import MemberConfig

from .journal import FrameJournal
from .transport import LinkTransport

NEVER = 1 << 62  # entries, or seconds; compaction is off (journal.py)
ROLES = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)  # by SyncObj's number of a state
PERIODS_PER_TIMEOUT = 3.5  # SyncObj wants more than three


def configuration(config: MemberConfig, on_role: Callable[[Role], None]) -> Any:
    """Return our settings as a SyncObjConf. The rest are pysyncobj's defaults. For example, a
    leader without a majority gives up after 30 seconds."""
    core = config.core
    return SyncObjConf(
        autoTick=False,
        # An entry is a batch already, so it is sent at once and not at the next period.
        appendEntriesUseBatch=False,
        appendEntriesPeriod=min(core.heartbeat_ms, core.election_ms_min / PERIODS_PER_TIMEOUT)
        / 1000,
        raftMinTimeout=core.election_ms_min / 1000,
        raftMaxTimeout=core.election_ms_max / 1000,
        connectionTimeout=max(3.5, core.election_ms_max / 1000),  # of its transport, not of ours
        logCompactionMinEntries=NEVER,
        logCompactionMinTime=NEVER,
        onStateChanged=lambda _, state: on_role(ROLES[state]),
    )


class Replica(SyncObj):  # type: ignore[misc]  # the package has no types
    """A replica's SyncObj. Its replicated state is empty (journal.py)."""

    def __init__(
        self, config: MemberConfig, conf: Any, journal: FrameJournal, transport: LinkTransport
    ) -> None:
        """Writes the first entry if the journal is empty. Raises OSError."""
        self.journal = journal
        others = [Node(peer) for peer in config.peers if peer != config.node_id]
        super().__init__(Node(config.node_id), others, conf, transport=transport)

    @property
    def _SyncObj__raftLog(self) -> FrameJournal:
        return self.journal

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, memory_journal: object) -> None:
        """Ignore the journal that the constructor made."""

    @replicated  # type: ignore[untyped-decorator]
    def frame(self) -> None:
        """Do nothing when applied; as a command it represents `journal.held`."""
