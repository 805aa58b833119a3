"""Planted breaks: each takes one rule away. A checker that misses any of them is worth nothing.

Most are faults that real systems had: 1, 3 and 5 are pysyncobj 0.3.17's, 2 was jraft #1241.
13 to 17 and 19 take a rule of dledger/recovery.py away. Those of its rules whose want needs more
losses at a time than the promise covers are tested in tests/dledger/test_recovery.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raftmq.dledger.configuration import Change, Configuration
from raftmq.dledger.core import RaftCore
from raftmq.dledger.following import Following
from raftmq.dledger.leading import Leading
from raftmq.dledger.membership import Membership
from raftmq.dledger.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    Message,
    Ready,
    Role,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.progress import Progress
from raftmq.dledger.promises import Promises
from raftmq.dledger.quorum import Tally, majority, reached_by_majority
from raftmq.dledger.recovery import Recovery
from raftmq.dledger.repair import Patch, RepairResponse, StartRepair, Wanted
from raftmq.dledger.slots import SlotFile
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameError, parse_header
from raftmq.store.logsync import SyncTicket
from tests.simulator.disk import SimFile
from tests.simulator.mender import Mender
from tests.simulator.node import VOTES, SimNode


class _CutsAtMatch(Following):
    __slots__ = ()

    def _take_frames(self, request: AppendRequest) -> None:
        log = self._log
        if request.prev_index < log.index.last_index:
            self._verified_index = min(self._verified_index, request.prev_index)
            log.commit_index = min(log.commit_index, request.prev_index)
            log.truncate(request.prev_index + 1)
            self._membership.truncate(request.prev_index + 1, log.commit_index)
        super()._take_frames(request)


class CutsAtMatch(RaftCore):
    """1. Always cuts behind prev_index, conflict or not."""

    __slots__ = ()
    following_class = _CutsAtMatch


class ForgetsVote(SimNode):
    """2. Answers before the vote is durable: it never is."""

    def _save_hard_state(self, ready: Ready) -> None:
        assert ready.hard_state is not None
        state = ready.hard_state
        self.promises.hard_state.save(HardState(state.term, None, state.recovered))


class IgnoresRequestTerm(RaftCore):
    """3. Takes an acknowledgement of an earlier leadership for one of this."""

    __slots__ = ()

    def step(self, message: Message, now_ms: float) -> None:
        if isinstance(message, AppendResponse):
            match_index = min(message.match_index, self.last_index)
            message = replace(message, request_term=self.term, match_index=match_index)
        super().step(message, now_ms)


class _AcknowledgesBeforeDurable(Following):
    __slots__ = ()

    def _acknowledge(self, leader: str, prev_index: int) -> None:
        durable, self._log.durable_index = self._log.durable_index, self._verified_index
        super()._acknowledge(leader, prev_index)
        self._log.durable_index = durable

    def take_append(self, request: AppendRequest) -> None:
        super().take_append(request)
        if self._ack_due:
            self._acknowledge(request.sender, request.prev_index)


class AcknowledgesBeforeDurable(RaftCore):
    """4. Says what it has written, not what is durable."""

    __slots__ = ()
    following_class = _AcknowledgesBeforeDurable


class _Counted(Tally):
    """Votes by number."""

    __slots__ = ()

    def record(self, voter: str, granted: bool, recovering: int = 0) -> None:
        super().record(voter, granted, recovering)
        if granted and voter in self.granted:
            self.granted[f"{voter} {len(self.granted)}"] = recovering


class CountsVotesByNumber(RaftCore):
    """5. One voter delivered twice is two votes."""

    __slots__ = ()

    def _on_vote_response(self, response: VoteResponse) -> None:
        candidacy = self._candidacy
        if candidacy is not None and type(candidacy.tally) is Tally and self.recovered:
            counted = _Counted(self.membership.voters)
            counted.granted = candidacy.tally.granted
            counted.refused = candidacy.tally.refused
            candidacy.tally = counted
        super()._on_vote_response(response)


class _CommitsOldTerm(Leading):
    __slots__ = ()

    def _advance_commit(self) -> None:
        reached = [progress.match_index for progress in self.progress.values()]
        candidate = reached_by_majority([*reached, self._log.durable_index])
        if candidate > self._log.commit_index:
            self._log.commit(candidate)
            self._membership.commit(candidate)


class CommitsOldTermByCounting(RaftCore):
    """6. Figure 8: an earlier term's frame on a majority is not committed yet."""

    __slots__ = ()
    leading_class = _CommitsOldTerm


class _CountsOwnUnsynced(Leading):
    __slots__ = ()

    def _advance_commit(self) -> None:
        log = self._log
        durable, log.durable_index = log.durable_index, log.index.last_index
        super()._advance_commit()
        log.durable_index = durable


class CountsOwnUnsynced(RaftCore):
    """7. The leader's own copy counts before it is durable."""

    __slots__ = ()
    leading_class = _CountsOwnUnsynced


class VotesForAnybody(RaftCore):
    """8. No up-to-date check (5.4.1)."""

    __slots__ = ()

    def _on_vote_request(self, request: VoteRequest) -> None:
        super()._on_vote_request(replace(request, last_term=max(request.last_term, 1 << 40)))


class VotesTwice(RaftCore):
    """9. More than one vote in a term."""

    __slots__ = ()

    def _on_vote_request(self, request: VoteRequest) -> None:
        if not request.pre_vote and self.role is Role.FOLLOWER:
            self.ballot.voted_for = None
        super()._on_vote_request(request)


class _CommitsUnproven(Following):
    __slots__ = ()

    def take_append(self, request: AppendRequest) -> None:
        self._commit(min(request.commit_index, self._log.index.last_index))
        super().take_append(request)


class CommitsUnproven(RaftCore):
    """10. The follower commits what the leader did, also where its own log is not proven."""

    __slots__ = ()
    following_class = _CommitsUnproven


class _ReadsWithoutRound(Leading):
    __slots__ = ()

    def _start_read_round(self, now_ms: float) -> None:
        self.round += 1
        for progress in self.progress.values():
            progress.recovered_round = self.round
        self._confirm_reads()


class ReadsWithoutRound(RaftCore):
    """11. A read confirmed by nobody."""

    __slots__ = ()
    leading_class = _ReadsWithoutRound


class _NotProvisional(Leading):
    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recovery.provisional = False


class MinorityElects(RaftCore):
    """12. One vote less than a majority is enough."""

    __slots__ = ()

    leading_class = _NotProvisional

    def _count_votes(self) -> None:
        candidacy = self._candidacy
        if (
            candidacy is not None
            and not candidacy.pre_vote
            and self.recovered  # or no group would ever be founded
            and len(candidacy.tally.granted) >= majority(len(self.membership.voters)) - 1
        ):
            self._become_leader(candidacy)
        else:
            super()._count_votes()


class CountsRecoveringVotes(RaftCore):
    """13. The vote of a voter that may have lost its memory is as good as any."""

    __slots__ = ()

    def _on_vote_response(self, response: VoteResponse) -> None:
        if self.recovered:  # or no group would ever be founded
            response = replace(response, recovering=0)
        super()._on_vote_response(response)


class _CountsRecoveringCopies(Leading):
    __slots__ = ()

    def _advance_commit(self) -> None:
        for progress in self.progress.values():
            progress.recovered_index = max(progress.recovered_index, progress.match_index)
        super()._advance_commit()

    def _take_match(self, progress: Progress, match_index: int, now_ms: float) -> None:
        super()._take_match(progress, match_index, now_ms)
        self._advance_commit()


class CountsRecoveringCopies(RaftCore):
    """14. An acknowledgement of a replica that may have voted in a later term commits."""

    __slots__ = ()
    leading_class = _CountsRecoveringCopies


class _OneWitness(Recovery):
    __slots__ = ()

    def _witnesses(self, votes: bool) -> int:
        return 1


class _CertifiesAlone(Leading):
    __slots__ = ()
    recovery_class = _OneWitness


class CertifiesAlone(RaftCore):
    """15. The leader's word alone makes a replica recovered: it may be deposed and not know it."""

    __slots__ = ()
    leading_class = _CertifiesAlone


class _NoBarrier(Recovery):
    __slots__ = ()

    def meet(self, progress: Progress, recovering: int, last_index: int) -> bool:
        wants_barrier = super().meet(progress, recovering, last_index)
        progress.barrier_index = 0
        return wants_barrier


class _CertifiesWithoutBarrier(Leading):
    __slots__ = ()
    recovery_class = _NoBarrier


class CertifiesWithoutBarrier(RaftCore):
    """16. A replica is recovered as soon as it answers: whatever it has lost."""

    __slots__ = ()
    leading_class = _CertifiesWithoutBarrier


class ElectedByAllButOne(RaftCore):
    """17. With replicas that recover, all but one are taken for all."""

    __slots__ = ()

    leading_class = _NotProvisional

    def _count_votes(self) -> None:
        candidacy = self._candidacy
        enough = (
            candidacy is not None
            and len(candidacy.tally.granted) == len(self.membership.voters) - 1
        )
        if candidacy is not None and enough and self.recovered and not candidacy.pre_vote:
            self._become_leader(candidacy)
        elif enough and self.recovered:
            self._start_election("all but one would vote for this replica")
        else:
            super()._count_votes()


class CampaignsWithABadDisk(RaftCore):
    """18. A leader that stepped down for its disk comes back with it."""

    __slots__ = ()

    def disk_fails(self, reason: str, takes_frames: bool = True) -> None:
        super().disk_fails(reason, takes_frames)
        self.unfit = None


class ForgetsThatItRecovers(SimNode):
    """19. That it may have lost promises is not noted: after a restart it is recovered."""

    def _save_hard_state(self, ready: Ready) -> None:
        assert ready.hard_state is not None
        super()._save_hard_state(
            replace(ready, hard_state=replace(ready.hard_state, recovered=True))
        )


class OneSlotFile(SlotFile):
    """Two slots used in turn: the older one holds the promise before."""

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


class VotesInOneSlot(SimNode):
    """20. The newest vote stands in one place only: rot brings the one before back."""

    def make_promises(self) -> Promises:
        promises = super().make_promises()
        promises.hard_state._slots = OneSlotFile(self.disk, VOTES)
        return promises


class TrustsThePageCache(SimNode):
    """21. What was acknowledged before it was durable survives a power cut, it believes."""

    def make_promises(self) -> Promises:
        return Promises(self.disk, "raft", unsynced=False)


class _BelievesAll(StartRepair):
    def _is_committed(self, frame: Frame, response: RepairResponse) -> bool:
        return True


class _RepairsWithUncommitted(Mender):
    start_repair_class = _BelievesAll


class RepairsWithUncommitted(SimNode):
    """A. Any frame of a peer that fits is taken for the one that was damaged."""

    mender_class = _RepairsWithUncommitted


class _ChecksNothing(StartRepair):
    def _patch(self, response: RepairResponse, data: bytes, wanted: Wanted) -> Patch | None:
        try:
            _, _, index, term, position, stamp, length, count, kind, _, _ = parse_header(data)
        except FrameError:
            return None
        size = HEADER_SIZE_BYTES + length
        frame = Frame(index, term, position, stamp, kind, count, data[:size])
        fits = position in (wanted.position, self._log.segment_end(wanted.position))
        if len(data) < size or index != wanted.index or not fits:
            return None
        return Patch((frame,), True, response.sender)


class _RepairsUnchecked(Mender):
    start_repair_class = _ChecksNothing


class RepairsUnchecked(SimNode):
    """B. Neither checksum nor term of what a peer sends is looked at."""

    mender_class = _RepairsUnchecked


class _CutsDamage(Mender):
    def recover(self) -> None:
        if self.node.log.recover() is not None:
            self.node.log.cut_damaged()
        self._go_on(None)


class CutsDamage(SimNode):
    """C. Damage is cut as if it were a torn tail."""

    mender_class = _CutsDamage


class _LeavesPatchesUnsynced(Mender):
    def mend(self, patch: Patch) -> Wanted | None:
        sync, SimFile.sync = SimFile.sync, _no_sync  # type: ignore[method-assign, assignment]
        try:
            return super().mend(patch)
        finally:
            SimFile.sync = sync  # type: ignore[method-assign]

    def sync_patch(self, ticket: SyncTicket) -> None:
        ticket.ran = True
        self.node.commitlog.finish_sync(ticket)


def _no_sync(_: SimFile) -> None:
    """Says that it did."""


class LeavesPatchesUnsynced(SimNode):
    """D. A patch is not synced."""

    mender_class = _LeavesPatchesUnsynced


class _CutsWithoutANote(Mender):
    def give_up(self, reason: str) -> None:
        self.node.gives_up()
        self.world.damage.giving_up(self.node)
        self.node.log.cut_damaged()


class CutsWithoutANote(SimNode):
    """E. It gives up frames, and does not note that it may have lost promises."""

    mender_class = _CutsWithoutANote


class _ConfiguredAtCommit(Membership):
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


class _ConfiguresAtCommit(Leading):
    __slots__ = ()

    def _advance_commit(self) -> None:
        before = self._membership.configurations.index
        super()._advance_commit()
        if self._membership.configurations.index != before:
            self.configure(self._heartbeat_due_ms)


class ConfiguredAtCommit(RaftCore):
    """M1. A configuration is in force from its commit on, not from its append."""

    __slots__ = ()
    membership_class = _ConfiguredAtCommit
    leading_class = _ConfiguresAtCommit


class _ChangesTwiceAtOnce(Membership):
    __slots__ = ()

    def after(self, change: Change) -> Configuration:
        pending_index, self.pending_index = self.pending_index, 0
        try:
            return super().after(change)
        finally:
            self.pending_index = pending_index


class ChangesTwiceAtOnce(RaftCore):
    """M2. The next change does not wait for the one before it."""

    __slots__ = ()
    membership_class = _ChangesTwiceAtOnce


class _CountsLearners(Leading):
    __slots__ = ()

    def configure(self, now_ms: float) -> None:
        super().configure(now_ms)
        self.tracker.voting = tuple(self.progress.values())


class CountsLearners(RaftCore):
    """M3. A learner's copy counts for commit."""

    __slots__ = ()
    leading_class = _CountsLearners


class _CountsItself(Leading):
    __slots__ = ()

    def _advance_commit(self) -> None:
        membership = self._membership
        is_voter, membership.is_voter = membership.is_voter, True
        super()._advance_commit()
        membership.is_voter = is_voter


class CountsItselfThoughRemoved(RaftCore):
    """M4. A leader that is leaving goes on counting itself."""

    __slots__ = ()
    leading_class = _CountsItself


class _KeepsCut(Membership):
    __slots__ = ()

    def truncate(self, from_index: int, commit_index: int) -> None:
        pass

    def append(self, frame: Frame, commit_index: int) -> bool:
        return frame.index > self.configurations.index and super().append(frame, commit_index)


class KeepsCutConfiguration(RaftCore):
    """M5. A configuration stays in force although its frame was cut."""

    __slots__ = ()
    membership_class = _KeepsCut


class CampaignsAsLearner(RaftCore):
    """M6. Whoever hears no leader campaigns, and votes for itself."""

    __slots__ = ()

    @property
    def _may_campaign(self) -> bool:
        return bool(self.membership.voters)


class ForgetsConfigurationAtStart(SimNode):
    """M7. After a restart the configuration of broker.conf is in force again."""

    def take_part(self, hard_state: HardState) -> None:
        self.saved = None
        self.log.configuration_indexes.clear()
        super().take_part(hard_state)


CORE_BREAKS: tuple[type[RaftCore], ...] = (
    CutsAtMatch,
    IgnoresRequestTerm,
    AcknowledgesBeforeDurable,
    CountsVotesByNumber,
    CommitsOldTermByCounting,
    CountsOwnUnsynced,
    VotesForAnybody,
    VotesTwice,
    CommitsUnproven,
    ReadsWithoutRound,
    MinorityElects,
    CountsRecoveringVotes,
    CountsRecoveringCopies,
    CertifiesAlone,
    CertifiesWithoutBarrier,
    ElectedByAllButOne,
    CampaignsWithABadDisk,
)
NODE_BREAKS: tuple[type[SimNode], ...] = (
    ForgetsVote,
    ForgetsThatItRecovers,
    VotesInOneSlot,
    TrustsThePageCache,
    RepairsWithUncommitted,
    RepairsUnchecked,
    CutsDamage,
    LeavesPatchesUnsynced,
    CutsWithoutANote,
)
MEMBER_BREAKS: tuple[type[RaftCore] | type[SimNode], ...] = (
    ConfiguredAtCommit,
    ChangesTwiceAtOnce,
    CountsLearners,
    CountsItselfThoughRemoved,
    KeepsCutConfiguration,
    CampaignsAsLearner,
    ForgetsConfigurationAtStart,
)
