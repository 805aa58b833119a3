"""The proxy server with its components and gRPC's server."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from raftmq.client.instance import ClientInstance, InstanceConfig
from raftmq.ops.descriptors import descriptor_limit, warn_if_limited
from raftmq.remoting.acl import AclError
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.connection import FROM_PEER
from raftmq.remoting.memory_limits import Allowance
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.tls import TlsError, TlsMode
from raftmq.remoting.tls_listener import TlsListener, TlsPolicy
from raftmq.web.auth import Access as WebAccess
from raftmq.web.settings import WebConfigError

from .access import Access
from .clients import Clients
from .cluster import Brokers
from .config import ProxyConfig
from .forwarding import DESCRIPTORS, LOOPBACK, Forwarder
from .metrics import Counts, Figures, ProxyMetrics
from .protocol.messaging_pb2 import ReconnectEndpointsCommand, TelemetryCommand
from .receive_message import WAITS, ReceiveHandlers, Waits
from .routes import RouteHandlers
from .send_message import SendHandlers
from .service import Service
from .status_codes import StatusError
from .telemetry import TelemetryHandlers
from .transactions import HalfPositions, TransactionHandlers

if TYPE_CHECKING:
    from .http import ProxyApi

log = logging.getLogger("raftmq.proxy")

CHECK_S = 5.0  # between two checks for silent clients and a changed accounts file
RECONNECT_S = 0.2  # between the reconnect command and the end of streams
# Between two updates of all routes; our name servers push changes.
ROUTE_MS = 10_000
KEPT_BYTES_MAX = 256 << 20  # clients' settings and unread commands; 1 MiB per client
CALL_LIMIT_S = 3.0  # of a call without a deadline
STOP_S = 3.0  # calls in progress may take this long to end
CONNECTION_CALLS_MAX = 1_000  # per connection; a further call waits
QUEUE_MESSAGES = 2  # of the largest size, fit into a client's queue of commands
METADATA_BYTES_MAX = 16 * 1024
HTTP2 = ("h2",)  # gRPC's protocol in TLS's ALPN
UNREAD_BYTES = 256 << 10  # of a message, 5 MB per second at a round-trip time of 50 ms
PING_MS, PING_TIMEOUT_MS = 8_000, 8_000  # a silent connection is closed after both
HANDSHAKE_MS, IDLE_MS = 10_000, 120_000  # the latter as Apache's
PING_MS_MIN = 5_000  # of clients' pings


START_READ_ERRORS = (AclError, TlsError, WebConfigError)


def start_reads(config: ProxyConfig) -> Iterator[Callable[[], object]]:
    yield Access(enabled=config.acl_enable, path=config.acl_file).prepare
    yield ProcessTls(config, protocols=HTTP2).load
    if config.http_enable:
        yield partial(WebAccess.of, config.web(config.port))


class ProxyServer:
    """A proxy, as `async with ProxyServer(config) as proxy:` or with `start` and `stop`."""

    def __init__(self, config: ProxyConfig, waits: Waits = WAITS) -> None:
        self._config = config
        self._waits = waits
        self._instance = ClientInstance(config.namesrv, _instance_config(config))
        self._tls = ProcessTls(config, protocols=HTTP2)
        self._access = Access(enabled=config.acl_enable, path=config.acl_file)
        self._tasks = Tasks()
        self._brokers = Brokers(self._instance, self._access, self._tasks.spawn)
        self._transactions: TransactionHandlers | None = None
        self._clients: Clients | None = None
        self._sends: SendHandlers | None = None
        self._receives: ReceiveHandlers | None = None
        self._service: Service | None = None
        self.metrics: ProxyMetrics | None = None  # None before the start
        self._server: grpc.aio.Server | None = None
        self._forwarder: Forwarder | None = None
        self._listener: TlsListener | None = None
        self._stopping = asyncio.Event()
        self.http: ProxyApi | None = None  # None before the start, and if httpEnable=false
        self.port = 0  # 0 before the start

    @property
    def address(self) -> str:
        return f"{self._config.bind}:{self.port}"

    async def start(self) -> None:
        """Start serving. Raises OSError for a port in use, WebConfigError for an open HTTP API,
        TlsError, and AclError for unreadable accounts."""
        config = self._config
        await asyncio.to_thread(self._access.prepare)
        await asyncio.to_thread(self._tls.load)
        loop = asyncio.get_running_loop()
        clients = self._clients = Clients(
            config.clients_max,
            loop.time,
            Allowance(KEPT_BYTES_MAX),
            queue_bytes_max=QUEUE_MESSAGES * config.message_size_max,
        )
        brokers, tasks = self._brokers, self._tasks
        halves = HalfPositions()
        transactions = self._transactions = TransactionHandlers(
            brokers, clients, self._access, halves
        )
        await self._instance.start(
            handlers={
                RequestCode.CHECK_TRANSACTION_STATE: transactions.check,
                # Pop consumers need no rebalance
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda *_: None,
            },
            tls=self._tls.client,
        )
        sends = self._sends = SendHandlers(
            config, self._instance, brokers, clients, self._access, halves
        )
        sends.engine.start()
        receives = self._receives = ReceiveHandlers(
            self._waits, brokers, clients, tasks.spawn, self._stopping
        )
        counts = Counts()
        service = self._service = Service(
            calls_max=config.calls_max,
            call_limit_s=CALL_LIMIT_S,
            access=self._access,
            clients=clients,
            counts=counts,
            presence=TelemetryHandlers(config, brokers, clients, self._access, tasks.spawn),
            routes=RouteHandlers(brokers, clients),
            sends=sends,
            receives=receives,
            transactions=transactions,
            client_of=self._client_of,
            stopping=self._stopping,
        )
        await self._listen(service)

        self.metrics = ProxyMetrics(counts, self.figures, self._tls)
        self.metrics.start()
        self._tls.start()
        tasks.spawn(self._check_forever(clients), "looks")
        if config.http_enable:
            # aiohttp takes long to import; clients are served in between.
            await asyncio.to_thread(importlib.import_module, "raftmq.proxy.http")
            from .http import ProxyApi

            render = self.metrics.render
            self.http = ProxyApi(config, self.port, self._instance, render, self._tls)
            await self.http.start()

    def figures(self) -> Figures:
        """Return the state for metrics, after the start."""
        assert self._clients is not None
        assert self._sends is not None
        assert self._receives is not None
        assert self._transactions is not None
        assert self._service is not None
        assert self._forwarder is not None
        return Figures(
            connections=self._forwarder.count,
            calls=self._service.calls_count,
            connections_refused=self._forwarder.refused_count,
            refused=self._service.refused_counts,
            clients=len(self._clients),
            streams=self._clients.stream_count,
            kept_bytes=self._clients.kept_bytes,
            sends=self._sends.engine.in_flight,
            send_bytes=self._sends.engine.in_flight_bytes,
            answer_bytes=self._receives.held_bytes,
            returned=self._receives.returned_count,
            checks=self._transactions.forwarded_count,
            checks_dropped=self._transactions.dropped_count,
            unauthorized=self._access.refused_count,
        )

    async def _listen(self, service: Service) -> None:
        config = self._config
        self._server = server = grpc.aio.server(
            handlers=service.handlers(),
            options=[
                ("grpc.max_receive_message_length", config.call_size_max),
                ("grpc.max_send_message_length", -1),  # brokers have limited the message's size
                ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                # The bandwidth probe would buffer 8 MiB per call before it is read. Without the
                # probe the limit is UNREAD_BYTES.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
                # Connections without an HTTP/2 preface, and idle connections, are closed.
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", PING_MS),
                ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
                ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # the default is a minute
                ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),  # no second process may listen there
            ],
        )
        connections_max = descriptor_limit() // (DESCRIPTORS + 1)
        warn_if_limited(connections_max, config.clients_max, descriptor_limit())
        self._forwarder = Forwarder(connections_max, server.add_insecure_port(f"{LOOPBACK}:0"))
        await server.start()
        policy = self._tls.server or TlsPolicy(TlsMode.DISABLED, None)
        self._listener = TlsListener(self._forwarder.new, policy)
        await self._listener.listen(config.bind, config.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def _client_of(self, peer: str) -> str:
        return "" if self._forwarder is None else self._forwarder.client_of(peer)

    async def stop(self) -> None:
        """Send reconnect commands, wait STOP_S for the calls in progress, and close."""
        if self._clients is not None:
            for client in self._clients:
                if client.queue is not None:
                    command = ReconnectEndpointsCommand(nonce=client.client_id)
                    client.queue.put(TelemetryCommand(reconnect_endpoints_command=command))
            if self._clients.stream_count:
                await asyncio.sleep(RECONNECT_S)
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()
        if self._server is not None:
            await self._server.stop(STOP_S)
        if self._listener is not None and self._forwarder is not None:
            self._forwarder.stop()
            await self._listener.wait_closed()
        if self.http is not None:
            await self.http.stop()
        if self.metrics is not None:
            self.metrics.stop()
        if self._sends is not None:
            self._sends.engine.stop()
        await self._tasks.stop()
        await self._tls.stop()
        await self._instance.stop()

    async def __aenter__(self) -> ProxyServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _check_forever(self, clients: Clients) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self._access.reload_if_changed)
            clients.expire(self._access.is_owner)


def _instance_config(config: ProxyConfig) -> InstanceConfig:
    """Return the settings of the connections to brokers and name servers."""
    return InstanceConfig(
        route_interval_ms=ROUTE_MS,
        credentials=config.inner_credentials,
        reached_at=config.reached_at,
    )


class Tasks:
    """Owns tasks; `stop` cancels and awaits them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` and log all errors but StatusError."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, StatusError):
            log.error("task_failed task=%s", task.get_name(), exc_info=error, extra=FROM_PEER)
