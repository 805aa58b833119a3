"""Planted breaks: each takes one rule away. A checker that misses any of them is worth nothing.

Most are faults that real systems had: 1, 3 and 5 are pysyncobj 0.3.17's, 2 was jraft #1241.
"""

from __future__ import annotations

from dataclasses import replace

from dledger.core import RaftCore
from dledger.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    Ready,
    Role,
    VoteRequest,
    VoteResponse,
)
from dledger.quorum import Tally, majority, reached_by_majority
from tests.simulator.node import SimNode


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
        if self._tally is not None and type(self._tally) is Tally:
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
            progress.round = self._round
        self._confirm_reads()


class MinorityElects(RaftCore):
    """12. One vote less than a majority is enough."""

    __slots__ = ()

    def _count_votes(self) -> None:
        tally = self._tally
        if (
            self.role is Role.CANDIDATE
            and tally is not None
            and len(tally.granted) >= majority(len(self.voters)) - 1
        ):
            self._become_leader()
        else:
            super()._count_votes()


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
)
NODE_BREAKS: tuple[type[SimNode], ...] = (ForgetsVote,)
