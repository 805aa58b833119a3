"""Wrappers of request handlers that count requests and translate errors to responses.

A deposed leader may still have old data. Its positive answers are committed and stay true. A
negative answer (something is absent, or ends here) is given by a leader only behind a read barrier.
The barrier comes first for queries with only such answers. For the rest it follows the error, and
proves that no other replica led when the handler ran.

Clients are no group state, since each broker has its own (38, 203, 204, 328; broker.clients). Queue
assignments depend on them (400, broker.pop.assignment). Neither waits for a barrier.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from raftmq.dledger.raft.errors import Busy, NotLeader, RaftError
from raftmq.dledger.raft.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import REMARK_CHARS_MAX, Answer, Connection, Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fair_scheduling import Steps, StepTurns

from .errors import NOT_LEADER, OutcomeUnknown, Refused, busy, not_leader

# Any replica answers these from its applied state; the leader's answer counts as the newest. The
# remaining queries about the newest state are the leader's alone and run the barrier themselves.
NEWEST = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    }
)


class Guard:
    """Wraps handlers. Without leadership or object an error names the leader, if known."""

    def __init__(
        self,
        leads: Callable[[], bool],
        leader_address: Callable[[], str],
        barrier: Callable[[], Awaitable[None]],
    ) -> None:
        """`leads()` returns whether this replica probably has the complete state. `barrier()`
        returns once that is proven, or raises Refused or RaftError."""
        self._leads = leads
        self._leader_address = leader_address
        self._barrier = barrier
        self._turns = StepTurns()
        self.requests: dict[int, int] = {}  # by code, except sends

    def around(self, handler: Handler) -> Handler:
        def guarded(connection: Connection, request: RemotingCommand) -> Answer:
            self.requests[request.code] = self.requests.get(request.code, 0) + 1
            if request.code in NEWEST and self._leads():
                return self._newest(handler, connection, request)
            try:
                answer = handler(connection, request)
            except RemotingError as error:
                if self._is_doubtful(request, error):
                    return self._proven_refusal(request, error)
                return self._refusal(request, error)
            if answer is None or isinstance(answer, RemotingCommand):
                return answer
            if isinstance(answer, Generator):
                return self._stepped(request, answer)
            slow = self._slow(request, answer)
            # A full connection closes this coroutine before its start; then also close `answer`.
            weakref.finalize(slow, answer.close).atexit = False
            return slow

        return guarded

    def _stepped(
        self, request: RemotingCommand, steps: Steps[RemotingCommand | None]
    ) -> Steps[RemotingCommand | None]:
        """Run `steps`, and answer an error. No such request reports an absence."""
        try:
            return (yield from steps)
        except RemotingError as error:
            return self._refusal(request, error)

    async def _slow(
        self,
        request: RemotingCommand,
        answer: Coroutine[Any, Any, RemotingCommand | None],
    ) -> RemotingCommand | None:
        try:
            response = await answer
        except (RaftError, RemotingError) as error:
            return await self._proven_refusal(request, error)
        if (
            response is not None
            and response.code == ResponseCode.QUERY_NOT_FOUND
            and not self._leads()
        ):
            return self._refusal(request, _elsewhere(response.remark))
        return response

    async def _newest(
        self, handler: Handler, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        try:
            await self._barrier()
            answer = handler(connection, request)
        except (RaftError, RemotingError) as error:
            return self.refusal(request, error)
        if answer is None or isinstance(answer, RemotingCommand):
            return answer
        if isinstance(answer, Generator):
            answer = self._turns.run(answer)
        return await self._slow(request, answer)

    def _is_doubtful(self, request: RemotingCommand, error: Exception) -> bool:
        """Return whether the leader is about to report an absence in a response."""
        is_absent = isinstance(error, Refused) and error.absent
        return is_absent and self._leads() and not request.is_oneway

    async def _proven_refusal(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """Return an error's response. An absence is reported only after proof of leadership."""
        if self._is_doubtful(request, error):
            try:
                await self._barrier()
            except (RaftError, RemotingError) as unproven:
                error = unproven
        return self.refusal(request, error)

    def refusal(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """Return the response for an error of ours or of the engine."""
        if isinstance(error, RaftError):
            error = _translated(error)
        if not isinstance(error, RemotingError):
            error = Refused(ResponseCode.SYSTEM_ERROR, str(error))
        return self._refusal(request, error)

    def _refusal(self, request: RemotingCommand, error: RemotingError) -> RemotingCommand:
        ext: dict[str, str] = {}
        if isinstance(error, Refused) and error.absent and not self._leads():
            error = _elsewhere(str(error))
        if isinstance(error, Refused) and error.tag == NOT_LEADER:
            leader = self._leader_address()
            if leader:
                ext["leaderAddr"] = leader
        return RemotingCommand.response_to(request, error.code, str(error)[:REMARK_CHARS_MAX], ext)


def _elsewhere(remark: str | None) -> Refused:
    """Return the error of a replica that neither leads nor has the requested object."""
    return not_leader(f"this replica is not the leader; here, {remark}")


def _translated(error: RaftError) -> RemotingError:
    """Return an engine's error as the error for the wire."""
    if isinstance(error, NotLeader):
        return not_leader()
    if isinstance(error, Busy):
        return busy(f"{error}", retriable=True)
    if isinstance(error, CommandOutcomeUnknown):
        return OutcomeUnknown(str(error))
    return Refused(ResponseCode.SYSTEM_ERROR, str(error))
