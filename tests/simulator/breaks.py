"""Planted breaks: each takes one rule away. A checker that misses any of them is worth nothing.

Most are faults that real systems had: 1, 3 and 5 are pysyncobj 0.3.17's, 2 was jraft #1241.
13 to 17 and 19 take a rule of dledger/standing.py away. Those of its rules whose want needs more
losses at a time than the promise covers are tested in tests/dledger/test_standing.py.
"""

from __future__ import annotations

from dataclasses import replace

from raftmq.dledger.configuration import Configuration, Configurations
from raftmq.dledger.core import RaftCore
from raftmq.dledger.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    HeartbeatResponse,
    Ready,
    Role,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.progress import Progress
from raftmq.dledger.promises import Promises
from raftmq.dledger.quorum import Tally, majority, reached_by_majority
from raftmq.dledger.repair import Patch, RepairResponse, StartRepair, Wanted
from raftmq.dledger.slots import SlotFile
from raftmq.store.commitlog import SyncTicket
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameError, parse_header
from tests.simulator.disk import SimFile
from tests.simulator.mender import Mender
from tests.simulator.node import VOTES, SimNode


class CutsAtMatch(RaftCore):
    """1. Always cuts behind prev_index, conflict or not."""

    __slots__ = ()

    def _take_frames(self, request: AppendRequest) -> None:
        if request.prev_index < self._log.last_index:
            self._verified_index = min(self._verified_index, request.prev_index)
            self.commit_index = min(self.commit_index, request.prev_index)
            self._truncate(request.prev_index + 1)
        super()._take_frames(request)


class ForgetsVote(SimNode):
    """2. Answers before the vote is durable: it never is."""

    def _save_hard_state(self, ready: Ready) -> None:
        assert ready.hard_state is not None
        state = ready.hard_state
        self.promises.hard_state.save(HardState(state.term, None, state.whole))


class IgnoresRequestTerm(RaftCore):
    """3. Takes an acknowledgement of an earlier leadership for one of this."""

    __slots__ = ()

    def _on_append_response(self, response: AppendResponse) -> None:
        match_index = min(response.match_index, self._log.last_index)
        super()._on_append_response(
            replace(response, request_term=self.term, match_index=match_index)
        )


class AcknowledgesBeforeDurable(RaftCore):
    """4. Says what it has written, not what is durable."""

    __slots__ = ()

    def _acknowledge(self, prev_index: int) -> None:
        durable, self.durable_index = self.durable_index, self._verified_index
        super()._acknowledge(prev_index)
        self.durable_index = durable

    def _on_append_request(self, request: AppendRequest) -> None:
        super()._on_append_request(request)
        if self._durable_ack_due:
            self._acknowledge(request.prev_index)


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
        if self._tally is not None and type(self._tally) is Tally and self.whole:
            counted = _Counted(self.voters)
            counted.granted = self._tally.granted
            counted.refused = self._tally.refused
            self._tally = counted
        super()._on_vote_response(response)


class CommitsOldTermByCounting(RaftCore):
    """6. Figure 8: an earlier term's frame on a majority is not committed yet."""

    __slots__ = ()

    def _advance_commit(self) -> None:
        reached = [progress.match_index for progress in self._progress.values()]
        candidate = reached_by_majority([*reached, self.durable_index])
        if candidate > self.commit_index:
            self._set_commit(candidate)


class CountsOwnUnsynced(RaftCore):
    """7. The leader's own copy counts before it is durable."""

    __slots__ = ()

    def _advance_commit(self) -> None:
        durable, self.durable_index = self.durable_index, self._log.last_index
        super()._advance_commit()
        self.durable_index = durable


class VotesForAnybody(RaftCore):
    """8. No up-to-date check (5.4.1)."""

    __slots__ = ()

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class VotesTwice(RaftCore):
    """9. More than one vote in a term."""

    __slots__ = ()

    def _on_vote_request(self, request: VoteRequest) -> None:
        if not request.pre_vote and self.role is Role.FOLLOWER:
            self.voted_for = None
        super()._on_vote_request(request)


class CommitsUnproven(RaftCore):
    """10. The follower commits what the leader did, also where its own log is not proven."""

    __slots__ = ()

    def _on_append_request(self, request: AppendRequest) -> None:
        if request.term == self.term and self.role is Role.FOLLOWER:
            commit_index = min(request.commit_index, self._log.last_index)
            if commit_index > self.commit_index:
                self._set_commit(commit_index)
        super()._on_append_request(request)


class ReadsWithoutRound(RaftCore):
    """11. A read confirmed by nobody."""

    __slots__ = ()

    def _start_read_round(self) -> None:
        self._round += 1
        for progress in self._progress.values():
            progress.whole_round = self._round
        self._confirm_reads()


class MinorityElects(RaftCore):
    """12. One vote less than a majority is enough."""

    __slots__ = ()

    def _count_votes(self) -> None:
        tally = self._tally
        if (
            self.role is Role.CANDIDATE
            and self.whole  # or no group would ever be founded
            and tally is not None
            and len(tally.granted) >= majority(len(self.voters)) - 1
        ):
            self._become_leader()
            self._provisional = False
        else:
            super()._count_votes()


class CountsRecoveringVotes(RaftCore):
    """13. The vote of a voter that may have lost its memory is as good as any."""

    __slots__ = ()

    def _on_vote_response(self, response: VoteResponse) -> None:
        if self.whole:  # or no group would ever be founded
            response = replace(response, recovering=0)
        super()._on_vote_response(response)


class CountsRecoveringCopies(RaftCore):
    """14. An acknowledgement of a replica that may have voted in a later term commits."""

    __slots__ = ()

    def _advance_commit(self) -> None:
        for progress in self._progress.values():
            progress.whole_index = max(progress.whole_index, progress.match_index)
        super()._advance_commit()

    def _take_match(self, progress: Progress, match_index: int) -> None:
        super()._take_match(progress, match_index)
        self._advance_commit()


class CertifiesAlone(RaftCore):
    """15. The leader's word alone makes a replica whole: it may be deposed and not know it."""

    __slots__ = ()

    def _witnesses(self) -> int:
        return 1


class CertifiesWithoutBarrier(RaftCore):
    """16. A replica is whole as soon as it answers: whatever it has lost."""

    __slots__ = ()

    def _meet_recovering(self, progress: Progress, response: HeartbeatResponse) -> None:
        super()._meet_recovering(progress, response)
        progress.barrier_index = 0


class ElectedByAllButOne(RaftCore):
    """17. With replicas that recover, all but one are taken for all."""

    __slots__ = ()

    def _count_votes(self) -> None:
        tally = self._tally
        enough = tally is not None and len(tally.granted) == len(self.voters) - 1
        if enough and self.whole and self.role is Role.CANDIDATE:
            self._become_leader()
            self._provisional = False
        elif enough and self.whole:
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
    """19. That it may have lost promises is not noted: after a restart it is whole."""

    def _save_hard_state(self, ready: Ready) -> None:
        assert ready.hard_state is not None
        super()._save_hard_state(replace(ready, hard_state=replace(ready.hard_state, whole=True)))


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


class ConfiguredAtCommit(RaftCore):
    """M1. A configuration is in force from its commit on, not from its append."""

    __slots__ = ("_later",)

    def _adopt(self, index: int, configuration: Configuration) -> None:
        self._later = [entry for entry in self._pending() if entry[0] < index]
        self._later.append((index, configuration))

    def _set_commit(self, index: int) -> None:
        super()._set_commit(index)
        pending = self._pending()
        self._later = [entry for entry in pending if entry[0] > index]
        for at, configuration in pending:
            if at <= index:
                super()._adopt(at, configuration)

    def _truncate(self, from_index: int) -> None:
        super()._truncate(from_index)
        self._later = [entry for entry in self._pending() if entry[0] < from_index]

    def _pending(self) -> list[tuple[int, Configuration]]:
        return getattr(self, "_later", [])


class ChangesTwiceAtOnce(RaftCore):
    """M2. The next change does not wait for the one before it."""

    __slots__ = ()

    def _check_pending(self) -> None:
        pass


class CountsLearners(RaftCore):
    """M3. A learner's copy counts for commit."""

    __slots__ = ()

    def _configure_leader(self) -> None:
        super()._configure_leader()
        self._voting = tuple(self._progress.values())


class CountsItselfThoughRemoved(RaftCore):
    """M4. A leader that is leaving goes on counting itself."""

    __slots__ = ()

    def _advance_commit(self) -> None:
        is_voter, self.is_voter = self.is_voter, True
        super()._advance_commit()
        self.is_voter = is_voter


class KeepsCutConfiguration(RaftCore):
    """M5. A configuration stays in force although its frame was cut."""

    __slots__ = ()

    def _truncate(self, from_index: int) -> None:
        entries, self.configurations = self.configurations, Configurations(0, Configuration())
        super()._truncate(from_index)
        self.configurations = entries

    def _adopt(self, index: int, configuration: Configuration) -> None:
        if index > self.configurations.index:
            super()._adopt(index, configuration)


class CampaignsAsLearner(RaftCore):
    """M6. Whoever hears no leader campaigns, and votes for itself."""

    __slots__ = ()

    @property
    def _may_campaign(self) -> bool:
        return bool(self.voters)


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
