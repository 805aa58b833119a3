"""Connects to peers and keeps one connection per address. Shell.

Names are resolved at every connect. Callers that want the same address at the same time share one
attempt. A connection that ends is forgotten (and its requests fail at once); the next call dials
again. There is no retry and no back-off here: that is up to the caller, who knows what a request
means.
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
        None. `reached_at`: the addresses that are dialled at another one from here."""
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
        self._alive: set[Connection] = set()  # also those that are closing
        self._close_callbacks: list[CloseCallback] = []
        self._closed = False

    def register(self, code: int, handler: Handler) -> None:
        """Serve requests of this code that peers send us over connections we dialled."""
        self._handlers[int(code)] = handler

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(connection, reason)` for every connection that ends from now on.

        The connection's `address` says which one it was.
        """
        self._close_callbacks.append(callback)

    def connection(self, address: str) -> Connection | None:
        """Return the open connection to `address`, if there is one, without waiting."""
        connection = self._open.get(address)
        return connection if connection is not None and connection.is_open else None

    async def connect(self, address: str) -> Connection:
        """Return the open connection to `address`, dialling if need be. Raises ConnectError,
        TooManyRequests."""
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
        await asyncio.wait((task,))  # does not cancel it: others may wait for it too
        if task.cancelled():
            raise ConnectError(f"connecting to {address}: this client was closed")
        return task.result()

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float = 3_000
    ) -> RemotingCommand:
        """Send a request and wait for its response; `timeout_ms` includes connecting.

        Raises ConnectError, SendTimeout, ConnectionLost, TooManyRequests.
        """
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
        """Send a request that wants no answer. Raises ConnectError, TooManyRequests."""
        (await self.connect(address)).invoke_oneway(command)

    async def close(self) -> None:
        """Close everything; requests that still wait fail with ConnectionLost."""
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
        except OSError as error:  # TimeoutError is one
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
            # Callers who wait get the same error; the log line is for when none waits any more.
            LOG.info("connect_failed address=%s error=%s", address, task.exception())

    def _connection_closed(self, connection: Connection, reason: str) -> None:
        self._alive.discard(connection)
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        for callback in self._close_callbacks:
            callback(connection, reason)
