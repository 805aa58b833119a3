"""Requests to this broker's own handlers, as if a client had sent them over the wire.

So HTTP and mqadmin cannot differ: the same checks, the same commands, the same refusals. Only the
wording differs: `problem_of` turns a refused response into a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from raftmq.broker.access import FromInside
from raftmq.broker.errors import OutcomeUnknown, Refused, StateError
from raftmq.broker.sending.catcher import send
from raftmq.dledger.errors import Busy, NotLeader, RaftError
from raftmq.dledger.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import SendHeader
from raftmq.store.record import pack_host
from raftmq.web.problem import (
    ApiProblem,
    busy,
    conflict,
    invalid,
    not_found,
    not_leader,
    outcome_unknown,
    unavailable,
)

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

BORN_HOST = pack_host(("127.0.0.1", 0))
# The tags that remarks begin with (docs/modules.md, "Errors on the wire").
ABSENT_CODES = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
UNAVAILABLE_TAGS = ("DISK_FULL", "DISK_ERROR", "HELD")


class Local:
    """Calls handlers for the HTTP API. `leader_http` returns where the leader's node API is, if
    known."""

    def __init__(self, broker: Broker, leader_http: Callable[[], str]) -> None:
        self._broker = broker
        self._leader_http = leader_http

    async def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the response of the handler of `code`. Raises ApiProblem if it is no success."""
        response = await self.response(code, ext, body)
        if response.code != ResponseCode.SUCCESS:
            raise self.problem_of(response.code, response.remark or "")
        return response

    async def response(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Return the response as for `ask`, whatever its code."""
        handlers: Mapping[int, Handler] = self._broker.processor.handlers
        request = RemotingCommand.request(code, dict(ext or {}), body)
        # The handlers asked here use the request alone.
        answer: Any = handlers[int(code)](cast(Connection, FromInside()), request)
        response = answer if isinstance(answer, RemotingCommand) else await answer
        assert isinstance(response, RemotingCommand), response
        return response

    async def send(self, header: SendHeader, body: bytes) -> dict[str, str]:
        """Store a message; return the ext fields of the answer. Raises ApiProblem."""
        response = await send(self._broker.sends, header, body, BORN_HOST)
        if response.code != ResponseCode.SUCCESS:
            raise self.problem_of(response.code, response.remark or "")
        return dict(response.ext or {})

    def problem_of(self, code: int, remark: str) -> ApiProblem:
        """Return the problem for a response that is no success."""
        tag = remark[1:].partition("]")[0] if remark.startswith("[") else ""
        if tag == "NOT_LEADER":
            return not_leader(self._leader_http(), remark)
        if tag == "OUTCOME_UNKNOWN":
            return outcome_unknown(remark)
        if tag == "BUSY":
            return busy(remark)
        if tag in UNAVAILABLE_TAGS:
            return unavailable(remark, tag)
        if code in ABSENT_CODES:
            return not_found(remark)
        if code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return unavailable(remark)
        return conflict(remark or f"refused with code {code}", "REFUSED")

    def translate(self, error: Exception) -> ApiProblem | None:
        """Return the problem for an exception of the rooms below; None for any other."""
        if isinstance(error, CommandOutcomeUnknown | OutcomeUnknown):
            return outcome_unknown(str(error))
        if isinstance(error, NotLeader):
            return not_leader(self._leader_http())
        if isinstance(error, Busy):
            return busy(str(error))
        if isinstance(error, Refused):
            return self.problem_of(error.code, error.remark)
        if isinstance(error, StateError):
            return invalid([("", str(error))])
        if isinstance(error, RaftError):
            return unavailable(str(error))
        if isinstance(error, RemotingError):
            return self.problem_of(error.code, str(error))
        return None
