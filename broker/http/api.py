"""The node API of one broker: its operations on one server.

It is started before the engine (a start that waits for peers can be watched) and stopped after it
(a hand-over can be seen to its end). While the engine is not up yet only health and metrics are
answered; everything else is 503 STARTING.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from raftmq import __version__
from raftmq.remoting.tls_listener import listening_with
from raftmq.web.app import WebServer
from raftmq.web.auth import Access
from raftmq.web.operation import Call, Handler, Operation
from raftmq.web.problem import unavailable
from raftmq.web.settings import WebSettings

from ..admin.metrics import BrokerMetrics
from ..admin.operator_log import OperatorLog
from ..context import Context
from .node import STARTING
from .problems import translator
from .recording import recorded

log = logging.getLogger("raftmq.broker.http")


class NodeApi:
    """The node API's server. With httpEnable=false there is none."""

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
        """`access` None: httpEnable=false. `operations` without a role are answered at any time,
        others once the broker's log is open."""
        self._life = context.life
        self._metrics = metrics
        self.address = context.http_address
        self._where = f"httpBindAddress={settings.bind_address} httpPort={settings.port}"
        self._server: WebServer | None = None
        if access is None:
            return
        config = context.config
        always = [one for one in operations if one.role is None] + [self._metrics_operation()]
        later = self._once_serving(
            recorded([one for one in operations if one.role is not None], operator_log)
        )
        self._server = WebServer(
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

    async def start(self, bound: socket.socket | None, health: socket.socket | None) -> None:
        """Listen, on `bound` and `health` if given. Raises OSError."""
        if self._server is None:
            return
        try:
            port = await self._server.start(bound, health)
        except OSError as error:
            raise OSError(error.errno, f"{self._where}: {error.strerror}") from error
        log.info("http_listening address=%s port=%d", self.address, port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def _once_serving(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations, refused while the broker's log is not open."""

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
        if not self._life.serving:
            raise unavailable("the broker is starting or stopping", STARTING)
        body, kind = self._metrics.render(call.request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})
