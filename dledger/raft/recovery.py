"""Recovery of replicas that may have lost promises: "recovering" until "recovered". Pure.

Raft assumes that a replica never forgets a vote it gave or a frame it acknowledged. One that cannot
be sure of that (a blank disk, a lost vote file, a power cut under ASYNC_FLUSH, frames given up as
damaged: dledger/storage/startup_state.py decides; or its peers know that its store is older:
dledger/node/rollback_detection.py) is
*recovering*: it follows, votes and acknowledges as always, but marks every message so, until it is
*recovered*. Let there be n voters, q = a majority, and at most f = n - q of them not recovered at a
time; otherwise nothing is promised:

1. A candidate wins with the grants of q recovered voters (itself counted only if recovered), or
   with those of all n. 2. Only recovered replicas' copies count for commit, and only their answers
   confirm reads: a replica that forgot its vote in a later term would otherwise acknowledge to a
   leader that this vote has deposed. 3. A vote counts only for the candidacy (term and incarnation)
   that asked for it, and a voter repeats a grant only to that candidacy: votes that reach a
   candidate which lost its own memory count for nothing.

Catching up: a *barrier*. The leader L of term T, recovered and elected by q recovered voters,
learns from a heartbeat response of a recovering incarnation of w that it does not know. It proposes
a no-op e. Once q recovered voters other than w have e durable in term T (so e is committed without
counting w; if w is one of two voters the other one is enough: there f = 0), and w has everything up
to e durable and verified, L says so in its heartbeats (`certified` = that incarnation). w, still in
term T, is recovered from then on.

Why that is enough. e was proposed after w had lost its memory. Suppose a forgotten vote of w
helps a candidacy of A in a term t > T to win. Of its q voters some x is among the q that hold e,
and is not w. If x had voted for A before it got e, it would have refused e, being in term t; so
it voted later, and (Raft 5.4.1) A's log held e when A's candidacy began. But then that candidacy
began after w had lost its memory, and no earlier vote of w was for it. So no such candidacy ever
wins, and what w acknowledged to a leader of such a term was never committed by it (there is no
such leader). What w acknowledged in terms up to T is in L's log before e as far as it is or will be
committed (Raft 5.4.3), so w has it again. In terms below T, w never votes again. In T, L has won,
and w has a frame of term T, which no candidate of that term has: w refuses them all. (If w knows of
no vote of its own in T it also notes one for L, which only makes that explicit.) The same holds for
L itself, if it is recovering and elected by q recovered others: its first no-op is its barrier.

Why the statements of peers, even of f + 1, are not enough without a barrier: with five replicas, x
may answer first and then vote for A, whose candidacy is as old as w's forgotten vote. And why the
leader alone is not enough: it may be deposed and not know it.

Founding. When fewer than q voters are recovered (the first start of a group; a power cut of all
under ASYNC_FLUSH; the loss of a majority's disks, when the promise is void, but the rest should
still get a leader), only all n together elect: the best log that is left leads. Such a leader is
*provisional*: it commits nothing and certifies nobody until all n have its first no-op durable,
each in the same incarnation in which it granted its vote. Then all are certified. A voter that
comes back in another incarnation may have lost that grant: the leader gives up and all are asked
again.

Why that is enough. Every recovering voter w forgot before it granted, all grants came before the
no-op e, and all acknowledged e in the leader's term t. A candidacy of A in a later term to which
w had given a forgotten vote began before e; since A acknowledged e in term t, A has forgotten it
too, and a candidacy ends with the process that runs it. Had it won before that, all its q voters
must have forgotten: more than f at a time. Therefore also nothing was acknowledged to a leader
of such a term. What was acknowledged in earlier terms and is committed is on one of the n whose
memory is sound, and the leader's log is at least as good as that one's. After a restart of a
blank group's first leader the others may not know yet that they are recovered: then all are needed
once more.

Membership changes (membership.py). The voters above are those of the configuration in force at the
leader, its own newest one, as for a commit. A's may be another. If it is one change apart, a
majority of the one and a majority of the other have a replica in common; and since those that hold
e are a majority *without w*, that x is not w, and the proof stands. (With f + 1 of an even n
instead of q it would not: four voters, w among them; a leader that is cut off promotes a fifth, and
is elected by itself, the fifth and a forgotten vote of w, without the two that hold e.) If it is
two or more changes apart, the nearer of them was committed first, by voters in a term that the
farther candidate's voters would know of (thesis 4.1; a leader commits in its own term before it
changes anything): such an A has not won, with or without w's vote. So a barrier need not consider a
change that is under way. While a leader is provisional it commits nothing, and so changes nothing.

A learner is recovering, and recovers, like any other, by the voters' copies; and is promoted only
when it is recovered. Thus a replica with an empty disk, whether new, or removed and added again
under its old id, counts in no vote and no commit before it is recovered. The promises that its id
made before count only where a configuration has it as a voter: that is at least one change away
from the leader's, and the proof is the same: with a majority of the voters, none of which it is, so
with both of two. (With one of two it would not be: of three voters w forgets a vote for A; a leader
that is cut off from A removes w, and would alone find it recovered.) If it were promoted while it
recovers, it would take the place of one of the f.

A stale configuration. All n together may elect also when too few are recovered: all of the
candidate's configuration, which may be an older one. A voter that knows a newer one refuses; but
those that knew it may be just those that lost it. With n' > n voters f' > f of them may, and the
others then do not know that there are n'. So the promise is that of *every* configuration that a
replica of the group still uses: a group that grew tolerates more only when all its replicas have
heard of it.

Which configuration a replica founds by: that of broker.conf, as long as its log and its
configuration file know no other. So a voter that lost its disk may campaign for a past state of the
group, but every replica that has a frame refuses. A new replica (`raftJoin`) knows none, and waits.
The configurations that an empty one then meets in the log, frame by frame, are past ones; in one of
them it may have been the only voter. So only recovered replicas write the file, and one that
recovers without having had it does not campaign by a configuration from a frame. (A group that
began with one replica, grew, and lost that one's disk must start it with `raftJoin`: nothing but
broker.conf could tell it that it is not alone.)

So the first start of a group, and only that, needs all replicas once. A group of one founds by
itself. In a group of two, while one of them recovers, only both together can elect.

tests/model has these rules as a model whose states are searched one and all (docs/model.md).
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
    """Certifies one leader's recovering followers, and the leader itself, once they have recovered.

    `provisional`: elected by all, fewer than a majority recovered. `electors`: who voted for it, 0
    recovered, or with its incarnation. `first_index`: the leader's first frame, which is its own
    barrier, and that of all voters while it is provisional."""

    _node_id: NodeId
    _ballot: Ballot
    _log: CoreLog
    _membership: Membership
    _tracker: Tracker
    _first_index: int
    _electors: Mapping[NodeId, int]
    provisional: bool

    def meet(self, progress: Progress, recovering: int, last_index: int) -> bool:
        """Start the recovery of an incarnation unknown until now, whose log ends at `last_index`:
        nothing that its node said before counts. Return whether it needs a barrier, to be proposed
        as the next frame."""
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
        """Return whether the follower has just acknowledged all it needs to be certified: only its
        heartbeat response names its incarnation, so it should get a heartbeat at once."""
        founds = self.provisional and progress.voter
        wanted = self._first_index if founds else progress.barrier_index
        return progress.reported_index < wanted <= match_index

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
        """Certify the replicas, followers or the leader itself, that have caught up with their
        barrier. Return whether more copies count for commit now than before, and the followers
        that have to be told."""
        if self.provisional:
            return self._found()
        if not self._ballot.recovered:
            first, durable_index = self._first_index, self._log.durable_index
            if not self._may_certify(first, durable_index, self._membership.is_voter):
                return False, []
            self._ballot.mark_recovered(self._node_id)
            return True, []  # others, from the next answer on
        followers = [
            progress
            for progress in self._tracker.progress.values()
            if progress.recovering
            and progress.certified != progress.recovering
            and self._may_certify(progress.barrier_index, progress.reported_index, progress.voter)
        ]
        return False, self._certified(followers)

    def _may_certify(self, barrier_index: int, reached_index: int, votes: bool) -> bool:
        """Return whether a replica that has all up to `reached_index` has caught up. `votes`:
        whether it is a voter."""
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

    def _found(self) -> tuple[bool, list[Progress]]:
        """Certify all voters, which together have elected this provisional leader, once all have
        its first no-op durable."""
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
        """Return whether all voters have been heard since `silent_ms`, but too few are recovered
        for a barrier: all must elect anew."""
        if self.provisional:
            return False
        recovered = int(self._membership.is_voter and self._ballot.recovered)
        for progress in self._tracker.voting:
            if progress.recovering is None or progress.heard_ms < silent_ms:
                return False
            # 0 and 0: it says that it is recovered.
            recovered += progress.certified == progress.recovering
        return recovered < self._witnesses(votes=True)
