"""The configuration in force at a replica, and the peers that follow from it.

Changes are made one at a time (thesis chapter 4). A leader refuses a change (leader.py)

- while the previous change is not committed, because configurations two steps apart may have
  disjoint majorities;
- before a frame of the leader's own term is committed, because another leader's uncommitted change
  may still win (the flaw found in 2015);
- if too few voters of the resulting configuration are recovered and answer on the open links,
  because the change would not be committed, and would stop the group. A voter that is moved does
  not count, since the move closes its link and the new address may be wrong. It counts if its link
  already leads to the new address, if it is the leader, which listens there, and if it is the only
  voter;
- a promotion, until the learner is recovered, answers, and is at most `learner_lag_bytes_max`
  behind.

So any voter can be moved while a majority answers without it. Of two voters none can be moved
before the leader reaches it at the new address (dledger/node/peer_addresses.py). Without a leader
nothing can be changed.

A leader that is removed leads until that is committed, without counting itself or accepting
proposals, and then names its successor (4.2.2). The leader still notifies a removed follower for a
while (tracker.py).

Invariants: a configuration is in force from the append of its frame, committed or not, until that
frame is truncated; `pending_index` is its frame until that is known to be committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.store.frame import Frame

from .configuration import Change, Configuration, Configurations, decode_configuration
from .errors import ChangeRefused
from .messages import NodeId
from .ready import Outbox


class Membership:
    """A replica's view of its group; a leader sets `peers`, the receivers of its messages."""

    def __init__(
        self, node_id: NodeId, configurations: Configurations, commit_index: int, outbox: Outbox
    ) -> None:
        """`configurations` are copied."""
        self._node_id = node_id
        self._outbox = outbox
        self.configurations = configurations.copy()
        self._vouched = (
            configurations.settled[0] > 0
        )  # saved by this replica while it was recovered
        self.configurations.settle(commit_index)
        self.voters: frozenset[NodeId] = frozenset()
        self.is_voter = False
        self.peers: tuple[NodeId, ...] = ()
        self.pending_index = 0
        self._configure(commit_index)

    def _configure(self, commit_index: int) -> None:
        """Apply the configuration in force. Only this method sets the voters."""
        index = self.configurations.index
        self.pending_index = index if index > commit_index else 0
        self.voters = self.configurations.current.voters
        self.is_voter = self._node_id in self.voters
        self.speak_with_all()

    def speak_with(self, ids: Iterable[NodeId]) -> None:
        self.peers = tuple(sorted(ids))

    def speak_with_all(self) -> None:
        """Set the peers, including those of configurations that may return, because a leader that
        is being removed must still be answered."""
        self.speak_with(self.configurations.ids - {self._node_id})

    def append(self, frame: Frame, commit_index: int) -> bool:
        """Put the configuration of an appended frame in force. Return whether it is."""
        configuration = decode_configuration(frame.payload)
        if not self.configurations.append(frame.index, configuration):
            return False
        self._configure(commit_index)
        self._outbox.configuration_changed = True
        return True

    def truncate(self, from_index: int, commit_index: int) -> None:
        """Restore the configuration in force before frame `from_index`."""
        if self.configurations.truncate(from_index):
            self._configure(commit_index)
            self._outbox.configuration_changed = True

    def commit(self, commit_index: int) -> bool:
        """Return whether this commits the configuration in force."""
        if not self.pending_index:
            return False
        if self.pending_index > commit_index:  # the first of two changes may be committed
            self._outbox.configuration_changed |= self.configurations.settle(commit_index)
            return False
        self.pending_index = 0
        self.configurations.settle(commit_index)
        self._outbox.configuration_changed = True
        return True

    def may_campaign(self, recovered: bool) -> bool:
        """Return True for voters, and for a replica before the commit of its removal. It may be the
        only replica that can commit it (thesis 4.2.2), and does not count its own vote. Return
        False for a replica that receives the log from its start on an empty disk, because it meets
        past configurations."""
        if not recovered and self.configurations.index and not self._vouched:
            return False
        return self.is_voter or self.configurations.ever_voter(self._node_id)

    def after(self, change: Change) -> Configuration:
        """Return the configuration with `change` made. Raises ChangeRefused."""
        if self.pending_index:
            raise ChangeRefused(
                f"the change before this one (frame {self.pending_index}) is not committed yet"
            )
        if not self.is_voter:
            raise ChangeRefused("this leader is leaving the group")
        return self.configurations.current.after(change)
