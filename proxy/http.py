"""A proxy's HTTP API for health, metrics, configuration and log levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftmq.client.errors import ClientError
from raftmq.client.instance import ClientInstance
from raftmq.ops.options import page_of
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.tls_listener import listening_with
from raftmq.web import levels
from raftmq.web.app import Render, WebServer, metrics_route
from raftmq.web.auth import Access
from raftmq.web.operation import Call, Operation, Reply

from .config import OPTIONS, ProxyConfig

API_VERSION = "1"


class ProxyApi:
    """The HTTP server. Call `start` and `stop` once each."""

    def __init__(
        self,
        config: ProxyConfig,
        port: int,
        instance: ClientInstance,
        render_metrics: Render,
        tls: ProcessTls,
    ) -> None:
        """`port` is gRPC's. Reads the tokens file. Raises WebConfigError."""
        self._config = config
        self._instance = instance
        self._tls = tls
        settings = config.web(port)
        self._server = WebServer(
            settings,
            Access.of(settings),
            [*self._own(), *levels.operations()],
            title="raftmq proxy API",
            version=API_VERSION,
            raw=[metrics_route(render_metrics)],
            listen=listening_with(tls.http),
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return f"{self._tls.http_scheme}://{self._config.http_bind_address}:{self.port}/"

    async def start(self) -> None:
        """Start serving. Raises OSError if the port is taken."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving, also after a failed start."""
        await self._server.stop()

    def _own(self) -> list[Operation]:
        def get(path: str, name: str, summary: str, handler: Any, **more: Any) -> Operation:
            return Operation("GET", path, name, summary, handler, **more)

        return [
            get("/health/live", "getLive", "It runs.", self._live, role=None),
            get("/health/ready", "getReady", "A name server answers it.", self._ready, role=None),
            get("/api/v1/config", "getConfig", "This proxy's configuration.", self._shown),
        ]

    async def _live(self, _: Call) -> Mapping[str, Any]:
        return {"status": "up"}

    async def _ready(self, _: Call) -> Reply:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        try:
            await self._instance.name_servers.invoke(request)
        except ClientError as error:
            return Reply({"status": "not ready", "reason": error.message}, status=503)
        return Reply({"status": "ready", "warnings": self._tls.warnings})

    async def _shown(self, _: Call) -> Mapping[str, Any]:
        return page_of(OPTIONS, self._config)
