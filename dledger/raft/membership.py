"""Membership: the configuration in force at one replica, and the peers that follow from it. Pure.

One change at a time, thesis chapter 4. A leader refuses a change (leader.py)

- while the one before it is not committed: configurations two steps apart may have majorities that
  do not meet;
- before a frame of the leader's own term is committed: until then another leader's uncommitted
  change, which this one does not know, may still win against it (the flaw found in 2015);
- if too few voters of the resulting configuration are recovered and answer, on the links that are
  open now: it would not be committed, and would stop the group. A voter that is moved does not
  count, since this closes the link on which it answers: its new address may be a typo. It counts if
  its link leads to the new address already (the record is put right), if it is the leader, which
  listens there, and if it is the only voter, whom nobody has to reach;
- a promotion, until the learner is recovered, answers, and lacks at most `learner_lag_bytes_max`.

So any voter can be moved while a majority answers without it, whether it is up or not. Of two
voters none can, before the leader reaches it at the new address (dledger/node/peer_addresses.py
says how); and where more are down nobody leads, and nothing can be changed.

A leader that is removed leads until that is committed, without counting itself or taking proposals,
and then names its successor (4.2.2). A removed follower is told of its removal for a while
(tracker.py); then nobody sends to it any more.

Invariants: a configuration is in force from the append of its frame, committed or not, until that
frame is truncated; `pending_index` is its frame while that is not known to be committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.store.frame import Frame

from .configuration import Change, Configuration, Configurations, decode_configuration
from .errors import ChangeRefused
from .messages import NodeId
from .ready import Outbox


class Membership:
    """One replica's view of its group. `peers`: it sends to these; a leader sets them."""

    def __init__(
        self, node_id: NodeId, configurations: Configurations, commit_index: int, outbox: Outbox
    ) -> None:
        """`configurations` are copied."""
        self._node_id = node_id
        self._outbox = outbox
        self.configurations = configurations.copy()
        self._vouched = (
            configurations.settled[0] > 0
        )  # noted by this replica while it was recovered
        self.configurations.settle(commit_index)
        self.voters: frozenset[NodeId] = frozenset()
        self.is_voter = False
        self.peers: tuple[NodeId, ...] = ()
        self.pending_index = 0
        self._configure(commit_index)

    def _configure(self, commit_index: int) -> None:
        """Apply the configuration in force: the one place that sets who votes."""
        index = self.configurations.index
        self.pending_index = index if index > commit_index else 0
        self.voters = self.configurations.current.voters
        self.is_voter = self._node_id in self.voters
        self.speak_with_all()

    def speak_with(self, ids: Iterable[NodeId]) -> None:
        """Set the peers of a leader."""
        self.peers = tuple(sorted(ids))

    def speak_with_all(self) -> None:
        """Set the peers, including those of a configuration that may come back: a leader that is
        being removed must still be answered."""
        self.speak_with(self.configurations.ids - {self._node_id})

    def append(self, frame: Frame, commit_index: int) -> bool:
        """Put the configuration of a frame, just appended, in force. Return whether it is."""
        configuration = decode_configuration(frame.payload)
        if not self.configurations.append(frame.index, configuration):
            return False
        self._configure(commit_index)
        self._outbox.configuration_changed = True
        return True

    def truncate(self, from_index: int, commit_index: int) -> None:
        """Put the configuration in force that was so before frame `from_index`."""
        if self.configurations.truncate(from_index):
            self._configure(commit_index)
            self._outbox.configuration_changed = True

    def commit(self, commit_index: int) -> bool:
        """Return whether the configuration in force is committed now, and was not before."""
        if not self.pending_index:
            return False
        if self.pending_index > commit_index:  # of two changes the first may be committed
            self._outbox.configuration_changed |= self.configurations.settle(commit_index)
            return False
        self.pending_index = 0
        self.configurations.settle(commit_index)
        self._outbox.configuration_changed = True
        return True

    def may_campaign(self, recovered: bool) -> bool:
        """Return True for voters, and for a replica whose removal is not committed yet: it may be
        the only one that can get it committed (thesis 4.2.2), and does not count its own vote.
        False for a replica that receives the log from its beginning on an empty disk, because the
        configurations it meets there are long past."""
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
