"""A server that accepts connections and keeps the set of them.

All connections share the handlers by request code, the raw handler if the owner has a fast path,
the limits, and the budgets of the process. A misbehaving peer loses only its own connection. A full
server closes a connection for each new connection (ops.fairness), so that holders cannot lock out
new clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftmq.ops.fairness import Evictor
from raftmq.ops.listening import PlainListening, listen_plain

from .connection import (
    FROM_PEER,
    CloseCallback,
    Connection,
    ConnectionLimits,
    Handler,
    RawHandler,
)
from .fair_scheduling import Turns, Watch
from .memory_limits import Budgets
from .tls import TlsMode
from .tls_listener import ArrivalCounts, TlsListener, TlsPolicy

LOG = logging.getLogger("raftmq.remoting")

BUDGET_SWEEP_S = 1.0  # an overdue frame is detected with this delay at most
IDLE_SWEEPS_PER_TIMEOUT = 4  # an idle connection is closed at most a quarter late


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server. Above `connections_max` a connection is closed for each new
    connection."""

    connections_max: int = 20_000
    idle_timeout_s: float = 120.0  # without read or write, as Apache's; 0 means never
    backlog: int = 1024  # also the number of connections accepted before the first can be closed


class RemotingServer:
    """A listener; `connections` are open."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        limits: ConnectionLimits | None = None,
        server_limits: ServerLimits | None = None,
        on_raw: RawHandler | None = None,
        on_connection_closed: CloseCallback | None = None,
        tls: TlsPolicy | None = None,
        budgets: Budgets | None = None,
        on_held: Callable[[int], object] = lambda held_bytes: None,
        with_accounts: bool = False,
    ) -> None:
        """With `tls` None only plain connections are accepted. `budgets` are the process's, for
        several servers. `on_held` is called about once per second with the bytes held for peers.
        With `with_accounts`, handlers set a connection's `has_account` after an accepted request.
        """
        self.budgets = budgets or Budgets()
        self.watch = Watch()
        self._on_held = on_held
        self._stopping = False
        self.connections: set[Connection] = set()
        self.connections_max = (server_limits or ServerLimits()).connections_max  # may be changed
        self.refused_count = 0  # connections closed for new connections
        self.accepted_count = 0
        self._evictor: Evictor[Connection] = Evictor(with_accounts=with_accounts)
        self._closed_bytes = [0, 0]  # received and sent by ended connections
        self._handlers: dict[int, Handler] = dict(handlers or {})
        self._limits = limits or ConnectionLimits()
        self._server_limits = server_limits or ServerLimits()
        self._on_raw = on_raw
        self._on_connection_closed = on_connection_closed
        self._tls = None if tls is None or tls.mode is TlsMode.DISABLED else tls
        self._turns: Turns | None = None
        self._listeners: list[PlainListening | TlsListener] = []  # for the same clients
        self._idle_timer: asyncio.TimerHandle | None = None
        self._budget_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        assert self._listeners, "not started"
        return int(self._listeners[0].sockets[0].getsockname()[1])

    @property
    def arrivals(self) -> ArrivalCounts | None:
        return None if self._tls is None else self._tls.counts

    @property
    def traffic_bytes(self) -> tuple[int, int]:
        """Return the bytes (received, sent) since the start, over all connections."""
        received, sent = self._closed_bytes
        for connection in self.connections:
            received += connection.received_bytes
            sent += connection.sent_bytes
        return received, sent

    async def start(
        self, host: str = "0.0.0.0", port: int = 0, bound: socket.socket | None = None
    ) -> None:
        """Listen, on `bound` if given. Raises OSError if the address is in use or not ours."""
        assert not self._listeners, "started already"
        self._stopping = False
        self._turns = Turns(asyncio.get_running_loop(), watch=self.watch)
        self._listeners.append(await self._listen(host, port, bound))
        self._schedule_idle_sweep()
        self._sweep_budgets()

    async def listen_also(self, host: str, port: int) -> None:
        """Listen on an additional port, served like the first. Raises OSError."""
        assert self._listeners, "not started"
        self._listeners.append(await self._listen(host, port, None))

    async def stop(self, grace_s: float = 2.0) -> None:
        """Stop listening, close every connection orderly, and abort slow ones."""
        if not self._listeners:
            return
        self._stopping = True
        for timer in (self._idle_timer, self._budget_timer):
            if timer is not None:
                timer.cancel()
        for listener in self._listeners:
            listener.close()
        open_connections = list(self.connections)
        for connection in open_connections:
            connection.close("server stops")
        waits = [asyncio.ensure_future(c.wait_closed()) for c in open_connections]
        if waits:
            await asyncio.wait(waits, timeout=grace_s)
            for connection in open_connections:
                connection.abort("server stops")
            await asyncio.gather(*waits)
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()

    async def _listen(
        self, host: str, port: int, bound: socket.socket | None
    ) -> PlainListening | TlsListener:
        backlog = self._server_limits.backlog
        if self._tls is not None:
            listener = TlsListener(self._accept, self._tls)
            await listener.listen(host, port, bound=bound, backlog=backlog)
            return listener
        return await listen_plain(self._accept, host, port, bound, backlog)

    def _accept(self) -> Connection:
        return Connection(
            self._handlers,
            self._limits,
            self._on_raw,
            on_accepted=self._opened,
            budgets=self.budgets,
            turns=self._turns,
        )

    def _opened(self, connection: Connection) -> None:
        if self._stopping:  # accepted just before the port was closed, and unknown to `stop`
            connection.abort("server stops")
            return
        if len(self.connections) >= self.connections_max:
            self._evict()
        self.connections.add(connection)
        self._evictor.added(connection)
        self.accepted_count += 1
        connection.on_close(self._closed)
        if self._on_connection_closed is not None:
            connection.on_close(self._on_connection_closed)

    def _evict(self) -> None:
        self.refused_count += 1
        total = self.refused_count
        if total & (total - 1) == 0:  # 1, 2, 4, 8, …, against floods
            LOG.warning("connection_abandoned total=%d reason=too_many", total, extra=FROM_PEER)
        evicted = self._evictor.choose(self.connections_max)
        if evicted is not None:
            evicted.abort("too many connections")

    def _closed(self, connection: Connection, _: str) -> None:
        self._closed_bytes[0] += connection.received_bytes
        self._closed_bytes[1] += connection.sent_bytes
        self.connections.discard(connection)
        self._evictor.removed(connection)

    def _schedule_idle_sweep(self) -> None:
        timeout_s = self._server_limits.idle_timeout_s
        if timeout_s > 0:
            loop = asyncio.get_running_loop()
            delay_s = timeout_s / IDLE_SWEEPS_PER_TIMEOUT
            self._idle_timer = loop.call_later(delay_s, self._sweep_idle)

    def _sweep_idle(self) -> None:
        earliest_s = asyncio.get_running_loop().time() - self._server_limits.idle_timeout_s
        for connection in list(self.connections):
            if connection.last_active_s < earliest_s:
                connection.abort("idle")
        self._schedule_idle_sweep()

    def _sweep_budgets(self) -> None:
        loop = asyncio.get_running_loop()
        self._budget_timer = loop.call_later(BUDGET_SWEEP_S, self._sweep_budgets)
        self.budgets.expire(loop.time())
        self._on_held(self.budgets.held_bytes)
