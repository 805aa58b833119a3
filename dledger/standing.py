"""Recovery of replicas that may have lost promises: "recovering" until "whole" again. Pure.

Raft assumes that a replica never forgets a vote it gave or a frame it acknowledged. One that
cannot be sure of that (a blank disk, a lost vote file, a power cut under ASYNC_FLUSH, frames given
up as damaged: promises.py decides) is *recovering*: it follows, votes and acknowledges as always,
but marks every message so, until it is *whole* (recovered) again. Let there be n voters, q = a
majority, and at most f = n - q of them not whole at a time; otherwise nothing is promised:

1. A candidate wins with the grants of q whole voters (itself counted only if whole), or with
   those of all n. 2. Only whole replicas' copies count for commit, and only their answers confirm
   reads: a replica that forgot its vote in a later term would otherwise acknowledge to a leader
   that this vote has deposed. 3. A vote counts only for the candidacy (term and incarnation) that
   asked for it, and a voter repeats a grant only to that candidacy: votes that reach a candidate
   which lost its own memory count for nothing.

Catching up: a *barrier*. The leader L of term T, whole and elected by q whole voters, learns from a
heartbeat response of a recovering incarnation of w that it does not know. It proposes a no-op e.
Once q whole voters other than w have e durable in term T (so e is committed without counting w;
of two voters the other one is enough: there f = 0), and w has everything up to e durable and
verified, L says so in its heartbeats (`certified` = that incarnation). w, still in term T, is
whole from then on.

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
L itself, if it is recovering and elected by q whole others: its first no-op is its barrier.

Why the statements of peers, even of f + 1, are not enough without a barrier: with five replicas, x
may answer first and then vote for A, whose candidacy is as old as w's forgotten vote. And why the
leader alone is not enough: it may be deposed and not know it.

Founding. When fewer than q voters are whole (the first start of a group; a power cut of all under
ASYNC_FLUSH; the loss of a majority's disks, when the promise is void, but the rest should still get
a leader), only all n together elect: the best log that is left leads. Such a leader is
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
blank group's first leader the others may not know yet that they are whole: then all are needed
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

A learner is recovering, and made whole, like any other, by the voters' copies; and is promoted only
when it is whole. Thus a replica with an empty disk, whether new, or removed and added again under
its old id, counts in no vote and no commit before it is whole. The promises that its id made before
count only where a configuration has it as a voter: that is at least one change away from the
leader's, and the proof is the same. If it were promoted while it recovers, it would take the place
of one of the f.

A stale configuration. All n together may elect also when too few are whole: all of the candidate's
configuration, which may be an older one. A voter that knows a newer one refuses; but those that
knew it may be just those that lost it. With n' > n voters f' > f of them may, and the others then
do not know that there are n'. So the promise is that of *every* configuration that a replica of the
group still uses: a group that grew tolerates more only when all its replicas have heard of it.

Which configuration a replica founds by: that of broker.conf, as long as its log and its
configuration file know no other. So a voter that lost its disk may campaign for a past state of the
group, but every replica that has a frame refuses. A new replica (`raftJoin`) knows none, and waits.
The configurations that an empty one then meets in the log, frame by frame, are past ones; in one of
them it may have been the only voter. So only whole replicas write the file, and one that recovers
without having had it does not campaign by a configuration from a frame. (A group that began with
one replica, grew, and lost that one's disk must start it with `raftJoin`: nothing but broker.conf
could tell it that it is not alone.)

So the first start of a group, and only that, needs all replicas once. A group of one founds by
itself. In a group of two, while one of them recovers, only both together can elect.
"""

from __future__ import annotations

from raftmq.dledger.messages import HeartbeatResponse, NodeId, Role
from raftmq.dledger.progress import Progress
from raftmq.dledger.quorum import witnesses
from raftmq.dledger.state import CoreState


class Standing(CoreState):
    """How a leader brings recovering followers, and itself, back to being whole."""

    __slots__ = ()

    def _advance_commit(self) -> None:
        raise NotImplementedError  # leading.py

    def _send_heartbeat(self, progress: Progress) -> None:
        raise NotImplementedError  # leading.py

    # -- the leader -------------------------------------------------------------------------

    def _note_standing(self, progress: Progress, response: HeartbeatResponse) -> None:
        """Note the standing that a follower's newest heartbeat response reports."""
        recovering = response.recovering
        if recovering != progress.recovering:
            if recovering:
                self._meet_recovering(progress, response)
            progress.recovering = recovering
        if not recovering:
            progress.certified = 0
            self._count_whole(progress, response.match_index)
        progress.reported_index = response.match_index
        if recovering or self._provisional or not self.whole:
            self._certify()

    def _meet_recovering(self, progress: Progress, response: HeartbeatResponse) -> None:
        """Start the recovery of an incarnation unknown until now: nothing that its node said before
        counts."""
        if progress.recovering is not None or progress.match_index:
            progress.forget(min(response.last_index, self._log.last_index))
        progress.certified = 0
        if progress.next_index <= self._log.last_index:
            self._appends_due = True
            self._dirty = True
        if not (self._provisional and progress.voter):
            progress.barrier_index = self._log.last_index + 1
            self.wants_noop = True

    def _speaks_as_whole(self, progress: Progress) -> None:
        """Note that the follower has taken its certificate."""
        progress.recovering = progress.certified = 0

    def _hurry(self, progress: Progress, match_index: int) -> None:
        """Send a heartbeat now, rather than at the next round, if the follower has acknowledged all
        it needs to be certified: only its heartbeat response names its incarnation."""
        founds = self._provisional and progress.voter
        wanted = self._own_first_index if founds else progress.barrier_index
        if progress.reported_index < wanted <= match_index:
            self._send_heartbeat(progress)

    def _count_whole(self, progress: Progress, match_index: int) -> None:
        """Count a whole follower's acknowledgement up to `match_index` for commit."""
        if match_index > progress.whole_index:
            progress.whole_index = match_index
            if match_index > self.commit_index:
                self._advance_commit()

    def _certify(self) -> None:
        """Certify the replicas, followers or itself, that have caught up with their barrier."""
        if self._provisional:
            self._found()
            return
        if not self.whole:
            first = self._own_first_index
            if self.durable_index >= first and self._holders(first) >= self._witnesses():
                self._become_whole(self.node_id)
                self._advance_commit()
            return  # others, from the next answer on
        for progress in self._progress.values():
            barrier = progress.barrier_index
            if (
                progress.recovering
                and progress.certified != progress.recovering
                and progress.reported_index >= barrier
                and self._holders(barrier) >= self._witnesses()
            ):
                self._certify_follower(progress)

    def _witnesses(self) -> int:
        return witnesses(len(self.voters))

    def _holders(self, index: int) -> int:
        """Return how many whole voters have frame `index` durable."""
        count = int(self.is_voter and self.whole and self.durable_index >= index)
        for progress in self._voting:
            count += not progress.recovering and progress.whole_index >= index
        return count

    def _certify_follower(self, progress: Progress) -> None:
        assert progress.recovering
        progress.certified = progress.recovering
        self._send_heartbeat(progress)

    def _found(self) -> None:
        """Certify all voters, which together have elected this provisional leader, once all have
        its first no-op durable. Step down if one of them may have forgotten its vote."""
        first = self._own_first_index
        for progress in self._voting:
            if progress.recovering is None:
                return
            if progress.recovering != self._electors.get(progress.peer):
                self._become_follower(self.term, None, f"{progress.peer} may not know its vote")
                return
        followers = self._voting
        if self.durable_index < first or any(p.reported_index < first for p in followers):
            return
        self._provisional = False
        if not self.whole:
            self._become_whole(self.node_id)
        for progress in followers:
            if progress.recovering:
                self._certify_follower(progress)
        self._advance_commit()

    def _cannot_go_on(self) -> bool:
        """Return whether all answer, but too few are whole for a barrier: all must elect anew."""
        if self._provisional:
            return False
        silent_ms = self._now_ms - self.config.election_ms_max
        whole = int(self.is_voter and self.whole)
        for progress in self._voting:
            if progress.recovering is None or progress.heard_ms < silent_ms:
                return False
            whole += progress.certified == progress.recovering  # 0 and 0: it says it is whole
        return whole < self._witnesses()

    # -- every replica ----------------------------------------------------------------------

    def _become_whole(self, leader: NodeId) -> None:
        """Become whole: all forgotten promises are recovered, in the term of `leader`."""
        assert not self.whole
        self.whole = True
        if self.voted_for is None:
            self._vote_for(leader, 0)
        self._out_hard_state = True
        self._dirty = True

    def _take_certificate(self, certified: int) -> bool:
        """Take the current leader's certificate for incarnation `certified`; return whether that
        made this replica whole."""
        if self.whole or certified != self.incarnation:
            return False
        assert self.role is Role.FOLLOWER, self.role
        assert self.leader is not None
        self._become_whole(self.leader)
        return True
