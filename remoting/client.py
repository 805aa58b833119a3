"""A client that keeps a single connection per address.

Names are resolved at every connect. Concurrent callers of an address share an attempt. When a
connection ends, its requests fail and the next call dials again. Retries and back-off are left to
callers, which know the meaning of their requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from raftmq.ops.connect import dial, within

from .acl.signature import Credentials
from .address import parse_address
from .command import RemotingCommand
from .connection import (
    CloseCallback,
    Connection,
    ConnectionLimits,
    Handler,
    RawHandler,
)
from .errors import ConnectError, SendTimeout, TooManyRequests
from .tls import Renewed, tls_reason

LOG = logging.getLogger("raftmq.remoting")

CONNECT_TIMEOUT_MS = 3_000.0
CONNECTIONS_MAX = 4_096


class RemotingClient:
    """A cache of connections by address text `host:port`."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        limits: ConnectionLimits | None = None,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
        connections_max: int = CONNECTIONS_MAX,
        on_raw: RawHandler | None = None,
        credentials: Credentials | None = None,
        tls: Renewed | None = None,
        reached_at: Mapping[str, str] | None = None,
    ) -> None:
        """`credentials` sign every request; `tls` is the context of all connections. Both may be
        None. `reached_at` maps addresses to the addresses to dial from here."""
        self._tls = tls
        self._reached_at = dict(reached_at or {})
        self._credentials = credentials
        self._handlers: dict[int, Handler] = dict(handlers or {})
        self._limits = limits or ConnectionLimits()
        self._connect_timeout_ms = connect_timeout_ms
        self._connections_max = connections_max
        self._on_raw = on_raw
        self._open: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Task[Connection]] = {}
        self._alive: set[Connection] = set()  # also closing connections
        self._close_callbacks: list[CloseCallback] = []
        self._closed = False

    def register(self, code: int, handler: Handler) -> None:
        """Serve requests of this code from peers, over dialled connections."""
        self._handlers[int(code)] = handler

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(connection, reason)` for every connection that ends from now on."""
        self._close_callbacks.append(callback)

    def connection(self, address: str) -> Connection | None:
        """Return the open connection to `address`, if any, without waiting."""
        connection = self._open.get(address)
        return connection if connection is not None and connection.is_open else None

    async def connect(self, address: str) -> Connection:
        """Return the connection to `address`, or dial. Raises ConnectError, TooManyRequests."""
        connection = self.connection(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectError("this client is closed")
        task = self._dialling.get(address)
        if task is None:
            if len(self._open) + len(self._dialling) >= self._connections_max:
                raise TooManyRequests(f"{self._connections_max} connections are open already")
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[address] = task
            task.add_done_callback(lambda done: self._dialled(address, done))
        await asyncio.wait((task,))  # does not cancel the task, which other callers may share
        if task.cancelled():
            raise ConnectError(f"connecting to {address}: this client was closed")
        return task.result()

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float = 3_000
    ) -> RemotingCommand:
        """Send a request and wait for its response; `timeout_ms` includes connecting. Raises
        ConnectError, SendTimeout, ConnectionLost, TooManyRequests."""
        connection = self.connection(address)
        if connection is None:
            loop = asyncio.get_running_loop()
            started_s = loop.time()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    connection = await self.connect(address)
            except TimeoutError as error:
                raise SendTimeout(f"no connection to {address} in {timeout_ms} ms") from error
            timeout_ms = max(1.0, timeout_ms - (loop.time() - started_s) * 1000)
        return await connection.invoke(command, timeout_ms)

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a one-way request. Raises ConnectError, TooManyRequests."""
        (await self.connect(address)).invoke_oneway(command)

    async def close(self) -> None:
        """Close everything; waiting requests fail with ConnectionLost."""
        self._closed = True
        dialling = list(self._dialling.values())
        for task in dialling:
            task.cancel()
        if dialling:
            await asyncio.gather(*dialling, return_exceptions=True)
        connections = list(self._alive)
        for connection in connections:
            connection.close("client closes")
        for connection in connections:
            await connection.wait_closed()

    async def _dial(self, address: str) -> Connection:
        host, port = parse_address(self._reached_at.get(address, address))
        connection = Connection(
            self._handlers,
            self._limits,
            self._on_raw,
            address=address,
            credentials=self._credentials,
        )
        context = None if self._tls is None else self._tls.context
        try:
            async with within(self._connect_timeout_ms):
                await dial(lambda: connection, host, port, context)
        except OSError as error:  # TimeoutError is a subclass
            connection.abort("not connected")
            raise ConnectError(f"connecting to {address}: {tls_reason(error)}") from error
        except asyncio.CancelledError:
            connection.abort("connect was cancelled")
            raise
        self._open[address] = connection
        self._alive.add(connection)
        connection.on_close(self._connection_closed)
        return connection

    def _dialled(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._dialling[address]
        if not task.cancelled() and task.exception() is not None:
            # Waiting callers get the error; the log line is for the case without callers.
            LOG.info("connect_failed address=%s error=%s", address, task.exception())

    def _connection_closed(self, connection: Connection, reason: str) -> None:
        self._alive.discard(connection)
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        for callback in self._close_callbacks:
            callback(connection, reason)
