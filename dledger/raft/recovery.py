"""Recovery of replicas that may have lost promises.

Raft assumes that a replica never forgets a vote that it gave or a frame that it acknowledged. A
replica is *recovering* if it cannot rely on that. The reason is a blank disk, a lost vote file, a
power cut under ASYNC_FLUSH, dropped damaged frames (dledger/storage/startup_state.py), or a store
that is older than its promises (dledger/node/rollback_detection.py). It follows, votes and
acknowledges as always, but marks every message, until it is *recovered*. Let there be n voters, q =
a majority, and at most f = n - q voters that are not recovered at a time. With more than f, nothing
is promised.

1. A candidate wins with the grants of q recovered voters (its own vote counts only if it is
   recovered), or with the grants of all n.
2. Only copies of recovered replicas count for commit, and only their answers confirm reads. A
   replica that forgot its vote in a later term could otherwise acknowledge frames to a leader that
   this vote has deposed.
3. A vote counts only for the candidacy (term and incarnation) that asked for it, and a voter
   repeats a grant only to that candidacy. A candidate that lost its own memory cannot use earlier
   votes.

**Barrier.** The leader L of term T, recovered and elected by q recovered voters, receives a
heartbeat response of an unknown recovering incarnation of w. L proposes a no-op e. L certifies w
once q recovered voters other than w have e durable in term T, and w has everything up to e durable
and verified. (In a group of two voters the voter besides w is enough, since f = 0.) The certificate
is the incarnation in the heartbeat's `certified`. If w is still in term T, it is recovered.

Proof. L proposed e after w had lost its memory. Suppose a forgotten vote of w helps a candidacy of
A to win a term t > T. Among its q voters is some x that holds e and is not w. If x had voted for A
before it received e, it would have refused e, being in term t. So x voted later, and A's log held e
when A's candidacy started (Raft 5.4.1). But then the candidacy started after w had lost its memory,
and no earlier vote of w was for it. So no such candidacy wins, and no leader of such a term has
committed a frame that w acknowledged. Frames that w acknowledged in terms up to T are in L's log
before e, as far as they are or will be committed (Raft 5.4.3), so w has them again. In terms below
T, w never votes again. In T, L has won, and w has a frame of term T, which no candidate of that
term has, so w refuses them all. (Without an own vote in T it also records a vote for L.) The same
holds for L itself if it is recovering and was elected by q recovered voters besides itself, with
its first no-op as its barrier.

The statements of f + 1 peers would not be enough without a barrier. Of five replicas, x may answer
first and then vote for A, whose candidacy is as old as w's forgotten vote. Nor is the leader's
statement alone, since a leader may be deposed without noticing.

**Founding.** If fewer than q voters are recovered (first start, a power cut of all under
ASYNC_FLUSH, loss of a majority's disks), only all n together elect, and the best remaining log
leads. Such a leader is *provisional*: it commits nothing and certifies nobody until all n have its
first no-op durable, each in the incarnation in which it granted its vote. Then all are certified. A
voter that returns in another incarnation may have lost that grant, so the leader steps down and all
vote again.

Proof. Every recovering voter w forgot before it granted, all grants came before the no-op e, and
all acknowledged e in the leader's term t. A candidacy of A in a later term with a forgotten vote of
w started before e. A acknowledged e in term t, so A has also forgotten it, and a candidacy ends
with its process. Had it won before that, all its q voters must have forgotten, which is more than f
at a time. So no leader of such a term has received acknowledgements either. Committed frames of
earlier terms are on one of the n with a sound memory, and the leader's log is at least as good.
After a restart of a blank group's first leader the other replicas may not have their certificates
yet; then all are needed again.

**Membership changes** (membership.py). The voters above are those of the newest configuration at
the leader. A's configuration may differ. If it is a single change apart, majorities of both
overlap, and since the holders of e are a majority *without w*, x is not w and the proof holds.
(With f + 1 of an even n it would not. Take four voters with w among them. A leader that is cut off
promotes a fifth voter, and is elected by itself, the fifth and a forgotten vote of w, without the
two holders of e.) If it is two or more changes apart, the nearer change was committed first, by
voters in a term that the farther candidate's voters would know (thesis 4.1; a leader commits in its
own term before it changes the group). Such an A has not won, with or without w's vote. So a barrier
can ignore a change under way. A provisional leader commits nothing, and so changes nothing.

A learner is recovering, recovers by the voters' copies, and is promoted only afterwards. So a
replica with an empty disk, new or added again under its old id, counts in no vote and no commit
before it is recovered. Earlier promises of its id count only where a configuration has it as a
voter, at least a change away from the leader's. The proof is the same, with a majority of the
voters without it, or both of two. (With only one of two it fails. Of three voters w forgets a vote
for A, and a leader that is cut off from A removes w and alone finds it recovered.) A promotion
during recovery would reduce f.

**Stale configurations.** All n together may also elect when too few are recovered, by the
candidate's configuration, which may be old. A voter with a newer configuration refuses, but the
voters that lost their memory may be those that knew it. With n' > n voters f' > f of them may, and
the rest then counts only n. So the promise holds for *every* configuration that a replica of the
group still uses. A group that grew tolerates more losses only after all its replicas have received
the change.

A replica founds by broker.conf's configuration as long as its log and its configuration file have
no other. So a voter that lost its disk may campaign for a past state of the group, but every
replica with a frame refuses. A new replica (`raftJoin`) has no configuration and waits. An empty
replica then meets past configurations in the log, frame by frame, and in one of them it may have
been the only voter. So only recovered replicas write the file, and a replica that recovers without
the file does not campaign by a configuration from a frame. (A group that started with one replica,
grew, and lost that replica's disk must start it with `raftJoin`, because broker.conf says that it
is alone.)

So only the first start of a group needs all replicas. A group of one founds by itself. While one
replica of a group of two recovers, only both together can elect.

tests/model searches the states of these rules exhaustively (docs/model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .membership import Membership
from .messages import NodeId
from .progress import Progress
from .quorum import witnesses
from .raft_log import CoreLog
from .term_and_vote import Ballot
from .tracker import Tracker


@dataclass(slots=True, eq=False)
class Recovery:
    """Certifies a leader's recovering followers, and the leader itself.

    `provisional` is true for a leader elected by all voters without a recovered majority.
    `electors` maps its voters to 0 (recovered) or their incarnation. `first_index` is the leader's
    first frame, which is its own barrier, and that of all voters while it is provisional."""

    _node_id: NodeId
    _ballot: Ballot
    _log: CoreLog
    _membership: Membership
    _tracker: Tracker
    _first_index: int
    _electors: Mapping[NodeId, int]
    provisional: bool

    def meet(self, progress: Progress, recovering: int, last_index: int) -> bool:
        """Start the recovery of an unknown incarnation with a log up to `last_index`, and forget
        earlier reports of its node. Return whether a barrier must be proposed as the next frame."""
        end = self._log.index.last_index
        if progress.recovering is not None or progress.match_index:
            progress.forget(min(last_index, end))
        progress.certified = 0
        progress.recovering = recovering
        if self.provisional and progress.voter:
            return False
        progress.barrier_index = end + 1
        return True

    def is_pressing(self, progress: Progress, match_index: int) -> bool:
        """Return whether the follower has just acknowledged everything that its certificate needs.
        Only its heartbeat response names its incarnation, so it should get a heartbeat at once."""
        founds = self.provisional and progress.voter
        target_index = self._first_index if founds else progress.barrier_index
        return progress.reported_index < target_index <= match_index

    def forgetful(self) -> NodeId | None:
        """Return a voter that may have forgotten its vote for this provisional leader."""
        if self.provisional:
            for progress in self._tracker.voting:
                if progress.recovering is None:
                    return None
                if progress.recovering != self._electors.get(progress.peer):
                    return progress.peer
        return None

    def certify(self) -> tuple[bool, list[Progress]]:
        """Certify the replicas that have caught up with their barrier. Return whether more copies
        count for commit now, and the followers to notify."""
        if self.provisional:
            return self._certify_electors()
        if not self._ballot.recovered:
            first, durable_index = self._first_index, self._log.durable_index
            if not self._may_certify(first, durable_index, self._membership.is_voter):
                return False, []
            self._ballot.mark_recovered(self._node_id)
            return True, []  # other replicas, from the next answer on
        followers = [
            progress
            for progress in self._tracker.progress.values()
            if progress.recovering
            and progress.certified != progress.recovering
            and self._may_certify(progress.barrier_index, progress.reported_index, progress.voter)
        ]
        return False, self._certified(followers)

    def _may_certify(self, barrier_index: int, reached_index: int, votes: bool) -> bool:
        """Return whether a replica with the frames up to `reached_index` has caught up."""
        return reached_index >= barrier_index and (
            self._holders(barrier_index) >= self._witnesses(votes)
        )

    def _witnesses(self, votes: bool) -> int:
        return witnesses(len(self._membership.voters), votes)

    def _holders(self, index: int) -> int:
        """Return how many recovered voters have frame `index` durable."""
        own = (
            self._membership.is_voter
            and self._ballot.recovered
            and self._log.durable_index >= index
        )
        return own + self._tracker.holders(index)

    def _certified(self, followers: list[Progress]) -> list[Progress]:
        for progress in followers:
            assert progress.recovering
            progress.certified = progress.recovering
        return followers

    def _certify_electors(self) -> tuple[bool, list[Progress]]:
        """Certify all electors of this provisional leader once all have its first no-op durable."""
        first, voting = self._first_index, self._tracker.voting
        if self._log.durable_index < first or any(
            p.recovering is None or p.reported_index < first for p in voting
        ):
            return False, []
        self.provisional = False
        if not self._ballot.recovered:
            self._ballot.mark_recovered(self._node_id)
        return True, self._certified([p for p in voting if p.recovering])

    def is_stuck(self, silent_ms: float) -> bool:
        """Return whether all voters were heard since `silent_ms`, but too few are recovered for a
        barrier, so that a new election is needed."""
        if self.provisional:
            return False
        recovered = int(self._membership.is_voter and self._ballot.recovered)
        for progress in self._tracker.voting:
            if progress.recovering is None or progress.heard_ms < silent_ms:
                return False
            # 0 and 0: the follower reports that it is recovered.
            recovered += progress.certified == progress.recovering
        return recovered < self._witnesses(votes=True)
