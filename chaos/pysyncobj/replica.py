"""Replica: a SyncObj with our journal in it. Nothing of pysyncobj's code is changed.

SyncObj takes a transport, but no journal: its constructor makes one from a file name. There is no
public way round that, so this is the one place where we do not use a public interface: the
attribute the constructor assigns the journal to is a property of this subclass, which keeps ours.
So the constructor itself reads term, vote and commit index from it; all else is as shipped.
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

NEVER = 1 << 62  # entries, or seconds: compaction is off, see journal.py
ROLES = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)  # by SyncObj's number of a state
PERIODS_PER_TIMEOUT = 3.5  # SyncObj wants more than three


def configuration(config: MemberConfig, on_role: Callable[[Role], None]) -> Any:
    """Return our settings as a SyncObjConf. All others are pysyncobj's defaults: a leader without a
    majority, for example, gives up after 30 seconds."""
    core = config.core
    return SyncObjConf(
        autoTick=False,
        # An entry is a batch already: send it at once, not at the next period.
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
    """One replica's SyncObj. Its replicated state is empty, as journal.py explains."""

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
        """Do nothing when applied; when called as a command it stands for `journal.held`."""
