"""Planted breaks of the core: each takes one rule of Raft, of recovery or of membership away.

Most are faults that real systems had: 1, 3 and 5 are pysyncobj 0.3.17's, 2 was jraft #1241. 13 to
17 and 19 take a rule of dledger/raft/recovery.py away. Those of its rules whose want needs more
losses at a time than the promise covers are tested in tests/dledger/raft/test_recovery.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from raftmq.dledger.node.peer_addresses import Roster
from raftmq.dledger.raft.configuration import Change, Configuration
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.election import Election
from raftmq.dledger.raft.election_timeout import ElectionBackOff
from raftmq.dledger.raft.follower import Following
from raftmq.dledger.raft.leader import Leading
from raftmq.dledger.raft.membership import Membership
from raftmq.dledger.raft.messages import AppendRequest, AppendResponse, HardState, Role
from raftmq.dledger.raft.progress import Progress
from raftmq.dledger.raft.quorum import Tally, majority, reached_by_majority
from raftmq.dledger.raft.recovery import Recovery
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.startup_state import Promises
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.store.frame import Frame
from tests.simulator.cluster.planting import all_of, instead, replaced

Planted = AbstractContextManager[Any]

# -- Raft ------------------------------------------------------------------------------------------


def cuts_at_match() -> Planted:
    """1. Always cuts behind prev_index, conflict or not."""

    class CutsAtMatch(Following):
        __slots__ = ()

        def _take_frames(self, request: AppendRequest) -> None:
            log = self._log
            if request.prev_index < log.index.last_index:
                self._verified_index = min(self._verified_index, request.prev_index)
                log.commit_index = min(log.commit_index, request.prev_index)
                log.truncate(request.prev_index + 1)
                self._membership.truncate(request.prev_index + 1, log.commit_index)
            super()._take_frames(request)

    return following(CutsAtMatch)


def vote_not_saved() -> Planted:
    """2. Answers before the vote is durable: it never is."""

    def broken(save: Any) -> Any:
        def saves(self: HardStateFile, state: HardState) -> None:
            save(self, HardState(state.term, None, state.recovered))

        return saves

    return replaced(HardStateFile, "save", broken)


def acknowledged_to_an_earlier_leader() -> Planted:
    """3. Takes an acknowledgement of an earlier leadership for one of this."""

    def broken(step: Any) -> Any:
        def steps(self: RaftCore, message: Any, now_ms: float) -> None:
            if isinstance(message, AppendResponse):
                match_index = min(message.match_index, self.last_index)
                message = replace(message, request_term=self.term, match_index=match_index)
            step(self, message, now_ms)

        return steps

    return replaced(RaftCore, "step", broken)


def acknowledged_before_durable() -> Planted:
    """4. Says what it has written, not what is durable."""

    class Acknowledges(Following):
        __slots__ = ()

        def _acknowledge(self, leader: str, prev_index: int) -> None:
            durable, self._log.durable_index = self._log.durable_index, self._verified_index
            super()._acknowledge(leader, prev_index)
            self._log.durable_index = durable

        def take_append(self, request: AppendRequest) -> None:
            super().take_append(request)
            if self._ack_due:
                self._acknowledge(request.sender, request.prev_index)

    return following(Acknowledges)


class _Counted(Tally):
    """Votes by number."""

    __slots__ = ()

    def record(self, voter: str, granted: bool, recovering: int = 0) -> None:
        super().record(voter, granted, recovering)
        if granted and voter in self.granted:
            self.granted[f"{voter} {len(self.granted)}"] = recovering


def votes_counted_by_number() -> Planted:
    """5. One voter delivered twice is two votes."""

    def broken(takes: Any) -> Any:
        def taken(self: Election, response: Any, now_ms: float) -> None:
            candidacy, ballot = self.candidacy, self._ballot
            if candidacy is not None and type(candidacy.tally) is Tally and ballot.recovered:
                counted = _Counted(self._membership.voters)
                counted.granted = candidacy.tally.granted
                counted.refused = candidacy.tally.refused
                candidacy.tally = counted
            takes(self, response, now_ms)

        return taken

    return replaced(Election, "take_vote_response", broken)


def old_term_committed_by_counting() -> Planted:
    """6. Figure 8: an earlier term's frame on a majority is not committed yet."""

    class Commits(Leading):
        __slots__ = ()

        def _advance_commit(self) -> None:
            super()._advance_commit()
            reached = [progress.match_index for progress in self.progress.values()]
            candidate = reached_by_majority([*reached, self._log.durable_index])
            candidate = min(candidate, self._first_index - 1)
            if candidate > self._log.commit_index:
                self._log.commit(candidate)
                self._membership.commit(candidate)

    return leading(Commits)


def own_unsynced_copy_counted() -> Planted:
    """7. The leader's own copy counts before it is durable."""

    class Counts(Leading):
        __slots__ = ()

        def _advance_commit(self) -> None:
            log = self._log
            durable, log.durable_index = log.durable_index, log.index.last_index
            super()._advance_commit()
            log.durable_index = durable

    return leading(Counts)


def votes_for_anybody() -> Planted:
    """8. No up-to-date check (5.4.1)."""

    def broken(asked: Any) -> Any:
        return lambda self, request, now_ms: asked(
            self, replace(request, last_term=max(request.last_term, 1 << 40)), now_ms
        )

    return replaced(Election, "take_vote_request", broken)


def votes_twice() -> Planted:
    """9. More than one vote in a term."""

    def broken(asked: Any) -> Any:
        def votes(self: Election, request: Any, now_ms: float) -> None:
            if not request.pre_vote and self.role is Role.FOLLOWER:
                self._ballot.voted_for = None
            asked(self, request, now_ms)

        return votes

    return replaced(Election, "take_vote_request", broken)


def commits_unproven() -> Planted:
    """10. The follower commits what the leader did, also where its own log is not proven."""

    class Commits(Following):
        __slots__ = ()

        def take_append(self, request: AppendRequest) -> None:
            self._commit(min(request.commit_index, self._log.index.last_index))
            super().take_append(request)

    return following(Commits)


def reads_confirmed_by_nobody() -> Planted:
    """11. A read confirmed by nobody."""

    class Reads(Leading):
        __slots__ = ()

        def _start_read_round(self, now_ms: float) -> None:
            self.round += 1
            for progress in self.progress.values():
                progress.recovered_round = self.round
            self._confirm_reads()

    return leading(Reads)


class _NotProvisional(Leading):
    """Is a leader like any other, if it has not just founded its group."""

    __slots__ = ()

    def __post_init__(self, tally: Tally) -> None:
        super().__post_init__(tally)
        self._recovery.provisional &= not self._ballot.recovered


def elected_by_a_minority() -> Planted:
    """12. One vote less than a majority is enough."""

    def broken(count: Any) -> Any:
        def counts(self: Election, now_ms: float) -> None:
            candidacy, recovered = self.candidacy, self._ballot.recovered
            if (
                candidacy is not None
                and not candidacy.pre_vote
                and recovered  # or no group would ever be founded
                and len(candidacy.tally.granted) >= majority(len(self._membership.voters)) - 1
            ):
                self._become_leader(candidacy, now_ms)
            else:
                count(self, now_ms)

        return counts

    return all_of(leading(_NotProvisional), replaced(Election, "count_votes", broken))


# -- recovery --------------------------------------------------------------------------------------


def recovering_votes_counted() -> Planted:
    """13. The vote of a voter that may have lost its memory is as good as any."""

    def broken(takes: Any) -> Any:
        def taken(self: Election, response: Any, now_ms: float) -> None:
            if self._ballot.recovered:  # or no group would ever be founded
                response = replace(response, recovering=0)
            takes(self, response, now_ms)

        return taken

    return replaced(Election, "take_vote_response", broken)


def recovering_copies_counted() -> Planted:
    """14. An acknowledgement of a replica that may have voted in a later term commits."""

    class Counts(Leading):
        __slots__ = ()

        def _advance_commit(self) -> None:
            for progress in self.progress.values():
                progress.recovered_index = max(progress.recovered_index, progress.match_index)
            super()._advance_commit()

        def _take_match(self, progress: Progress, match_index: int, now_ms: float) -> None:
            super()._take_match(progress, match_index, now_ms)
            self._advance_commit()

    return leading(Counts)


def certified_alone() -> Planted:
    """15. The leader's word alone makes a replica recovered: it may be deposed and not know it."""
    return instead(Recovery, "_witnesses", lambda self, votes: 1)


def certified_without_a_barrier() -> Planted:
    """16. A replica is recovered as soon as it answers: whatever it has lost."""

    def broken(meet: Any) -> Any:
        def meets(self: Recovery, progress: Progress, recovering: int, last_index: int) -> bool:
            wants_barrier: bool = meet(self, progress, recovering, last_index)
            progress.barrier_index = 0
            return wants_barrier

        return meets

    return replaced(Recovery, "meet", broken)


def elected_by_all_but_one() -> Planted:
    """17. With replicas that recover, all but one are taken for all."""

    def broken(count: Any) -> Any:
        def counts(self: Election, now_ms: float) -> None:
            candidacy, recovered = self.candidacy, self._ballot.recovered
            enough = (
                candidacy is not None
                and len(candidacy.tally.granted) == len(self._membership.voters) - 1
            )
            if candidacy is not None and enough and recovered and not candidacy.pre_vote:
                self._become_leader(candidacy, now_ms)
            elif enough and recovered:
                self._start_election("all but one would vote for this replica", now_ms)
            else:
                count(self, now_ms)

        return counts

    return all_of(leading(_NotProvisional), replaced(Election, "count_votes", broken))


def campaigns_with_a_bad_disk() -> Planted:
    """18. A leader that stepped down for its disk comes back with it."""

    def broken(fails: Any) -> Any:
        def failed(self: RaftCore, reason: str, takes_frames: bool = True) -> None:
            fails(self, reason, takes_frames)
            self.election.unfit = None

        return failed

    return replaced(RaftCore, "disk_fails", broken)


def recovering_not_noted() -> Planted:
    """19. That it may have lost promises is not noted: after a restart it is recovered."""

    def broken(save: Any) -> Any:
        return lambda self, state: save(self, replace(state, recovered=True))

    return replaced(HardStateFile, "save", broken)


class OneSlotFile(SlotFile):
    """Two slots used in turn: the older one holds the content before."""

    def save(self, content: bytes) -> None:
        if self._file is None:
            super().save(content)
            return
        self._sequence += 1
        self._write(self._sequence % 2, content)

    def load(self) -> bytes | None:
        write, self._write = self._write, lambda slot, content: None  # type: ignore[method-assign]
        try:
            return super().load()
        finally:
            self._write = write  # type: ignore[method-assign]


def votes_in_one_slot() -> Planted:
    """20. The newest vote stands in one place only: rot brings the one before back."""
    return patch("raftmq.dledger.storage.hard_state.SlotFile", OneSlotFile)


def page_cache_trusted() -> Planted:
    """21. What was acknowledged before it was durable survives a power cut, it believes."""

    def broken(init: Any) -> Any:
        return lambda self, disk, directory, unsynced: init(self, disk, directory, False)

    return replaced(Promises, "__init__", broken)


# -- members ---------------------------------------------------------------------------------------


def configured_at_commit() -> Planted:
    """M1. A configuration is in force from its commit on, not from its append."""

    class Configured(Membership):
        __slots__ = ("_later",)

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._later: list[Frame] = []

        def append(self, frame: Frame, commit_index: int) -> bool:
            self._later = [later for later in self._later if later.index < frame.index]
            self._later.append(frame)
            return False

        def truncate(self, from_index: int, commit_index: int) -> None:
            super().truncate(from_index, commit_index)
            self._later = [later for later in self._later if later.index < from_index]

        def commit(self, commit_index: int) -> bool:
            changed = super().commit(commit_index)
            committed = [frame for frame in self._later if frame.index <= commit_index]
            self._later = [frame for frame in self._later if frame.index > commit_index]
            for frame in committed:
                changed = super().append(frame, commit_index) or changed
            return changed

    class Configures(Leading):
        __slots__ = ()

        def _advance_commit(self) -> None:
            before = self._membership.configurations.index
            super()._advance_commit()
            if self._membership.configurations.index != before:
                self.configure(self._heartbeat_due_ms)

    return all_of(members(Configured), leading(Configures))


def two_changes_at_once() -> Planted:
    """M2. The next change does not wait for the one before it."""

    def broken(after: Any) -> Any:
        def changed(self: Membership, change: Change) -> Configuration:
            pending_index, self.pending_index = self.pending_index, 0
            try:
                result: Configuration = after(self, change)
                return result
            finally:
                self.pending_index = pending_index

        return changed

    return replaced(Membership, "after", broken)


def learners_counted() -> Planted:
    """M3. A learner's copy counts for commit."""

    def broken(configure: Any) -> Any:
        def configures(self: Leading, now_ms: float) -> None:
            configure(self, now_ms)
            self.tracker.voting = tuple(self.progress.values())

        return configures

    return replaced(Leading, "configure", broken)


def removed_leader_counts_itself() -> Planted:
    """M4. A leader that is leaving goes on counting itself."""

    class Counts(Leading):
        __slots__ = ()

        def _advance_commit(self) -> None:
            membership = self._membership
            is_voter, membership.is_voter = membership.is_voter, True
            super()._advance_commit()
            membership.is_voter = is_voter

    return leading(Counts)


def cut_configuration_kept() -> Planted:
    """M5. A configuration stays in force although its frame was cut."""

    class Keeps(Membership):
        __slots__ = ()

        def truncate(self, from_index: int, commit_index: int) -> None:
            pass

        def append(self, frame: Frame, commit_index: int) -> bool:
            newer = frame.index > self.configurations.index
            return newer and super().append(frame, commit_index)

    return members(Keeps)


def campaigns_as_a_learner() -> Planted:
    """M6. Whoever hears no leader campaigns, and votes for itself."""
    return instead(Election, "_may_campaign", property(lambda self: bool(self._membership.voters)))


def configuration_forgotten_at_start() -> Planted:
    """M7. After a restart the configuration of broker.conf is in force again."""

    def broken(starting: Any) -> Any:
        def starts(self: Roster, raft_log: Any) -> Any:
            self._saved = None
            raft_log.configuration_indexes.clear()
            return starting(self, raft_log)

        return starts

    return replaced(Roster, "starting", broken)


# -- starvation ------------------------------------------------------------------------------------


def time_outs_never_grow() -> Planted:
    """S1. A group learns nothing from mistakes: its time-outs stay what is configured."""
    return instead(ElectionBackOff, "mistaken", lambda self: None)


def time_outs_never_shrink() -> Planted:
    """S2. A group never goes back to the time-outs that are configured."""
    return instead(ElectionBackOff, "heard", lambda self, now_ms, silent_ms: None)


# -- how they are planted --------------------------------------------------------------------------


def following(broken: type[Following]) -> Planted:
    return patch("raftmq.dledger.raft.core.Following", broken)


def leading(broken: type[Leading]) -> Planted:
    return patch("raftmq.dledger.raft.election.Leading", broken)


def members(broken: type[Membership]) -> Planted:
    return patch("raftmq.dledger.raft.core.Membership", broken)
