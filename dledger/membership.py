"""Membership: when a leader may make a change, and which replicas it replicates to. Pure.

One change at a time, thesis chapter 4. A change is refused

- while the one before it is not committed: configurations two steps apart may have majorities that
  do not meet;
- before a frame of the leader's own term is committed: until then another leader's uncommitted
  change, which this one does not know, may still win against it (the flaw found in 2015);
- if too few voters of the resulting configuration are whole and answer: it would not be committed,
  and would stop the group;
- a promotion, until the learner is whole, answers, and lacks at most `learner_lag_bytes_max`.

A leader that is removed leads until that is committed, without counting itself or taking proposals,
and then names its successor (4.2.2). A removed follower is told of its removal for a while; then
nobody sends to it any more.
"""

from __future__ import annotations

from raftmq.dledger.configuration import Change, ChangeKind, Configuration
from raftmq.dledger.errors import Busy, ChangeRefused, NotLeader
from raftmq.dledger.messages import NodeId, Role
from raftmq.dledger.progress import Progress
from raftmq.dledger.quorum import majority
from raftmq.dledger.standing import Standing


class Membership(Standing):
    """The leader's part in membership changes."""

    __slots__ = ()

    def configuration_after(self, change: Change) -> Configuration:
        """Return the configuration to put into a CONFIGURATION frame to make this change; it must
        be proposed at once. Raises NotLeader, Busy, ChangeRefused."""
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        if self.transfer_target is not None:
            raise Busy(f"leadership is being handed to {self.transfer_target}")
        self._check_own_term()
        self._check_pending()
        if not self.is_voter:
            raise ChangeRefused("this leader is leaving the group")
        after = self.configurations.current.after(change)
        if change.kind is ChangeKind.PROMOTE:
            self._check_learner(change.node_id)
        self._check_majority(after)
        return after

    def _check_own_term(self) -> None:
        if not self.leader_ready or self.wants_noop:
            raise ChangeRefused(f"no frame of term {self.term} is committed yet")

    def _check_pending(self) -> None:
        if self._configuration_due:
            raise ChangeRefused(
                f"the change before this one (frame {self._configuration_due}) is not committed yet"
            )

    def _check_learner(self, node_id: NodeId) -> None:
        progress = self._progress[node_id]
        if not self._answers(progress):
            raise ChangeRefused(f"{node_id} does not answer")
        if progress.recovering or progress.recovering is None:
            raise ChangeRefused(f"{node_id} is recovering")
        lag_bytes = self.lag_bytes(progress)
        if lag_bytes > self.config.learner_lag_bytes_max:
            raise ChangeRefused(f"{node_id} lacks {lag_bytes} bytes of the log still")

    def lag_bytes(self, progress: Progress) -> int:
        """Return how many bytes of the log a follower lacks."""
        log = self._log
        reached = progress.match_index
        return log.end_position - (log.end_of(reached) if reached >= log.first_index - 1 else 0)

    def _check_majority(self, after: Configuration) -> None:
        voters = after.voters
        good = int(self.node_id in voters and self.whole)
        good += sum(
            progress.peer in voters and self._answers(progress) and not progress.recovering
            for progress in self._progress.values()
        )
        needed = majority(len(voters))
        if good < needed:
            raise ChangeRefused(
                f"{good} of {len(voters)} voters would be whole and answer, {needed} are needed"
            )

    def _answers(self, progress: Progress) -> bool:
        return progress.heard_ms > self._now_ms - self.config.election_ms_max

    # -- the replicas it replicates to ------------------------------------------------------

    def _configure_leader(self) -> None:
        """Keep one Progress for every member, and for a while for removed ones."""
        ids = self.configurations.current.ids - {self.node_id}
        for peer in sorted(ids - self._progress.keys()):
            progress = self._progress[peer] = self._new_progress(peer)
            if self._own_first_index <= self._log.last_index:  # else `_become_leader` sends it
                self._send_heartbeat(progress)
        for progress in self._progress.values():
            progress.voter = progress.peer in self.voters
            if progress.peer in ids:
                progress.departs_ms = None
            elif progress.departs_ms is None:
                progress.departs_ms = self._now_ms + self.config.departure_ms
        self._voting = tuple(p for p in self._progress.values() if p.voter)
        self.peers = tuple(sorted(self._progress))
        if self.transfer_target is not None:
            assert self.transfer_target in self.voters, self.transfer_target

    def _new_progress(self, peer: NodeId) -> Progress:
        config = self.config
        return Progress(
            peer,
            max(self._own_first_index, self._log.last_index),
            self._now_ms,
            config.inflight_messages_max,
            config.inflight_bytes_max,
            config.resend_ms,
        )

    def _let_go(self) -> None:
        """Stop sending to removed replicas that know of their removal, or have had time to learn
        of it."""
        gone = [p.peer for p in self._progress.values() if self._may_go(p)]
        for peer in gone:
            del self._progress[peer]  # this round's heartbeat was the last message to it
        if gone:
            self._configure_leader()
            self._out_configuration = True
            self._dirty = True

    def _may_go(self, progress: Progress) -> bool:
        if progress.departs_ms is None:
            return False
        knows = min(self.commit_index, progress.match_index) >= self.configurations.index
        return knows or self._now_ms >= progress.departs_ms
