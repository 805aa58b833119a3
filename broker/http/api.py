"""The node API of one broker, with its operations, their errors, and their audit record.

The port listens before the engine starts, so that a start that waits for peers can be observed, and
stops after it. Until the engine runs only health and metrics are answered, everything else is 503
STARTING.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from raftmq import __version__
from raftmq.dledger.raft.errors import Busy, ChangeRefused, NotLeader, RaftError, UnknownTarget
from raftmq.dledger.raft.errors import OutcomeUnknown as CommandOutcomeUnknown
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.tls_listener import listening_with
from raftmq.web.auth import Access
from raftmq.web.on_demand import OnDemandServer
from raftmq.web.operation import OPERATOR_HEADER, Call, Handler, Operation, Role
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
from raftmq.web.settings import WebSettings
from raftmq.web.versions import unmet

from ..admin.metrics import BrokerMetrics
from ..admin.operator_log import Deed, OperatorLog, detail_of
from ..config import shown_changes
from ..context import Context
from ..errors import ConditionUnmet, OutcomeUnknown, Refused, StateError
from .node import STARTING

if TYPE_CHECKING:
    from aiohttp import web

    from raftmq.web.app import WebServer

ABSENT_CODES = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
UNAVAILABLE_TAGS = ("DISK_FULL", "DISK_ERROR")  # docs/errors.md


def translator(leader_http: Callable[[], str]) -> Callable[[Exception], ApiProblem | None]:
    """Return a function from an exception to its problem, None for foreign exceptions.
    `leader_http` is the address of the leader's node API, or ""."""

    def translate(error: Exception) -> ApiProblem | None:
        match error:
            case ConditionUnmet():
                return unmet(error.version)
            case CommandOutcomeUnknown() | OutcomeUnknown():
                return outcome_unknown(str(error))
            case NotLeader():
                return not_leader(leader_http())
            case Busy():
                return busy(str(error))
            case ChangeRefused() | UnknownTarget():
                return conflict(str(error), "REFUSED")
            case RaftError():
                return unavailable(str(error))
            case StateError():
                return invalid([("", str(error))])
            case Refused(tag="NOT_LEADER"):
                return not_leader(leader_http(), error.remark)
            case Refused(tag="BUSY"):
                return busy(error.remark)
            case Refused() if error.tag in UNAVAILABLE_TAGS:
                return unavailable(error.remark, error.tag)
            case RemotingError() if error.code in ABSENT_CODES:
                return not_found(str(error))
            case RemotingError(code=ResponseCode.SERVICE_NOT_AVAILABLE):
                return unavailable(str(error))
            case RemotingError():
                return conflict(str(error) or f"refused with code {error.code}", "REFUSED")
        return None

    return translate


# Changes of this process alone, which must succeed even if the group cannot store.
OWN = frozenset(
    {"changeConfig", "setLogLevel", "injectFault", "healFaults", "stopNode", "transferLeadership"}
)
SECRETS = ("secretKey", "body", "bodyBase64")
NAME_LENGTH_MAX = 128


def recorded(operations: Iterable[Operation], log: OperatorLog) -> list[Operation]:
    """Return the operations; those that change something are recorded."""
    return [_recorded(one, log) if _changes(one) else one for one in operations]


def _changes(operation: Operation) -> bool:
    return operation.method != "GET" and (operation.role or Role.VIEWER) > Role.VIEWER


def _recorded(operation: Operation, log: OperatorLog) -> Operation:
    handler = operation.handler

    async def first(call: Call) -> Any:
        if getattr(call.body, "preview", False):
            return await handler(call)
        return await log.around(_deed(operation, call), lambda: handler(call))

    async def afterwards(call: Call) -> Any:
        return await log.afterwards(_deed(operation, call), lambda: handler(call))

    return replace(operation, handler=afterwards if operation.name in OWN else first)


def _deed(operation: Operation, call: Call) -> Deed:
    """Describe a call. Only an admin's token, such as a name server's, may name a different
    initiator."""
    operator = call.request.headers.get(OPERATOR_HEADER, "")
    by = unquote(operator)[:NAME_LENGTH_MAX] if operator and call.caller.role is Role.ADMIN else ""
    target = ", ".join(str(value) for value in msgspec.to_builtins(call.parameters).values())
    target = target or str(getattr(call.body, "topic", ""))
    return Deed(
        operation.name,
        target,
        by or call.caller.name,
        call.caller.name if by else "",
        _detail(operation, call.body),
    )


def _detail(operation: Operation, body: Any) -> str:
    """Return the request as JSON, without secrets and message bodies."""
    if body is None:
        return ""
    value = msgspec.to_builtins(body)
    assert isinstance(value, dict), operation.name
    return detail_of(shown_changes(value) if operation.name == "changeConfig" else value, SECRETS)


log = logging.getLogger("raftmq.broker.http")


class NodeApi:
    """The node API's server, without effect if httpEnable=false."""

    def __init__(
        self,
        context: Context,
        settings: WebSettings,
        access: Access | None,
        metrics: BrokerMetrics,
        operations: Sequence[Operation],
        operator_log: OperatorLog,
        leader_http: Callable[[], str],
        connections_max: int,
    ) -> None:
        """`access` is None with httpEnable=false. `operations` without a role are always answered,
        the rest once the broker's log is open."""
        self._life = context.life
        self._metrics = metrics
        self.address = context.http_address
        self._where = f"httpBindAddress={settings.bind_address} httpPort={settings.port}"
        self._port = settings.port
        self._server: OnDemandServer | None = None
        if access is None:
            return
        config = context.config
        always = [one for one in operations if one.role is None] + [self._metrics_operation()]
        later = self._once_serving(
            recorded([one for one in operations if one.role is not None], operator_log)
        )

        def create() -> WebServer:
            from raftmq.web.app import WebServer

            return WebServer(
                settings,
                access,
                [*always, *later, context.events.hub.operation()],
                title=f"Broker {config.broker_name}/{config.node_name}: node API",
                version=__version__,
                translate=translator(leader_http),
                closing=context.events.hub.close,
                connections_max=connections_max,
                listen=listening_with(context.tls.http),
            )

        self._server = OnDemandServer(create)

    async def start(self, bound: socket.socket | None, health: socket.socket | None) -> None:
        """Listen on `bound` and `health`, or on new sockets. Raises OSError."""
        if self._server is None:
            return
        try:
            await self._server.start(bound, health)
        except OSError as error:
            raise OSError(error.errno, f"{self._where}: {error.strerror}") from error
        log.info("http_listening address=%s port=%d", self.address, self._port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def _once_serving(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations, rejected until the broker's log is open."""

        def guarded(handler: Handler) -> Handler:
            async def handle(call: Call) -> Any:
                if not self._life.serving:
                    raise unavailable("the broker is starting or stopping", STARTING)
                return await handler(call)

            return handle

        return [
            replace(one, handler=guarded(one.handler), problems=(*one.problems, 503))
            for one in operations
        ]

    def _metrics_operation(self) -> Operation:
        return Operation("GET", "/metrics", "getMetrics", "Figures in Prometheus' format.",
                         self.metrics, media="text/plain", problems=(503,))  # fmt: skip

    async def metrics(self, call: Call) -> web.Response:
        from aiohttp import web

        if not self._life.serving:
            raise unavailable("the broker is starting or stopping", STARTING)
        body, kind = self._metrics.render(call.request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})
