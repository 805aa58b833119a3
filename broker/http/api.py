"""The node API of one broker: its operations on one server, and the hub of its events.

The broker owns one `NodeApi`, started before the engine (a start that waits for peers can be
watched) and stopped after it (a hand-over can be seen to its end). While the engine is not up yet
only health and metrics are answered; everything else is 503 STARTING.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from raftmq import __version__
from raftmq.broker.config import BrokerConfig
from raftmq.broker.http.consumers import ConsumerOperations
from raftmq.broker.http.faults import FaultDoor, FaultOperations
from raftmq.broker.http.leadership import LeadershipOperations
from raftmq.broker.http.local import Local
from raftmq.broker.http.messages import MessageOperations
from raftmq.broker.http.node import STARTING, NodeOperations
from raftmq.broker.http.settings import SettingOperations
from raftmq.broker.http.tables import TableOperations
from raftmq.dledger.messages import Role as RaftRole
from raftmq.dledger.messages import RoleEvent
from raftmq.remoting.tlslistener import listening_with
from raftmq.web.app import WebServer
from raftmq.web.auth import Access, WebSettings
from raftmq.web.events import EventHub
from raftmq.web.operation import Call, Handler, Operation
from raftmq.web.problem import unavailable

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

log = logging.getLogger("raftmq.broker.http")

PORT_ABOVE = 4  # the default httpPort is so much above listenPort


def web_settings(config: BrokerConfig, listen_port: int) -> WebSettings:
    """Return the web server's settings. `listen_port`: where the broker really listens."""
    port = config.http_port
    if port < 0:
        port = config.listen_port and listen_port + PORT_ABOVE
    return WebSettings(
        enabled=config.http_enable,
        bind_address=config.http_bind_address,
        port=port,
        advertised=config.http_advertised_address,
        tokens_file=config.http_tokens_file,
    )


class NodeApi:
    """The node API's server and events. With httpEnable=false it has no server, and no address."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._access: Access | None = None  # None: httpEnable=false
        self._server: WebServer | None = None
        self.faults: FaultDoor | None = None  # None: the broker does not run over the fault layer
        self.address = ""  # host:port that others are told, with https:// if TLS is used
        self.hub = EventHub(broker.wall_ms)
        self._was: RoleEvent | None = None
        self._disk = ("ok", "")

    @property
    def leader_address(self) -> str:
        """The address of the leader's node API; "" when that is not known."""
        broker = self._broker
        if broker.roles.leading:
            return self.address
        leader = broker.roles.leader
        return "" if leader is None else broker.state.http_addresses.get(leader, "")

    def prepare(self) -> None:
        """Read the tokens. Blocking. Raises WebConfigError."""
        config = self._broker.config
        if config.http_enable:
            self._access = Access.of(web_settings(config, config.listen_port))

    async def start(self, bound: socket.socket | None = None) -> None:
        """Listen, on `bound` if given. Raises OSError."""
        if self._access is None:
            return
        broker = self._broker
        settings = web_settings(broker.config, broker.port)
        local = Local(broker, lambda: self.leader_address)
        self._server = WebServer(
            settings,
            self._access,
            self._operations(local),
            title=f"Broker {broker.config.broker_name}/{broker.config.node_name}: node API",
            version=__version__,
            translate=local.translate,
            closing=self.hub.close,
            listen=listening_with(broker.tls.http),
        )
        try:
            port = await self._server.start(bound)
        except OSError as error:
            where = f"httpBindAddress={settings.bind_address} httpPort={settings.port}"
            raise OSError(error.errno, f"{where}: {error.strerror}") from error
        told = settings.advertised_address(broker.config.broker_ip1, port)
        secure = broker.tls.http_scheme == "https"
        self.address = f"https://{told}" if secure else told  # clients go by the scheme
        broker.registrar.on_route = self._route_changed
        log.info("http_listening address=%s port=%d", self.address, port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def _operations(self, local: Local) -> list[Operation]:
        broker = self._broker
        node = NodeOperations(broker, local).operations()
        rest = [
            *TableOperations(broker, broker.admin).operations(),
            *ConsumerOperations(broker, broker.admin).operations(),
            *MessageOperations(broker, local).operations(),
            *LeadershipOperations(broker).operations(),
            *SettingOperations(broker).operations(),
            *FaultOperations(broker).operations(),
        ]
        always = [one for one in node if one.role is None] + [self._metrics()]
        later = [one for one in node if one.role is not None] + rest
        return [*always, *self._once_serving(later), self.hub.operation()]

    def _once_serving(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations, refused while the broker's log is not open."""

        def guarded(handler: Handler) -> Handler:
            async def handle(call: Call) -> Any:
                if not self._broker.is_serving:
                    raise unavailable("the broker is starting or stopping", STARTING)
                return await handler(call)

            return handle

        return [
            replace(one, handler=guarded(one.handler), problems=(*one.problems, 503))
            for one in operations
        ]

    def _metrics(self) -> Operation:
        return Operation("GET", "/metrics", "getMetrics", "Figures in Prometheus' format.",
                         self.metrics, media="text/plain", problems=(503,))  # fmt: skip

    async def metrics(self, call: Call) -> web.Response:
        if not self._broker.is_serving:
            raise unavailable("the broker is starting or stopping", STARTING)
        body, kind = self._broker.metrics.render(call.request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    # ---- events ---------------------------------------------------------------------------

    def tell(self, kind: str, detail: dict[str, Any], term: int | None = None) -> None:
        """Publish an event of this node."""
        config = self._broker.config
        self.hub.publish(
            kind,
            node=config.node_name,
            group=config.group_name,
            term=self._broker.roles.term if term is None else term,
            detail=detail,
        )

    def role_changed(self, event: RoleEvent) -> None:
        """Publish a role event; called for each, in order."""
        was, self._was = self._was, event
        same = was is not None and (was.role, was.term) == (event.role, event.term)
        if event.role is RaftRole.CANDIDATE and not same:
            self.tell("electionStarted", {"reason": event.reason}, event.term)
        role: str = event.role.value
        if self._broker.config.is_classic:
            role = "slave" if self._broker.config.is_slave else "master"
        detail = {
            "role": role,
            "ready": event.leader_ready,
            "leader": event.leader,
            "reason": event.reason,
        }
        self.tell("roleChanged", detail, event.term)

    def _route_changed(self, server: str, broker_id: int | None, why: str) -> None:
        """Publish the id under which a name server lists this broker now, or null."""
        detail = {"nameServer": server, "brokerId": broker_id, "reason": why}
        self.tell("routeChanged", detail)

    def look_at_disk(self) -> None:
        """Publish a change of the disk's state; called by a chore."""
        status = self._broker.engine.status()
        state = str(status.get("disk_state") or "ok")
        reason = str(status.get("disk_reason") or "")
        if state == "ok" and self._broker.sends.disk_full:
            state, reason = "full", self._broker.sends.disk_full
        if state != self._disk[0]:
            self.tell("diskState", {"state": state, "was": self._disk[0], "reason": reason})
        self._disk = (state, reason)
