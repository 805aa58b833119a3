"""What a leader does about members: when a change may be made, whom it speaks with. Pure.

One change at a time, thesis chapter 4. A change is refused

- while the one before it is not committed, or two steps apart have majorities that do not meet;
- before a frame of the leader's own term is committed: until then another leader's uncommitted
  change, which this one does not know, may still win against it (the flaw found in 2015);
- if too few voters of what comes out of it are whole and answer: it would not be committed, and
  would stop the group;
- a promotion, until the learner is whole, answers, and lacks less than `learner_lag_bytes_max`.

A leader that is removed goes on until that is committed, counts itself no more, takes no more
proposals, and then names its successor (4.2.2). A removed follower hears of it for a while; then
nobody speaks with it any more.
"""

from __future__ import annotations

from raftmq.dledger.configuration import Change, ChangeKind, Configuration
from raftmq.dledger.errors import Busy, ChangeRefused, NotLeader
from raftmq.dledger.messages import NodeId, Role
from raftmq.dledger.progress import Progress
from raftmq.dledger.quorum import majority
from raftmq.dledger.standing import Standing


class Membership(Standing):
    """The leader's side of a configuration."""

    __slots__ = ()

    def configuration_after(self, change: Change) -> Configuration:
        """What a CONFIGURATION frame has to hold that makes this change; proposing it, at once,
        makes it. Raises NotLeader, Busy, ChangeRefused."""
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
        """How much of the log a follower lacks."""
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

    # -- whom it speaks with ----------------------------------------------------------------

    def _configure_leader(self) -> None:
        """One Progress for every member, and for a while for those that are removed."""
        ids = self.configurations.current.ids - {self.node_id}
        for peer in sorted(ids - self._progress.keys()):
            progress = self._progress[peer] = self._new_progress(peer)
            if self._own_first_index <= self._log.last_index:  # not at its election: that does
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
        """Speak no more with removed replicas that know it, or that have had time to."""
        gone = [p.peer for p in self._progress.values() if self._may_go(p)]
        for peer in gone:
            del self._progress[peer]  # this round's heartbeat was its last word
        if gone:
            self._configure_leader()
            self._out_configuration = True
            self._dirty = True

    def _may_go(self, progress: Progress) -> bool:
        if progress.departs_ms is None:
            return False
        knows = min(self.commit_index, progress.match_index) >= self.configurations.index
        return knows or self._now_ms >= progress.departs_ms
