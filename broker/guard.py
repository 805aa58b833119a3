"""Wrappers of request handlers: every request is counted, and every refusal becomes an answer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from raftmq.broker.errors import NOT_LEADER, OutcomeUnknown, Refused, busy, not_leader
from raftmq.dledger.errors import Busy, NotLeader, RaftError
from raftmq.dledger.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import RemotingError

# What is not in this replica's tables. The leader's may have it: a replica that is behind, or was
# emptied and is being filled, does not know.
ABSENT = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


class Guard:
    """Wraps handlers. A refusal because this replica does not lead names the leader, if known; so
    does every word of it that something does not exist."""

    def __init__(self, leads: Callable[[], bool], leader_address: Callable[[], str]) -> None:
        """`leads()`: whether this replica knows all topics and groups that there are."""
        self._leads = leads
        self._leader_address = leader_address
        self.requests: dict[int, int] = {}  # except sends, by code

    def around(self, handler: Handler) -> Handler:
        def guarded(
            connection: Connection, request: RemotingCommand
        ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None] | None:
            self.requests[request.code] = self.requests.get(request.code, 0) + 1
            try:
                answer = handler(connection, request)
            except RemotingError as error:
                return self._refusal(request, error)
            if answer is None or isinstance(answer, RemotingCommand):
                return answer
            slow = self._slow(request, answer)
            # A connection with too much work closes this coroutine before it began; then close
            # `answer`, too.
            weakref.finalize(slow, answer.close).atexit = False
            return slow

        return guarded

    async def _slow(
        self,
        request: RemotingCommand,
        answer: Coroutine[Any, Any, RemotingCommand | None],
    ) -> RemotingCommand | None:
        try:
            return await answer
        except (RaftError, RemotingError) as error:
            return self.refusal(request, error)

    def refusal(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """Return the answer for an error of ours or of the engine's."""
        if isinstance(error, RaftError):
            error = _translated(error)
        if not isinstance(error, RemotingError):
            error = Refused(ResponseCode.SYSTEM_ERROR, str(error))
        return self._refusal(request, error)

    def _refusal(self, request: RemotingCommand, error: RemotingError) -> RemotingCommand:
        ext: dict[str, str] = {}
        if error.code in ABSENT and not self._leads():
            error = not_leader(f"this replica is not the leader; here, {error}")
        if isinstance(error, Refused) and error.tag == NOT_LEADER:
            leader = self._leader_address()
            if leader:
                ext["leaderAddr"] = leader
        return RemotingCommand.response_to(request, error.code, str(error), ext)


def _translated(error: RaftError) -> RemotingError:
    """Return one of the engine's refusals as the error that goes over the wire."""
    if isinstance(error, NotLeader):
        return not_leader()
    if isinstance(error, Busy):
        return busy(f"{error}", retriable=True)
    if isinstance(error, CommandOutcomeUnknown):
        return OutcomeUnknown(str(error))
    return Refused(ResponseCode.SYSTEM_ERROR, str(error))
